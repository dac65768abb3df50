"""Weights for the cost model from measured runs on the device at hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from gnnjit import clock
from gnnjit.clock import Run
from gnnjit.cost.defaults import default_model
from gnnjit.cost.learner import Learner, fitted
from gnnjit.cost.model import CostModel, Work
from gnnjit.errors import CostError

REPEATS = 5
HELD = 1 << 30
"""Bytes of arrays that wait for a further pass; of them, the first passes are at most so far behind
the others as it takes to prepare them."""


@dataclass(frozen=True)
class Effort:
    """How much a calibration measures.

    Attributes:
        layers: random ones.
        most_bytes: of one array of a layer.
        every: all alternatives of a layer, not a random one of them.
        passes: over the points, apart in time: other programs slow a machine for seconds.
        fill: seconds that the readings of a function fill at least, in each pass.
    """

    layers: int
    most_bytes: float
    every: bool = False
    passes: int = 1
    fill: float = 0.015


QUICK = Effort(16, 2.4e7)
USUAL = Effort(50, 2.4e7)
THOROUGH = Effort(150, 1.5e8, every=True, passes=4, fill=0.1)


@dataclass(frozen=True)
class Prepared:
    """What is measured together.

    Attributes:
        works: what each function does.
        compiled: gives the functions.
        arrays: that all of them are called with.
    """

    works: Sequence[Work]
    compiled: Callable[[], Sequence[Run]]
    arrays: Sequence[Any] = ()

    @property
    def bytes(self) -> int:
        """Of the arrays."""
        return sum(x.nbytes for x in jax.tree.leaves(self.arrays))


@dataclass(frozen=True)
class Point:
    """Something to measure.

    Attributes:
        name: for people.
        prepare: makes its arrays and functions, which are dropped when they are measured.
    """

    name: str
    prepare: Callable[[], Prepared]


@dataclass(frozen=True)
class Measured:
    """A point with the seconds that it took and those that the fitted model predicts."""

    name: str
    work: Work
    seconds: float
    predicted: float

    @property
    def error(self) -> float:
        """Absolute relative error of the prediction."""
        return abs(self.predicted - self.seconds) / self.seconds


@dataclass(frozen=True)
class Report:
    """What a calibration found.

    Attributes:
        points: as they were measured, in order.
        learner: what learning goes on from.
        model: the fitted weights; the prior's for features that no point has.
    """

    points: tuple[Measured, ...]
    learner: Learner
    model: CostModel

    @property
    def error(self) -> float:
        """Mean absolute relative error, on the points that it was fitted to."""
        return _mean([p.error for p in self.points])

    def of_kind(self, kind: str) -> tuple[int, float]:
        """The number of points that have work of this kind, and their mean error."""
        errors = [p.error for p in self.points if kind in p.work]
        return len(errors), _mean(errors)

    def to_json(self) -> dict[str, Any]:
        """Points, weights and errors; times in seconds."""
        kinds = {}
        for kind, weights in self.model.to_json().items():
            count, error = self.of_kind(kind)
            kinds[kind] = {
                "points": count,
                "error": error if count else None,
                "weights": weights,
            }
        points = [
            {"name": p.name, "seconds": p.seconds, "predicted": p.predicted, "error": p.error}
            for p in self.points
        ]
        return {"error": self.error, "kinds": kinds, "points": points}


def calibrate(
    points: Sequence[Point],
    effort: Effort = USUAL,
    *,
    repeats: int = REPEATS,
    progress: Callable[[str], None] | None = None,
    prior: CostModel | None = None,
) -> Report:
    """Measure the points in order, and fit the weights to them.

    Args:
        effort: how long each is measured, in how many passes.
        repeats: readings of the clock for each function in each pass at least.
        progress: called with the name of each point, when its first pass is done.
        prior: weights of features that no point has; the shipped ones where it is None.

    Raises:
        CostError: no points, or fewer than one repeat.
    """
    if not points:
        raise CostError("there are no points to calibrate with, expected at least one")
    if repeats < 1:
        raise CostError(f"repeats is {repeats}, expected at least 1")
    measured: list[tuple[str, Work, float]] = []
    waiting: list[_Waiting] = []
    for point in points:
        prepared = point.prepare()
        waiting.append(_Waiting(point.name, prepared, prepared.compiled(), effort, repeats))
        waiting[-1].read()
        if progress is not None:
            progress(point.name)
        if effort.passes == 1 or sum(w.prepared.bytes for w in waiting) > HELD:
            measured += _finished(waiting, effort.passes - 1)
            waiting = []
    measured += _finished(waiting, effort.passes - 1)
    learner = fitted(
        [(work, t) for _, work, t in measured], prior or default_model(jax.default_backend())
    )
    model = learner.model("calibrated in this process")
    report = tuple(Measured(name, work, t, model.seconds(work)) for name, work, t in measured)
    return Report(report, learner, model)


class _Waiting:
    """A point of which some passes are read."""

    def __init__(
        self, name: str, prepared: Prepared, runs: Sequence[Run], effort: Effort, repeats: int
    ) -> None:
        self.name, self.prepared, self._runs = name, prepared, runs
        self._fill, self._turns = effort.fill, (repeats, 100 * repeats)
        self._found: list[np.ndarray] = []

    def read(self) -> None:
        """Another pass."""
        self._found.append(
            clock.readings(self._runs, self.prepared.arrays, fill=self._fill, turns=self._turns)
        )

    def measured(self) -> list[tuple[str, Work, float]]:
        seconds = clock.compared(np.concatenate(self._found))
        return [(self.name, *one) for one in zip(self.prepared.works, seconds, strict=True)]


def _finished(waiting: Sequence[_Waiting], passes: int) -> list[tuple[str, Work, float]]:
    for _ in range(passes):
        for one in waiting:
            one.read()
    return [found for one in waiting for found in one.measured()]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
