"""Seeds, the vertices that some hops lead to, and every edge between them."""

from __future__ import annotations

import numpy as np
from numba import njit

from gnnjit.graph import Graph
from gnnjit.graph.validate import as_count
from gnnjit.sample.adjacency import Adjacency
from gnnjit.sample.induced import induced, offsets_of
from gnnjit.sample.numbering import Numbering
from gnnjit.sample.random import key_of
from gnnjit.sample.sample import Sample
from gnnjit.sample.workers import ALONE, Workers
from gnnjit.shapes import ArrayLike, HostArray


class HopSampler:
    """The subgraph induced by all vertices at most `hops` edges from a seed, against the direction
    of edges. Nothing is left to chance.

    One graph serves any number of layers. With as many layers as hops a seed's result is that of
    the whole graph, for layers that need no degrees of the outermost vertices.

    Args:
        graph: a concrete graph of one vertex set.
        hops: k >= 0. With 0, the subgraph that the seeds induce.

    Raises:
        SampleError: `graph` is none.
        GraphError: `hops` is no whole number from 0 on.
    """

    num_layers = None

    def __init__(self, graph: Graph, *, hops: int = 2) -> None:
        self.adjacency = Adjacency.of("HopSampler", graph)
        self.hops = as_count("HopSampler: hops", hops)

    @property
    def num_seeds(self) -> int:
        """Seeds are vertices: their number in the graph."""
        return self.adjacency.num_nodes

    def sample(self, seeds: ArrayLike, seed: int = 0, *, workers: Workers = ALONE) -> Sample:
        """The subgraph around some vertices: they come first, then hop by hop as they are found.

        Args:
            seeds: `int[B]`, or a mask `bool[N]`.
            seed: of the batch; changes nothing.
            workers: threads that share the work; the result is the same.

        Raises:
            SampleError: a seed is out of range.
        """
        where = "HopSampler.sample"
        key_of(where, seed)
        seeds = self.adjacency.checked(where, "seeds", seeds)
        numbering = Numbering(self.adjacency.num_nodes, seeds.dtype, disjoint=False)
        numbers = numbering.add_seeds(seeds)
        first = 0
        for _ in range(self.hops):
            rows = numbering.vertices[first : numbering.count]
            begin, found = neighbors_of(self.adjacency, rows, workers)
            first = numbering.count
            numbering.add(found, begin, 0)
        return induced(self.adjacency, numbering, workers, seeds=numbers)


def neighbors_of(
    adjacency: Adjacency, rows: HostArray, workers: Workers
) -> tuple[HostArray, HostArray]:
    """(`int64[n + 1]` the first of each row, `int[e]` the in-neighbours of all rows)."""
    begin = offsets_of(adjacency.indptr[rows + 1] - adjacency.indptr[rows])
    found = np.empty(begin[-1], adjacency.indptr.dtype)
    workers.run(
        lambda b, e: _gather(adjacency.indptr, adjacency.neighbor, rows, begin, b, e, found),
        len(rows),
    )
    return begin, found


@njit(nogil=True, cache=True)
def _gather(indptr, neighbor, rows, begin, first, end, found):  # type: ignore[no-untyped-def]
    for i in range(first, end):
        low = np.int64(indptr[rows[i]])
        for j in range(begin[i + 1] - begin[i]):
            found[begin[i] + j] = neighbor[low + j]
