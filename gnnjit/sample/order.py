"""Which seeds are in which batch of which epoch, and what sizes such batches have."""

from __future__ import annotations

import dataclasses
import functools
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numba import njit

from gnnjit.errors import SampleError
from gnnjit.graph.validate import as_count, shown
from gnnjit.sample.adjacency import numbers_of
from gnnjit.sample.making import LARGE, Source
from gnnjit.sample.padding import VERTEX_COST, Shapes, plan_shapes
from gnnjit.sample.random import bits, key_of
from gnnjit.shapes import HostArray

PLANNED = 1 << 40
"""The first of the epochs whose batches shapes are planned from: no loader comes to it."""


@dataclasses.dataclass(frozen=True, eq=False)
class Order:
    """The batches of all epochs.

    Attributes:
        seeds: `int[S]`, those of an epoch, or None where samples need none.
        size: seeds of a batch.
        steps: batches of an epoch.
        shuffle: whether each epoch has an order of its own.
        seed: of these orders.
    """

    seeds: HostArray | None
    size: int
    steps: int
    shuffle: bool
    seed: int

    @classmethod
    def of(
        cls, where: str, sampler: Any, seeds: Any, size: int, steps: int | None, shuffle: bool,
        drop_last: bool, seed: int,
    ) -> Order:  # fmt: skip
        """Raises SampleError where seeds or steps do not fit the sampler, or there is no batch."""
        if as_count(f"{where}: batch_size", size) < 1:
            raise SampleError(f"{where}: batch_size is {size}, expected at least 1 seed")
        known = sampler.num_seeds
        if known is None:
            if seeds is not None or steps is None or as_count(f"{where}: steps", steps) < 1:
                got = "seeds" if seeds is not None else f"steps={shown(steps)}"
                raise SampleError(
                    f"{where}: got {got} with a {type(sampler).__name__}, whose samples need no "
                    f"seeds, expected steps, the batches of an epoch, at least 1; pass vertices "
                    f"whose labels count as labelled"
                )
            return cls(None, size, steps, shuffle, seed)
        if steps is not None:
            raise SampleError(
                f"{where}: got steps={shown(steps)} with seeds, expected neither: an epoch ends "
                f"with its seeds"
            )
        numbers = (
            np.arange(known) if seeds is None else numbers_of(where, "seeds", seeds, known, "seed")
        )
        count = len(numbers) // size if drop_last else -(-len(numbers) // size)
        if not count:
            raise SampleError(
                f"{where}: {len(numbers)} seeds make no batch of {size}"
                f"{' with drop_last' if drop_last else ''}, expected at least one: pass more seeds "
                f"or a smaller batch_size"
            )
        return cls(numbers, size, count, shuffle, seed)

    def __len__(self) -> int:
        return self.steps

    def batch(self, epoch: int, index: int) -> HostArray | None:
        """`int[n]`, the seeds of a batch."""
        if self.seeds is None:
            return None
        chosen = slice(index * self.size, (index + 1) * self.size)
        if not self.shuffle:
            return self.seeds[chosen]
        return self.seeds[self._permutations(epoch)[chosen]]

    @functools.cached_property
    def _permutations(self) -> Any:
        """The order of an epoch. The last few are kept: threads may be at two epochs."""
        assert self.seeds is not None
        count = len(self.seeds)
        return functools.lru_cache(maxsize=3)(lambda epoch: _permutation(self.seed, epoch, count))

    @functools.cached_property
    def fingerprint(self) -> str:
        """The same for the same batches."""
        parts = (self.size, self.steps, self.shuffle)
        seeds = b"" if self.seeds is None else np.ascontiguousarray(self.seeds, np.int64).tobytes()
        return f"{zlib.crc32(repr(parts).encode(), zlib.crc32(seeds)):08x}"


def plan(source: Source, order: Order, count: int, samples: int, threads: int) -> Shapes:
    """At most `count` shapes for the batches of a loader, from the sizes of some of them."""
    full = order.steps if order.seeds is None else len(order.seeds) // order.size
    last = order.steps - full
    drawn = [(PLANNED + i // full, i % full) for i in range(samples)] if full else []
    weights = [full / samples] * len(drawn)
    if last:
        few = samples if not full else max(4, samples // 8)
        drawn += [(PLANNED + i, full) for i in range(few)]
        weights += [1 / few] * few

    def sizes(place: tuple[int, int]) -> tuple[int, ...]:
        return source.sizes(source.draw(order.batch(*place), *place, 0))

    with ThreadPoolExecutor(max(1, threads), "gnnjit-plan") as pool:
        histogram = list(pool.map(sizes, drawn))
    dimensions = len(histogram[0]) - (source.hot is not None)
    cost, limits = source.dimensions(dimensions)
    if source.hot is not None:
        cost, limits = (*cost, VERTEX_COST), (*limits, source.num_nodes)
    return plan_shapes(histogram, count, cost, weights=weights, limits=limits)


def _permutation(seed: int, epoch: int, count: int) -> HostArray:
    """`int64[count]`, in the order of numbers that are drawn for each."""
    return np.argsort(_draws(key_of("Loader", seed, epoch, LARGE), count), kind="stable")


@njit(nogil=True, cache=True)
def _draws(key, count):  # type: ignore[no-untyped-def]
    out = np.empty(count, np.uint64)
    for i in range(count):
        out[i] = bits(key, i)
    return out
