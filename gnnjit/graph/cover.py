"""Which rows and which sums travel between shards, so that as few as possible do.

An edge between two shards is covered if its source's row travels to the destination's shard, or if
the source's shard adds it up with its other edges to that destination and the sum travels. Per pair
of shards, the fewest rows and sums that cover all edges are a minimum vertex cover of a bipartite
graph, which has as many vertices as a maximum matching has edges (Koenig 1931). FlexGraph (section
5) sends sums wherever the reduction allows it; a halo sends rows alone.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse
from scipy.sparse.csgraph import breadth_first_order, maximum_bipartite_matching

from gnnjit.shapes import HostArray


def rows_that_travel(row: HostArray, total: HostArray) -> HostArray:
    """Of a minimum vertex cover: for each edge, `bool[E]`, whether its row travels; else its sum.

    Args:
        row: `int[E]`, which row the edge reads. Rows for two shards are two rows.
        total: `int[E]`, which sum it belongs to. Sums of two shards are two sums.
    """
    if not len(row):
        return np.zeros(0, bool)
    rows, left = np.unique(row, return_inverse=True)
    sums, right = np.unique(total, return_inverse=True)
    n, m = len(rows), len(sums)
    edges = scipy.sparse.csr_array((np.ones(len(left), np.int8), (left, right)), shape=(n, m))
    partner = maximum_bipartite_matching(edges, perm_type="column")
    reached = _reached(edges, partner)
    covered = np.ones(n, bool)
    covered[reached[reached < n]] = False
    return covered[left]


def _reached(edges: scipy.sparse.csr_array, partner: HostArray) -> HostArray:
    """What alternating paths from the rows without a partner reach: rows, and `n +` sums."""
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
    return breadth_first_order(paths, start, return_predecessors=False)
