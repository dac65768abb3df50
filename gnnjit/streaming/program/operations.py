"""The equations of a function by what kind of work they are on the grid, and what a sweep is."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from gnnjit.errors import StreamError
from gnnjit.ir.array_program import Array, ArrayEquation, ArrayProgram, Operand, Rows
from gnnjit.ir.program import Aggregate
from gnnjit.ir.space import Space
from gnnjit.lower.partial_results import finish, wide_sums
from gnnjit.streaming.program.rowwise import Rule, rule_of

Side = Literal["dst", "src"]


@dataclasses.dataclass(frozen=True, eq=False)
class Gather:
    """An aggregate with some of its outputs: the body of `op` on each edge, reduced into the rows
    of `side` (or over all edges; or left on them).

    eqn, picked: the whole aggregate, and the numbers of the outputs.
    op: sums of half precision are float32 in it.
    inputs: what the body reads, in its order.
    """

    eqn: ArrayEquation
    picked: tuple[int, ...]
    side: Side
    op: Aggregate
    inputs: tuple[Operand, ...]

    @property
    def outputs(self) -> tuple[Array, ...]:
        return tuple(self.eqn.outputs[k] for k in self.picked)

    @property
    def reduced(self) -> tuple[Array, ...]:
        """Those that are not left on the edges."""
        pairs = zip(self.outputs, self.op.reductions, strict=True)
        return tuple(x for x, r in pairs if r is not None)

    @property
    def scored(self) -> bool:
        """Whether the aggregate has an `exp_sum`, picked or not."""
        return any(r is not None and r.score is not None for r in self.eqn.params["reductions"])

    @property
    def limit(self) -> int | None:
        return self.eqn.params["limit"]

    @property
    def where(self) -> str:
        return self.eqn.where

    def finished(self, partial: Sequence[Any]) -> dict[Array, Any]:
        """The outputs, from partial results of all chunks; None for what is left on the edges."""
        found = finish(self.op, partial)
        return {
            x: None if y is None else y.astype(x.dtype)
            for x, y in zip(self.outputs, found, strict=True)
        }

    def operands(self, space: Space) -> list[tuple[int, Operand]]:
        """What is read in a space, and its position."""
        return [
            (i, x)
            for i, (v, x) in enumerate(zip(self.op.body.inputs, self.inputs, strict=True))
            if v.space is space
        ]

    @property
    def own(self) -> Space:
        """The space whose elements own the rows."""
        return Space.DST if self.side == "dst" else Space.SRC

    @property
    def other(self) -> Space:
        return Space.SRC if self.side == "dst" else Space.DST

    @property
    def totals(self) -> bool:
        """Whether its results are sums over all edges."""
        return all(x.rows is None for x in self.outputs)


@dataclasses.dataclass(frozen=True, eq=False)
class _Written:
    """An equation as it is written."""

    eqn: ArrayEquation

    @property
    def inputs(self) -> tuple[Operand, ...]:
        return self.eqn.inputs

    @property
    def outputs(self) -> tuple[Array, ...]:
        return self.eqn.outputs


@dataclasses.dataclass(frozen=True, eq=False)
class RowWise(_Written):
    """An equation with rows: row-wise, or a reduction over all of them."""

    rule: Rule
    rows: Rows

    @property
    def reduces(self) -> bool:
        return self.rule.merge is not None


@dataclasses.dataclass(frozen=True, eq=False)
class Shared(_Written):
    """An equation without rows, done once, between sweeps."""


GridOperation = Gather | RowWise | Shared


@dataclasses.dataclass(frozen=True, eq=False)
class Sweep:
    """What is done in one pass over the blocks.

    Attributes:
        side: whose rows the blocks are, where there are aggregates: "dst" goes by columns of the
            grid, "src" by rows. None: no edges are looked at.
        rows: of what the blocks are: vertices, or edges.
        loads: arrays of which each block reads its own rows.
        stages: for each, the row-wise work and then the aggregates that follow it; the last has
            none.
        stores: arrays whose rows are kept for later sweeps, or are results.
        edge_loads: arrays of edges of which each chunk reads its own rows.
        edge_work: row-wise work on the edges of a chunk, before its aggregates.
    """

    side: Side | None
    rows: Rows
    loads: tuple[Array, ...]
    stages: tuple[tuple[tuple[RowWise, ...], tuple[Gather, ...]], ...]
    stores: tuple[Array, ...]
    edge_loads: tuple[Array, ...] = ()
    edge_work: tuple[RowWise, ...] = ()

    @property
    def gathers(self) -> list[Gather]:
        return [g for _, gathers in self.stages for g in gathers]


@dataclasses.dataclass(frozen=True, eq=False)
class SweepProgram:
    """A function as sweeps, with shared work before each and after the last."""

    function: ArrayProgram
    shared: tuple[tuple[Shared, ...], ...]
    sweeps: tuple[Sweep, ...]


def operations(function: ArrayProgram) -> list[GridOperation]:
    """The equations by what kind of work they are.

    Raises:
        StreamError: one is neither row-wise, nor a reduction, nor an aggregate.
    """
    found: list[GridOperation] = []
    for eqn in function.equations:
        rows = {x.rows for x in (*eqn.inputs, *eqn.outputs)} - {None}
        if eqn.name == "aggregate":
            found.extend(_gathers(eqn))
        elif not rows:
            found.append(Shared(eqn))
        elif len(rows) > 1:
            raise StreamError(
                f"{eqn.where}: {eqn.name} has rows of vertices and of edges, expected one of them: "
                "only a layer brings them together"
            )
        else:
            (which,) = rows
            assert which is not None
            found.append(RowWise(eqn, rule_of(eqn), which))
    return found


def _gathers(eqn: ArrayEquation) -> list[Gather]:
    """An aggregate, once for each space that it reduces into. What it leaves on the edges comes
    with the destinations; sums over all edges too, or with the sources where only these are."""
    homes: dict[Space, list[int]] = {}
    for k, r in enumerate(eqn.params["reductions"]):
        homes.setdefault(Space.DST if r is None else r.into, []).append(k)
    rows = homes.keys() - {Space.SHARED}
    of_all: Side = "src" if rows == {Space.SRC} else "dst"
    sides: dict[Space, Side] = {Space.DST: "dst", Space.SRC: "src", Space.SHARED: of_all}
    return [_gather(eqn, picked, sides[space]) for space, picked in homes.items()]


def traversals(gathers: Sequence[Gather]) -> list[Gather]:
    """Gathers of one side with those of the same aggregate as one: they do the same work on the
    edges."""
    joint: dict[int, list[Gather]] = {}
    for g in gathers:
        joint.setdefault(id(g.eqn), []).append(g)
    return [
        _gather(some[0].eqn, sorted(k for g in some for k in g.picked), some[0].side)
        for some in joint.values()
    ]


def _gather(eqn: ArrayEquation, picked: Sequence[int], side: Side) -> Gather:
    whole = Aggregate(eqn.params["body"], eqn.params["reductions"])
    op, outputs, slots = whole.select(picked)
    operands = eqn.inputs[len(eqn.inputs) - len(whole.body.inputs) :]
    return Gather(eqn, outputs, side, wide_sums(op), tuple(operands[i] for i in slots))
