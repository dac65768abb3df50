"""Which tiles a GPU kernel uses: the fastest of a few candidates, timed once and kept on disk.

Off by default, since a kernel's first compilation then takes as many compilations as there are
candidates: GNNJIT_AUTOTUNE=1, or `with autotuning():`. What was found is used by every later
process on the same kind of device with the same versions, whether it tunes or not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from gnnjit import _compat, config
from gnnjit.ir.program import Program
from gnnjit.ir.show import show
from gnnjit.lower.pallas.config import candidates, static_config
from gnnjit.pallas_kernels import triton
from gnnjit.pallas_kernels.rows import Config
from gnnjit.pallas_kernels.traversal import Traversal

FILE = "tiles.json"
FORMAT = 1
REPEATS = 5

_tuning = jax.make_user_context(None)
"""Part of the key of every cache of compiled code."""

Timer = Callable[[Config], float]


@contextlib.contextmanager
def autotuning(on: bool = True) -> Iterator[None]:
    """Within it, kernels compiled for a GPU have their tiles timed first, or not."""
    with _tuning(on):
        yield


def is_on() -> bool:
    return config.AUTOTUNE if _tuning.value is None else bool(_tuning.value)


@dataclasses.dataclass(frozen=True)
class Kernel:
    """What a choice of tiles is made for.

    kind: `rows` or `edges`; sizes: rows, neighbours and edges, by power of two in the key.
    """

    kind: str
    body: Program
    reductions: tuple[Any, ...]
    sizes: tuple[int, int, int]

    def key(self) -> str:
        """The same in every process."""
        text = show(self.body, locations=False) + repr(self.reductions)
        digest = hashlib.sha256(text.encode()).hexdigest()[:24]
        return "-".join([self.kind, digest, *(str(n.bit_length()) for n in self.sizes)])


def choose(kernel: Kernel, t: Traversal, timer: Callable[[Traversal], Timer] | None) -> Config:
    """The stored choice; else, where tuning is on and there is a `timer`, the fastest candidate;
    else the static one."""
    if timer is None:
        return static_config(t)
    where = f"{device()}/{kernel.key()}"
    found = _load(path()).get(where)
    if found is not None:
        return found
    if not is_on():
        return static_config(t)
    best = fastest(candidates(t), timer(t))
    if best is None:
        return static_config(t)
    _store(path(), where, best)
    return best


def fastest(configs: Sequence[Config], timer: Timer) -> Config | None:
    """The candidate of the least time; one that does not compile or run is left out."""
    times: dict[Config, float] = {}
    for c in configs:
        # A candidate may ask for more registers or shared memory than there is: any error of the
        # compiler or the driver means the same, that it is not the one.
        with contextlib.suppress(Exception):
            times[c] = timer(c)
    return min(times, key=times.__getitem__) if times else None


def seconds(run: Callable[[], Any]) -> float:
    """The least of a few times of `run`, which gives arrays; the first one is not counted."""
    jax.block_until_ready(run())
    out = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(run())
        out.append(time.perf_counter() - start)
    return min(out)


def path() -> Path:
    return config.cache_dir() / FILE


@functools.cache
def device() -> str:
    """The device and what compiles for it."""
    kind = jax.local_devices()[0].device_kind
    return f"{kind}/jax {'.'.join(map(str, _compat.JAX_VERSION))}/{triton.NAME}"


# ------------------------------------------------------------------------------------ on disk

_loaded: dict[tuple[str, int], dict[str, Config]] = {}


def _load(file: Path) -> dict[str, Config]:
    """Everything stored; nothing, with a warning, where the file is damaged or not ours."""
    try:
        stamp = file.stat().st_mtime_ns
    except OSError:
        return {}
    place = (str(file), stamp)
    if place not in _loaded:
        try:
            _loaded[place] = _parse(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            warnings.warn(
                f"{file}: not a table of gnnjit's tiles ({type(error).__name__}: {error}); it is "
                "ignored, and written anew at the next tuning",
                stacklevel=2,
            )
            _loaded[place] = {}
    return _loaded[place]


def _parse(text: str) -> dict[str, Config]:
    data = json.loads(text)
    if data["format"] != FORMAT:
        raise ValueError(f"format {data['format']}, expected {FORMAT}")
    found = {k: Config(**v) for k, v in data["tiles"].items()}
    for k, c in found.items():
        for size in dataclasses.astuple(c):
            if type(size) is not int or size < 1 or size & (size - 1):
                raise ValueError(f"{k} has the size {size!r}, expected a power of two")
    return found


def _store(file: Path, where: str, best: Config) -> None:
    tiles = {**_load(file), where: best}
    data = {"format": FORMAT, "tiles": {k: dataclasses.asdict(c) for k, c in tiles.items()}}
    try:
        config.write_json(file, data)
    except OSError as error:
        warnings.warn(
            f"{file}: cannot be written ({error.strerror}); the tiles are timed again next time. "
            "Set XDG_CACHE_HOME to a directory that can",
            stacklevel=2,
        )
