"""Time and memory, each implementation in a process of its own, turn by turn."""

from __future__ import annotations

import concurrent.futures
import ctypes
import datetime
import gc
import importlib
import importlib.metadata
import json
import math
import multiprocessing
import os
import pathlib
import platform
import re
import subprocess
import sys
import time
import tomllib
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

PACKAGES = (
    "gnnjit", "jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin", "flax", "llvmlite",
    "numpy", "torch", "torch_geometric", "triton",
)  # fmt: skip


MOST_TURNS = 400
"""Turns of a pass at most, in which calls are compared."""
LONGER = 1.0
"""Seconds that the readings of a call fill in a further pass over what is close."""


class WorkerError(RuntimeError):
    """A worker failed; the message says how."""


def append(path: pathlib.Path | None, *records: Mapping[str, Any]) -> None:
    """Add a line of JSON for each record to a file, where one is given.

    Callers append each record when it is there: a run of an hour may be ended before it is over.
    """
    if path is not None:
        with path.open("a", encoding="utf-8") as stream:
            stream.writelines(json.dumps(record) + "\n" for record in records)


def usable_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Worker:
    """A process that holds one case and runs it when told to.

    The process starts with none of the libraries loaded, is pinned to `threads` CPUs, and has
    `variables` in its environment.
    """

    def __init__(self, module: str, threads: int, variables: Mapping[str, str] | None = None):
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        args = (other, module, threads, dict(variables or {}))
        # Not a daemon where torch.compile starts processes of its own; `close` ends it.
        self._process = context.Process(target=_serve, args=args, daemon=not variables)
        self._process.start()
        other.close()

    def ask(self, command: str, *args: Any) -> Any:
        """The result of a method of `_Cases`. Raises WorkerError with what it raised."""
        self.send(command, *args)
        return self.receive()

    def send(self, command: str, *args: Any) -> None:
        try:
            self._pipe.send((command, args))
        except OSError as error:
            raise WorkerError(f"the process is gone: {error}") from None

    def receive(self, timeout: float | None = None) -> Any:
        """Raises WorkerError after `timeout` seconds; the process is then of no more use."""
        try:
            if timeout is not None and not self._pipe.poll(max(timeout, 0)):
                raise WorkerError(f"no answer within {timeout:.0f} s")
            fine, answer = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            self._process.join(10)
            code = self._process.exitcode
            raise WorkerError(f"the process ended with {code} (out of memory?)") from None
        if not fine:
            raise WorkerError(answer)
        return answer

    def close(self) -> None:
        self._process.terminate()
        self._process.join(5)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        self._pipe.close()


def _serve(pipe: Any, module: str, threads: int, variables: dict[str, str]) -> None:
    os.environ.update(variables)
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
    """The commands that a worker answers."""

    def __init__(self, module: str, threads: int):
        self._module, self._threads = module, threads
        self._case: Any = None
        self._work: Any = None

    def load(
        self,
        layer: str,
        configuration: str,
        path: pathlib.Path,
        dtype: str = "float32",
        matmul: str = "float32",
    ) -> None:
        from layers.case import Execution

        from common.workloads import Workload

        self._case = self._work = None
        gc.collect()
        module = importlib.import_module(self._module)
        self._work = Workload.load(path)
        setting = Execution(self._threads, dtype, matmul)
        self._case = module.build(layer, configuration, self._work, setting)

    def warm(self) -> None:
        """Load the libraries."""
        importlib.import_module(self._module)

    def first(self, mode: str) -> dict[str, int | None]:
        """Compile and run once; bytes of temporaries, and of the growth in memory of that run."""
        temp = self._case.prepare(mode)
        before = trim_and_reset()
        self._run(mode)
        peak = status("VmHWM")
        growth = None if before is None or peak is None else max(peak - before, 0)
        return {"temp_bytes": temp, "peak_bytes": growth}

    def prepare(self, mode: str, together: Sequence[str]) -> dict[str, Any]:
        """Compile `mode` and the modes `together`, run it, and account for the device's memory."""
        temp = self._case.prepare(mode, together)
        first = self.time(mode)[0]
        compiled = self._case.compile_seconds.get(mode)
        found = {"temp_bytes": temp, "compile_seconds": compiled, "first_seconds": first}
        return found | self._case.device_bytes(mode)

    def values(self) -> dict[str, np.ndarray]:
        return self._case.values()

    def errors(self, path: pathlib.Path) -> tuple[dict[str, tuple[float, float]], bool]:
        """How far the case is from the values at `path`, and whether it gives them twice."""
        from layers.reference import errors

        got, again = (self._case.values(self._work.focus) for _ in range(2))
        same = all(a.tobytes() == again[k].tobytes() for k, a in got.items())
        with np.load(path) as want:
            return errors(got, want), same

    def expected(
        self, layer: str, path: pathlib.Path, dtype: str, to: pathlib.Path
    ) -> dict[str, tuple[float, float]]:
        """Write reference values: see `layers.reference`."""
        from layers.case import Execution
        from layers.reference import expected

        from common.workloads import Workload

        return expected(layer, Workload.load(path), Execution(self._threads, dtype), to)

    def time(self, mode: str, calls: int = 1) -> tuple[float, float]:
        """Seconds of a run, and CPU seconds over all threads: the mean of `calls` in a row, all
        started before the last is waited for."""
        started, cpu = time.perf_counter(), time.process_time()
        self._run(mode, calls)
        seconds, busy = time.perf_counter() - started, time.process_time() - cpu
        return seconds / calls, busy / calls

    def _run(self, mode: str, calls: int = 1) -> None:
        launched = None
        for _ in range(calls):
            launched = self._case.launch(mode)
        self._case.wait(launched)

    def copy_bandwidth(self, size: int) -> float:
        """Bytes per second that JAX's device reads and writes, adding 1 to `size` bytes."""
        import jax
        import jax.numpy as jnp

        add = jax.jit(lambda x: x + 1)
        x, best = jnp.zeros(size // 4, jnp.float32), 0.0
        jax.block_until_ready(add(x))
        for _ in range(5):
            started = time.perf_counter()
            out = None
            for _ in range(10):
                out = add(x)
            jax.block_until_ready(out)
            best = max(best, 10 * 2 * size / (time.perf_counter() - started))
        return best

    def cuda(self) -> dict[str, Any]:
        """What PyTorch knows of its GPU; empty without one."""
        import torch

        if not torch.cuda.is_available():
            return {}
        found = torch.cuda.get_device_properties(0)
        return {
            "name": found.name, "cache_bytes": found.L2_cache_size,
            "memory_bytes": found.total_memory, "cuda": torch.version.cuda,
        }  # fmt: skip

    def device(self) -> str:
        self.warm()
        if "jax" not in sys.modules:
            return "cpu"
        first = sys.modules["jax"].devices()[0]
        return f"{first.platform} {first.device_kind}"


def trim_and_reset() -> int | None:
    """Give free memory back and forget the peak; the memory held now, None where unsupported."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
        pathlib.Path("/proc/self/clear_refs").write_text("5")
    except (OSError, AttributeError):
        return None
    return status("VmRSS")


def status(field: str) -> int | None:
    """A field of /proc/self/status, in bytes."""
    found = re.search(rf"{field}:\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else None


def differences(
    got: dict[str, np.ndarray], expected: dict[str, np.ndarray], kinked: Collection[str] = ()
) -> tuple[float, str | None]:
    """The largest difference relative to its array's largest magnitude, and which array it is in.

    Infinite where a value is missing, not finite or of another shape. Of the arrays in `kinked`,
    the root of the mean square of all differences: among millions of vertices, rounding puts one on
    the other side of a kink of `relu`, and a few numbers of a gradient change.
    """
    worst, name = 0.0, None
    for key, want in expected.items():
        have = got.get(key)
        if have is None or have.shape != want.shape or not np.isfinite(have).all():
            return float("inf"), key
        scale = max(float(np.abs(want).max(initial=0)), 1e-30)
        apart = np.abs(have.astype(np.float64) - want)
        if not apart.size:
            continue
        error = math.sqrt((apart**2).mean()) if key in kinked else float(apart.max())
        error /= scale
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
    project = pathlib.Path(__file__).parents[2] / "pyproject.toml"
    if "gnnjit" not in found and project.exists():  # run from a checkout that is not installed
        found["gnnjit"] = tomllib.loads(project.read_text())["project"]["version"]
    return found


def driver() -> str | None:
    """The version of NVIDIA's driver, None without one."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip().splitlines()[0]


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


def in_turn(
    runs: Sequence[Callable[..., Any]], repeats: int, arrays: Sequence[Any] = (), fill: float = 0.02
) -> list[float]:
    """Seconds of one call of each function on `arrays`, in this process.

    Compares like `gnnjit.system.timing.compare`, with at least `repeats` turns.
    """
    from gnnjit.system.timing import compare

    return compare(runs, arrays, fill=fill, turns=(repeats, MOST_TURNS))


def in_passes(
    groups: Sequence[Sequence[Callable[..., Any]]],
    repeats: int,
    passes: int,
    arrays: Sequence[Sequence[Any]] | None = None,
    fill: float = 0.02,
    known: Callable[[Sequence[np.ndarray]], bool] | None = None,
    further: int | None = None,
) -> list[list[float]]:
    """`in_turn` for each group with its `arrays`, over several passes that lie apart in time.

    On a shared machine the same program takes 1.1 times as long for minutes; passes average that.
    Groups whose readings (an array `turns x calls` for each pass) leave the answer open get
    `further` passes (default: twice as many), with readings of at least `LONGER` seconds.

    Args:
        known: whether readings answer the question; by default, which call is the fastest
            (`gnnjit.system.timing.decided`).
    """
    from gnnjit.system.timing import compared, decided, readings

    known = known or (lambda passes: decided(np.concatenate(passes)))
    further = 2 * passes if further is None else further
    turns = (repeats, MOST_TURNS)
    longer = max(fill, LONGER) if fill else fill
    given = arrays or [()] * len(groups)
    found: list[list[np.ndarray]] = [[] for _ in groups]
    for k in range(passes + further):
        for runs, a, one in zip(groups, given, found, strict=True):
            asked = k < passes
            if asked or not known(one):
                one.append(readings(runs, a, fill=fill if asked else longer, turns=turns))
    return [compared(np.concatenate(one)) for one in found]
