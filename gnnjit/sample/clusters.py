"""Batches of whole parts of a graph: clusters of it, or the graphs that it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from gnnjit.errors import GnnjitError, SampleError
from gnnjit.graph import Graph, batch
from gnnjit.graph.reading import read_on_host
from gnnjit.partition import Partition
from gnnjit.partition.locality import order_vertices
from gnnjit.partition.partition import equal_edges
from gnnjit.sample.adjacency import Adjacency, numbers_of
from gnnjit.sample.frontier import at_least_one
from gnnjit.sample.induced import induced
from gnnjit.sample.numbering import Numbering
from gnnjit.sample.random import key_of
from gnnjit.sample.sample import Sample
from gnnjit.sample.workers import ALONE, Workers
from gnnjit.shapes import ArrayLike, HostArray

Method = Literal["auto", "metis", "rcm", "given"]


class ClusterSampler:
    """The subgraph induced by the vertices of some clusters. Seeds are clusters.

    Chiang et al., "Cluster-GCN: An Efficient Algorithm for Training Deep and Large Graph
    Convolutional Networks" (2019), section 3.2: several clusters to a batch, with the edges between
    them. A vertex is in a batch as often as any other, so losses need no weights.

    Args:
        graph: a concrete graph of one vertex set.
        clusters: how many to make, a `Partition`, or `int[N]`, the cluster of each vertex.
        method: how clusters are made, if they are: an order in which neighbours are close
            (`gnnjit.partition.locality.order_vertices`: "metis" needs pymetis, "rcm" is reverse
            Cuthill-McKee, "auto" the first of them that can be had, "given" the order of numbers),
            cut into parts of about equal numbers of edges.
        seed: of METIS's random choices.

    Attributes:
        partition: the clusters.

    Raises:
        SampleError: clusters do not fit the graph, or cannot be made.
    """

    num_layers = None

    def __init__(
        self,
        graph: Graph,
        clusters: int | Partition | ArrayLike = 100,
        *,
        method: Method = "auto",
        seed: int = 0,
    ) -> None:
        self.adjacency = Adjacency.of("ClusterSampler", graph)
        try:
            self.partition = _partition(self.adjacency, clusters, method, seed)
        except SampleError:
            raise
        except GnnjitError as error:
            raise SampleError(f"ClusterSampler: {error}") from error
        self._order = self.partition.order.astype(self.adjacency.indptr.dtype)

    @property
    def num_seeds(self) -> int:
        """Seeds are clusters: their number."""
        return self.partition.num_shards

    def sample(self, seeds: ArrayLike, seed: int = 0, *, workers: Workers = ALONE) -> Sample:
        """The subgraph of some clusters, vertices cluster by cluster.

        Args:
            seeds: `int[B]`, clusters; one that stands twice counts once.
            seed: of the batch; changes nothing.
            workers: threads that share the work; the result is the same.

        Raises:
            SampleError: a cluster is out of range.
        """
        where = "ClusterSampler.sample"
        key_of(where, seed)
        chosen = _checked(where, seeds, self.num_seeds, "cluster")
        vertices = _of_parts(self._order, self.partition.bounds, chosen)
        numbering = Numbering.of(vertices, self.adjacency.num_nodes)
        return induced(self.adjacency, numbering, workers)


class GraphSampler:
    """Some of many graphs, side by side. Seeds are graphs.

    Features and labels are those of the graphs one after the other, as of `gnnjit.graph.batch`;
    `Sample.vertices` are their numbers in it. `Sample.tree` is the place of a vertex's graph among
    the seeds, for `jax.ops.segment_sum`.

    Args:
        graphs: concrete graphs, each of one vertex set.

    Raises:
        GraphError: there are no graphs, or they are no graphs.
        SampleError: one is traced or bipartite.
    """

    num_layers = None

    def __init__(self, graphs: Sequence[Graph]) -> None:
        graphs = list(graphs)
        self.adjacency = Adjacency.of("GraphSampler", batch(graphs)[0])
        self._bounds = np.cumsum([0, *(graph.num_nodes for graph in graphs)])
        self._order = np.arange(self.adjacency.num_nodes, dtype=self.adjacency.indptr.dtype)

    @property
    def num_seeds(self) -> int:
        """Seeds are graphs: their number."""
        return len(self._bounds) - 1

    def sample(self, seeds: ArrayLike, seed: int = 0, *, workers: Workers = ALONE) -> Sample:
        """Some graphs as one.

        Args:
            seeds: `int[B]`, graphs, none twice.
            seed: of the batch; changes nothing.
            workers: threads that share the work; the result is the same.

        Raises:
            SampleError: a graph is out of range, or stands twice.
        """
        where = "GraphSampler.sample"
        key_of(where, seed)
        chosen = _checked(where, seeds, self.num_seeds, "graph")
        values, counts = np.unique(chosen, return_counts=True)
        if (counts > 1).any():
            raise SampleError(
                f"{where}: seeds holds {values[np.argmax(counts > 1)]} more than once, expected "
                f"each graph at most once: put it into two batches"
            )
        vertices = _of_parts(self._order, self._bounds, chosen)
        tree = np.repeat(np.arange(len(chosen), dtype=np.int32), np.diff(self._bounds)[chosen])
        numbering = Numbering.of(vertices, self.adjacency.num_nodes)
        return induced(self.adjacency, numbering, workers, tree=tree)


def _partition(adjacency: Adjacency, clusters: Any, method: Any, seed: Any) -> Partition:
    num_nodes = adjacency.num_nodes
    if isinstance(clusters, Partition):
        if clusters.num_nodes != num_nodes:
            raise SampleError(
                f"ClusterSampler: the partition has {clusters.num_nodes} vertices and the graph "
                f"{num_nodes}, expected a partition of this graph"
            )
        return clusters
    if np.ndim(clusters) == 0:
        count = at_least_one("ClusterSampler", "clusters", clusters)
        dst = np.repeat(np.arange(num_nodes), adjacency.degree())
        order = order_vertices(
            adjacency.neighbor, dst, num_nodes, method=method, parts=count, seed=seed
        )
        return equal_edges(adjacency.degree(), count, order.vertex)
    assignment = read_on_host("ClusterSampler: clusters", clusters)
    if assignment.shape != (num_nodes,) or assignment.dtype.kind not in "iu":
        raise SampleError(
            f"ClusterSampler: clusters is {assignment.dtype} of shape {assignment.shape}, expected "
            f"how many to make, a Partition, or the cluster of each vertex, int[{num_nodes}]"
        )
    return Partition.of_assignment(assignment, int(assignment.max(initial=0)) + 1)


def _checked(where: str, seeds: Any, count: int, kind: str) -> HostArray:
    """`int64[B]`. Raises SampleError where one is out of range."""
    if seeds is None:
        raise SampleError(f"{where}: seeds is None, expected some: int[B], each a {kind}")
    return numbers_of(where, "seeds", seeds, count, kind)


def _of_parts(order: HostArray, bounds: HostArray, parts: HostArray) -> HostArray:
    """`order` from the first to the last of each part."""
    pieces = [order[bounds[part] : bounds[part + 1]] for part in parts]
    return np.concatenate(pieces) if pieces else order[:0]
