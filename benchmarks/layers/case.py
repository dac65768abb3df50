"""What a worker drives: one layer of one implementation, loaded and ready."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

MODES = ("forward", "both")
"""Forward alone, or forward and backward to the features and all parameters."""


@dataclasses.dataclass(frozen=True)
class Execution:
    """How a case is computed.

    Attributes:
        threads: of the CPU.
        dtype: "float32" or "bfloat16", of features, weights and parameters.
        matmul: how a GPU multiplies float32 matrices: "float32" exactly, "tf32" with operands
            rounded to 10 bits.
    """

    threads: int
    dtype: str = "float32"
    matmul: str = "float32"


class Case(Protocol):
    """One layer on one workload.

    Attributes:
        compile_seconds: what `prepare` took to compile each mode; empty if nothing is compiled
            before it runs.
    """

    compile_seconds: dict[str, float]

    def prepare(self, mode: str, together: Sequence[str] = MODES) -> int | None:
        """Compile (not run) `mode`, and what else of `together` it can at once; bytes of
        temporary buffers, None if unknown."""
        ...

    def launch(self, mode: str) -> Any:
        """Start one run."""
        ...

    def wait(self, launched: Any) -> None:
        """Wait for a run, and for all started before it."""
        ...

    def device_bytes(self, mode: str) -> dict[str, int | None]:
        """Peak memory of a run beyond its inputs, on a GPU; may run it."""
        ...

    def values(self, focus: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """The output ("out") and the gradients of "x" and each parameter.

        With `focus`, the cotangent is zero at other destinations, and only their outputs are
        returned. Layers on edges have "edges_out" and the gradient "edges" too.
        """
        ...
