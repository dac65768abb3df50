"""What a lowering is, and what it is asked for. `gnnjit.lower.choose` has the table of all."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gnnjit.graph import Graph
from gnnjit.graph.structure import Structure
from gnnjit.ir.program import Program, Reduce
from gnnjit.ir.space import Space
from gnnjit.system.portable import PORTABLE, is_portable

Reductions = tuple[Reduce | None, ...]
"""The reduction of each output of an aggregate, as in `gnnjit.ir.program.Aggregate`."""


def with_fixed(reductions: Reductions, fixed: Sequence[bool] = ()) -> Reductions:
    """The same, with these constant to differentiation; by default none."""
    marks = fixed or (False,) * len(reductions)
    return tuple(
        r if r is None or r.fixed == mark else dataclasses.replace(r, fixed=mark)
        for r, mark in zip(reductions, marks, strict=True)
    )


WRITTEN = 2**31
"""Scalars that are written for the edges at most, where no limit says less."""


class Unsupported(Exception):
    """A lowering has no code for this; the message says for what."""


@dataclasses.dataclass(frozen=True, eq=False)
class LoweringRequest:
    """One traversal: an aggregate over the edges of a graph, row by row, on a platform.

    body, reductions: as in `Aggregate`.
    rows: the space whose elements own the rows. Each output is reduced into it, is reduced over all
        edges, or stays on the edges.
    preferred: the lowering that `choose.prefer` names, if any.
    limit: scalars of the widest value in one chunk of edges; None leaves it to the lowering.
    partial: a row without edges gets the neutral element of its reduction, not 0.
    starts: for some outputs (`Lowering.why_no_start`), what their rows go on from; the results take
        its place where the caller does not need it any more.
    """

    body: Program
    reductions: Reductions
    rows: Space
    graph: Graph
    platform: str
    preferred: str | None = None
    limit: int | None = None
    partial: bool = False
    starts: Mapping[int, Any] = dataclasses.field(default_factory=dict)

    @property
    def structure(self) -> Structure:
        """The edges, sorted by row."""
        return self.graph.structure(self.rows)

    @property
    def num_rows(self) -> int:
        return self.graph.num_dst if self.rows is Space.DST else self.graph.num_src

    @property
    def row_of_edge(self) -> Any:
        """`int[E]`, in the order in which the edges were given."""
        return self.graph.dst if self.rows is Space.DST else self.graph.src


@dataclasses.dataclass(frozen=True)
class Lowering:
    """One way to run a request.

    name: what `choose.prefer` and `explain` call it.
    why_not: reasons against it on a platform that it has code for; none means that it runs.
    run: the outputs from the operands, both as `aggregate` has them.
    platforms: those that it has code for, which is not for `jax.export`; None for JAX's own
        operations, which run everywhere.
    interpreted: where one of these is preferred, it is interpreted on a CPU, to test it.
    why_no_start: reasons why an output cannot go on from the request's `starts`; None where none
        can.
    """

    name: str
    why_not: Callable[[LoweringRequest], list[str]]
    run: Callable[[LoweringRequest, Sequence[Any]], Sequence[Any]]
    platforms: tuple[str, ...] | None = None
    interpreted: tuple[str, ...] = ()
    why_no_start: Callable[[LoweringRequest, int], list[str]] | None = None

    def why_not_on(self, platform: str, preferred: str | None) -> list[str]:
        """Reasons against every request on a platform."""
        if self.platforms is None:
            return []
        if is_portable():
            return [PORTABLE]
        interpreted = platform == "cpu" and preferred in self.interpreted
        return [] if interpreted or platform in self.platforms else [f"the platform is {platform}"]

    def reasons(self, request: LoweringRequest) -> list[str]:
        """Reasons against it; none means that it runs the request."""
        there = self.why_not_on(request.platform, request.preferred)
        return there or self.why_not(request)
