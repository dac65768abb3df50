"""A layer written in JAX, compiled ahead of time."""

from __future__ import annotations

import concurrent.futures
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common.workloads import LAYERS, Workload, of_layer, parameters

from layers.case import MODES, Execution

Apply = Callable[[Any, Any, dict[str, jax.Array]], Any]
"""`apply(graph, x, parameters) -> out`; for layers on edges, `x` and `out` are pairs of vertex and
edge features."""


def stacked(apply: Apply, depth: int) -> Apply:
    """`depth` of the layer, with a relu between."""
    if depth == 1:
        return apply

    def run(graph: Any, x: Any, p: Mapping[str, jax.Array]) -> Any:
        for i in range(depth):
            x = apply(graph, jax.nn.relu(x) if i else x, of_layer(p, i, depth))
        return x

    return run


class JaxCase:
    """Implements `Case`; `graph` is any pytree that `apply` reads.

    Floating arrays in `graph` are used as they are; features, cotangents and parameters are cast.
    """

    def __init__(
        self, apply: Apply, graph: Any, layer: str, work: Workload, setting: Execution
    ) -> None:
        apply = stacked(apply, work.sizes.depth)

        def both(graph: Any, x: Any, p: Any, cotangent: Any) -> Any:
            out, back = jax.vjp(lambda x, p: apply(graph, x, p), x, p)
            return out, *back(cotangent)

        self._on_edges = LAYERS[layer].on_edges
        self._dst, self._setting = work.dst, setting
        x, cotangent = work.x, work.cotangent
        if self._on_edges:
            x, cotangent = (x, work.on_edges(1)), (cotangent, work.on_edges(2))
        arrays = (x, parameters(layer, work.sizes), cotangent)
        arrays = jax.tree.map(lambda a: jnp.asarray(a, setting.dtype), arrays)
        arrays = (jax.device_put(graph), *arrays)
        jax.block_until_ready(arrays)
        self._arguments = {"forward": arrays[:3], "both": arrays}
        self._functions = {"forward": jax.jit(apply), "both": jax.jit(both)}
        self._compiled: dict[str, Any] = {}
        self.compile_seconds: dict[str, float] = {}

    def prepare(self, mode: str, together: Sequence[str] = MODES) -> int | None:
        if mode not in self._compiled:
            self.compile(together)
        return getattr(self._compiled[mode].memory_analysis(), "temp_size_in_bytes", None)

    def compile(self, modes: Sequence[str]) -> None:
        """Compile these modes at once: tracing holds Python's lock, compiling does not."""
        precision = (
            "default" if self._setting.matmul == "tf32" else "highest"
        )  # tf32 is JAX's default

        def finish(lowered: Any) -> tuple[Any, float]:
            started = time.perf_counter()
            return lowered.compile(), time.perf_counter() - started

        with concurrent.futures.ThreadPoolExecutor(len(modes)) as pool, self.context():
            pending = {}
            for mode in modes:
                started = time.perf_counter()
                with jax.default_matmul_precision(precision):
                    lowered = self._functions[mode].lower(*self._arguments[mode])
                pending[mode] = time.perf_counter() - started, pool.submit(finish, lowered)
            for mode, (tracing, future) in pending.items():
                self._compiled[mode], compiling = future.result()
                self.compile_seconds[mode] = tracing + compiling

    def context(self) -> contextlib.AbstractContextManager[Any]:
        """The context in which functions are traced and lowered."""
        return contextlib.nullcontext()

    def launch(self, mode: str) -> Any:
        return self._compiled[mode](*self._arguments[mode])

    def wait(self, launched: Any) -> None:
        jax.block_until_ready(launched)

    def device_bytes(self, mode: str) -> dict[str, int | None]:
        """What XLA planned, and what its allocator saw if that was more than ever before."""
        plan = self._compiled[mode].memory_analysis()
        planned = None
        if plan is not None:
            planned = plan.temp_size_in_bytes + plan.output_size_in_bytes
        stats = jax.devices()[0].memory_stats() or {}
        held, top = stats.get("bytes_in_use", 0), stats.get("peak_bytes_in_use", 0)
        self.wait(self.launch(mode))
        new = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)
        return {"device_bytes": planned, "allocator_bytes": new - held if new > top else None}

    def values(self, focus: np.ndarray | None = None) -> dict[str, np.ndarray]:
        graph, x, p, cotangent = self._arguments["both"]
        if focus is not None:
            keep = (focus, focus[self._dst]) if self._on_edges else focus
            cotangent = jax.tree.map(lambda c, k: jnp.where(k[:, None], c, 0), cotangent, keep)
        out, x, p = self._compiled["both"](graph, x, p, cotangent)
        if self._on_edges:
            found = {"out": out[0], "edges_out": out[1], "x": x[0], "edges": x[1], **p}
        else:
            found = {"out": out, "x": x, **p}
        arrays = {k: np.asarray(v) for k, v in found.items()}
        return arrays if focus is None else focused(arrays, focus, self._dst)


def focused(
    found: dict[str, np.ndarray], focus: np.ndarray, dst: np.ndarray
) -> dict[str, np.ndarray]:
    """Without the outputs at, and the edges into, other destinations."""
    keep = {"out": focus, "edges_out": focus[dst], "edges": focus[dst]}
    return {k: v[keep[k]] if k in keep else v for k, v in found.items()}
