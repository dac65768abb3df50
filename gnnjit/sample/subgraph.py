"""Subgraphs of vertices, edges or walks that are drawn from the whole graph.

Zeng, Zhou, Srivastava, Kannan & Prasanna, "GraphSAINT: Graph Sampling Based Inductive Learning
Method" (2020), section 3.4 and algorithm 2. Draws are with replacement, so a sample has fewer
vertices than were drawn. `Normalized` makes means over samples those of the whole graph.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from numba import njit

from gnnjit.errors import SampleError
from gnnjit.graph import Graph
from gnnjit.graph.reading import read_on_host
from gnnjit.graph.validate import cut
from gnnjit.sample.adjacency import Adjacency, read_only
from gnnjit.sample.alias import AliasTable, pick
from gnnjit.sample.frontier import at_least_one
from gnnjit.sample.induced import InducedSampler
from gnnjit.sample.random import below, key_of, stream
from gnnjit.sample.workers import ALONE, Workers
from gnnjit.shapes import ArrayLike, HostArray

Weighting = Literal["norm", "degree", "uniform"]


class VertexSampler(InducedSampler):
    """The subgraph induced by vertices that are drawn one by one.

    Args:
        graph: a concrete graph of one vertex set.
        vertices: how many are drawn.
        weights: what the chance of a vertex is in proportion to. "norm", as in the paper: the
            squared norm of its column of `D^-1 A`, which is the sum over its out-edges `u -> v` of
            `1 / deg(v)^2` (parallel edges count one by one); "degree": its in-edges; "uniform"; or
            `float[N]`. A vertex of weight 0 is drawn never.

    Raises:
        SampleError: a number or name is none of these, a weight is negative or not finite, or none
            is above 0.
    """

    def __init__(
        self, graph: Graph, *, vertices: int = 8000, weights: Weighting | ArrayLike = "norm"
    ) -> None:
        super().__init__(graph)
        self.vertices = at_least_one(self._name, "vertices", vertices)
        self._table = AliasTable.of(self._name, "weights", self._checked(weights))

    def drawn(self, seed: int = 0, *, workers: Workers = ALONE) -> HostArray:
        """`int[n]`: the vertices in the order in which they are drawn, repetitions included.

        Raises SampleError unless `seed` is a whole number from 0 to 2**64 - 1.
        """
        key = key_of(f"{self._name}.sample", seed)
        found = np.empty(self.vertices, self.adjacency.indptr.dtype)
        table = self._table
        workers.run(lambda b, e: _picks(table.share, table.alias, key, b, e, found), len(found))
        return found

    def _checked(self, weights: Any) -> HostArray:
        """`float64[N]`."""
        adjacency = self.adjacency
        if isinstance(weights, str):
            if weights == "norm":
                return _column_norms(adjacency.indptr, adjacency.neighbor)
            if weights == "degree":
                return adjacency.degree().astype(np.float64)
            if weights == "uniform":
                return np.ones(adjacency.num_nodes)
            raise SampleError(
                f"{self._name}: weights is {cut(repr(weights))}, expected one of "
                f"{', '.join(get_args(Weighting))}, or a number for each vertex"
            )
        array = read_on_host(f"{self._name}: weights", weights)
        if array.shape != (adjacency.num_nodes,) or array.dtype.kind not in "buif":
            raise SampleError(
                f"{self._name}: weights is {array.dtype} of shape {array.shape}, expected numbers "
                f"of shape ({adjacency.num_nodes},): one per vertex"
            )
        return array.astype(np.float64)


class EdgeSampler(InducedSampler):
    """The subgraph induced by the ends of edges that are drawn one by one.

    The chance of `u -> v` is in proportion to `1 / deg(u) + 1 / deg(v)`: out-edges of `u` and
    in-edges of `v`, which on a symmetric graph are the paper's degrees. That is the chance of an
    edge, with all the same, of a vertex, with all that have one the same: so no table is needed.

    Args:
        graph: a concrete graph of one vertex set.
        edges: how many are drawn.

    Raises:
        SampleError: a number is out of range, or the graph has no edges.
    """

    def __init__(self, graph: Graph, *, edges: int = 4000) -> None:
        super().__init__(graph)
        self.edges = at_least_one(self._name, "edges", edges)
        if not self.adjacency.num_edges:
            raise SampleError(f"{self._name}: the graph has no edges, expected some to draw from")
        self._outward = Adjacency.of(self._name, graph, outward=True)
        self._with_in, self._with_out = _with_edges(self.adjacency), _with_edges(self._outward)

    def drawn(self, seed: int = 0, *, workers: Workers = ALONE) -> HostArray:
        """`int[2 edges]`: source and destination of each edge as it is drawn.

        Raises SampleError unless `seed` is a whole number from 0 to 2**64 - 1.
        """
        key = key_of(f"{self._name}.sample", seed)
        into, outward = self.adjacency, self._outward
        found = np.empty((self.edges, 2), into.indptr.dtype)
        graph = into.indptr, into.neighbor, outward.indptr, outward.neighbor
        workers.run(
            lambda b, e: _edges(*graph, self._with_in, self._with_out, key, b, e, found), len(found)
        )
        return found.ravel()


class WalkSampler(InducedSampler):
    """The subgraph induced by the vertices of random walks, each step to an in-neighbour, all with
    the same chance. A walk ends at a vertex without any.

    Args:
        graph: a concrete graph of one vertex set.
        walks: how many; the paper's r.
        length: steps of each; the paper's h.
        roots: the vertices that walks start from, each time from any of them: `int[R]` or a mask
            `bool[N]`; all if left out. Pass the training vertices.

    Raises:
        SampleError: a number is out of range, there are no roots, or one is no vertex.
    """

    def __init__(
        self, graph: Graph, *, walks: int = 3000, length: int = 2, roots: ArrayLike | None = None
    ) -> None:
        super().__init__(graph)
        self.walks = at_least_one(self._name, "walks", walks)
        self.length = at_least_one(self._name, "length", length)
        self._starts = self._roots(roots)

    def drawn(self, seed: int = 0, *, workers: Workers = ALONE) -> HostArray:
        """`int[walks (length + 1)]`: the vertices walk by walk; where one has ended, its last
        vertex again.

        Raises SampleError unless `seed` is a whole number from 0 to 2**64 - 1.
        """
        key = key_of(f"{self._name}.sample", seed)
        adjacency = self.adjacency
        found = np.empty((self.walks, self.length + 1), adjacency.indptr.dtype)
        workers.run(
            lambda b, e: _walks(
                adjacency.indptr, adjacency.neighbor, self._starts, key, b, e, found
            ),
            len(found),
        )
        return found.ravel()


def _with_edges(adjacency: Adjacency) -> HostArray:
    """`int[n]`: the rows that are not empty."""
    return read_only(np.flatnonzero(adjacency.degree()).astype(adjacency.indptr.dtype))


@njit(nogil=True, cache=True)
def _column_norms(indptr, neighbor):  # type: ignore[no-untyped-def]
    """`float64[N]`: the squared norm of each column of `D^-1 A`."""
    out = np.zeros(len(indptr) - 1)
    for v in range(len(indptr) - 1):
        degree = np.float64(indptr[v + 1] - indptr[v])
        for slot in range(indptr[v], indptr[v + 1]):
            out[neighbor[slot]] += 1 / (degree * degree)
    return out


@njit(nogil=True, cache=True)
def _picks(share, alias, key, begin, end, found):  # type: ignore[no-untyped-def]
    for i in range(begin, end):
        found[i] = pick(share, alias, key, i)


@njit(nogil=True, cache=True)
def _edges(  # type: ignore[no-untyped-def]
    in_indptr, sources, out_indptr, destinations, with_in, with_out, key, begin, end, found
):
    for i in range(begin, end):
        at = below(key, 2 * i, len(with_in) + len(with_out))
        if at < len(with_in):
            v = with_in[at]
            slot = in_indptr[v] + below(key, 2 * i + 1, in_indptr[v + 1] - in_indptr[v])
            found[i, 0], found[i, 1] = sources[slot], v
        else:
            u = with_out[at - len(with_in)]
            slot = out_indptr[u] + below(key, 2 * i + 1, out_indptr[u + 1] - out_indptr[u])
            found[i, 0], found[i, 1] = u, destinations[slot]


@njit(nogil=True, cache=True)
def _walks(indptr, neighbor, roots, key, begin, end, found):  # type: ignore[no-untyped-def]
    """A step of all walks, then the next: steps of several walks wait for memory together."""
    for i in range(begin, end):
        found[i, 0] = roots[below(stream(key, i), 0, len(roots))]
    for step in range(1, found.shape[1]):
        for i in range(begin, end):
            vertex = np.int64(found[i, step - 1])
            low = np.int64(indptr[vertex])
            degree = indptr[vertex + 1] - low
            if degree > 0:
                vertex = np.int64(neighbor[low + below(stream(key, i), step, degree)])
            found[i, step] = vertex
