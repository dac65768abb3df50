"""Chooses which rows and which sums travel between shards, so that as few as possible do.

An edge between two shards is covered if its source's row travels to the destination's shard, or if
the source's shard adds it up with its other edges to that destination and the sum travels. Per pair
of shards, the fewest rows and sums that cover all edges are a minimum vertex cover of a bipartite
graph, which has as many vertices as a maximum matching has edges (Koenig 1931). FlexGraph (section
5) sends sums wherever the reduction allows it; a halo sends rows alone.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnjit.shapes import HostArray
from gnnjit.sharding.exchange import Cover
from gnnjit.sharding.send_blocks import HaloLayout, alone, padded, structure, traffic

if TYPE_CHECKING:  # a tenth of a second, for those who have shards
    import scipy.sparse


def rows_that_travel(row: HostArray, total: HostArray) -> HostArray:
    """By a minimum vertex cover: for each edge, `bool[E]`, whether its row travels; else its sum.

    Args:
        row: `int[E]`, which row the edge reads. Rows for two shards are two rows.
        total: `int[E]`, which sum it belongs to. Sums of two shards are two sums.
    """
    if not len(row):
        return np.zeros(0, bool)

    import scipy.sparse.csgraph

    rows, left = np.unique(row, return_inverse=True)
    sums, right = np.unique(total, return_inverse=True)
    n, m = len(rows), len(sums)
    edges = scipy.sparse.csr_array((np.ones(len(left), np.int8), (left, right)), shape=(n, m))
    partner = scipy.sparse.csgraph.maximum_bipartite_matching(edges, perm_type="column")
    reached = _reached(edges, partner)
    covered = np.ones(n, bool)
    covered[reached[reached < n]] = False
    return covered[left]


def _reached(edges: scipy.sparse.csr_array, partner: HostArray) -> HostArray:
    """The rows `i` and sums `n + j` that alternating paths reach from rows without a partner."""
    import scipy.sparse.csgraph

    n, m = edges.shape
    coo = edges.tocoo()
    matched = np.flatnonzero(partner >= 0)
    free = np.flatnonzero(partner < 0)
    start = n + m  # a vertex before all of those
    tail = np.concatenate([coo.row, n + partner[matched], np.full(len(free), start)])
    head = np.concatenate([n + coo.col, matched, free])
    paths = scipy.sparse.csr_array(
        (np.ones(len(tail), np.int8), (tail, head)), shape=(start + 1, start + 1)
    )
    return scipy.sparse.csgraph.breadth_first_order(paths, start, return_predecessors=False)


@dataclasses.dataclass(frozen=True, eq=False)
class Ends:
    """The endpoints of every edge: shard and row of its source, and of its destination."""

    src_shard: HostArray
    src_row: HostArray
    dst_shard: HostArray
    dst_row: HostArray

    def at(self, where: HostArray) -> Ends:
        return Ends(*(getattr(self, f.name)[where] for f in dataclasses.fields(self)))


class Covered:
    """The shard that computes each edge, and what travels for that.

    Attributes:
        rows, sums: the layouts of the rows of sources and of the sums for destinations.
    """

    def __init__(self, ends: Ends, num_shards: int, src_rows: int, dst_rows: int) -> None:
        self.ends, self.src_rows, self.dst_rows = ends, src_rows, dst_rows
        src = ends.src_shard.astype(np.int64) * src_rows + ends.src_row
        dst = ends.dst_shard.astype(np.int64) * dst_rows + ends.dst_row
        cut = np.flatnonzero(ends.src_shard != ends.dst_shard)
        by_row = rows_that_travel(
            ends.dst_shard[cut].astype(np.int64) * num_shards * src_rows + src[cut],
            ends.src_shard[cut].astype(np.int64) * num_shards * dst_rows + dst[cut],
        )
        self.computed_at = ends.dst_shard.copy()
        self.computed_at[cut[~by_row]] = ends.src_shard[cut[~by_row]]
        self.src, self.dst = src, dst
        read, summed = cut[by_row], cut[~by_row]
        self.rows = _layout(ends.dst_shard[read], src[read], num_shards, src_rows)
        self.sums = _layout(ends.src_shard[summed], dst[summed], num_shards, dst_rows)
        self.counts = np.bincount(self.computed_at, minlength=num_shards)
        self.num_slots = max(1, int(self.counts.max(initial=0)))

    def part(self, p: int, dtype: Any) -> Cover:
        """The cover of shard p, with a first axis for the shards."""
        here = np.flatnonzero(self.computed_at == p)
        src = self.rows.place(p, self.src[here]).astype(dtype)
        dst = self.sums.place(p, self.dst[here]).astype(dtype)
        slots = self.num_slots
        num_src, num_dst = self.src_rows + self.rows.total, self.dst_rows + self.sums.total
        return Cover(
            src=padded(src, slots)[None],
            dst=padded(dst, slots)[None],
            count=np.asarray([len(here)], dtype),
            in_structure=alone(*structure(dst, src, num_dst, slots, dtype)),
            out_structure=alone(*structure(src, dst, num_src, slots, dtype)),
            rows=self.rows.part(p, dtype),
            sums=self.sums.part(p, dtype),
        )


def _layout(shard: HostArray, number: HostArray, num_shards: int, num_rows: int) -> HaloLayout:
    """The layout where shard `shard[i]` reads row `number[i]` (numbers as in `Used`)."""

    @functools.cache
    def used(p: int) -> HostArray:
        return np.unique(number[shard == p])

    return HaloLayout(num_shards, num_rows, used, traffic(num_shards, num_rows, used))
