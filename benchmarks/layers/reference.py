"""The reference: `with_segment` in float64 on the CPU, and how far plain low precision is from it.

Run it in a process with `JAX_PLATFORMS=cpu` and `JAX_ENABLE_X64=1`. Only the edges into the
workload's `focus` are kept; degrees are those of the whole graph, so the results there are exact
for one layer (for several, `focus` must be everything).
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common.workloads import Workload, parameters

from layers import with_segment
from layers.case import Execution
from layers.jax_case import JaxCase


def expected(
    layer: str, work: Workload, setting: Execution, path: pathlib.Path
) -> dict[str, tuple[float, float]]:
    """Write the float64 values to `path`, and return the `errors` of plain low precision."""
    assert jax.config.jax_enable_x64, "JAX_ENABLE_X64=1"  # type: ignore[attr-defined]
    assert work.sizes.depth == 1 or work.focus.all(), "several layers reach beyond the focus"
    want = _values(layer, work, setting.dtype, "float64")
    np.savez(path, **want)  # type: ignore[arg-type]
    return errors(_values(layer, work, setting.dtype, setting.dtype), want)


def errors(
    got: dict[str, np.ndarray], want: Mapping[str, np.ndarray]
) -> dict[str, tuple[float, float]]:
    """|got - want| / |want| of each array, in the 2-norm and in the largest entry.

    A parameter's gradient counts as no smaller than a hundredth of the largest one, per entry: some
    are zero but for rounding (a bias of all keys does not change a softmax). Infinite where a value
    is missing, not finite or of another shape.
    """
    rms = {k: float(np.sqrt(np.mean(np.square(b)))) for k, b in want.items()}
    least = max((r for k, r in rms.items() if k not in INPUTS), default=0.0) / 100
    found = {}
    for name, b in want.items():
        a = got.get(name)
        if a is None or a.shape != b.shape or not np.isfinite(a := a.astype(np.float64)).all():
            found[name] = (float("inf"), float("inf"))
            continue
        base = max(0.0 if name in INPUTS else least, float(np.finfo(np.float32).tiny))
        off, size = a - b, np.abs(b).max(initial=0)
        norm = float(np.sqrt(np.mean(np.square(off)))) / max(rms[name], base)
        found[name] = (norm, float(np.abs(off).max(initial=0) / max(size, base)))
    return found


INPUTS = ("out", "edges_out", "x", "edges")


def _values(layer: str, work: Workload, given: str, dtype: str) -> dict[str, np.ndarray]:
    """Round the inputs to `given`, then compute everything in `dtype`."""

    def rounded(a: np.ndarray) -> Any:
        return jnp.asarray(np.asarray(jnp.asarray(a, given)), dtype)

    graph: dict[str, Any] = with_segment.graph(layer, work)
    keep = work.focus[graph["dst"]]
    for name in ("src", "dst", "weight"):
        if name in graph:
            graph[name] = graph[name][keep]
    wide = "float64" if dtype == "float64" else "float32"
    graph = {k: jnp.asarray(a, wide) if a.dtype == "f4" else a for k, a in graph.items()}
    if "weight" in graph:
        graph["weight"] = rounded(with_segment.graph(layer, work)["weight"][keep])
    apply = with_segment.apply_of(layer, work.sizes.heads)
    return _Focused(apply, graph, layer, work, Execution(1, dtype), rounded).values()


class _Focused(JaxCase):
    """`JaxCase` on a part of the edges, with inputs rounded first."""

    def __init__(
        self, apply: Any, graph: Any, layer: str, work: Workload, s: Execution, rounded: Any
    ):
        keep = work.focus[work.dst]
        part = dataclasses.replace(work, src=work.src[keep], dst=work.dst[keep])
        super().__init__(apply, graph, layer, part, s)
        x: Any = rounded(work.x)
        cotangent: Any = rounded(work.cotangent * work.focus[:, None])
        if self._on_edges:
            x = x, rounded(work.on_edges(1)[keep])
            cotangent = cotangent, rounded(work.on_edges(2)[keep])
        p = {k: rounded(a) for k, a in parameters(layer, work.sizes).items()}
        self._arguments["both"] = (jax.device_put(graph), x, p, cotangent)
        self._rows = work.focus
        self.compile(("both",))

    def values(self, focus: np.ndarray | None = None) -> dict[str, np.ndarray]:
        found = super().values()
        return found | {"out": found["out"][self._rows]}
