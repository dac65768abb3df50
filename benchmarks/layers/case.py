"""What a worker drives: one layer of one implementation, loaded and ready."""

from __future__ import annotations

from typing import Protocol

import numpy as np

MODES = ("forward", "both")
"""The forward alone; forward and backward to the features and all parameters."""


class Case(Protocol):
    """One layer on one workload."""

    def prepare(self, mode: str) -> int | None:
        """Compile (not run) `mode`; bytes of temporary buffers, None if unknown."""
        ...

    def run(self, mode: str) -> None:
        """Run once and wait for the result."""
        ...

    def values(self) -> dict[str, np.ndarray]:
        """The output ("out") and the gradients of "x" and each parameter."""
        ...
