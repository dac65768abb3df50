"""Weights for the cost model from measured runs on the device at hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from gnnjit import clock
from gnnjit.clock import Run
from gnnjit.cost.defaults import default_model
from gnnjit.cost.learner import Learner, fitted
from gnnjit.cost.model import CostModel, Work
from gnnjit.errors import CostError

REPEATS = 5
FILL = 0.015
"""Seconds that the repeats of a point fill at least."""


@dataclass(frozen=True)
class Point:
    """Something to measure.

    Attributes:
        name: for people.
        work: gives what a run does.
        prepare: gives a compiled function, and the arrays that it is called with.
    """

    name: str
    work: Callable[[], Work]
    prepare: Callable[[], tuple[Run, Sequence[Any]]]


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
    *,
    repeats: int = REPEATS,
    progress: Callable[[str], None] | None = None,
    prior: CostModel | None = None,
) -> Report:
    """Measure the points in order, and fit the weights to them.

    Args:
        repeats: readings of the clock for each point at least; the least one counts.
        progress: called with the name of each point that has been measured.
        prior: weights of features that no point has; the shipped ones where it is None.

    Raises:
        CostError: no points, or fewer than one repeat.
    """
    if not points:
        raise CostError("there are no points to calibrate with, expected at least one")
    if repeats < 1:
        raise CostError(f"repeats is {repeats}, expected at least 1")
    measured: list[tuple[str, Work, float]] = []
    for point in points:
        work = point.work()
        measured.append((point.name, work, seconds(*point.prepare(), repeats)))
        if progress is not None:
            progress(point.name)
    learner = fitted(
        [(work, t) for _, work, t in measured], prior or default_model(jax.default_backend())
    )
    model = learner.model("calibrated in this process")
    report = tuple(Measured(name, work, t, model.seconds(work)) for name, work, t in measured)
    return Report(report, learner, model)


def seconds(run: Run, arrays: Sequence[Any] = (), repeats: int = REPEATS) -> float:
    """Seconds of one call of `run` on `arrays`: the least of at least `repeats` readings that fill
    `FILL`, with the arrays elsewhere for each of them (`gnnjit.clock`)."""
    (found,) = clock.compare([run], arrays, fill=FILL, turns=(repeats, 100 * repeats))
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
