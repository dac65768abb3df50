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
from gnnjit.graph.reading import read_on_host
from gnnjit.graph.validate import shown
from gnnjit.sample import picking
from gnnjit.sample.adjacency import Adjacency, check_weights, read_only
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
        self.fanouts = _checked_fanouts(where, fanouts)
        self.replace = bool(replace)
        adjacency = Adjacency.of(where, graph)
        times = _slot_times(where, adjacency, edge_times, vertex_times)
        self.temporal = times is not None
        if self.temporal and disjoint is False:
            raise SampleError(
                f"{where}: disjoint=False with times, expected trees of their own: seeds of "
                f"different times see different neighbours; leave disjoint out"
            )
        self.disjoint = self.temporal if disjoint is None else bool(disjoint)
        slot_weights = None
        if weights is not None:
            slot_weights = adjacency.by_slot(where, "weights", weights)
            check_weights(where, "weights", slot_weights)
        if times is not None:
            order = np.lexsort(
                (times, np.repeat(np.arange(adjacency.num_nodes), adjacency.degree()))
            )
            times = read_only(times[order])
            adjacency = Adjacency(
                adjacency.indptr,
                read_only(adjacency.neighbor[order]),
                read_only(adjacency.edge[order]),
            )
            slot_weights = None if slot_weights is None else slot_weights[order]
        self.adjacency = adjacency
        self._times = times
        self._weights = None if slot_weights is None else read_only(slot_weights)
        self._sums: HostArray | None = None
        if slot_weights is not None and self.replace:
            self._sums = read_only(picking.sums_by_row(adjacency.indptr, slot_weights))

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
        times = self._seed_times(where, seeds, times)
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
            begin, chosen = self._choose(rows, first, fanout, key, row_times, workers)
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
            edge_counts=tuple(int(indptr[n]) for n in counts[:-1]),
            seeds=seed_numbers,
            tree=None if numbering.tree is None else numbering.tree[: numbering.count],
            degree=picking.degrees(self.adjacency.indptr, numbering.vertices[: numbering.count]),
        )

    def _choose(
        self,
        rows: HostArray,
        first: int,
        fanout: int,
        key: np.uint64,
        times: HostArray | None,
        workers: Workers,
    ) -> tuple[HostArray, HostArray]:
        """(first pick of each row, the slot of each pick) of `rows`, which are the vertices from
        number `first` on."""
        indptr = self.adjacency.indptr
        stop = picking.stops(indptr, rows, self._times, times, workers)
        needs_positive = self._weights is not None and fanout >= 0
        weights = self._weights if needs_positive else None
        sums = self._sums if needs_positive else None
        begin = picking.begins(indptr, stop, rows, weights, sums, fanout, self.replace, workers)
        args = indptr, stop, rows, begin, first, key
        if fanout < 0:
            return begin, picking.all_slots(*args[:4], workers)
        if sums is not None:
            draw, values = picking.by_sums, sums
        elif weights is not None:
            draw, values = picking.by_weight, weights
        else:
            draw = picking.uniform_again if self.replace else picking.uniform
            values = self.adjacency.neighbor
        return begin, picking.picked(draw, *args, values, workers)

    def _seed_times(self, where: str, seeds: HostArray, times: Any) -> HostArray | None:
        if self._times is None:
            if times is not None:
                raise SampleError(
                    f"{where}: got times, and the sampler has none: pass edge_times or "
                    f"vertex_times to NeighborSampler"
                )
            return None
        if times is None:
            raise SampleError(f"{where}: times is missing, expected the time of each seed")
        times = read_on_host(f"{where}: times", times)
        if times.shape != seeds.shape or not np.can_cast(
            times.dtype, self._times.dtype, "same_kind"
        ):
            raise SampleError(
                f"{where}: times is {times.dtype} of shape {times.shape}, expected "
                f"{self._times.dtype} of shape {seeds.shape}: one time per seed"
            )
        return times.astype(self._times.dtype)


def _checked_fanouts(where: str, fanouts: Any) -> tuple[int, ...]:
    try:
        values = tuple(fanouts)
    except TypeError as error:
        raise SampleError(
            f"{where}: fanouts is {shown(fanouts)}, expected a number for each hop: (15, 10)"
        ) from error
    for hop, value in enumerate(values):
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or (value < 1 and value != -1):
            raise SampleError(
                f"{where}: fanouts[{hop}] is {shown(value)}, expected a whole number >= 1, or -1 "
                f"for all neighbours: without neighbours, leave the hop out"
            )
    if not values:
        raise SampleError(f"{where}: fanouts is empty, expected a number for each hop: (15, 10)")
    return tuple(int(v) for v in values)


def _slot_times(
    where: str, adjacency: Adjacency, edge_times: Any, vertex_times: Any
) -> HostArray | None:
    """`int64[E]` or `float64[E]`: when both the edge of a slot and its source are there."""
    parts = []
    sizes = {"edge_times": adjacency.num_edges, "vertex_times": adjacency.num_nodes}
    index = {"edge_times": adjacency.edge, "vertex_times": adjacency.neighbor}
    for name, values in (("edge_times", edge_times), ("vertex_times", vertex_times)):
        if values is None:
            continue
        values = read_on_host(f"{where}: {name}", values)
        kinds = "iu" if values.dtype.kind in "iu" else "f"
        if values.ndim != 1 or len(values) < sizes[name] or values.dtype.kind not in kinds:
            raise SampleError(
                f"{where}: {name} is {values.dtype} of shape {values.shape}, expected numbers of "
                f"shape ({sizes[name]},)"
            )
        if kinds == "f" and np.isnan(values).any():
            raise SampleError(f"{where}: {name} holds NaN, expected a time")
        parts.append(values.astype(np.int64 if kinds == "iu" else np.float64)[index[name]])
    if not parts:
        return None
    if len({part.dtype for part in parts}) > 1:
        raise SampleError(
            f"{where}: edge_times and vertex_times are whole numbers and floats, expected one kind"
        )
    return parts[0] if len(parts) == 1 else np.maximum(*parts)
