"""What a sampler draws, on the host, and the graphs that layers run on."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numba import njit

from gnnjit.errors import SampleError
from gnnjit.graph import Graph, Structure
from gnnjit.graph.members import Members
from gnnjit.graph.relations import Relations, degrees
from gnnjit.sample.picking import taken
from gnnjit.sample.workers import ALONE, Workers
from gnnjit.shapes import HostArray

Sizes = tuple[int, ...]
"""Vertices, then edges, of a sample or of the shape that it is padded to: `(n_0, ..., n_L, e_1,
..., e_L)` for L hops, `(n, e)` for a subgraph."""


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """A part of a graph, in NumPy: the neighbourhood of some seeds, hop by hop, or a subgraph.

    Vertices and edges are numbered so that those of a hop come after those of the hops before it:
    what a layer needs is the first of each.

    Attributes:
        vertices: `int[n]`, the number in the graph of each vertex of the sample.
        vertex_counts: vertices up to and with hop 0, ..., L; of a subgraph its one count.
        indptr: `int32[rows + 1]`: vertex `v` of the sample has the edges `indptr[v]` to
            `indptr[v + 1] - 1`; the vertices of the last hop have none.
        neighbor: `int32[e]`, the source of each edge, in numbers of the sample.
        slots: `int[e]`, where each edge stands among the graph's by destination.
        edge_of_slot: `int[E]`, the number in the graph of the edge there.
        edge_counts: edges up to and with hop 1, ..., L; of a subgraph its one count.
        degree: `int[n]`, in-edges of each vertex in the graph.
        seeds: `int32[B]`, the vertex of the sample that each seed is, or None of a subgraph.
        tree: `int32[n]`, the seed whose tree a vertex is in, where each has its own, or None.
        weight: `float32[n]`, of each vertex in a loss that is to be that of the whole graph on
            average; None where all have the same.
        edge_weight: `float32[e]`, of each edge in a mean of neighbours that is to be that of the
            whole graph on average; None where all have the same.
        relations: those of the graph's edges, by their numbers there; None where edges have none.
    """

    vertices: HostArray
    vertex_counts: tuple[int, ...]
    indptr: HostArray
    neighbor: HostArray
    slots: HostArray
    edge_of_slot: HostArray
    edge_counts: tuple[int, ...]
    degree: HostArray
    seeds: HostArray | None = None
    tree: HostArray | None = None
    weight: HostArray | None = None
    edge_weight: HostArray | None = None
    relations: Relations | None = None

    @property
    def is_subgraph(self) -> bool:
        """Whether one square graph serves all layers."""
        return len(self.vertex_counts) == len(self.edge_counts)

    @functools.cached_property
    def edge(self) -> HostArray:
        """`int[e]`: the number in the graph of each edge. Looked up when it is asked for, since
        that is a read of the whole graph's memory for each edge."""
        return taken(self.edge_of_slot, self.slots, ALONE)

    @property
    def sizes(self) -> Sizes:
        """Vertices and edges of each hop, as a shape counts them."""
        return self.vertex_counts + self.edge_counts

    def graphs(self, shape: Sizes | None = None) -> tuple[Graph, ...]:
        """The graph of each layer, in the order in which layers are applied, in NumPy arrays.

        A subgraph has one graph, for all layers. In a block, vertex `i` of the destinations is
        vertex `i` of the sources (`Graph.nested`).

        Args:
            shape: what `sizes` is to be padded to. The padded vertices have no edges; in a block
                the first of them stand for vertices of later hops.

        Raises:
            SampleError: if the sample is larger than `shape`.
        """
        padded = shape is not None
        shape = self.sizes if shape is None else tuple(shape)
        if len(shape) != len(self.sizes) or any(
            s > t for s, t in zip(self.sizes, shape, strict=True)
        ):
            raise SampleError(
                f"Sample.graphs: shape is {shape}, expected at least {self.sizes}: nothing is cut "
                f"off, so pass a larger one"
            )
        if self.is_subgraph:
            (count,), (edges,) = self.vertex_counts, self.edge_counts
            return (self._graph((count, count, edges), (shape[0], shape[0], shape[1]), padded),)
        hops = len(self.edge_counts)
        blocks = []
        for hop in range(hops, 0, -1):
            real = self.vertex_counts[hop], self.vertex_counts[hop - 1], self.edge_counts[hop - 1]
            room = shape[hop], shape[hop - 1], shape[hops + hop]
            blocks.append(self._graph(real, room, padded))
        return tuple(blocks)

    def _graph(self, real: Sequence[int], room: Sequence[int], padded: bool) -> Graph:
        """The first `real` sources, destinations and edges, padded to `room`."""
        num_src, num_dst, edges = real
        square = self.is_subgraph
        graph = packed(
            self.indptr[: num_dst + 1], self.neighbor[:edges], real, room, padded, square
        )
        if self.relations is not None:
            graph = self._with_relations(graph, edges)
        if square:
            return graph
        degree = np.zeros(room[0], np.int32)
        degree[:num_src] = self.degree[:num_src]
        return dataclasses.replace(graph, nested=True, whole_degree=degree)

    def _with_relations(self, graph: Graph, edges: int) -> Graph:
        """With the relations of the first `edges`; `e.relation_degree` counts edges of the graph
        that is made."""
        assert self.relations is not None
        number, count = np.zeros(graph.num_edges, np.int32), self.relations.count
        number[:edges] = np.asarray(self.relations.number)[self.edge[:edges]]
        degree = np.asarray(degrees(number, graph.dst, graph.mask, count, graph.num_dst))
        return dataclasses.replace(graph, relations=Relations(number, degree, count))


def packed(
    indptr: HostArray,
    neighbor: HostArray,
    real: Sequence[int],
    room: Sequence[int],
    padded: bool,
    square: bool,
) -> Graph:
    """The graph of edges by destination, in NumPy arrays.

    Args:
        indptr: `int32[rows + 1]`; destinations from `rows` on have no edges.
        neighbor: `int32[e]`, the source of each edge.
        real: sources, destinations and edges.
        room: what they are padded to.
        padded: whether the graph tells padding from the rest.
        square: whether sources and destinations are one vertex set.
    """
    edges, (src_room, dst_room, edge_room) = real[2], room
    rows = np.empty(dst_room + 1, np.int32)
    rows[: len(indptr)], rows[len(indptr) :] = indptr, edges
    src, dst = np.zeros(edge_room, np.int32), np.zeros(edge_room, np.int32)
    src[:edges] = neighbor
    columns, others = np.zeros(src_room + 1, np.int32), np.zeros(edge_room, np.int32)
    order = np.arange(edge_room, dtype=np.int32)
    permutation = order.copy()
    _transpose(indptr, neighbor, dst, columns, others, permutation)
    return Graph(
        src=src,  # type: ignore[arg-type]
        dst=dst,  # type: ignore[arg-type]
        mask=order < edges if padded else None,  # type: ignore[arg-type]
        in_structure=Structure(rows, src, order),  # type: ignore[arg-type]
        out_structure=Structure(columns, others, permutation),  # type: ignore[arg-type]
        dropped=None,
        num_src=src_room,
        num_dst=dst_room,
        num_edges=edge_room,
        bipartite=not square,
        members=_members(real, room, square) if padded else None,
    )


def _members(real: Sequence[int], room: Sequence[int], square: bool) -> Members:
    """One graph, of which the first `real` sources and destinations are no padding."""
    src, dst = (np.arange(rows) < count for count, rows in zip(real[:2], room[:2], strict=True))
    return Members(real_dst=dst, real_src=None if square else src)


class Sampler(Protocol):
    """What draws samples: each is a function of the graph, the seeds and the seed of the batch."""

    @property
    def num_seeds(self) -> int | None:
        """Seeds are numbers from 0 to `num_seeds - 1`; None of a sampler that takes none."""
        ...

    @property
    def num_layers(self) -> int | None:
        """The layers that a sample has a graph for; None where one graph serves any number."""
        ...

    def sample(self, seeds: Any, seed: int = 0, *, workers: Workers = ALONE) -> Sample:
        """The sample of `seeds` (`int[B]`, or None where `num_seeds` is None), of batch `seed`, to
        the same bits with any `workers`."""
        ...


@njit(nogil=True, cache=True)
def _transpose(indptr, neighbor, dst, columns, others, permutation):  # type: ignore[no-untyped-def]
    """Fill the destinations of edges that are sorted by them, and the structure by source: a
    counting sort. `columns` (`int32[sources + 1]`) and the other outputs come as zeros."""
    for i in range(len(neighbor)):
        columns[neighbor[i] + 1] += 1
    for v in range(1, len(columns)):
        columns[v] += columns[v - 1]
    for row in range(len(indptr) - 1):
        for i in range(indptr[row], indptr[row + 1]):
            dst[i] = row
            at = columns[neighbor[i]]
            others[at] = row
            permutation[at] = i
            columns[neighbor[i]] = at + 1
    for v in range(len(columns) - 1, 0, -1):
        columns[v] = columns[v - 1]
    columns[0] = 0
