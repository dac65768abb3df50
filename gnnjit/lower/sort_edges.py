"""How the edges of a compiled function are sorted: generated code on a CPU, else XLA's sort."""

from __future__ import annotations

from typing import Any

from gnnjit.graph.sorting import sort_by_xla, sort_edges_p
from gnnjit.lower import choose, cpu
from gnnjit.lower.primitives import lowers_to


def why_not(platform: str, dtype: Any) -> list[str]:
    """Reasons against the generated code; none means that it runs."""
    if platform != "cpu":
        return [f"the platform is {platform}"]
    return choose.skipped("cpu") or cpu.why_no_sort(dtype)


def lower(key: Any, payload: Any, *, num_rows: int, rises: bool, platform: str) -> list[Any]:
    if why_not(platform, key.dtype):
        return list(sort_by_xla(key, payload, num_rows, rises))
    return cpu.sort(key, payload, num_rows)


def register() -> None:
    """Graphs know the primitive alone; from now on it becomes code."""
    lowers_to(sort_edges_p, lower)
