"""Blocks of rows that shards send to each other, made on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gnnjit.graph.exchanges import Halo
from gnnjit.graph.structure import Structure, counting_sort
from gnnjit.shapes import HostArray

AT_ONCE = 1.25
"""One `all_to_all` where it moves at most so many times what one `ppermute` each would."""

Used = Callable[[int], HostArray]
"""From a shard to the rows of others that it uses, as sorted numbers `shard * num_rows + row`."""


def padded(x: HostArray, length: int) -> HostArray:
    return np.pad(x, [(0, length - len(x))] + [(0, 0)] * (x.ndim - 1))


def structure(
    row: HostArray, neighbor: HostArray, num_rows: int, slots: int, dtype: Any
) -> tuple[HostArray, HostArray, HostArray]:
    """`indptr`, `neighbor` and `edge` of edges sorted by row, with padding up to `slots`."""
    indptr, neighbor, edge = counting_sort(row, neighbor, num_rows)
    beyond = np.arange(len(row), slots, dtype=dtype)
    return (
        indptr.astype(dtype),
        padded(neighbor.astype(dtype), slots),
        np.concatenate([edge.astype(dtype), beyond]),
    )


def alone(indptr: Any, neighbor: Any, edge: Any) -> Structure:
    """With a first axis for the shards."""
    return Structure(indptr[None], neighbor[None], edge[None])


def traffic(num_shards: int, num_rows: int, used: Used) -> HostArray:
    """`int64[P, P]`: [q, p] are the rows of shard q that shard p uses."""
    bounds = np.arange(num_shards + 1) * num_rows
    at = [np.searchsorted(used(p), bounds) for p in range(num_shards)]
    return np.diff(np.asarray(at), axis=1).T


class Blocks:
    """Which rows each shard sends to each, and where they are put: a `Halo`.

    Attributes:
        heights, at_once: as in `Halo`.
        total: rows of all blocks of one shard.
        rows: that are used, in all pairs of shards: what travels, less padding.
    """

    def __init__(self, num_shards: int, num_rows: int, used: Used, counts: HostArray) -> None:
        """`counts`: as `traffic` gives them."""
        self.count, self.num_rows, self.used = num_shards, num_rows, used
        shard = np.arange(num_shards)
        by_distance = [
            int(counts[(shard + s) % num_shards, shard].max(initial=0))
            for s in range(1, num_shards)
        ]
        tallest = max(by_distance, default=0)
        self.at_once = 0 < tallest * num_shards <= AT_ONCE * sum(by_distance)
        self.heights = (tallest,) * num_shards if self.at_once else tuple(by_distance)
        self.starts = np.cumsum([0, *self.heights])
        self.total, self.rows = int(self.starts[-1]), int(counts.sum())

    def place(self, p: int, number: HostArray) -> HostArray:
        """Where rows lie in the table of shard p, which are its own or used there; `number` as in
        `Used`."""
        used, shard = self.used(p), number // self.num_rows
        first = np.searchsorted(used, np.arange(self.count) * self.num_rows)
        own = shard == p
        block = np.where(own, 0, shard if self.at_once else (shard - p) % self.count - 1)
        at = self.num_rows + self.starts[block] + np.searchsorted(used, number) - first[shard]
        return np.where(own, number - p * self.num_rows, at)

    def sent(self, p: int, q: int) -> HostArray:
        """The rows of shard p that go to shard q."""
        used = self.used(q)
        low, high = np.searchsorted(used, [p * self.num_rows, (p + 1) * self.num_rows])
        return used[low:high] - p * self.num_rows

    def part(self, p: int, dtype: Any) -> Halo:
        """Of shard p, with a first axis for the shards."""
        send, real = np.zeros(self.total, dtype), np.zeros(self.total, bool)
        for q in set(range(self.count)) - {p}:
            rows = self.sent(p, q)
            at = self.starts[q if self.at_once else (p - q) % self.count - 1]
            send[at : at + len(rows)] = rows
            real[at : at + len(rows)] = True
        slot = np.flatnonzero(real).astype(dtype)
        returned = structure(send[slot], slot, self.num_rows, self.total, dtype)
        return Halo(send[None], alone(*returned), self.heights, self.at_once)
