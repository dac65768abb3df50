"""Measures what it costs to move rows between the devices of a mesh."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gnnjit import config
from gnnjit.cost.link_model import Link, Links
from gnnjit.distributed.process_group import of_each
from gnnjit.shapes import HostArray
from gnnjit.system import cache

WIDTH = 64
ROWS = (16, 4096)
"""Rows of 64 float32 that a device receives from each other one: 4 KiB and 1 MiB."""
REPEATS = 5


@functools.lru_cache(maxsize=64)
def links_of(mesh: Mesh, axis: str) -> Links:
    """Rates along an axis of a mesh: stored ones, else measured by a few transfers and stored, so
    that later runs on such devices decide alike. All processes get those of process 0."""
    file = _file(mesh, axis)
    known = _stored(file)
    if jax.process_count() > 1:
        known = _of_first(np.zeros((4, 2)) if known is None else known)
        known = known if known.any() else None
    if known is None:
        known = _of_first(_measured(mesh, axis))
        if jax.process_index() == 0:
            with contextlib.suppress(OSError):  # it is measured again
                cache.write(file, known.tolist())
    return Links(*(Link(float(a), float(b)) for a, b in known))


def _of_first(rates: HostArray) -> HostArray:
    return np.asarray(of_each(rates)[0], np.float64)


def _file(mesh: Mesh, axis: str) -> Path:
    device = mesh.devices.flat[0]
    key = [device.device_kind, mesh.shape[axis], mesh.devices.size, jax.process_count()]
    digest = hashlib.sha256(repr([*key, config.cores(), jax.__version__]).encode()).hexdigest()
    return config.cache_dir() / "links" / f"{device.platform}-{mesh.shape[axis]}-{digest[:16]}.json"


def _stored(file: Path) -> HostArray | None:
    """The rates in a file that `_measured` gave; None where there is none or it is damaged."""
    try:
        found = np.asarray(cache.read(file), np.float64)
    except (OSError, ValueError, TypeError):
        return None
    sound = found.shape == (4, 2) and np.isfinite(found).all() and (found >= 0).all()
    return found if sound and (found[:, 1] > 0).all() else None


def _measured(mesh: Mesh, axis: str) -> HostArray:
    """`float64[4, 2]`, latency and bandwidth of each of `Links`."""
    count = mesh.shape[axis]
    others = max(count - 1, 1)

    def around(x: Any) -> Any:
        return lax.ppermute(x, axis, [(p, (p - 1) % count) for p in range(count)])

    def gathered(x: Any) -> Any:
        return x[(jnp.arange(len(x)) * 7 + 3) % len(x)]

    # What runs, the rows of a device for so many from each other one, from how many it gets them.
    kinds: list[tuple[Callable[[Any], Any], Callable[[int], int], int]] = [
        (lambda x: lax.all_gather(x, axis, tiled=True), lambda rows: rows, others),
        (lambda x: lax.all_to_all(x, axis, 0, 0, tiled=True), lambda rows: count * rows, others),
        (around, lambda rows: rows, 1),
        (gathered, lambda rows: rows, 1),
    ]
    found = []
    for run, length, senders in kinds:
        points = [
            (senders * rows * WIDTH * 4.0, _seconds(mesh, axis, run, length(rows))) for rows in ROWS
        ]
        link = Link.through(points)
        found.append([link.latency, link.bandwidth])
    return np.asarray(found)


def _seconds(mesh: Mesh, axis: str, run: Callable[[Any], Any], rows: int) -> float:
    spec = PartitionSpec(axis)
    shape = (mesh.shape[axis] * rows, WIDTH)
    sharding = NamedSharding(mesh, spec)
    part = np.ones((rows, WIDTH), np.float32)
    x = jax.make_array_from_callback(shape, sharding, lambda _: part)

    def once(x: Any) -> Any:  # one number a device comes back: results are not what is measured
        return jax.shard_map(
            lambda a: jnp.sum(run(a), axis=0, keepdims=True)[:, :1],
            mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False,
        )(x)  # fmt: skip

    compiled = jax.jit(once).lower(x).compile()
    jax.block_until_ready(compiled(x))
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(compiled(x))
        best = min(best, time.perf_counter() - start)
    return best
