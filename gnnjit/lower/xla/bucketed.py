"""Degree-bucketed XLA: pieces of rows of similar degree, a loop over their k-th edges.

XLA fuses the gather, the edge function and the reduction of each step into one loop over the
pieces of a class, so nothing of edges x features is ever written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from gnnjit.graph.degree_buckets import Buckets
from gnnjit.ir.evaluate import evaluate_element
from gnnjit.ir.program import Reduce
from gnnjit.ir.space import Space
from gnnjit.lower.lowering import LoweringRequest
from gnnjit.lower.xla import segment
from gnnjit.lower.xla.segment import accumulator_dtype, neutral

UNROLL = 8


def why_not(request: LoweringRequest) -> list[str]:
    """Reasons against this lowering; none means that it runs."""
    reasons, reductions = segment.why_not(request), request.reductions
    if request.structure.buckets is None:
        reasons.append("the graph has no degree buckets (traced or padded edges, or a CPU)")
    if any(r is None for r in reductions):
        reasons.append("an output stays on the edges")
    if any(r is not None and r.into is Space.SHARED for r in reductions):
        reasons.append("an output is reduced over all edges")
    if any(e.op.name == "dot_general" for e in request.body.equations):
        reasons.append("a matmul on the edges runs better over many edges at once")
    return reasons


def run(request: LoweringRequest, operands: Sequence[Any]) -> list[Any]:
    traversal = _BucketLoops(request, list(operands))
    parts = [traversal.bucket(*c) for c in _classes(request.structure.buckets)]
    return [traversal.combine([p[k] for p in parts], k) for k in range(len(request.reductions))]


def _classes(buckets: Buckets) -> Iterator[tuple[slice, int]]:
    """The pieces of each class, and its width."""
    at = 0
    for count, width in buckets.classes:
        yield slice(at, at + count), width
        at += count


class _BucketLoops:
    def __init__(self, request: LoweringRequest, operands: list[Any]):
        self.body, self.rows, self.structure = request.body, request.rows, request.structure
        self.reductions = [r for r in request.reductions if r is not None]
        self.operands = operands
        self.dtypes = [accumulator_dtype(o.dtype) for o in self.body.outputs]

    def bucket(self, pieces: slice, width: int) -> list[Any]:
        """The reductions of the pieces of one class: `[pieces, *shape]` each."""
        buckets = self.structure.buckets
        row, start, length = (x[pieces] for x in (buckets.row, buckets.start, buckets.length))
        near = [
            x[row] if v.space is self.rows else None
            for x, v in zip(self.operands, self.body.inputs, strict=True)
        ]
        first = [
            jnp.full((row.shape[0], *o.shape), neutral(r, d), d)
            for o, r, d in zip(self.body.outputs, self.reductions, self.dtypes, strict=True)
        ]

        def step(k: Any, totals: list[Any]) -> list[Any]:
            values = self.values(near, start + jnp.minimum(k, length - 1), row.shape[0])
            return [
                _add(t, x, r, k < length)
                for t, x, r in zip(totals, values, self.reductions, strict=True)
            ]

        return _loop(width, step, first)

    def values(self, near: list[Any], slot: Any, count: int) -> list[Any]:
        args, axes = [], []
        for x, v, held in zip(self.operands, self.body.inputs, near, strict=True):
            axes.append(None if v.space is Space.SHARED else 0)
            if v.space is Space.SHARED:
                args.append(x)
            elif v.space is self.rows:
                args.append(held)
            elif v.space is Space.EDGE:
                args.append(x[self.structure.edge[slot]])
            else:
                args.append(x[self.structure.neighbor[slot]])
        if all(a is None for a in axes):
            outs = evaluate_element(self.body, args)
            return [jnp.broadcast_to(o, (count, *jnp.shape(o))) for o in outs]
        return jax.vmap(lambda *xs: evaluate_element(self.body, xs), in_axes=axes)(*args)

    def combine(self, parts: list[Any], k: int) -> Any:
        """Rows from pieces: the hubs' in a second, fixed-order step."""
        buckets, atom, r = self.structure.buckets, self.body.outputs[k], self.reductions[k]
        empty = jnp.zeros((1, *atom.shape), self.dtypes[k])
        pieces = jnp.concatenate([*parts, empty])
        hubs = [] if buckets.hubs is None else [_hub_rows(pieces, buckets, r)]
        return jnp.concatenate([pieces, *hubs])[buckets.piece_of_row].astype(atom.dtype)


def _hub_rows(pieces: Any, buckets: Buckets, reduction: Reduce) -> Any:
    """The rows that are cut into pieces, `[hubs, *shape]`: the loops of the first step again, with
    pieces in place of edges, so no buffer is larger than one row per hub."""
    hubs = buckets.hubs
    assert hubs is not None
    rows = []
    for some, width in _classes(hubs):
        start, length = hubs.start[some], hubs.length[some]

        def step(k: Any, total: Any, start: Any = start, length: Any = length) -> Any:
            at = buckets.hub_pieces[start + jnp.minimum(k, length - 1)]
            return _add(total, pieces[at], reduction, k < length)

        shape = (start.shape[0], *pieces.shape[1:])
        first = jnp.full(shape, neutral(reduction, pieces.dtype), pieces.dtype)
        rows.append(_loop(width, step, first))
    return jnp.concatenate(rows)[hubs.piece_of_row]


def _loop(width: int, step: Callable[[Any, Any], Any], first: Any) -> Any:
    """`step(k, state)` for each k below `width`, written out where that is short."""
    if width > UNROLL:
        return lax.fori_loop(0, width, step, first, unroll=UNROLL)
    for k in range(width):
        first = step(k, first)
    return first


def _add(total: Any, x: Any, reduction: Reduce, keep: Any) -> Any:
    x = x.astype(total.dtype)
    keep = keep.reshape((-1,) + (1,) * (x.ndim - 1))
    x = jnp.where(keep, x, neutral(reduction, total.dtype))
    how = {"sum": jnp.add, "max": jnp.maximum, "min": jnp.minimum, "prod": jnp.multiply}
    return how[reduction.kind](total, x)
