"""The subgraph that a set of vertices induces: they, and every edge from one to another."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
from numba import njit

from gnnjit.errors import SampleError
from gnnjit.graph import Graph
from gnnjit.graph.reading import read_on_host
from gnnjit.graph.validate import shown
from gnnjit.sample.adjacency import Adjacency, read_only
from gnnjit.sample.numbering import Numbering, bit_of, number_of, shift_of
from gnnjit.sample.sample import Sample
from gnnjit.sample.workers import ALONE, Workers
from gnnjit.shapes import HostArray


class InducedSampler(abc.ABC):
    """Samplers that draw vertices from the whole graph and take the subgraph that they induce.

    They take no seeds, and their samples have one graph, for any number of layers.
    """

    num_seeds = None
    num_layers = None

    def __init__(self, graph: Graph) -> None:
        self.adjacency = Adjacency.of(self._name, graph)

    @property
    def _name(self) -> str:
        return type(self).__name__

    @abc.abstractmethod
    def drawn(self, seed: int = 0, *, workers: Workers = ALONE) -> HostArray:
        """`int[n]`: the vertices in the order in which they are drawn, repetitions included.

        Raises SampleError unless `seed` is a whole number from 0 to 2**64 - 1.
        """

    def sample(self, seeds: None = None, seed: int = 0, *, workers: Workers = ALONE) -> Sample:
        """The subgraph induced by `drawn(seed)`, each vertex once, as they were first drawn.

        Args:
            seeds: None.
            seed: of the batch.
            workers: threads that share the work; the result is the same.

        Raises:
            SampleError: there are seeds, or `seed` is none.
        """
        if seeds is not None:
            raise SampleError(
                f"{self._name}.sample: seeds is {shown(seeds)}, expected None: the vertices are "
                f"drawn from the whole graph; pass seed= for another sample"
            )
        drawn = self.drawn(seed, workers=workers)
        return induced(self.adjacency, Numbering.of(drawn, self.adjacency.num_nodes), workers)

    def _roots(self, roots: Any) -> HostArray:
        """`int[R]`: the vertices that a sample starts from, which are to be some."""
        adjacency = self.adjacency
        if roots is None:
            roots = np.arange(adjacency.num_nodes, dtype=adjacency.indptr.dtype)
        else:
            roots = adjacency.checked(self._name, "roots", read_on_host("roots", roots))
        if not len(roots):
            raise SampleError(
                f"{self._name}: there are 0 roots in a graph of {adjacency.num_nodes} vertices, "
                f"expected at least one vertex to start from"
            )
        return read_only(roots)


def induced(
    adjacency: Adjacency,
    numbering: Numbering,
    workers: Workers = ALONE,
    *,
    seeds: HostArray | None = None,
    tree: HostArray | None = None,
) -> Sample:
    """The subgraph induced by the vertices of `numbering`, as they are numbered there. Edges are
    ordered by destination, then by slot. The work is that of looking up each of their in-edges.

    Args:
        adjacency: of the whole graph.
        numbering: the vertices.
        workers: threads that share the work.
        seeds, tree: as of `Sample`.

    Raises:
        SampleError: the subgraph has 2**31 edges or more.
    """
    vertices = numbering.found
    degree = np.asarray(adjacency.indptr[vertices + 1] - adjacency.indptr[vertices])
    begin = offsets_of(degree)
    slots, numbers, counts = _inside(adjacency, numbering, begin, workers)
    indptr = offsets_of(counts)
    size = int(indptr[-1])
    if size >= 2**31:
        raise SampleError(
            f"a subgraph of {len(vertices)} vertices has {size} edges, expected fewer than 2**31: "
            f"draw fewer vertices"
        )
    neighbor, chosen = np.empty(size, np.int32), np.empty(size, np.int64)
    where = adjacency.indptr, vertices, begin
    workers.run(
        lambda b, e: _fill(*where, slots, numbers, indptr, b, e, neighbor, chosen), len(vertices)
    )
    return Sample(
        vertices=vertices,
        vertex_counts=(len(vertices),),
        indptr=indptr.astype(np.int32),
        neighbor=neighbor,
        slots=chosen,
        edge_of_slot=adjacency.edge,
        relations=adjacency.relations,
        edge_counts=(size,),
        degree=degree.astype(np.int32),
        seeds=seeds,
        tree=tree,
    )


def _inside(
    adjacency: Adjacency, numbering: Numbering, begin: HostArray, workers: Workers
) -> tuple[HostArray, HostArray, HostArray]:
    """Of the in-edges of each vertex that come from another: their slots, counted from the first of
    its row, the numbers of their sources, and how many there are. Vertex `i` has the part from
    `begin[i]` on, and they stand at its beginning; memory that is not touched costs nothing."""
    slots, numbers = np.empty(begin[-1], np.int32), np.empty(begin[-1], np.int32)
    counts, words = np.empty(numbering.count, np.int64), numbering.filter()
    where = adjacency.indptr, numbering.found, begin
    workers.run(
        lambda b, e: _look_up(
            *where, adjacency.neighbor, *numbering.table, words, b, e, slots, numbers, counts
        ),
        numbering.count,
    )
    return slots, numbers, counts


def offsets_of(counts: HostArray) -> HostArray:
    """`int64[n + 1]`: the sums of the counts before each, and of all."""
    sums = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=sums[1:])
    return sums


@njit(nogil=True, cache=True)
def _look_up(  # type: ignore[no-untyped-def]
    indptr, rows, begin, neighbor, table, known, words, first, end, slots, numbers, counts
):
    """The in-edges of each row from vertices of the table: their slots, sources, and how many."""
    shift, filter_shift = shift_of(len(table)), shift_of(64 * len(words))
    for i in range(first, end):
        low, at = np.int64(indptr[rows[i]]), begin[i]
        for j in range(begin[i + 1] - begin[i]):
            # Written over by the next one where it is not there: most are not, no branch tells.
            slots[at] = j
            at += bit_of(words, neighbor[low + j], filter_shift)
        held = begin[i]
        for k in range(begin[i], at):
            number = number_of(table, known, neighbor[low + slots[k]], shift)
            slots[held], numbers[held] = slots[k], number
            held += number >= 0
        counts[i] = held - begin[i]


@njit(nogil=True, cache=True)
def _fill(  # type: ignore[no-untyped-def]
    indptr, rows, begin, slots, numbers, offsets, first, end, neighbor, chosen
):
    for i in range(first, end):
        low = np.int64(indptr[rows[i]])
        for j in range(offsets[i + 1] - offsets[i]):
            neighbor[offsets[i] + j] = numbers[begin[i] + j]
            chosen[offsets[i] + j] = low + slots[begin[i] + j]
