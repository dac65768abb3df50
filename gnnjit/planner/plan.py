"""What a plan is made for, and what it is: see `gnnjit.planner`."""

from __future__ import annotations

import dataclasses

from gnnjit.cost.model import Work
from gnnjit.cost.sketch import GraphSizes
from gnnjit.ir.program import Program
from gnnjit.passes.pipeline import Choices
from gnnjit.planner.candidate import CallShapes


@dataclasses.dataclass(frozen=True)
class Problem:
    """Everything that a plan depends on, but for the cost model.

    program: as the user wrote it.
    slots: which array each operand is.
    padded: whether some edges are padding.
    differentiated: which of the arrays need gradients; None if none is taken.
    budget: bytes that the call may need at its peak.
    least: bytes that every plan needs: of the graph, the arguments and the results, and, where a
        gradient is taken, of the cotangents and the gradients.
    call_shapes: what a plan is compiled for, to measure it; None where that is not asked for.
    """

    program: Program
    slots: tuple[int, ...]
    padded: bool
    sizes: GraphSizes
    differentiated: tuple[bool, ...] | None
    budget: int | None
    platform: str
    least: int = 0
    call_shapes: CallShapes | None = None


@dataclasses.dataclass(frozen=True)
class Alternative:
    """One program that would do. `seconds` is predicted, `peak` an upper bound in bytes, `steps`
    the number of chunks in which edges are taken, of all traversals that do so; `measured` is in
    seconds, where that was done."""

    choices: Choices
    work: Work
    seconds: float
    peak: float
    steps: int = 0
    measured: float | None = None


@dataclasses.dataclass(frozen=True)
class Plan:
    """The alternative that was chosen, among those that were looked at.

    why: a reason if nothing was predicted, and the program runs as written.
    """

    program: Program
    chosen: Alternative
    others: tuple[Alternative, ...] = ()
    why: str = ""

    @property
    def every(self) -> tuple[Alternative, ...]:
        return (self.chosen, *self.others)
