"""Dense XLA: the edges of a graph whose destinations all have as many, of consecutive sources.

Such are the schema levels of a hierarchical dependency graph (Wang et al., "FlexGraph" (2021),
section 4.2). Sources are read as `[destinations, fan_in, ...]`, which copies nothing, and reduced
over the second axis. No index is read, and XLA fuses the edge function with its reductions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gnnjit.ir.evaluate import evaluate_element
from gnnjit.ir.program import Reduce
from gnnjit.ir.space import Space
from gnnjit.ir.tables import row_sums
from gnnjit.lower.lowering import LoweringRequest
from gnnjit.lower.xla import segment
from gnnjit.lower.xla.segment import accumulator_dtype, neutral


def why_not(request: LoweringRequest) -> list[str]:
    """Reasons against this lowering; none means that it runs."""
    reasons = segment.why_not(request)
    if request.graph.fan_in is None:
        reasons.append("destinations have different numbers of edges, or sources several")
    if any(e.op.name == "dot_general" and len(e.outputs[0].shape) for e in request.body.equations):
        reasons.append("a matmul on the edges runs better on chunks of them")
    if row_sums(request.body, request.reductions):
        reasons.append("rows of a table are summed over all edges")
    per_edge = [v.size for v in request.body.values() if v.space is not Space.SHARED]
    scalars = request.graph.num_edges * max([1, *per_edge])
    if request.limit is not None and scalars > request.limit:
        reasons.append(
            f"{scalars:,} scalars on all edges are more than the {request.limit:,} allowed"
        )
    if request.partial:
        reasons.append("partial results are asked for")
    return reasons


def run(request: LoweringRequest, operands: Sequence[Any]) -> list[Any]:
    graph, body = request.graph, request.body
    assert graph.fan_in is not None
    shape = graph.num_dst, graph.fan_in
    args, axes = [], []
    for x, v in zip(operands, body.inputs, strict=True):
        if v.space in (Space.SRC, Space.EDGE):
            x = x.reshape(*shape, *x.shape[1:])
        args.append(x)
        axes.append(None if v.space is Space.SHARED else (0, v.space is not Space.DST))
    outer = [None if a is None else 0 for a in axes]
    inner = [0 if a is not None and a[1] else None for a in axes]

    def element(*xs: Any) -> list[Any]:
        return evaluate_element(body, xs)

    def row(*xs: Any) -> list[Any]:
        return element(*xs) if _none(inner) else jax.vmap(element, in_axes=inner)(*xs)

    values = row(*args) if _none(outer) else jax.vmap(row, in_axes=outer)(*args)
    each = zip(values, body.outputs, request.reductions, strict=True)
    return [_reduced(_spread(x, shape, atom, inner, outer), atom, r, shape) for x, atom, r in each]


def _none(axes: Sequence[Any]) -> bool:
    return all(a is None for a in axes)


def _spread(x: Any, shape: Any, atom: Any, inner: Sequence[Any], outer: Sequence[Any]) -> Any:
    """A value of each edge, `[destinations, fan_in, ...]`, of one that may be of fewer."""
    x = jnp.asarray(x)
    if _none(outer):
        x = x[None]
    if _none(inner):
        x = x[:, None]
    return jnp.broadcast_to(x, (*shape, *atom.shape))


def _reduced(x: Any, atom: Any, r: Reduce | None, shape: tuple[int, int]) -> Any:
    count = shape[0] * shape[1]
    if r is None or r.into is Space.SRC:  # each source has one edge
        return x.reshape(count, *atom.shape)
    axis = (0, 1) if r.into is Space.SHARED else 1
    if not count:
        rows = () if r.into is Space.SHARED else shape[:1]
        return jnp.zeros((*rows, *atom.shape), atom.dtype)
    dtype = accumulator_dtype(atom.dtype)
    how = {"sum": jnp.sum, "max": jnp.max, "min": jnp.min, "prod": jnp.prod}[r.kind]
    return how(x.astype(dtype), axis=axis, initial=neutral(r, dtype)).astype(atom.dtype)
