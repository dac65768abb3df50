"""Plans the shards of one process from a stream of all edges.

No process holds the edges of other processes' shards: of the edges that start at its own vertices
it keeps their number, and a bit for each row and each shard that reads it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from gnnjit.partition.partition import Partition
from gnnjit.shapes import HostArray
from gnnjit.sharding.build import Dealt, ShardEdges, ShardPlan, edges_between
from gnnjit.sharding.send_blocks import padded

EdgeBlocks = Iterable[tuple[HostArray, HostArray]]
"""Blocks of edges `(src, dst)`, in the order in which the edges were given."""


def streamed_plan(
    blocks: EdgeBlocks,
    partition: Partition,
    mine: Sequence[int],
    *,
    vertex: Callable[[int, int], HostArray],
    summed: Callable[[HostArray], HostArray] = lambda x: x,
) -> ShardPlan:
    """The plan of a process that makes the shards `mine`; not for `cover`, which needs all edges.

    Args:
        blocks: all edges, between vertices numbered in the order of `partition`.
        partition: contiguous in these numbers.
        mine: the shards of this process.
        vertex: `vertex(first, last)` are the user's numbers of the vertices `first .. last - 1`.
        summed: adds up a small `int64` array over all processes, and gives it to all.
    """
    part = _LocalShards(Dealt.by(partition), mine)
    for src, dst in blocks:
        part.add(src, dst)
    part.close()
    bounds = partition.bounds
    return ShardPlan(
        part.dealt,
        part.num_edges,
        between=part.between,
        vertex=lambda p: vertex(int(bounds[p]), int(bounds[p + 1])),
        edges=part.edges,
        used=part.used,
        sent=part.sent,
        out_degree=part.out_degree,
        reads=summed(part.reads()),
    )


class _LocalShards:
    """The shards of one process."""

    def __init__(self, dealt: Dealt, mine: Sequence[int]) -> None:
        self.dealt, self.mine = dealt, list(mine)
        self.count, self.rows = dealt.partition.num_shards, dealt.num_rows
        self.num_edges = 0
        self.between = np.zeros((self.count, self.count), np.int64)
        # Rows of the shards of this process, one shard after the other.
        self.first = np.full(self.count, -1, np.int64)
        self.first[self.mine] = np.arange(len(self.mine)) * self.rows
        self.degrees = np.zeros(len(self.mine) * self.rows, np.int64)
        self.readers = np.zeros((len(self.mine) * self.rows, -(-self.count // 8)), np.uint8)
        self.kept: dict[int, list[ShardEdges]] = {p: [] for p in self.mine}

    def add(self, src: HostArray, dst: HostArray) -> None:
        """A block of edges."""
        start, end = self.dealt.shard[src], self.dealt.shard[dst]
        self.between += edges_between(start, end, self.count)
        for p in self.mine:
            at = np.flatnonzero(end == p)
            number, row = at + self.num_edges, self.dealt.row
            self.kept[p].append(ShardEdges(start[at], row[src[at]], row[dst[at]], number))
        local = np.flatnonzero(self.first[start] >= 0)
        row = self.first[start[local]] + self.dealt.row[src[local]]
        self.degrees += np.bincount(row, minlength=len(self.degrees))
        for q in np.unique(end[local]):
            self.readers[row[end[local] == q], q >> 3] |= np.uint8(1 << (q & 7))
        self.num_edges += len(src)

    def close(self) -> None:
        """To be called after the last block."""
        for p, parts in self.kept.items():
            names = ("shard", "src", "dst", "number")
            empty = [np.zeros(0, np.int32)] * 3 + [np.zeros(0, np.int64)]
            columns = [[getattr(e, name) for e in parts] for name in names]
            whole = [np.concatenate(c) if c else e for c, e in zip(columns, empty, strict=True)]
            self.kept[p] = [ShardEdges(*whole)]

    def edges(self, p: int) -> ShardEdges:
        return self.kept[p][0]

    @functools.cache  # noqa: B019, as long as the plan
    def used(self, p: int) -> HostArray:
        edges = self.edges(p)
        read = np.zeros((self.count, self.rows), bool)
        read[edges.shard, edges.src] = True
        read[p] = False
        return np.flatnonzero(read)

    def sent(self, p: int, q: int) -> HostArray:
        return np.flatnonzero(self._of(p, self.readers)[:, q >> 3] & np.uint8(1 << (q & 7)))

    def out_degree(self, p: int) -> HostArray:
        return padded(self._of(p, self.degrees).astype(np.int32), self.rows)

    def reads(self) -> HostArray:
        """The rows of `ShardPlan.traffic` that this process knows; zeros in the others."""
        counts = np.zeros((self.count, self.count), np.int64)
        for p in self.mine:
            for q in set(range(self.count)) - {p}:
                counts[p, q] = len(self.sent(p, q))
        return counts

    def _of(self, p: int, rows: HostArray) -> HostArray:
        first = self.first[p]
        return rows[first : first + self.rows]
