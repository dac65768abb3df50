"""Weights for the cost model from measured runs on the device at hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from gnnjit.cost.defaults import default_model
from gnnjit.cost.learner import Learner, fitted
from gnnjit.cost.model import CostModel, Work
from gnnjit.errors import CostError
from gnnjit.system import timing
from gnnjit.system.timing import Run

REPEATS = 5


@dataclass(frozen=True)
class Effort:
    """How much a calibration measures.

    Attributes:
        layers: how many random layers.
        most_bytes: the size of the largest array of a layer.
        every: measure all alternatives of a layer, not one at random.
        passes: over all points. They lie apart in time: other programs slow a machine for minutes.
        fill: seconds that the readings of a function fill at least, in each pass.
    """

    layers: int
    most_bytes: float
    every: bool = False
    passes: int = 1
    fill: float = 0.015


QUICK = Effort(16, 2.4e7)
USUAL = Effort(50, 2.4e7)
THOROUGH = Effort(240, 1.5e8, every=True, passes=3, fill=0.1)


@dataclass(frozen=True)
class Prepared:
    """What is measured together.

    Attributes:
        works: what each function does.
        compiled: gives the functions.
        arrays: the arguments of all of them.
    """

    works: Sequence[Work]
    compiled: Callable[[], Sequence[Run]]
    arrays: Sequence[Any] = ()


@dataclass(frozen=True)
class Point:
    """Something to measure.

    Attributes:
        name: for people.
        prepare: makes its arrays and functions. Arrays are made anew for each pass.
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
class CalibrationReport:
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
) -> CalibrationReport:
    """Measure the points in order, and fit the weights to them.

    Args:
        effort: how long each is measured, in how many passes.
        repeats: readings of the clock for each function in each pass at least.
        progress: called with the name of a point, when it was measured in a pass.
        prior: weights of features that no point has; the shipped ones where it is None.

    Raises:
        CostError: no points, or fewer than one repeat.
    """
    if not points:
        raise CostError("there are no points to calibrate with, expected at least one")
    if repeats < 1:
        raise CostError(f"repeats is {repeats}, expected at least 1")
    readings: list[list[np.ndarray]] = [[] for _ in points]
    works: list[Sequence[Work]] = []
    runs: list[Sequence[Run]] = []
    turns = repeats, 100 * repeats
    for number in range(effort.passes):
        for k, point in enumerate(points):
            prepared = point.prepare()
            if number == 0:
                works.append(prepared.works)
                runs.append(prepared.compiled())
            found = timing.readings(runs[k], prepared.arrays, fill=effort.fill, turns=turns)
            readings[k].append(found)
            if progress is not None:
                progress(point.name)
    measured = [
        (point.name, work, seconds)
        for point, some, found in zip(points, works, readings, strict=True)
        for work, seconds in zip(some, timing.compared(np.concatenate(found)), strict=True)
    ]
    learner = fitted(
        [(work, t) for _, work, t in measured], prior or default_model(jax.default_backend())
    )
    model = learner.model("calibrated in this process")
    report = tuple(Measured(name, work, t, model.seconds(work)) for name, work, t in measured)
    return CalibrationReport(report, learner, model)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
