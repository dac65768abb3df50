"""What a run costs: time, memory, and the same epoch on plain segment operations."""

from __future__ import annotations

import importlib.metadata
import platform
import statistics
import time
from collections.abc import Sequence
from typing import Any

import jax

from gnnjit.compiler.layer import reference
from gnnjit.config import cores
from gnnjit.data.stored.prepare import peak_memory
from gnnjit.training.loop import Epoch, Steps, evaluate, train_epoch
from gnnjit.training.steps import ModelFunctions
from gnnjit.training.tasks import Task

_PACKAGES = ("gnnjit", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def median_epoch(histories: Sequence[Sequence[Epoch]]) -> float | None:
    """Median seconds of an epoch, the first of each run left out where there are more."""
    seconds = [r.seconds for history in histories for r in (history[1:] or history)]
    return statistics.median(seconds) if seconds else None


def peak_device() -> int | None:
    """The most bytes held on the first device; None where it does not count (CPU)."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats.get("peak_bytes_in_use")


def cost(steps: Steps, histories: Sequence[Sequence[Epoch]]) -> dict[str, Any]:
    """The costs of what has run so far in this process."""
    return {
        "median_epoch_seconds": median_epoch(histories),
        **steps.figures(),
        "peak_rss_bytes": peak_memory(),
        "peak_device_bytes": peak_device(),
    }


def preparation(stored: Any) -> dict[str, Any]:
    """What making a `StoredDataset` took the process that did it; None where there was none."""
    return {
        "prepared_seconds": stored.prepared_seconds,
        "prepared_peak_bytes": stored.prepared_peak_bytes,
    }


def reference_cost(functions: ModelFunctions, task: Task, epochs: int = 3) -> dict[str, Any]:
    """The same epochs with every layer run edge by edge on `jax.ops.segment_sum`."""
    compiled = functions.compile(task, reference())
    state, seconds = functions.initial(0), []
    for number in range(1, epochs + 2):
        started = time.perf_counter()
        state, _ = train_epoch(compiled, task, state, 0, number)
        evaluate(compiled, task, state)
        seconds.append(time.perf_counter() - started)
    return {
        "median_epoch_seconds": statistics.median(seconds[1:]),
        **compiled.figures(),
    }


def versions() -> dict[str, str]:
    """Python's and the packages' versions."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def device() -> dict[str, Any]:
    """What it ran on."""
    first = jax.local_devices()[0]
    return {
        "platform": first.platform,
        "kind": first.device_kind,
        "count": jax.local_device_count(),
        "machine": platform.machine(),
        "cpus": cores(),
    }
