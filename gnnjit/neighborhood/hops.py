"""Rings of hops: the vertices at each distance from a root.

Wang et al., "FlexGraph" (2021), section 3.2, which expresses JK-Net by them (Xu et al.,
"Representation Learning on Graphs with Jumping Knowledge Networks", 2018).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from gnnjit.graph import Graph
from gnnjit.neighborhood.assemble import Neighbors, assemble
from gnnjit.neighborhood.blocks import run_in_blocks
from gnnjit.neighborhood.hdg import HDG
from gnnjit.sample.adjacency import Adjacency
from gnnjit.sample.frontier import at_least_one
from gnnjit.sample.induced import offsets_of
from gnnjit.sample.workers import ALONE, Workers


def hops(
    graph: Graph,
    k: int,
    *,
    workers: Workers = ALONE,
    watch: Callable[[int, int], Any] | None = None,
) -> HDG:
    """Neighbours are the vertices from which the shortest path to the root has 1, 2, ... k edges.

    Two levels: vertices to (root, hop), and these to the root. The neighbour type is the hop,
    counted from 0: `e.relation` is 0 for neighbours one edge away. A vertex is in one ring of a
    root at most, the root itself in none.

    Args:
        graph: a concrete graph of one vertex set.
        k: the rings.
        workers: threads that share the work; the result is the same.
        watch: called as `watch(roots done, all)`, again and again; every root is searched twice.

    Raises:
        SampleError: `graph` is none, or `k` is below 1.
        GraphError: there are more neighbours than indices can number, or `k` is no integer.
    """
    adjacency = Adjacency.of("hops", graph)
    k = at_least_one("hops", "k", k)
    size = adjacency.num_nodes
    parts = adjacency.indptr, adjacency.neighbor
    counts = np.zeros((size, k), np.int64)
    nothing = np.empty(0, adjacency.indptr.dtype)

    def count(low: int, high: int) -> None:
        _rings(*parts, low, high, k, counts, np.empty(0, np.int64), nothing)

    run_in_blocks(count, size, workers, watch, 0, 2 * size)
    offset = offsets_of(counts.ravel())
    vertex = np.empty(offset[-1], adjacency.indptr.dtype)

    def fill(low: int, high: int) -> None:
        _rings(*parts, low, high, k, counts, offset, vertex)

    run_in_blocks(fill, size, workers, watch, size, 2 * size)
    names = tuple(f"hop {i + 1}" for i in range(k))
    return assemble("hops", graph, Neighbors(offset, vertex, names=names), sizes=(size,))


@njit(nogil=True, cache=True)
def _rings(indptr, neighbor, low, high, k, counts, offset, out):  # type: ignore[no-untyped-def]
    """The sizes of the rings of each root; with offsets the rings themselves, by vertex number."""
    seen = np.full(len(indptr) - 1, -1, np.int64)
    queue = np.empty(len(indptr) - 1, np.int64)
    for root in range(low, high):
        seen[root], queue[0] = root, root
        begin, end = 0, 1
        for ring in range(k):
            last = end
            for i in range(begin, last):
                for slot in range(indptr[queue[i]], indptr[queue[i] + 1]):
                    u = neighbor[slot]
                    if seen[u] != root:
                        seen[u], queue[end] = root, u
                        end += 1
            if len(offset):
                queue[last:end].sort()
                at = offset[root * k + ring]
                for i in range(end - last):
                    out[at + i] = queue[last + i]
            else:
                counts[root, ring] = end - last
            begin = last
