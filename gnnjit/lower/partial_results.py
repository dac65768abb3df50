"""Partial results of aggregates, chunk by chunk.

They merge by their reduction: sums add, products multiply; maxima and minima compare, where a row
has edges in the chunk; `exp_sum` carries the maximum it is shifted by, and rescales (online
softmax). Sums of half precision stay in float32 until the end (`wide_sums`). The order of the
chunks is fixed, so that runs are equal bit for bit; a sum of sums differs from one sum in its last
bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.ir import build
from gnnjit.ir.dtypes import is_half
from gnnjit.ir.evaluate import finite_or_zero
from gnnjit.ir.program import Aggregate, Equation, Program, Reduce, Value
from gnnjit.ir.space import Space


def lowest(dtype: Any) -> Any:
    """Below every number of a dtype, or equal to one."""
    if jnp.issubdtype(dtype, jnp.floating):
        return -jnp.inf
    return False if dtype == jnp.bool_ else jnp.iinfo(dtype).min


def highest(dtype: Any) -> Any:
    """Above every number of a dtype, or equal to one."""
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.inf
    return True if dtype == jnp.bool_ else jnp.iinfo(dtype).max


NEUTRAL = {"max": lowest, "min": highest, "prod": lambda dtype: 1}
"""What rows without edges have, by the reductions whose result there is another number, 0."""

BOTH = {"sum": jnp.add, "max": jnp.maximum, "min": jnp.minimum, "prod": jnp.multiply}
"""Two partial results as one."""


def partial_shapes(op: Aggregate, rows: int) -> list[jax.ShapeDtypeStruct]:
    """The shapes of partial results: one array for each output that is not left on the edges, and
    the number of edges of each row where that matters."""
    shapes = [
        jax.ShapeDtypeStruct(
            tuple(atom.shape) if r.into is Space.SHARED else (rows, *atom.shape), atom.dtype
        )
        for atom, r in zip(op.body.outputs, op.reductions, strict=True)
        if r is not None
    ]
    return [*shapes, jax.ShapeDtypeStruct((rows,), np.int32)] if _counts(op) else shapes


def empty(op: Aggregate, rows: int, numpy: Any = np) -> list[Any]:
    """Partial results without any edge, as arrays of `numpy`."""
    kinds = [r.kind for r in op.reductions if r is not None]
    return [
        numpy.full(x.shape, NEUTRAL[kind](x.dtype) if kind in NEUTRAL else 0, x.dtype)
        for kind, x in itertools.zip_longest(kinds, partial_shapes(op, rows))
    ]


def wide_sums(op: Aggregate) -> Aggregate:
    """The aggregate with sums of half precision left in float32, for whoever adds to them; the
    last one rounds."""
    body = op.body
    equations, outputs = list(body.equations), list(body.outputs)
    for k, (atom, r) in enumerate(zip(body.outputs, op.reductions, strict=True)):
        if r is not None and r.kind in ("sum", "exp_sum") and is_half(atom.dtype):
            wide = Value(tuple(atom.shape), np.dtype(np.float32), atom.space)
            equations.append(Equation(build.convert_op(np.float32), (atom,), (wide,)))
            outputs[k] = wide
    program = Program(body.inputs, tuple(equations), tuple(outputs), body.name)
    return Aggregate(program, op.reductions)


def _counts(op: Aggregate) -> bool:
    return any(r is not None and r.kind in NEUTRAL for r in op.reductions)


def first(op: Aggregate, outs: Sequence[Any], degree: Any) -> list[Any]:
    """Partial results of one chunk: what `merge` makes of `empty` and it, without its work."""
    reduced = [(x, r) for x, r in zip(outs, op.reductions, strict=True) if r is not None]
    found = [x if r.kind == "exp_sum" else merged(r, None, x, degree) for x, r in reduced]
    return counted(op, found, None, degree)


def merged(r: Reduce, before: Any | None, new: Any, degree: Any) -> Any:
    """A sum or an extreme over the edges of a chunk, with what others had, if any."""
    if r.kind == "sum":
        return new if before is None else before + new
    some = degree.sum() > 0 if r.into is Space.SHARED else _as_column(degree > 0, new)
    if before is None:
        return jnp.where(some, new, jnp.full_like(new, NEUTRAL[r.kind](new.dtype)))
    return jnp.where(some, BOTH[r.kind](before, new), before)


def counted(
    op: Aggregate, found: Sequence[Any], before: Sequence[Any] | None, degree: Any
) -> list[Any]:
    """Partial results with the number of edges of each row, where that matters."""
    if not _counts(op):
        return list(found)
    return [*found, degree if before is None else before[-1] + degree]


def merge(op: Aggregate, before: Sequence[Any], outs: Sequence[Any], degree: Any) -> list[Any]:
    """Partial results, with those of one more chunk."""
    kept = [k for k, r in enumerate(op.reductions) if r is not None]
    old = dict(zip(kept, before, strict=False))
    new = dict(old)
    for k in kept:  # extremes first: what is shifted by them needs both
        r = op.reductions[k]
        assert r is not None
        if r.score is None:
            new[k] = merged(r, old[k], outs[k], degree)
    for k in kept:
        r = op.reductions[k]
        assert r is not None
        if r.score is not None:
            top = new[r.score]
            here = jnp.where(_as_column(degree > 0, top), outs[r.score], -jnp.inf)
            new[k] = rescaled(old[k], old[r.score], top) + rescaled(outs[k], here, top)
    return counted(op, [new[k] for k in kept], before, degree)


def merge_partials(op: Aggregate, before: Sequence[Any], after: Sequence[Any]) -> list[Any]:
    """Partial results over all edges of two sets of chunks, as of one: for aggregates that leave
    nothing on the edges."""
    return merge(op, before, after, after[-1] if _counts(op) else None)


def rescaled(total: Any, top: Any, new: Any) -> Any:
    """A sum of exp(score - shift) that was shifted by `top`, as if it had been by `new`. Where
    `top` is not finite, it was not shifted; if it is -inf, there is nothing to rescale."""
    shift = jnp.where(jnp.isfinite(top), top, jnp.where(top == -jnp.inf, new, 0))
    factor = jnp.exp(finite_or_zero(shift) - finite_or_zero(new)).astype(total.dtype)
    return total * factor.reshape(factor.shape + (1,) * (total.ndim - factor.ndim))


def finish(op: Aggregate, partial: Sequence[Any]) -> list[Any]:
    """The outputs, from partial results of all chunks: 0 in rows without edges. What is left on
    the edges is not there (None)."""
    found: list[Any] = []
    values = iter(partial)
    for r in op.reductions:
        if r is None:
            found.append(None)
            continue
        x = next(values)
        if r.kind in NEUTRAL:
            degree = partial[-1]
            some = degree.sum() > 0 if r.into is Space.SHARED else _as_column(degree > 0, x)
            x = jnp.where(some, x, jnp.zeros_like(x))
        found.append(x)
    return found


def _as_column(rows: Any, like: Any) -> Any:
    return rows.reshape((-1,) + (1,) * (like.ndim - 1))
