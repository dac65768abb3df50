"""Weights from measured runs: non-negative least squares that needs no old points.

ROC (section 4.1, equation 7) minimises the squared error over all points, kept for ever. Here the
error is relative, (predicted - measured) / measured, since runs of 10 us and of 1 s must both
be ranked well; and only its second moments are kept, which hold all that the minimum depends on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnjit.cost.kinds import NAMES
from gnnjit.cost.model import CostModel, Work
from gnnjit.errors import CostError

RIDGE = 1e-11
"""Pull towards the prior, as a share of what the points say about a feature. It decides between
weights that fit equally well, and no more. Well above the rounding of the moments, some 1e-15."""

ROUNDS = 15
"""Rounds of weighting points by their errors."""
MANY = 3
"""Points for each weight from which on errors are weighted."""
SMALLEST = 0.02
"""A relative error below which a point counts no more."""

Array = NDArray[np.float64]


class Learner:
    """A cost model that learns. With x the features of a point and t its seconds:

    Attributes:
        prior: the weights of features that no point had.
        forgetting: what the old points count for at each new one, in (0, 1].
        gram: float64[k, k], sum of x x^T / t^2, k = len(NAMES).
        moment: float64[k], sum of x / t.
        points: the number of points observed, however long ago.
    """

    def __init__(self, prior: CostModel, forgetting: float = 1.0) -> None:
        """Raises CostError for a forgetting factor outside (0, 1]."""
        if not 0 < forgetting <= 1:
            raise CostError(f"forgetting is {forgetting}, expected more than 0 and at most 1")
        self.prior = prior
        self.forgetting = forgetting
        self.gram: Array = np.zeros((len(NAMES), len(NAMES)))
        self.moment: Array = np.zeros(len(NAMES))
        self.points = 0

    @classmethod
    def from_prior(
        cls, model: CostModel, strength: float = 0.0, forgetting: float = 1.0
    ) -> Learner:
        """Starts from `model`, as if `strength` points had measured each feature of a weight
        above 0 alone and found that weight. Raises CostError for a strength below 0."""
        if not (math.isfinite(strength) and strength >= 0):
            raise CostError(f"strength is {strength}, expected a finite number >= 0")
        learner = cls(model, forgetting)
        known = model.weights > 0
        inverse = np.divide(1.0, model.weights, out=np.zeros(len(NAMES)), where=known)
        learner.gram = np.diag(strength * inverse**2)
        learner.moment = strength * inverse
        return learner

    def observe(self, work: Work, seconds: float, weight: float = 1.0) -> None:
        """Learn that `work` took `seconds`; it counts for `weight` points.

        Raises:
            CostError: no work, seconds that are not positive, or a negative weight.
        """
        if not (math.isfinite(seconds) and seconds > 0):
            raise CostError(f"a run took {seconds} s, expected a finite number > 0")
        if not (math.isfinite(weight) and weight >= 0):
            raise CostError(f"a point counts for {weight}, expected a finite number >= 0")
        if not work:
            raise CostError(f"a run took {seconds:g} s without any work: there is nothing to learn")
        row = work.vector / seconds
        self.gram = self.forgetting * self.gram + weight * np.outer(row, row)
        self.moment = self.forgetting * self.moment + weight * row
        self.points += 1

    def model(self, source: str = "") -> CostModel:
        """The weights >= 0 of the least mean squared relative error."""
        weights = least_squares(self.gram, self.moment, self.prior.weights)
        return CostModel(weights, source)

    def to_json(self) -> dict[str, Any]:
        """All that learning goes on from."""
        return {
            "prior": self.prior.to_json(),
            "forgetting": self.forgetting,
            "gram": self.gram.tolist(),
            "moment": self.moment.tolist(),
            "points": self.points,
        }

    @classmethod
    def from_json(cls, data: Any) -> Learner:
        """The inverse of `to_json`. Raises CostError where `data` is not from it."""
        try:
            learner = cls(CostModel.from_json(data["prior"]), float(data["forgetting"]))
            learner.gram = _moments(data["gram"], learner.gram.shape)
            learner.moment = _moments(data["moment"], learner.moment.shape)
            learner.points = int(data["points"])
            learner.model()
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            if isinstance(error, CostError):
                raise
            raise CostError(f"the learner is damaged ({type(error).__name__}: {error})") from error
        return learner


def fitted(points: Sequence[tuple[Work, float]], prior: CostModel) -> Learner:
    """A learner whose weights have about the least mean absolute relative error on these points,
    each a work with its seconds; with few points, the least mean squared one.

    Least squares alone follow the worst points, and predict too little where times scatter. So the
    points are weighted anew some times, each by the inverse of its error (iteratively reweighted
    least squares); but not fewer than `MANY` for each weight: some weights would fit those exactly,
    at the cost of all other layers.

    Raises CostError where `Learner.observe` does.
    """
    learner = _weighted(points, np.ones(len(points)), prior)
    for _ in range(ROUNDS if len(points) >= MANY * len(NAMES) else 0):
        model = learner.model()
        errors = [abs(model.seconds(work) / seconds - 1) for work, seconds in points]
        weights = 1 / np.maximum(errors, SMALLEST)
        learner = _weighted(points, weights / weights.mean(), prior)
    return learner


def _weighted(points: Sequence[tuple[Work, float]], weights: Array, prior: CostModel) -> Learner:
    learner = Learner.from_prior(prior)
    for (work, seconds), weight in zip(points, weights, strict=True):
        learner.observe(work, seconds, float(weight))
    return learner


def least_squares(gram: Array, moment: Array, prior: Array) -> Array:
    """The weights >= 0 of the least error that the moments tell of; those of `prior` where no point
    had a feature."""
    # A third of a second, for those who calibrate.
    from scipy.linalg import cholesky, solve_triangular
    from scipy.optimize import nnls

    weights = prior.copy()
    scale = np.sqrt(np.diag(gram))
    seen = scale > 0
    if seen.any():
        s = scale[seen]
        # Unknowns u = s * w: then the diagonal is 1, whatever the units of the features.
        square = gram[np.ix_(seen, seen)] / np.outer(s, s) + RIDGE * np.eye(s.size)
        right = moment[seen] / s + RIDGE * s * weights[seen]
        root = cholesky(square, lower=True)  # |root^T u - rhs|^2 is the error, less a constant
        rhs = solve_triangular(root, right, lower=True)
        weights[seen] = nnls(root.T, rhs, maxiter=100 * s.size)[0] / s
    return weights


def _moments(values: Any, shape: tuple[int, ...]) -> Array:
    out = np.array(values, np.float64)
    if out.shape != shape or not np.isfinite(out).all() or (out < 0).any():
        raise CostError(f"the learner is damaged (expected finite numbers >= 0 of shape {shape})")
    return out
