"""Which tiles a GPU kernel uses: the fastest of a few candidates, timed once and kept on disk.

Off by default, since a kernel's first compilation then takes as many compilations as there are
candidates: GNNJIT_AUTOTUNE=1, or `with gnnjit.autotuning():`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from gnnjit import _compat
from gnnjit.ir.program import Program
from gnnjit.ir.show import show
from gnnjit.system import autotuning
from gnnjit.system.cache import Table
from pallas_kernels import triton
from pallas_kernels.rows import TileConfig
from pallas_kernels.traversal import DOT, TileProgram, padded

TILE = 1024
"""About as many scalars as the widest tile of a program holds."""

MAX_TILE = 8192
"""More spill into memory."""

LEAST = 4
"""Lanes of a program at least."""

WARPS = 4
HELD = 4096
"""Scalars that take more registers than four warps have to spare."""

REPEATS = 5

Timer = Callable[[TileConfig], float]


@dataclasses.dataclass(frozen=True)
class TunedKernel:
    """What a choice of tiles is made for.

    kind: `long` rows, `short` rows or `edges`; sizes: rows, neighbours and edges, by power of two
        in the key.
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
    kernel: TunedKernel, t: TileProgram, timer: Callable[[TileProgram], Timer] | None
) -> TileConfig:
    """The stored choice; else, where tuning is on and there is a `timer`, the fastest candidate;
    else the static one."""
    if timer is None:
        return static_config(kernel, t)
    where = f"{device()}/{kernel.key()}"
    found = TILES.load().get(where)
    if found is not None:
        return found
    if not autotuning.is_on():
        return static_config(kernel, t)
    best = fastest(candidates(kernel, t), timer(t))
    if best is None:
        return static_config(kernel, t)
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


# ------------------------------------------------------------------------- without timing


def widest(t: TileProgram) -> int:
    """Scalars that one lane of the widest operand or output holds."""
    shapes = [x.shape for x in (*t.operands, *t.outputs) if getattr(x, "place", "") != "shared"]
    return max((math.prod(padded(s)) for s in shapes), default=1)


def held(t: TileProgram) -> int:
    """Scalars that a program keeps while it runs: sums of outer products."""
    return sum(math.prod(padded(o.shape)) for o in t.outputs if o.reduction == "outer_sum")


def least_lanes(kernel: TunedKernel) -> int:
    """A matrix product takes at least `DOT` lanes."""
    product = any(e.op.name == "dot_general" for e in kernel.body.equations)
    return DOT if product or kernel.kind == "edges" else LEAST


def static_config(kernel: TunedKernel, t: TileProgram) -> TileConfig:
    """Lanes that fill a tile; four warps, or eight for short rows and where four would spill what
    they hold.

    Compiled for an H200, the sum of a 64 x 64 outer product takes 255 registers and spills 424
    bytes with four warps, and takes 209 with eight (tests/lower/pallas/registers.py).
    """
    lanes = max(least_lanes(kernel), min(64, TILE // widest(t)))
    warps = 2 * WARPS if held(t) >= HELD or kernel.kind == "short" else WARPS
    return TileConfig(lanes=lanes, warps=warps, stages=2)


def candidates(kernel: TunedKernel, t: TileProgram) -> list[TileConfig]:
    """The static choice first, then its neighbours: fewer and more lanes and warps."""
    first = static_config(kernel, t)
    out = [first]
    for lanes in (first.lanes // 2, first.lanes, first.lanes * 2):
        for warps in (WARPS // 4, WARPS // 2, WARPS, WARPS * 2):
            fits = lanes * widest(t) <= max(MAX_TILE, DOT * widest(t))
            config = dataclasses.replace(first, lanes=lanes, warps=warps)
            if lanes >= least_lanes(kernel) and fits and config not in out:
                out.append(config)
    return out
