"""What a shard of a partition costs: a model per layer, learned from measured steps (ROC, 4.1)."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gnnjit import config
from gnnjit.cost.learner import least_squares
from gnnjit.cost.store import Key
from gnnjit.errors import CostError
from gnnjit.system import cache

FEATURES = ("vertex", "neighbors", "runs", "neighbor accesses", "activation accesses")
"""The names in `gnnjit.partition.vertex_features.VERTEX_FEATURES`."""

PRIOR = (2e-7, 2e-9, 0.0, 0.0, 5e-9)
"""Seconds per unit of each feature before anything is learned: a step of GCN with 64 features on
two CPU cores takes about as long for a vertex as for 10 edges."""

START = 1e-5
"""Seconds of a shard without vertices, before anything is learned."""

FORMAT = 1
Vector = NDArray[np.float64]


class PartitionModel:
    """Seconds of a shard's step: `sum of w_i * x_i(shard)`, and a constant; w >= 0.

    x_i of a shard is the sum of a feature over its vertices, so that costs of vertices add up (ROC,
    section 4.1, equation 6), and a model learned on some graphs holds for others. As in ROC each
    layer, and each width of it, has weights of its own: one PartitionModel each.

    Where we differ from ROC: the squared error is relative, the weights are at least 0, and the
    constant is what a shard takes that no cut changes. Only second moments of the points are kept,
    as in `gnnjit.cost.learner`.

    Attributes:
        points: the number of points observed, however long ago.
        forgetting: what the old points count for at each new one, in (0, 1].
    """

    def __init__(
        self, prior: ArrayLike = PRIOR, constant: float = START, forgetting: float = 1.0
    ) -> None:
        """`prior`: float[5], seconds per unit of each of `FEATURES`, and `constant`, seconds: the
        weights of what no point had. Raises CostError for one that is negative or not finite, or
        another shape, and for a forgetting factor outside (0, 1]."""
        if not 0 < forgetting <= 1:
            raise CostError(f"forgetting is {forgetting}, expected more than 0 and at most 1")
        self._prior = np.append(_vector("prior", prior), _vector("constant", [constant], 1))
        self.forgetting = float(forgetting)
        size = len(self._prior)
        self._gram: Vector = np.zeros((size, size))
        self._moment: Vector = np.zeros(size)
        self._solution: Vector | None = self._prior
        self.points = 0

    @property
    def weights(self) -> Vector:
        """float64[5]: seconds per unit of each of `FEATURES`."""
        return self._solve()[:-1].copy()

    @property
    def constant(self) -> float:
        """Seconds of a shard without vertices."""
        return float(self._solve()[-1])

    def observe(self, features: ArrayLike, seconds: float, weight: float = 1.0) -> None:
        """Learn that a step of a shard took `seconds`; it counts for `weight` points.

        Args:
            features: float[5], summed up over the vertices of the shard.
            seconds: of the step, > 0.
            weight: >= 0.

        Raises:
            CostError: features that are negative, not finite or of another shape, seconds that are
                not positive, or a negative weight.
        """
        if not (math.isfinite(seconds) and seconds > 0):
            raise CostError(f"a step took {seconds} s, expected a finite number > 0")
        if not (math.isfinite(weight) and weight >= 0):
            raise CostError(f"a point counts for {weight}, expected a finite number >= 0")
        row = np.append(_vector("features", features), 1.0) / seconds
        self._gram = self.forgetting * self._gram + weight * np.outer(row, row)
        self._moment = self.forgetting * self._moment + weight * row
        self._solution = None
        self.points += 1

    def predict(self, features: ArrayLike) -> float:
        """Seconds of a step of a shard; `features` as of `observe`. Raises CostError as that."""
        return float(self.weights @ _vector("features", features)) + self.constant

    def vertex_cost(self, features: ArrayLike) -> Vector:
        """float64[N]: seconds that each vertex brings; the constant, which no cut changes, is not
        in it. What `gnnjit.partition.partition.balanced` cuts by.

        Args:
            features: float[N, 5], as of `gnnjit.partition.vertex_features.vertex_features`.

        Raises:
            CostError: another shape.
        """
        rows = np.asarray(features, np.float64)
        if rows.ndim != 2 or rows.shape[1] != len(FEATURES):
            raise CostError(
                f"features has shape {rows.shape}, expected (num_nodes, {len(FEATURES)}): pass "
                f"{', '.join(FEATURES)} of each vertex"
            )
        return rows @ self.weights

    def _solve(self) -> Vector:
        """float64[6]: the weights >= 0, then the constant, of the least mean squared relative
        error."""
        if self._solution is not None:
            return self._solution
        out = least_squares(self._gram, self._moment, self._prior)
        self._solution = out
        return out

    def to_json(self) -> dict[str, Any]:
        """All that learning goes on from."""
        return {
            "features": list(FEATURES),
            "prior": self._prior.tolist(),
            "forgetting": self.forgetting,
            "gram": self._gram.tolist(),
            "moment": self._moment.tolist(),
            "points": self.points,
        }

    @classmethod
    def from_json(cls, data: Any) -> PartitionModel:
        """The inverse of `to_json`. Raises CostError where `data` is not from it."""
        try:
            if tuple(data["features"]) != FEATURES:
                raise CostError(
                    f"the partition model is of the features {', '.join(data['features'])}, "
                    f"expected {', '.join(FEATURES)}: learn it anew"
                )
            *prior, constant = data["prior"]
            model = cls(prior, constant, float(data["forgetting"]))
            model._gram = _damage_free(data["gram"], model._gram.shape)
            model._moment = _damage_free(data["moment"], model._moment.shape)
            model._solution = None
            model.points = int(data["points"])
            model._solve()
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            if isinstance(error, CostError):
                raise
            raise CostError(
                f"the partition model is damaged ({type(error).__name__}: {error}): learn it anew"
            ) from error
        return model


def path(key: Key, name: str) -> Path:
    """The file of the model of `name` (a layer and its width) on a device, which need not exist:
    `cache_dir()/partition-model/PLATFORM-DTYPE-DIGEST.json`, with a digest of both."""
    digest = cache.digest([dataclasses.asdict(key), name])[:16]
    return config.cache_dir() / "partition-model" / f"{key.platform}-{key.dtype}-{digest}.json"


def save(key: Key, name: str, model: PartitionModel) -> Path:
    """Store, atomically, in place of what was stored for `key` and `name`; the file. Raises
    CostError where it cannot be written."""
    file = path(key, name)
    try:
        cache.write_sealed(file, FORMAT, _key(key, name), {"model": model.to_json()})
    except OSError as error:
        raise CostError(
            f"{file.parent}: the partition model cannot be stored there ({error.strerror}); set "
            "XDG_CACHE_HOME to a directory that can be written"
        ) from error
    return file


def load(key: Key, name: str) -> PartitionModel | None:
    """What is stored for `key` and `name`; nothing, with a warning, where the file is damaged or
    not ours."""
    return cache.load(
        path(key, name),
        lambda data: _parse(data, key, name),
        f"a partition model of {name!r} for this device",
        ": the next model that is saved replaces it",
    )


def _key(key: Key, name: str) -> dict[str, Any]:
    return {"key": dataclasses.asdict(key), "name": name}


def _parse(data: Any, key: Key, name: str) -> PartitionModel:
    """Raises what `load` catches for a file that `save` has not written."""
    return PartitionModel.from_json(cache.unsealed(data, FORMAT, _key(key, name)).get("model"))


def _vector(name: str, values: ArrayLike, size: int = len(FEATURES)) -> Vector:
    out = np.array(values, np.float64)
    if out.shape != (size,):
        raise CostError(
            f"{name} has shape {out.shape}, expected ({size},): pass {', '.join(FEATURES)} of the "
            "whole shard"
        )
    wrong = ~(np.isfinite(out) & (out >= 0))
    if wrong.any():
        at = int(wrong.argmax())
        raise CostError(f"{name}[{at}] is {out[at]}, expected a finite number >= 0")
    return out


def _damage_free(values: Any, shape: tuple[int, ...]) -> Vector:
    out = np.array(values, np.float64)
    if out.shape != shape or not np.isfinite(out).all() or (out < 0).any():
        raise CostError(
            f"the partition model is damaged (expected finite numbers >= 0 of shape {shape}): "
            "learn it anew"
        )
    return out
