"""Blocks of rows that shards send to each other, made on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gnnjit.graph.exchanges import Block, Halo
from gnnjit.graph.structure import Structure, counting_sort
from gnnjit.shapes import HostArray

AT_ONCE = 1.25
"""One `all_to_all` where it moves at most so many times what one `ppermute` each would."""

LEVELS, WORTH = 4, 64
"""Blocks of one distance at most, and rows a shard that another one must save."""

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


def rows_of(p: int, used: HostArray, num_rows: int) -> HostArray:
    """The rows of shard p among those that another one uses."""
    low, high = np.searchsorted(used, [p * num_rows, (p + 1) * num_rows])
    return used[low:high] - p * num_rows


def traffic(num_shards: int, num_rows: int, used: Used) -> HostArray:
    """`int64[P, P]`: [q, p] are the rows of shard q that shard p uses."""
    bounds = np.arange(num_shards + 1) * num_rows
    at = [np.searchsorted(used(p), bounds) for p in range(num_shards)]
    return np.diff(np.asarray(at), axis=1).T


class Blocks:
    """Which rows each shard sends to each, and where they are put: a `Halo`.

    Attributes:
        blocks, at_once: as in `Halo`.
        total: rows of all blocks of one shard.
        rows: that are used, in all pairs of shards: what travels, less padding.
        moved: what travels with padding.
    """

    def __init__(
        self,
        num_shards: int,
        num_rows: int,
        used: Used,
        counts: HostArray,
        sent: Callable[[int, int], HostArray] | None = None,
    ) -> None:
        """`counts`: as `traffic` gives them. `sent`: the rows of a shard that go to another one,
        where it is not to be found by what that one uses."""
        self.count, self.num_rows, self.used = num_shards, num_rows, used
        self.sent = sent or (lambda p, q: rows_of(p, used(q), num_rows))
        shard = np.arange(num_shards)
        # Of each distance: the rows below which a block ends, and its number.
        self.levels: list[tuple[HostArray, int]] = []
        self.blocks: tuple[Block, ...] = ()
        for distance in range(1, num_shards):
            each = counts[(shard + distance) % num_shards, shard]
            ends = _levels(each)
            self.levels.append((ends, len(self.blocks)))
            self.blocks += tuple(
                Block(distance, int(end - start), tuple(np.flatnonzero(each > start).tolist()))
                for start, end in zip([0, *ends], ends, strict=False)
            )
        tallest, everyone = int(counts.max(initial=0)), tuple(range(num_shards))
        self.moved = sum(b.height * len(b.readers) for b in self.blocks)
        all_alike = tallest * num_shards * (num_shards - 1)
        self.at_once = 0 < all_alike <= AT_ONCE * self.moved
        if self.at_once:
            self.blocks = tuple(Block(q, tallest, everyone) for q in everyone)
            self.moved = all_alike
        self.starts = np.cumsum([0, *(b.height for b in self.blocks)])
        self.total, self.rows = int(self.starts[-1]), int(counts.sum())

    def place(self, p: int, number: HostArray) -> HostArray:
        """Where rows lie in the table of shard p, which are its own or used there; `number` as in
        `Used`."""
        used, shard = self.used(p), number // self.num_rows
        first = np.searchsorted(used, np.arange(self.count) * self.num_rows)
        at = np.where(shard == p, number - p * self.num_rows, 0)
        for q in np.unique(shard[shard != p]):
            these = np.flatnonzero(shard == q)
            rank = np.searchsorted(used, number[these]) - first[q]
            at[these] = self.num_rows + self.slots(p, q, rank)
        return at

    def slots(self, p: int, q: int, rank: HostArray) -> HostArray:
        """Where the rows that shard p gets from shard q lie among its blocks, by their rank."""
        if self.at_once:
            return self.starts[q] + rank
        ends, block = self.levels[(q - p) % self.count - 1]
        level = np.searchsorted(ends, rank, side="right")
        return self.starts[block + level] + rank - np.concatenate([[0], ends])[level]

    def part(self, p: int, dtype: Any) -> Halo:
        """Of shard p, with a first axis for the shards."""
        send, real = np.zeros(self.total, dtype), np.zeros(self.total, bool)
        for q in set(range(self.count)) - {p}:
            rows = self.sent(p, q)
            rank = np.arange(len(rows))
            at = self.starts[q] + rank if self.at_once else self.slots(q, p, rank)
            send[at], real[at] = rows, True
        slot = np.flatnonzero(real).astype(dtype)
        returned = structure(send[slot], slot, self.num_rows, self.total, dtype)
        return Halo(send[None], alone(*returned), self.blocks, self.at_once)


def _levels(counts: HostArray) -> HostArray:
    """Where the blocks of pairs of shards with so many rows end: at the largest count, and below
    where the least is padded."""
    ends = np.unique(counts[counts > 0])
    if not len(ends):
        return ends
    chosen = ends[-1:]
    while len(chosen) < LEVELS:
        tried = [np.union1d(chosen, [end]) for end in ends]
        best = min(tried, key=lambda some: _moved(counts, some))
        if _moved(counts, chosen) - _moved(counts, best) < max(WORTH * len(counts), 1):
            break
        chosen = best
    return chosen


def _moved(counts: HostArray, ends: HostArray) -> int:
    """Rows that travel, padding included."""
    return int(np.sum(ends[np.searchsorted(ends, counts[counts > 0])]))
