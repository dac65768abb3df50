"""How large the caches of this machine's processor are."""

from __future__ import annotations

import dataclasses
import functools
import os
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")

MOST_OF_LAST = 16 << 20
"""Bytes of the last cache that are counted for each core that shares it. A virtual machine is often
told of the cache of the whole chip (480 MiB, of 2 cores), where other machines use it too."""


@dataclasses.dataclass(frozen=True)
class Caches:
    """Bytes of the largest cache that a core has before the last, its share of it; bytes of the
    last, `MOST_OF_LAST` a core at most, and how many cores share that."""

    near: int
    last: int
    sharing: int


@functools.cache
def caches() -> Caches | None:
    """Those of the first core that this process may use; None where the system does not say."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    return read_caches(_CPUS / f"cpu{min(os.sched_getaffinity(0))}" / "cache")


def read_caches(folder: Path) -> Caches | None:
    """What Linux says in `folder` about the caches of a core."""
    try:
        found = sorted(_cache(index) for index in folder.glob("index*") if _holds_data(index))
    except (OSError, ValueError):
        return None
    if len(found) < 2:
        return None
    *before, (_, last, sharing) = found
    near = max(size // cores for _, size, cores in before)
    return Caches(near, min(last, MOST_OF_LAST * sharing), sharing)


def _holds_data(index: Path) -> bool:
    return (index / "type").read_text().strip() != "Instruction"


def _cache(index: Path) -> tuple[int, int, int]:
    """Level, bytes, and how many cores share it."""
    level, size, cores = (
        (index / name).read_text().strip() for name in ("level", "size", "shared_cpu_list")
    )
    units = {"K": 1024, "M": 1024**2, "G": 1024**3}
    return int(level), int(size[:-1]) * units.get(size[-1:], 0), sum(map(_count, cores.split(",")))


def _count(cores: str) -> int:
    """Of `3` or `0-7`."""
    first, _, last = cores.partition("-")
    return int(last or first) - int(first) + 1
