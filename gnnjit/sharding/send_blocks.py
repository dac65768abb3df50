"""The layout of a halo, made on the host: which rows shards send to each other, in which blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gnnjit.graph.host_sort import counting_sort
from gnnjit.graph.structure import Structure
from gnnjit.shapes import HostArray
from gnnjit.sharding.exchange import Halo, SendBlock, moved_rows

AT_ONCE = 1.25
"""One `all_to_all` is taken where it moves at most so many times what `ppermute`s would."""

LEVELS, WORTH = 4, 64
"""At most so many blocks a distance; a further one must save so many rows a shard."""

Used = Callable[[int], HostArray]
"""Maps a shard to the rows of others that it reads, as sorted numbers `shard * num_rows + row`."""


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
    """The structure of one shard, with a first axis for the shards."""
    return Structure(indptr[None], neighbor[None], edge[None])


def rows_of(p: int, used: HostArray, num_rows: int) -> HostArray:
    """The rows of shard p among those (`used`) that another shard reads."""
    low, high = np.searchsorted(used, [p * num_rows, (p + 1) * num_rows])
    return used[low:high] - p * num_rows


def traffic(num_shards: int, num_rows: int, used: Used) -> HostArray:
    """`int64[P, P]`: at [q, p], the number of rows of shard q that shard p reads."""
    bounds = np.arange(num_shards + 1) * num_rows
    at = [np.searchsorted(used(p), bounds) for p in range(num_shards)]
    return np.diff(np.asarray(at), axis=1).T


class HaloLayout:
    """Which rows each shard sends to each other one, and where they lie: all of a `Halo`.

    Attributes:
        blocks, at_once: as in `Halo`.
        total: rows of a table after the local ones.
        entries: the length of `Halo.send`.
        rows: rows that travel between all pairs of shards, without padding.
        moved: the same with padding.
    """

    def __init__(
        self,
        num_shards: int,
        num_rows: int,
        used: Used,
        counts: HostArray,
        sent: Callable[[int, int], HostArray] | None = None,
    ) -> None:
        """`counts`: as `traffic` gives them. `sent(p, q)`: the rows of shard p that shard q reads,
        where `used(q)` is not known here."""
        self.count, self.num_rows, self.used = num_shards, num_rows, used
        self.sent = sent or (lambda p, q: rows_of(p, used(q), num_rows))
        self.rows = int(counts.sum())
        shard = np.arange(num_shards)
        # For each block, the rows of a pair that come before it.
        self.before: list[int] = []
        self.blocks: tuple[SendBlock, ...] = ()
        for distance in range(1, num_shards):
            each = counts[(shard + distance) % num_shards, shard]
            ends = _levels(each).tolist()
            for start, end in zip([0, *ends], ends, strict=False):
                readers = tuple(np.flatnonzero(each > start).tolist())
                self.blocks += (SendBlock(distance, end - start, readers),)
                self.before.append(start)
        tallest, everyone = int(counts.max(initial=0)), tuple(range(num_shards))
        alike = tuple(SendBlock(q, tallest, everyone) for q in everyone)
        moved = moved_rows(self.blocks, at_once=False)
        several = len(self.blocks) > 1
        self.at_once = several and moved_rows(alike, at_once=True) <= AT_ONCE * moved
        if self.at_once:
            self.blocks, self.before = alike, [0] * num_shards
        self.moved = moved_rows(self.blocks, self.at_once)
        self.places, self.total = self._begins(counts, -1)
        self.origins, self.entries = self._begins(counts, 1)

    def _begins(self, counts: HostArray, way: int) -> tuple[HostArray, int]:
        """`int64[P, B]`, where each block begins in what a shard receives (`way` -1) or sends (1),
        and the length of that."""
        shard = np.arange(self.count)
        height = np.asarray([b.height for b in self.blocks], np.int64)
        if self.at_once:
            begins = np.broadcast_to(np.cumsum(height) - height, (self.count, self.count))
            return begins, int(height.sum())
        taken = np.zeros((self.count, len(height)), np.int64)
        for k, block in enumerate(self.blocks):
            other = (shard - way * block.distance) % self.count
            pair = counts[other, shard] if way < 0 else counts[shard, other]
            taken[:, k] = np.clip(pair - self.before[k], 0, block.height)
        begins = np.cumsum(taken, axis=1) - taken
        return begins, int((begins + height).max(initial=0))  # padding is written there, too

    def blocks_of(self, p: int, q: int) -> list[int]:
        """The blocks that shard p receives from shard q."""
        if self.at_once:
            return [q]
        distance = (q - p) % self.count
        return [k for k, block in enumerate(self.blocks) if block.distance == distance]

    def place(self, p: int, number: HostArray) -> HostArray:
        """Where rows that shard p owns or reads lie in its table; `number` as in `Used`."""
        used, shard = self.used(p), number // self.num_rows
        first = np.searchsorted(used, np.arange(self.count) * self.num_rows)
        at = np.where(shard == p, number - p * self.num_rows, 0)
        for q in np.unique(shard[shard != p]):
            these = np.flatnonzero(shard == q)
            rank = np.searchsorted(used, number[these]) - first[q]
            at[these] = self.num_rows + self._spot(self.places[p], self.blocks_of(p, q), rank)
        return at

    def _spot(self, begins: HostArray, blocks: Sequence[int], rank: HostArray) -> HostArray:
        """Where the rows of a pair of shards lie, by their rank, among its blocks."""
        before = np.asarray([self.before[k] for k in blocks])
        level = np.searchsorted(before, rank, side="right") - 1
        return begins[np.asarray(blocks)[level]] + rank - before[level]

    def part(self, p: int, dtype: Any) -> Halo:
        """The halo of shard p, with a first axis for the shards."""
        send, real = np.zeros(self.entries, dtype), np.zeros(self.entries, bool)
        for q in set(range(self.count)) - {p}:
            rows = self.sent(p, q)
            if len(rows):
                blocks = [q] if self.at_once else self.blocks_of(q, p)
                at = self._spot(self.origins[p], blocks, np.arange(len(rows)))
                send[at], real[at] = rows, True
        slot = np.flatnonzero(real).astype(dtype)
        returned = structure(send[slot], slot, self.num_rows, self.entries, dtype)
        places, origins = (x[p : p + 1].astype(dtype) for x in (self.places, self.origins))
        return Halo(
            send=send[None],
            returned=alone(*returned),
            places=places,
            origins=origins,
            blocks=self.blocks,
            at_once=self.at_once,
            rows=self.total,
        )


def _levels(counts: HostArray) -> HostArray:
    """Where the blocks of one distance end, whose pairs of shards exchange `counts` rows: at the
    largest count, and at smaller ones as long as that saves padding."""
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
    """Rows that travel in blocks with these ends, padding included."""
    return int(np.sum(ends[np.searchsorted(ends, counts[counts > 0])]))
