"""Time and memory, each implementation in a process of its own, turn by turn."""

from __future__ import annotations

import concurrent.futures
import ctypes
import datetime
import importlib
import importlib.metadata
import multiprocessing
import os
import pathlib
import platform
import re
import sys
import time
import traceback
from typing import Any

import numpy as np

PACKAGES = ("gnnjit", "jax", "jaxlib", "flax", "llvmlite", "numpy", "torch", "torch_geometric")


class WorkerError(RuntimeError):
    """What went wrong in a worker."""


def usable_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Worker:
    """A process that holds one case and runs it when told to.

    The process starts with none of the libraries loaded, and is pinned to `threads` CPUs.
    """

    def __init__(self, module: str, threads: int):
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, module, threads), daemon=True)
        self._process.start()
        other.close()

    def ask(self, command: str, *args: Any) -> Any:
        """The result of a method of `_Cases`. Raises WorkerError with what it raised."""
        self.send(command, *args)
        return self.receive()

    def send(self, command: str, *args: Any) -> None:
        self._pipe.send((command, args))

    def receive(self) -> Any:
        try:
            fine, answer = self._pipe.recv()
        except EOFError:
            self._process.join(10)
            code = self._process.exitcode
            raise WorkerError(f"the process ended with {code} (out of memory?)") from None
        if not fine:
            raise WorkerError(answer)
        return answer

    def close(self) -> None:
        self._process.terminate()
        self._process.join()
        self._pipe.close()


def _serve(pipe: Any, module: str, threads: int) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    cases = _Cases(module, threads)
    while True:
        try:
            command, args = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, getattr(cases, command)(*args)))
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            text = (str(error).strip() or "no message").splitlines()[0]
            pipe.send((False, f"{type(error).__name__}: {text[:200]}"))


class _Cases:
    """What a worker can be asked."""

    def __init__(self, module: str, threads: int):
        self._module, self._threads, self._case = module, threads, None

    def load(self, layer: str, configuration: str, path: pathlib.Path) -> None:
        from workloads import Workload

        self._case = None
        module = importlib.import_module(self._module)
        self._case = module.build(layer, configuration, Workload.load(path), self._threads)

    def first(self, mode: str) -> dict[str, int | None]:
        """Compile and run once; bytes of temporaries, and of the growth in memory of that run."""
        temp = self._case.prepare(mode)
        before = _trim_and_reset()
        self._case.run(mode)
        peak = _status("VmHWM")
        growth = None if before is None or peak is None else max(peak - before, 0)
        return {"temp_bytes": temp, "peak_bytes": growth}

    def values(self) -> dict[str, np.ndarray]:
        return self._case.values()

    def time(self, mode: str) -> tuple[float, float]:
        """Seconds of one run, and CPU seconds over all threads."""
        started, cpu = time.perf_counter(), time.process_time()
        self._case.run(mode)
        return time.perf_counter() - started, time.process_time() - cpu

    def device(self) -> str:
        if "jax" not in sys.modules:
            return "cpu"
        first = sys.modules["jax"].devices()[0]
        return f"{first.platform} {first.device_kind}"


def _trim_and_reset() -> int | None:
    """Give free memory back and forget the peak; the memory held now, None where unsupported."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
        pathlib.Path("/proc/self/clear_refs").write_text("5")
    except (OSError, AttributeError):
        return None
    return _status("VmRSS")


def _status(field: str) -> int | None:
    """Bytes, from the operating system's account of this process."""
    found = re.search(rf"{field}:\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else None


def differences(
    got: dict[str, np.ndarray], expected: dict[str, np.ndarray]
) -> tuple[float, str | None]:
    """The largest difference relative to its array's largest magnitude, and which array it is in.

    Infinite where a value is missing, not finite or of another shape.
    """
    worst, name = 0.0, None
    for key, want in expected.items():
        have = got.get(key)
        if have is None or have.shape != want.shape or not np.isfinite(have).all():
            return float("inf"), key
        scale = max(float(np.abs(want).max(initial=0)), 1e-30)
        error = float(np.abs(have - want).max(initial=0)) / scale
        if error > worst:
            worst, name = error, key
    return worst, name


def bandwidth(threads: int, size: int) -> float:
    """Bytes per second that `threads` threads read and write, copying `size` bytes each."""
    pairs = [(np.ones(size, np.uint8), np.zeros(size, np.uint8)) for _ in range(threads)]
    best = 0.0
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        for _ in range(6):
            started = time.perf_counter()
            list(pool.map(lambda pair: np.copyto(pair[1], pair[0]), pairs))
            best = max(best, 2 * size * threads / (time.perf_counter() - started))
    return best


def versions() -> dict[str, str]:
    """Python's and the packages' versions, of those that are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine(threads: int) -> dict[str, Any]:
    """What this runs on. `load` is the number of processes that were running before."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {
        "processor": _processor(), "cpus": usable_cpus(), "threads": threads, "load": load,
        "when": when,
    }  # fmt: skip


def _processor() -> str:
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    found = re.search(r"model name\s*:\s*(.+)", text)
    return found[1].strip() if found else platform.machine()
