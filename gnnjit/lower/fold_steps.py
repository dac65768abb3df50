"""The steps of a fold, forward and back: loops over blocks of rows.

Rows are taken in blocks of similar degree, so that a block's steps are dense operations and little
is padding; the first rows, among them hubs, in smaller blocks. Degrees need not be known when this
is traced: blocks have fixed sizes, and as many steps as their longest row has edges. Nothing has
the size of rows times the largest degree, and nothing that edges compute is written.

The gradient goes back through the steps (backpropagation through time). Every `KEPT`-th state is
kept, one for each so many edges, and the states in between are computed again.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gnnjit.graph import Graph
from gnnjit.ir.dtypes import is_half, is_inexact
from gnnjit.ir.evaluate import evaluate_element
from gnnjit.ir.program import Fold
from gnnjit.ir.sort_keys import sort_key
from gnnjit.ir.space import Space

KEPT = 32
"""Steps between two states that are kept for the gradient."""

BLOCK, SMALL, FIRST = 128, 8, 1024
"""Rows of a block; of a block among the first rows; and how many these are."""

SCALARS = 1 << 20
"""Scalars of the widest value in a block, at most."""


class Sorted(NamedTuple):
    """Edges in the order in which rows take them, and rows by falling degree.

    edge, neighbor: of each slot. row, start, degree: of each rank: the row, its first slot, its
    number of edges. kept: where its first kept state lies.
    """

    edge: Any
    neighbor: Any
    row: Any
    start: Any
    degree: Any
    kept: Any


def sorted_edges(graph: Graph, op: Fold, order: Any) -> Sorted:
    structure, ends = graph.structure(op.into), graph.dst if op.into is Space.DST else graph.src
    edge, neighbor, rows = structure.edge, structure.neighbor, structure.num_rows
    # Of traced edges, which have a mask, one structure may have the order of the other.
    if order is not None or graph.mask is not None:
        real = jnp.arange(graph.num_edges) < structure.indptr[-1]
        row = jnp.where(real, ends[edge], rows)
        keys = [] if order is None else [sort_key(lax.stop_gradient(order), False)[edge]]
        found = lax.sort((row, *keys, edge, neighbor), num_keys=2 + len(keys))
        edge, neighbor = found[-2:]
    degree = jnp.diff(structure.indptr)
    row = jnp.argsort(-degree, stable=True).astype(edge.dtype)
    degree = degree[row]
    kept = -(-degree // KEPT)
    return Sorted(edge, neighbor, row, structure.indptr[row], degree, jnp.cumsum(kept) - kept)


@dataclasses.dataclass(frozen=True)
class _Part:
    """Ranks `first` to `last - 1` in blocks of `size`; the last block has ranks beyond, which are
    none."""

    first: int
    last: int
    size: int

    @property
    def blocks(self) -> int:
        return -(-(self.last - self.first) // self.size)


def _parts(op: Fold, rows: int) -> list[_Part]:
    widest = max((v.size for v in op.body.values()), default=1)
    most = max(1, SCALARS // max(widest, 1))
    first = min(FIRST, rows)
    parts = [_Part(0, first, min(SMALL, most, first)), _Part(first, rows, min(BLOCK, most))]
    return [p for p in parts if p.blocks]


class _Block:
    """One block of rows: what its lanes read, step by step."""

    def __init__(self, op: Fold, at: Sorted, operands: Sequence[Any], part: _Part, number: Any):
        self.op, self.at, self.operands = op, at, operands
        self.rows = at.row.shape[0]
        rank = part.first + number * part.size + jnp.arange(part.size)
        self.real = rank < part.last
        rank = jnp.minimum(rank, self.rows - 1)
        self.row = at.row[rank]
        self.degree = jnp.where(self.real, at.degree[rank], 0)
        self.start, self.kept = at.start[rank], at.kept[rank]

    @property
    def steps(self) -> Any:
        """Those of its longest row, the first."""
        return self.degree[0]

    def lanes(self, k: Any) -> tuple[Any, Any]:
        """Which rows have a k-th edge, and for each the lane that it computes as: its own, or else
        that of the first row, so that nothing is computed from what nobody asked for."""
        here = k < self.degree
        return here, jnp.where(here, jnp.arange(len(self.degree)), 0)

    def index(self, k: Any) -> dict[Space, Any]:
        """The elements that the k-th edges read."""
        _, lane = self.lanes(k)
        slot = self.start[lane] + k.astype(self.start.dtype)
        near, far = self.op.into, self.op.into.flipped
        return {near: self.row[lane], far: self.at.neighbor[slot], Space.EDGE: self.at.edge[slot]}

    def read(self, k: Any) -> list[Any]:
        index, inputs = self.index(k), self.op.body.inputs[self.op.carried :]
        return [
            x if v.space is Space.SHARED else x[index[v.space]]
            for x, v in zip(self.operands, inputs, strict=True)
        ]

    def evaluate(self, state: Sequence[Any], read: Sequence[Any]) -> list[Any]:
        inputs = self.op.body.inputs[self.op.carried :]
        axes = [0] * len(state) + [None if v.space is Space.SHARED else 0 for v in inputs]
        return jax.vmap(lambda *xs: evaluate_element(self.op.body, xs), in_axes=axes)(*state, *read)

    def step(self, k: Any, state: Sequence[Any]) -> list[Any]:
        """The states after the k-th edges."""
        here, lane = self.lanes(k)
        after = self.evaluate([x[lane] for x in state], self.read(k))
        return [_where(here, new, old) for new, old in zip(after, state, strict=True)]

    def place(self) -> Any:
        """Where results of the rows go; beyond the last for ranks that are none."""
        return jnp.where(self.real, self.row, self.rows)

    def place_of_kept(self, i: Any, count: int) -> Any:
        """Where the states before step `i * KEPT` are kept."""
        return jnp.where(i * KEPT < self.degree, self.kept + i.astype(self.kept.dtype), count)


def forward(
    op: Fold, at: Sorted, start: list[Any], operands: list[Any], keep: bool
) -> tuple[list[Any], list[Any]]:
    """The states at the end, and those that are kept."""
    rows, edges = at.row.shape[0], at.edge.shape[0]
    count = edges // KEPT + min(rows, edges) if keep else 0

    def block(part: _Part, number: Any, state: Any) -> Any:
        ends, kept = state
        here = _Block(op, at, operands, part, number)

        def segment(i: Any, state: Any) -> Any:
            now, kept = state
            place = here.place_of_kept(i, count)
            kept = [x.at[place].set(y, mode="drop") for x, y in zip(kept, now, strict=True)]
            last = jnp.minimum((i + 1) * KEPT, here.steps)
            return lax.fori_loop(i * KEPT, last, here.step, now), kept

        now = [x[here.row] for x in start]
        if keep:
            now, kept = lax.fori_loop(0, -(-here.steps // KEPT), segment, (now, kept))
        else:
            now = lax.fori_loop(jnp.zeros_like(here.steps), here.steps, here.step, now)
        place = here.place()
        return [x.at[place].set(y, mode="drop") for x, y in zip(ends, now, strict=True)], kept

    state = list(start), [jnp.zeros((count, *x.shape[1:]), x.dtype) for x in start if keep]
    for part in _parts(op, rows):
        state = lax.fori_loop(0, part.blocks, functools.partial(block, part), state)
    return state


def backward(
    op: Fold,
    wanted: tuple[int, ...],
    at: Sorted,
    operands: Sequence[Any],
    kept: list[Any],
    cts: Sequence[Any],
) -> tuple[list[Any], list[Any]]:
    """The cotangents of the floating-point states at the start, and of the wanted operands, from
    those of the states at the end."""
    rows = at.row.shape[0]

    def block(part: _Part, number: Any, state: Any) -> Any:
        starts, sums = state
        here = _Block(op, at, operands, part, number)
        segments = -(-here.steps // KEPT)

        def segment(i: Any, state: Any) -> Any:
            return _segment(here, wanted, kept, segments - 1 - i, *state)

        now = [x[here.row] for x in cts]
        now, sums = lax.fori_loop(0, segments, segment, (now, sums))
        place = here.place()
        return [x.at[place].set(y, mode="drop") for x, y in zip(starts, now, strict=True)], sums

    state = list(cts), [_zeros(operands[i]) for i in wanted]
    for part in _parts(op, rows):
        state = lax.fori_loop(0, part.blocks, functools.partial(block, part), state)
    starts, sums = state
    return starts, [x.astype(operands[i].dtype) for i, x in zip(wanted, sums, strict=True)]


def _segment(
    here: _Block, wanted: tuple[int, ...], kept: list[Any], i: Any, cts: list[Any], sums: list[Any]
) -> tuple[list[Any], list[Any]]:
    """The cotangents before `KEPT` steps, from those after them: the states first, again."""
    place = jnp.minimum(here.kept + i.astype(here.kept.dtype), len(kept[0]) - 1)
    now = [x[place] for x in kept]
    first, count = i * KEPT, jnp.minimum(KEPT, here.steps - i * KEPT)

    def again(j: Any, state: Any) -> Any:
        now, tape = state
        tape = [lax.dynamic_update_index_in_dim(t, x, j, 0) for t, x in zip(tape, now, strict=True)]
        return here.step(first + j, now), tape

    tape = [jnp.zeros((KEPT, *x.shape), x.dtype) for x in now]
    _, tape = lax.fori_loop(0, count, again, (now, tape))

    def back(j: Any, state: Any) -> Any:
        j = count - 1 - j
        before = [lax.dynamic_index_in_dim(t, j, 0, keepdims=False) for t in tape]
        return _step_back(here, wanted, first + j, before, *state)

    return lax.fori_loop(0, count, back, (cts, sums))


def _step_back(
    here: _Block,
    wanted: tuple[int, ...],
    k: Any,
    before: list[Any],
    cts: list[Any],
    sums: list[Any],
) -> tuple[list[Any], list[Any]]:
    there, lane = here.lanes(k)
    state, read = [x[lane] for x in before], here.read(k)
    floats = [i for i, x in enumerate(state) if is_inexact(x.dtype)]

    def f(some: list[Any], others: list[Any]) -> list[Any]:
        every, operands = list(state), list(read)
        for i, x in zip(floats, some, strict=True):
            every[i] = x
        for i, x in zip(wanted, others, strict=True):
            operands[i] = x
        after = here.evaluate(every, operands)
        return [after[i] for i in floats]

    _, pull = jax.vjp(f, [state[i] for i in floats], [read[i] for i in wanted])
    masked = [_where(there, ct, jnp.zeros_like(ct)) for ct in cts]
    of_state, of_read = pull(masked)
    index = here.index(k)
    inputs = here.op.body.inputs[here.op.carried :]
    added = [
        _added(total, x, inputs[i].space, index, there)
        for i, total, x in zip(wanted, sums, of_read, strict=True)
    ]
    return [_where(there, x, ct) for x, ct in zip(of_state, cts, strict=True)], added


def _added(total: Any, x: Any, space: Space, index: dict[Space, Any], there: Any) -> Any:
    x = x.astype(total.dtype)
    if space is Space.SHARED:
        return total + x
    return total.at[index[space]].add(_where(there, x, jnp.zeros_like(x)))


def _zeros(x: Any) -> Any:
    """Where a gradient is added up; of half precision in float32."""
    return jnp.zeros(x.shape, jnp.float32 if is_half(x.dtype) else x.dtype)


def _where(rows: Any, x: Any, otherwise: Any) -> Any:
    return jnp.where(rows.reshape(-1, *(1,) * (x.ndim - 1)), x, otherwise)
