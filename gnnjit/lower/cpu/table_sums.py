"""Large sums of rows of tables, apart from the traversal that they come from.

    dw[r] = sum over the edges that pick row r of x[u] dy[v]^T

is the gradient of `w` in `x[u] @ w[r]`. In the order of vertices each task would need a table of
its own. So the edges are sorted by the row that they pick, in linear time, and are traversed in
that order: each row of the table has one owner, and large ones are cut as hubs are.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.ir.evaluate import evaluate_element
from gnnjit.ir.program import Atom, Equation, Program, Reduce, remembered
from gnnjit.ir.space import Space
from gnnjit.ir.tables import RowSum, TableRows, row_sums
from gnnjit.lower.cpu.spec import INT32, MAX_OUTER, CodeConfig, Spec, factors_of, unspread
from gnnjit.lower.lowering import LoweringRequest, Reductions

LARGE = 16 * 16
"""Scalars of an outer product, at least, whose sums are taken apart."""


class GroupStructure(NamedTuple):
    """Edges sorted by group: the first slot of each group, and source, number and destination of
    the edge in each slot."""

    indptr: Any
    neighbor: Any
    edge: Any
    other: Any


@dataclasses.dataclass(frozen=True, eq=False)
class GroupedSum:
    """What edges add to one row of a table each.

    body: gives it; its inputs are the inputs `operands` of the whole edge function.
    index: gives the numbers of `rows.index`; its inputs are `index_operands`.
    """

    rows: TableRows
    body: Program
    operands: tuple[int, ...]
    index: Program
    index_operands: tuple[int, ...]

    def spec(self, config: CodeConfig) -> Spec:
        return Spec(self.body, REDUCTIONS, Space.GRAPH, INT32, config)

    @property
    def count(self) -> int:
        """Rows of the table."""
        return math.prod(self.rows.lengths)


REDUCTIONS: Reductions = (Reduce("sum", Space.GRAPH),)
"""Of a `GroupedSum`."""


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """A traversal without such sums.

    body, reductions: what is left, its inputs the inputs `operands` of the whole; None where
        nothing is. kept: the numbers of its outputs.
    sums: per number of an output, what adds up to it.
    """

    body: Program | None
    reductions: Reductions
    operands: tuple[int, ...]
    kept: tuple[int, ...]
    sums: Mapping[int, tuple[GroupedSum, ...]]


def split(body: Program, reductions: Reductions) -> Split | None:
    """None where there are no such sums."""
    if Reduce("sum", Space.SHARED) not in reductions:
        return None
    found = _grouped(body)
    sums = {n: some for n, some in found.items() if reductions[n] == Reduce("sum", Space.SHARED)}
    if not sums:
        return None
    kept = tuple(n for n in range(len(reductions)) if n not in sums)
    rest, slots = body.select(kept)
    left = tuple(reductions[n] for n in kept)
    return Split(rest if kept else None, left, slots, kept, sums)


@remembered
def _grouped(body: Program) -> dict[int, tuple[GroupedSum, ...]]:
    """The outputs that are such sums if they are summed over all edges, by number."""
    makers: dict[Any, Equation] = {o: e for e in body.equations for o in e.outputs}
    every = row_sums(body, (Reduce("sum", Space.SHARED),) * len(body.outputs))
    found = {}
    for number, parts in every.items():
        values = [_addend(one, makers) for one in parts]
        if all(v is not None for v in values):
            pairs = zip(parts, values, strict=True)
            found[number] = tuple(_sum(body, one.rows, v) for one, v in pairs if v is not None)
    return found


def _addend(one: RowSum, makers: Mapping[Any, Equation]) -> Atom | None:
    """What an edge adds to a row; None where it is small, or no sum of outer products."""
    rows = one.rows
    value = unspread(one.update, makers)
    if math.prod(rows.batch) != 1 or not all(a.dtype.kind in "iu" for a in rows.index):
        return None
    if value.dtype not in (np.float32, np.float64) or value.space is Space.SHARED:
        return None
    size = math.prod(value.shape)
    large = LARGE <= size <= MAX_OUTER and factors_of(value, makers)
    return value if large and size == math.prod(rows.row) else None


def _sum(body: Program, rows: TableRows, value: Atom) -> GroupedSum:
    full = dataclasses.replace(body, outputs=(value, *rows.index))
    own, operands = full.select([0])
    index, index_operands = full.select(range(1, 1 + len(rows.index)))
    return GroupedSum(rows, own, operands, index, index_operands)


def sort(request: LoweringRequest, one: GroupedSum, operands: Sequence[Any], sort: Any) -> Any:
    """The edges by the row of the table that they pick; those that pick none are left out.

    sort: `kernel.sort`.
    """
    structure = request.structure
    edge, far = structure.edge, structure.neighbor
    near = request.row_of_edge[edge]
    at = {request.rows: near, request.rows.flipped: far, Space.EDGE: edge}
    given = [operands[k] for k in one.index_operands]
    pairs = zip(given, one.index.inputs, strict=True)
    read = [x if v.space is Space.SHARED else x[at[v.space]] for x, v in pairs]
    axes = [None if v.space is Space.SHARED else 0 for v in one.index.inputs]
    index = list(jax.vmap(lambda *xs: evaluate_element(one.index, xs), in_axes=axes)(*read))
    number, inside = one.rows.number(index)
    keep = jnp.arange(edge.shape[0], dtype=edge.dtype) < structure.indptr[-1]
    keep = keep if inside is None else keep & inside.reshape(edge.shape)
    key = jnp.where(keep, number.reshape(edge.shape), one.count).astype(far.dtype)
    indptr, far, slot = sort(key, far, one.count)
    near, edge = near[slot].astype(far.dtype), edge[slot]
    ends = (far, near) if request.rows is Space.DST else (near, far)
    return GroupStructure(indptr, ends[0], edge, ends[1])
