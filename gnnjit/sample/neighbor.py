"""Layer-wise neighbour sampling: some in-neighbours of each vertex, and some of theirs.

Hamilton, Ying & Leskovec, "Inductive Representation Learning on Large Graphs" (2017), algorithm 2.
Where we differ: a vertex draws its neighbours once, at the hop at which it is found, and keeps them
in all layers, as in PyG. So the edges of a layer are the first ones of those of the layer below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gnnjit.errors import SampleError
from gnnjit.graph import Graph
from gnnjit.graph.validate import shown
from gnnjit.sample import picking
from gnnjit.sample.adjacency import Adjacency
from gnnjit.sample.drawing import Neighbors, checked_disjoint, seed_times
from gnnjit.sample.numbering import Numbering
from gnnjit.sample.random import key_of
from gnnjit.sample.sample import Sample
from gnnjit.sample.workers import ALONE, Workers
from gnnjit.shapes import ArrayLike, HostArray

Found = Callable[[HostArray], None]
"""Is told the global numbers of the vertices that each hop found, in order."""


class NeighborSampler:
    """At most `fanouts[h]` in-neighbours of each vertex that is `h` hops from the seeds.

    A sample is a function of the graph, the seeds and the seed of the batch alone.

    Args:
        graph: a concrete graph of one vertex set.
        fanouts: for each hop, from the seeds on, how many neighbours; -1 for all.
        weights: `float[E]`, the chance of an edge beside the others of its vertex; without
            replacement, one edge after the other is drawn among those that are left. An edge of
            weight 0 is drawn never.
        replace: whether an edge may be drawn twice. A vertex with an edge then draws exactly as
            many as its fan-out.
        edge_times, vertex_times: `[E]` and `[N]`, of one dtype, when an edge or vertex came to be.
            Nothing later than the time of its seed is drawn.
        disjoint: whether each seed has a tree of its own, in which a vertex stands once; otherwise
            a vertex stands once in the batch. Sampling by time is disjoint.

    Raises:
        SampleError: a fan-out is 0, weights or times do not fit the graph, a weight is negative or
            not finite.
    """

    def __init__(
        self,
        graph: Graph,
        fanouts: Sequence[int],
        *,
        weights: ArrayLike | None = None,
        replace: bool = False,
        edge_times: ArrayLike | None = None,
        vertex_times: ArrayLike | None = None,
        disjoint: bool | None = None,
    ) -> None:
        where = "NeighborSampler"
        self.fanouts = checked_fanouts(where, fanouts)
        self.replace = bool(replace)
        adjacency = Adjacency.of(where, graph)
        self._neighbors = Neighbors.of(
            where, adjacency, adjacency.num_nodes, weights=weights, replace=self.replace,
            edge_times=edge_times, vertex_times=vertex_times,
        )  # fmt: skip
        self.adjacency = self._neighbors.adjacency
        self.temporal = self._neighbors.times is not None
        self.disjoint = checked_disjoint(where, disjoint, self.temporal)

    @property
    def num_layers(self) -> int:
        """Hops: the layers that a sample has a block for."""
        return len(self.fanouts)

    @property
    def num_seeds(self) -> int:
        """Seeds are vertices: their number in the graph."""
        return self.adjacency.num_nodes

    def sample(
        self,
        seeds: ArrayLike,
        seed: int = 0,
        *,
        times: ArrayLike | None = None,
        workers: Workers = ALONE,
        found: Found | None = None,
    ) -> Sample:
        """The sampled neighbourhood of some vertices.

        Args:
            seeds: `int[B]`, or a mask `bool[N]`.
            seed: of the batch.
            times: `[B]`, the time of each seed, where the sampler has times.
            workers: threads that share the work; the result is the same.
            found: is told the vertices of each hop as soon as they are known.

        Raises:
            SampleError: a seed is out of range, or times are missing or do not fit.
        """
        where = "NeighborSampler.sample"
        seeds = self.adjacency.checked(where, "seeds", seeds)
        dtype = None if self._neighbors.times is None else self._neighbors.times.dtype
        times = seed_times(where, "NeighborSampler", seeds, times, dtype)
        key = key_of(where, seed)
        numbering = Numbering(self.adjacency.num_nodes, seeds.dtype, self.disjoint)
        seed_numbers = numbering.add_seeds(seeds)
        counts, offsets, neighbors, slots = [numbering.count], [np.zeros(1, np.int64)], [], []
        if found is not None:
            found(numbering.vertices[: numbering.count])
        first = 0
        for fanout in self.fanouts:
            rows = numbering.vertices[first : numbering.count]
            row_times = None
            if times is not None and numbering.tree is not None:
                row_times = times[numbering.tree[first : numbering.count]]
            begin, chosen = self._neighbors.choose(rows, first, fanout, key, row_times, workers)
            picked = picking.taken(self.adjacency.neighbor, chosen, workers)
            numbers = numbering.add(picked, begin, first)
            if found is not None:
                found(numbering.vertices[counts[-1] : numbering.count])
            first = counts[-1]
            counts.append(numbering.count)
            offsets.append(sum(map(len, slots)) + begin[1:])
            neighbors.append(numbers)
            slots.append(chosen)
        indptr = np.concatenate(offsets)
        return Sample(
            vertices=numbering.vertices[: numbering.count],
            vertex_counts=tuple(counts),
            indptr=indptr.astype(np.int32),
            neighbor=np.concatenate(neighbors),
            slots=np.concatenate(slots),
            edge_of_slot=self.adjacency.edge,
            relations=self.adjacency.relations,
            edge_counts=tuple(int(indptr[n]) for n in counts[:-1]),
            seeds=seed_numbers,
            tree=None if numbering.tree is None else numbering.tree[: numbering.count],
            degree=picking.degrees(self.adjacency.indptr, numbering.vertices[: numbering.count]),
        )


def checked_fanouts(where: str, fanouts: Any, least: int = 1) -> tuple[int, ...]:
    """A number for each hop. Raises SampleError unless each is `least` or more, or -1."""
    try:
        values = tuple(fanouts)
    except TypeError as error:
        raise SampleError(
            f"{where}: fanouts is {shown(fanouts)}, expected a number for each hop: (15, 10)"
        ) from error
    for hop, value in enumerate(values):
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or (value < least and value != -1):
            hint = ": without neighbours, leave the hop out" if least else ""
            raise SampleError(
                f"{where}: fanouts[{hop}] is {shown(value)}, expected a whole number >= {least}, "
                f"or -1 for all neighbours{hint}"
            )
    if not values:
        raise SampleError(f"{where}: fanouts is empty, expected a number for each hop: (15, 10)")
    return tuple(int(v) for v in values)
