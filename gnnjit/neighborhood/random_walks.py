"""The vertices that random walks visit most: PinSage's neighbourhoods.

Ying et al., "Graph Convolutional Neural Networks for Web-Scale Recommender Systems" (2018), section
3.2.
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
from gnnjit.sample.random import below, bits, key_of, stream
from gnnjit.sample.workers import ALONE, Workers


def random_walks(
    graph: Graph,
    *,
    num_walks: int = 10,
    length: int = 3,
    top_k: int = 10,
    seed: int = 0,
    workers: Workers = ALONE,
    watch: Callable[[int, int], Any] | None = None,
) -> HDG:
    """Neighbours are the `top_k` vertices that random walks from the root visit most often.

    One level, a graph of one vertex set. Its data, `e.data`, are weights `float32[E]`: visits over
    those of all neighbours that are kept, so that they sum to 1 at each root and
    `gnnjit.sum(e.data * e.src)` is PinSage's importance pooling. A step goes to an in-neighbour,
    all with the same chance; a walk ends at a vertex without any. The root's own visits do not
    count. Among vertices visited equally often, chance decides which are kept.

    The defaults are those of Wang et al., "FlexGraph" (2021), section 7. Where we differ from
    PinSage: its walks may have any length, and it counts visits of the root.

    Args:
        graph: a concrete graph of one vertex set.
        num_walks: from each root.
        length: steps of each.
        top_k: neighbours of a root at most.
        seed: another one gives other walks, for instance in each epoch.
        workers: threads that share the work; the result is the same.
        watch: called as `watch(roots done, all)`, again and again.

    Raises:
        SampleError: `graph` is none, a number is below 1, or `seed` is no seed.
        GraphError: a number is no integer.
    """
    where = "random_walks"
    adjacency = Adjacency.of(where, graph)
    num_walks = at_least_one(where, "num_walks", num_walks)
    length = at_least_one(where, "length", length)
    top_k = at_least_one(where, "top_k", top_k)
    key, size = key_of(where, seed), adjacency.num_nodes
    most = min(top_k, num_walks * length)
    found = np.empty((size, most), adjacency.indptr.dtype)
    visits = np.empty((size, most), np.int32)
    counts = np.empty((size, 2), np.int64)

    def work(low: int, high: int) -> None:
        _visited(
            adjacency.indptr, adjacency.neighbor, key, num_walks, length, low, high, found, visits,
            counts,
        )  # fmt: skip

    run_in_blocks(work, size, workers, watch)
    kept = np.arange(most) < counts[:, :1]
    total = np.sum(visits, axis=1, where=kept)
    weight = (visits / np.maximum(total, 1)[:, None])[kept].astype(np.float32)
    selected = Neighbors(
        offsets_of(counts[:, 0]),
        found[kept],
        data=weight,
        found=[int(counts[:, 1].sum())],
        cap=top_k,
    )
    return assemble(where, graph, selected, sizes=(size,))


@njit(nogil=True, cache=True)
def _visited(  # type: ignore[no-untyped-def]
    indptr, neighbor, key, num_walks, length, low, high, found, visits, counts
):
    """The vertices that are visited most, by number, how often, and how many there are: those that
    are kept, and all."""
    seen = np.empty(num_walks * length, np.int64)
    distinct, times = np.empty(len(seen), np.int64), np.empty(len(seen), np.int64)
    for root in range(low, high):
        own, size = stream(key, root), 0
        for walk in range(num_walks):
            at = root
            for step in range(length):
                first = np.int64(indptr[at])
                degree = indptr[at + 1] - first
                if degree == 0:
                    break
                at = np.int64(neighbor[first + below(own, walk * length + step, degree)])
                if at != root:
                    seen[size] = at
                    size += 1
        seen[:size].sort()
        held = 0
        for i in range(size):
            if i == 0 or seen[i] != seen[i - 1]:
                distinct[held], times[held] = seen[i], 0
                held += 1
            times[held - 1] += 1
        counts[root, 0], counts[root, 1] = min(held, found.shape[1]), held
        _keep(stream(own, 1), distinct[:held], times[:held], found[root], visits[root])


@njit(nogil=True, cache=True)
def _keep(key, distinct, times, found, visits):  # type: ignore[no-untyped-def]
    """Those with most visits, of equals those whose random number is larger, in rising order."""
    held = len(distinct)
    left = held - len(found)
    gone = np.zeros(held, np.bool_)
    for _ in range(left):
        worst = -1
        for i in range(held):
            if gone[i]:
                continue
            fewer = worst < 0 or times[i] < times[worst]
            if not fewer and times[i] == times[worst]:
                fewer = bits(key, distinct[i]) < bits(key, distinct[worst])
            if fewer:
                worst = i
        gone[worst] = True
    at = 0
    for i in range(held):
        if not gone[i]:
            found[at], visits[at] = distinct[i], times[i]
            at += 1
