"""Learning from measured runs: the stored model goes on from where it is.

A running program keeps the model that it has read (`gnnjit.cost.current`), so that its plans do not
change; the next process uses what was learned. Where two processes learn at the same
time, the file that is written last stays, whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gnnjit.cost.defaults import default_model
from gnnjit.cost.learner import Learner
from gnnjit.cost.model import Work
from gnnjit.cost.store import Key, Stored, load, save

TRUST = 0.1
"""Points that each shipped weight counts for, on a device that was never calibrated: little, since
where a weight is much too small, its relative error counts all the more."""


def learn_points(points: Sequence[tuple[Work, float]], platform: str) -> Path | None:
    """Learn that each work took so many seconds; the file that keeps it, None without points.

    Raises:
        CostError: the file cannot be written, or a point has no work or no positive time.
    """
    if not points:
        return None
    platform = "gpu" if platform == "cuda" else platform
    key = Key.here(platform)
    stored = load(key)
    learner = stored.learner if stored else Learner.from_prior(default_model(platform), TRUST)
    before = stored.error * learner.points if stored else 0.0
    for work, seconds in points:
        learner.observe(work, seconds)
    model = learner.model()
    errors = [abs(model.seconds(work) - seconds) / seconds for work, seconds in points]
    error = (before + sum(errors)) / learner.points
    return save(key, Stored(model, learner, error))
