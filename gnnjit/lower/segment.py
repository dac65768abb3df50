"""The lowering that can do everything: edges in sorted order, in chunks of bounded size.

Works for traced structure and any edge function, matmuls on the edges included; no buffer is
larger than `CHUNK_SCALARS` scalars or one row per vertex.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gnnjit.graph import Graph
from gnnjit.graph.structure import Structure
from gnnjit.ir.evaluate import evaluate_element
from gnnjit.ir.interpret import extreme
from gnnjit.ir.program import Program, Reduce
from gnnjit.ir.space import Space
from gnnjit.lower.execute import size

CHUNK_SCALARS = 1 << 20


def accumulator_dtype(dtype: Any) -> Any:
    """Half precision is summed in float32."""
    return jnp.float32 if dtype in (jnp.bfloat16, jnp.float16) else dtype


def neutral(reduction: Reduce, dtype: Any) -> Any:
    if reduction.kind == "sum":
        return jnp.zeros((), dtype)
    return extreme(dtype, -1 if reduction.kind == "max" else 1)


def chunk_size(body: Program, num_edges: int) -> int:
    """Edges a step, so that its largest value has at most `CHUNK_SCALARS` scalars."""
    widest = max([1, *(v.size for v in body.values())])
    return int(np.clip(CHUNK_SCALARS // widest, 1, max(num_edges, 1)))


def why_not(reductions: Sequence[Reduce | None]) -> list[str]:
    """Reasons against this lowering; empty if it applies."""
    if any(r is not None and r.kind == "exp_sum" for r in reductions):
        return ["an exp_sum is not written out as maximum, exponential and sum"]
    return []


def run(
    body: Program,
    reductions: Sequence[Reduce | None],
    rows: Space,
    graph: Graph,
    operands: Sequence[Any],
) -> list[Any]:
    """The outputs of one traversal over the rows of `rows`."""
    structure = graph.in_structure if rows is Space.DST else graph.out_structure
    chunk = chunk_size(body, graph.num_edges)
    step = _Step(body, tuple(reductions), rows, graph, structure, list(operands), chunk)
    start = step.accumulators()
    count = -(-graph.num_edges // chunk)
    if count <= 1:
        state, written = step(start, 0)
        stacked = [w[None] for w in written]
    else:
        state, stacked = lax.scan(step, start, jnp.arange(count, dtype=structure.indptr.dtype))
    return step.finish(state, stacked)


class _Step:
    def __init__(
        self,
        body: Program,
        reductions: tuple[Reduce | None, ...],
        rows: Space,
        graph: Graph,
        structure: Structure,
        operands: list[Any],
        chunk: int,
    ):
        self.body, self.reductions, self.rows, self.chunk = body, reductions, rows, chunk
        self.graph, self.structure, self.operands = graph, structure, operands
        self.row_of_edge = graph.dst if rows is Space.DST else graph.src

    def accumulators(self) -> list[Any]:
        out = []
        for atom, r in zip(self.body.outputs, self.reductions, strict=True):
            if r is None:
                continue
            dtype = accumulator_dtype(atom.dtype)
            n = 1 if r.into is Space.SHARED else size(self.graph, r.into)
            out.append(jnp.full((n, *atom.shape), neutral(r, dtype), dtype))
        return out

    def __call__(self, state: list[Any], number: Any) -> tuple[list[Any], list[Any]]:
        first = number * self.chunk
        last = self.graph.num_edges - 1
        slot = first + jnp.arange(self.chunk, dtype=self.structure.indptr.dtype)
        valid = slot < self.structure.indptr[-1]
        slot = jnp.minimum(slot, max(last, 0))
        if self.graph.num_edges == 0:
            return state, [
                jnp.zeros((self.chunk, *a.shape), a.dtype)
                for a, r in zip(self.body.outputs, self.reductions, strict=True)
                if r is None
            ]
        values = self.values(slot, valid)
        some = iter(state)
        new, written = [], []
        for x, r in zip(values, self.reductions, strict=True):
            if r is None:
                written.append(_mask(x, valid, 0))
            else:
                new.append(self.reduce(next(some), x, r, slot, valid))
        return new, written

    def values(self, slot: Any, valid: Any) -> list[Any]:
        edge = self.structure.edge[slot]
        row = jnp.where(valid, self.row_of_edge[edge], 0)
        near, far = self.rows, self.rows.flipped
        index = {near: row, far: self.structure.neighbor[slot], Space.EDGE: edge}
        args, axes = [], []
        for x, v in zip(self.operands, self.body.inputs, strict=True):
            shared = v.space is Space.SHARED
            args.append(x if shared else x[index[v.space]])
            axes.append(None if shared else 0)
        if all(a is None for a in axes):
            outs = evaluate_element(self.body, args)
            return [jnp.broadcast_to(o, (self.chunk, *jnp.shape(o))) for o in outs]
        return jax.vmap(lambda *xs: evaluate_element(self.body, xs), in_axes=axes)(*args)

    def reduce(self, total: Any, x: Any, r: Reduce, slot: Any, valid: Any) -> Any:
        x = _mask(x.astype(total.dtype), valid, neutral(r, total.dtype))
        if r.into is Space.SHARED:
            whole = {"sum": jnp.sum, "max": jnp.max, "min": jnp.min}[r.kind](x, axis=0)
            pair = jnp.stack([total[0], whole])
            return {"sum": jnp.sum, "max": jnp.max, "min": jnp.min}[r.kind](pair, axis=0)[None]
        ids = self.row_of_edge[self.structure.edge[slot]]
        ids = jnp.where(valid, ids, total.shape[0])
        at = total.at[ids]
        how = {"sum": at.add, "max": at.max, "min": at.min}[r.kind]
        return how(x, indices_are_sorted=True, mode="drop")

    def finish(self, state: list[Any], stacked: list[Any]) -> list[Any]:
        totals, edges = iter(state), iter(stacked)
        degree = jnp.diff(self.structure.indptr)
        out = []
        for atom, r in zip(self.body.outputs, self.reductions, strict=True):
            if r is None:
                out.append(self.unsort(next(edges), atom.shape))
                continue
            total = next(totals)
            count = self.structure.indptr[-1:] if r.into is Space.SHARED else degree
            if r.kind != "sum":
                total = _mask(total, count > 0, 0)
            total = total.astype(atom.dtype)
            out.append(total[0] if r.into is Space.SHARED else total)
        return out

    def unsort(self, stacked: Any, shape: tuple[int, ...]) -> Any:
        """Values by slot, back in the order in which the edges were given."""
        flat = stacked.reshape(-1, *shape)[: self.graph.num_edges]
        return jnp.zeros_like(flat).at[self.structure.edge].set(flat, unique_indices=True)


def _mask(x: Any, keep: Any, otherwise: Any) -> Any:
    keep = keep.reshape((-1,) + (1,) * (x.ndim - 1))
    return jnp.where(keep, x, jnp.asarray(otherwise, x.dtype))
