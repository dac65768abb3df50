"""Work, and the linear model of the seconds that it takes (ROC, section 4.1).

Where we differ from ROC: one weight per feature of a kind of operation, not per layer, so that one
model serves every layer; and the weights are at least 0, since no work gives time back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnjit.cost.kinds import INDEX, KINDS, NAMES, SPAN
from gnnjit.errors import CostError

Vector = NDArray[np.float64]


def frozen_vector(values: Any, what: str) -> Vector:
    """A read-only float64[len(NAMES)]; `what` names its entries in errors.

    Raises:
        CostError: another shape, or an entry that is negative or not finite.
    """
    out = np.array(values, np.float64)
    if out.shape != (len(NAMES),):
        raise CostError(f"{what}s: got an array of shape {out.shape}, expected ({len(NAMES)},)")
    wrong = ~(np.isfinite(out) & (out >= 0))
    if wrong.any():
        at = int(np.argmax(wrong))
        raise CostError(
            f"the {what} {'.'.join(NAMES[at])} is {out[at]}, expected a finite number >= 0"
        )
    out.setflags(write=False)
    return out


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise CostError(
            f"unknown kind of operation {kind!r}, expected one of {', '.join(KINDS)}: nothing is "
            "free, so give it features in gnnjit/cost/kinds.py"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Work(Mapping[str, Vector]):
    """How much there is to do: kind -> features. `Work()` is nothing; add with `+`, repeat
    with `*`.

    Attributes:
        vector: float64[len(NAMES)], read-only: all features of all kinds, 0 where absent.
    """

    vector: Vector = field(default_factory=lambda: np.zeros(len(NAMES)))

    def __post_init__(self) -> None:
        object.__setattr__(self, "vector", frozen_vector(self.vector, "feature"))

    @classmethod
    def of(cls, kind: str, /, **features: float) -> Work:
        """Work of one kind; features that are not named are 0.

        Raises:
            CostError: the kind or a feature is unknown, or a number is negative or not finite.
        """
        _check_kind(kind)
        vector = np.zeros(len(NAMES))
        for name, value in features.items():
            if (kind, name) not in INDEX:
                raise CostError(
                    f"{kind} has no feature {name!r}, expected one of {', '.join(KINDS[kind])}"
                )
            vector[INDEX[kind, name]] = value
        return cls(vector)

    def __getitem__(self, kind: str) -> Vector:
        """The features of a kind in the order of `KINDS`, read-only; zeros where there are none."""
        _check_kind(kind)
        return self.vector[SPAN[kind]]

    def __contains__(self, kind: object) -> bool:
        return kind in tuple(self)

    def __iter__(self) -> Iterator[str]:
        """The kinds of which there is any."""
        return (kind for kind in KINDS if self[kind].any())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __add__(self, other: Work) -> Work:
        return Work(self.vector + other.vector) if isinstance(other, Work) else NotImplemented

    def __mul__(self, times: float) -> Work:
        return Work(self.vector * times)

    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Work) and np.array_equal(self.vector, other.vector)

    def __hash__(self) -> int:
        return hash((self.vector + 0.0).tobytes())  # -0.0 equals 0.0

    def __repr__(self) -> str:
        parts = [f"{k}.{f}={x:g}" for (k, f), x in zip(NAMES, self.vector, strict=True) if x]
        return f"Work({', '.join(parts)})"


@dataclass(frozen=True, eq=False)
class CostModel:
    """Seconds of work, linear in its features.

    Attributes:
        weights: float64[len(NAMES)], read-only, >= 0: seconds per unit of each feature.
        source: where the weights come from, for people. Not part of what models are compared by.
    """

    weights: Vector
    source: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", frozen_vector(self.weights, "weight"))

    def seconds(self, work: Work) -> float:
        """What `work` takes, in seconds."""
        return float(self.weights @ work.vector)

    def by_kind(self, work: Work) -> dict[str, float]:
        """Seconds of each kind that `work` has."""
        return {kind: float(self.weights[SPAN[kind]] @ work[kind]) for kind in work}

    def to_json(self) -> dict[str, dict[str, float]]:
        """Kind -> feature -> seconds per unit."""
        return {k: {f: float(self.weights[INDEX[k, f]]) for f in KINDS[k]} for k in KINDS}

    @classmethod
    def from_json(cls, data: Any, source: str = "") -> CostModel:
        """The inverse of `to_json`.

        Raises:
            CostError: a weight is missing, unknown, negative, not finite or no number.
        """
        if not isinstance(data, dict) or not all(isinstance(v, dict) for v in data.values()):
            raise CostError("the weights are no table of kinds and features")
        given = {(k, f): value for k, row in data.items() for f, value in row.items()}
        for name in sorted(given.keys() ^ INDEX.keys()):
            problem = "missing" if name in INDEX else "unknown"
            raise CostError(f"the weight {'.'.join(name)} is {problem}")
        for name, value in given.items():
            if type(value) not in (int, float):
                raise CostError(f"the weight {'.'.join(name)} is {value!r}, expected a number")
        return cls(np.array([float(given[name]) for name in NAMES]), source)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CostModel) and np.array_equal(self.weights, other.weights)

    def __hash__(self) -> int:
        return hash((self.weights + 0.0).tobytes())
