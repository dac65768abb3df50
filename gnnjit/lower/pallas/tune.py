"""Which tiles a GPU kernel uses: the fastest of a few candidates, timed once and kept on disk.

Off by default, since a kernel's first compilation then takes as many compilations as there are
candidates: GNNJIT_AUTOTUNE=1, or `with gnnjit.autotuning():`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from gnnjit import _compat
from gnnjit.ir.program import Program
from gnnjit.ir.show import show
from gnnjit.lower.pallas.config import candidates, static_config
from gnnjit.system import autotuning
from gnnjit.system.cache import Table
from pallas_kernels import triton
from pallas_kernels.rows import TileConfig
from pallas_kernels.traversal import Traversal

REPEATS = 5

Timer = Callable[[TileConfig], float]


@dataclasses.dataclass(frozen=True)
class TunedKernel:
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


def choose(
    kernel: TunedKernel, t: Traversal, timer: Callable[[Traversal], Timer] | None
) -> TileConfig:
    """The stored choice; else, where tuning is on and there is a `timer`, the fastest candidate;
    else the static one."""
    if timer is None:
        return static_config(t)
    where = f"{device()}/{kernel.key()}"
    found = TILES.load().get(where)
    if found is not None:
        return found
    if not autotuning.is_on():
        return static_config(t)
    best = fastest(candidates(t), timer(t))
    if best is None:
        return static_config(t)
    TILES.store(where, best)
    return best


def fastest(configs: Sequence[TileConfig], timer: Timer) -> TileConfig | None:
    """The candidate of the least time; one that does not compile or run is left out."""
    times: dict[TileConfig, float] = {}
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


@functools.cache
def device() -> str:
    """The device and what compiles for it."""
    kind = jax.local_devices()[0].device_kind
    return f"{kind}/jax {'.'.join(map(str, _compat.JAX_VERSION))}/{triton.NAME}"


def _parse(name: str, sizes: Any) -> TileConfig:
    config = TileConfig(**sizes)
    for size in dataclasses.astuple(config):
        if type(size) is not int or size < 1 or size & (size - 1):
            raise ValueError(f"{name} has the size {size!r}, expected a power of two")
    return config


TILES = Table("tiles", _parse, dataclasses.asdict)
