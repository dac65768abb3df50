"""A layer written in JAX, compiled ahead of time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

Apply = Callable[[Any, jax.Array, dict[str, jax.Array]], jax.Array]
"""`apply(graph, x, parameters) -> out`."""


class JaxCase:
    """Implements `Case`; `graph` is any pytree that `apply` reads."""

    def __init__(
        self,
        apply: Apply,
        graph: Any,
        x: np.ndarray,
        parameters: dict[str, np.ndarray],
        cotangent: np.ndarray,
    ):
        def both(graph: Any, x: Any, p: Any, cotangent: Any) -> Any:
            out, back = jax.vjp(lambda x, p: apply(graph, x, p), x, p)
            return out, *back(cotangent)

        arrays = jax.device_put((graph, x, parameters, cotangent))
        jax.block_until_ready(arrays)
        self._arguments = {"forward": arrays[:3], "both": arrays}
        self._functions = {"forward": jax.jit(apply), "both": jax.jit(both)}
        self._compiled: dict[str, Any] = {}

    def prepare(self, mode: str) -> int | None:
        compiled = self._functions[mode].lower(*self._arguments[mode]).compile()
        self._compiled[mode] = compiled
        return getattr(compiled.memory_analysis(), "temp_size_in_bytes", None)

    def run(self, mode: str) -> Any:
        return jax.block_until_ready(self._compiled[mode](*self._arguments[mode]))

    def values(self) -> dict[str, np.ndarray]:
        out, x, parameters = self.run("both")
        return {k: np.asarray(v) for k, v in {"out": out, "x": x, **parameters}.items()}
