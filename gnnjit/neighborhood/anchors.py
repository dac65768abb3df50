"""Anchor sets: a vertex's position is how far it is from each.

You, Ying & Leskovec, "Position-aware Graph Neural Networks" (2019), section 5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit

from gnnjit.errors import SampleError
from gnnjit.graph import Graph
from gnnjit.graph.validate import shown
from gnnjit.neighborhood.assemble import Neighbors, assemble
from gnnjit.neighborhood.hdg import HDG
from gnnjit.sample.adjacency import Adjacency
from gnnjit.sample.frontier import at_least_one
from gnnjit.sample.induced import offsets_of
from gnnjit.sample.random import key_of, stream, uniform
from gnnjit.sample.workers import ALONE, Workers
from gnnjit.shapes import ArrayLike, HostArray


def anchors(
    graph: Graph,
    sets: Sequence[ArrayLike] | None = None,
    *,
    num: int | None = None,
    hops: int | None = None,
    seed: int = 0,
    workers: Workers = ALONE,
) -> HDG:
    """Neighbours are anchor sets, the same for all roots; a set stands for its nearest vertex.

    Two levels: vertices to (root, set), and these to the root. The neighbour type is the set. Its
    one edge comes from the vertex of the set whose shortest path to the root has the fewest edges
    `d`, the first in the set of several. `e.data` is `1 / (d + 1)`, the paper's `s(v, u)`, as
    `float32[E]`. A set from which no path leads to the root has no edge there.

    Random sets are as the paper's section 5.3: of `num` sets, those numbered `i` modulo `log2 N`
    have each vertex with chance `2**-(i + 1)`, one vertex at least. Where we differ: the paper's
    equation 1 is a mean over all vertices of a set, the authors' code takes the nearest, as here;
    and its number of sets is `c log2(N)**2` with a constant, here `log2(N)**2`.

    Args:
        graph: a concrete graph of one vertex set.
        sets: the anchor sets, each as vertex numbers or a mask `bool[N]`; random ones if left out.
        num: how many random sets.
        hops: paths of so many edges at most, the paper's q; any if left out.
        seed: of the random sets, for instance one for each epoch.
        workers: threads that share the work; the result is the same.

    Raises:
        SampleError: `graph` is none or has no vertices; both `sets` and `num` are given, or no set;
            a set is empty or has no vertex of the graph; a number is below 1.
        GraphError: a number is no integer.
    """
    where = "anchors"
    adjacency = Adjacency.of(where, graph)
    outward = Adjacency.of(where, graph, outward=True)
    limit = adjacency.num_nodes if hops is None else at_least_one(where, "hops", hops)
    chosen = _given(where, adjacency, sets, num, seed)
    size, count = adjacency.num_nodes, len(chosen)
    nearest = np.full((count, size), -1, adjacency.indptr.dtype)
    distance = np.zeros((count, size), np.int32)
    workers.map(
        lambda i: _spread(
            outward.indptr, outward.neighbor, chosen[i], limit, nearest[i], distance[i]
        ),
        count,
    )
    nearest, distance = nearest.T, distance.T
    there = nearest >= 0
    closeness = (1 / (1 + distance[there])).astype(np.float32)
    names = tuple(f"set {i} of {len(s)}" for i, s in enumerate(chosen))
    found = Neighbors(offsets_of(there.ravel()), nearest[there], data=closeness, names=names)
    return assemble(where, graph, found, sizes=(size,))


def _given(
    where: str, adjacency: Adjacency, sets: Any, num: int | None, seed: int
) -> list[HostArray]:
    size = adjacency.num_nodes
    if not size:
        raise SampleError(f"{where}: the graph has 0 vertices, expected some to be anchors")
    if sets is None:
        steps = max(1, int(math.log2(size)))
        count = steps**2 if num is None else at_least_one(where, "num", num)
        key = key_of(where, seed)
        return [_drawn(np.uint64(stream(key, i)), size, i % steps) for i in range(count)]
    if num is not None:
        raise SampleError(f"{where}: got both sets and num={shown(num)}, expected one of them")
    if not isinstance(sets, Sequence) or isinstance(sets, str) or not len(sets):
        raise SampleError(
            f"{where}: sets is {shown(sets)}, expected a list of anchor sets: pass [[0, 5], [3]], "
            f"or num= for random ones"
        )
    found = [adjacency.checked(where, f"sets[{i}]", s) for i, s in enumerate(sets)]
    for i, vertices in enumerate(found):
        if not len(vertices):
            raise SampleError(f"{where}: sets[{i}] is empty, expected at least one vertex in it")
    return found


def _drawn(key: np.uint64, size: int, halvings: int) -> HostArray:
    """Each vertex with chance `2**-(halvings + 1)`; one at least."""
    draws = _uniforms(key, size)
    found = np.flatnonzero(draws < 2.0 ** -(halvings + 1))
    return found if len(found) else np.array([int(np.argmin(draws))])


@njit(nogil=True, cache=True)
def _uniforms(key, size):  # type: ignore[no-untyped-def]
    out = np.empty(size)
    for i in range(size):
        out[i] = uniform(key, i)
    return out


@njit(nogil=True, cache=True)
def _spread(indptr, neighbor, sources, limit, nearest, distance):  # type: ignore[no-untyped-def]
    """For each vertex the source that it is nearest to, along out-edges, and how many those are."""
    queue = np.empty(len(nearest), np.int64)
    end = 0
    for u in sources:
        if nearest[u] < 0:
            nearest[u], queue[end] = u, u
            end += 1
    at = 0
    while at < end:
        u = queue[at]
        at += 1
        if distance[u] == limit:
            continue
        for slot in range(indptr[u], indptr[u + 1]):
            v = neighbor[slot]
            if nearest[v] < 0:
                nearest[v], distance[v], queue[end] = nearest[u], distance[u] + 1, v
                end += 1
