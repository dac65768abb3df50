"""Some in-neighbours of some vertices, of one graph or of one relation: what neighbour samplers
draw in a hop."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from gnnjit.errors import SampleError
from gnnjit.graph.reading import read_on_host
from gnnjit.sample import picking
from gnnjit.sample.adjacency import Adjacency, check_weights, read_only
from gnnjit.sample.workers import Workers
from gnnjit.shapes import HostArray


@dataclasses.dataclass(frozen=True, eq=False)
class Neighbors:
    """The edges that may be drawn, and how.

    Attributes:
        adjacency: edges by destination; with times, those of a vertex from the earliest on.
        replace: whether an edge may be drawn twice.
        times: `[E]`, by slot, when an edge and its source are there, or None.
        weights: `float64[E]`, by slot, or None where all have the same chance.
        sums: of the weights, in each row, where edges may be drawn twice.
    """

    adjacency: Adjacency
    replace: bool
    times: HostArray | None
    weights: HostArray | None
    sums: HostArray | None

    @classmethod
    def of(
        cls,
        where: str,
        adjacency: Adjacency,
        num_src: int,
        *,
        weights: Any,
        replace: bool,
        edge_times: Any,
        vertex_times: Any,
    ) -> Neighbors:
        """Raises SampleError where weights or times do not fit the edges or the `num_src` sources,
        or a weight is negative or not finite."""
        times = _slot_times(where, adjacency, num_src, edge_times, vertex_times)
        slot_weights = None
        if weights is not None:
            slot_weights = adjacency.by_slot(where, "weights", weights)
            check_weights(where, "weights", slot_weights)
        if times is not None:
            order = np.lexsort(
                (times, np.repeat(np.arange(adjacency.num_nodes), adjacency.degree()))
            )
            times = read_only(times[order])
            adjacency = dataclasses.replace(
                adjacency,
                neighbor=read_only(adjacency.neighbor[order]),
                edge=read_only(adjacency.edge[order]),
            )
            slot_weights = None if slot_weights is None else slot_weights[order]
        sums = None
        if slot_weights is not None:
            slot_weights = read_only(slot_weights)
            if replace:
                sums = read_only(picking.sums_by_row(adjacency.indptr, slot_weights))
        return cls(adjacency, replace, times, slot_weights, sums)

    def choose(
        self,
        rows: HostArray,
        first: int,
        fanout: int,
        key: np.uint64,
        times: HostArray | None,
        workers: Workers,
    ) -> tuple[HostArray, HostArray]:
        """(first pick of each row, the slot of each pick) of `rows`, the vertices whose numbers in
        the batch are those from `first` on.

        Args:
            fanout: at most so many for each row; -1 for all.
            key: of the random numbers.
            times: `[rows]`, what each row sees nothing later than, or None.
        """
        indptr = self.adjacency.indptr
        stop = picking.stops(indptr, rows, self.times, times, workers)
        needs_positive = self.weights is not None and fanout >= 0
        weights = self.weights if needs_positive else None
        sums = self.sums if needs_positive else None
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


def checked_disjoint(where: str, disjoint: bool | None, temporal: bool) -> bool:
    """Whether each seed has a tree of its own. Raises SampleError where it must and may not."""
    if temporal and disjoint is False:
        raise SampleError(
            f"{where}: disjoint=False with times, expected trees of their own: seeds of "
            f"different times see different neighbours; leave disjoint out"
        )
    return temporal if disjoint is None else bool(disjoint)


def seed_times(
    where: str, sampler: str, seeds: HostArray, times: Any, dtype: np.dtype | None
) -> HostArray | None:
    """The time of each seed, as `dtype`; None of a sampler without times, whose `dtype` is None.

    Raises SampleError where times are missing, or given to a sampler without, or do not fit.
    """
    if dtype is None:
        if times is not None:
            raise SampleError(
                f"{where}: got times, and the sampler has none: pass edge_times or "
                f"vertex_times to {sampler}"
            )
        return None
    if times is None:
        raise SampleError(f"{where}: times is missing, expected the time of each seed")
    times = read_on_host(f"{where}: times", times)
    if times.shape != seeds.shape or not np.can_cast(times.dtype, dtype, "same_kind"):
        raise SampleError(
            f"{where}: times is {times.dtype} of shape {times.shape}, expected "
            f"{dtype} of shape {seeds.shape}: one time per seed"
        )
    return times.astype(dtype)


def _slot_times(
    where: str, adjacency: Adjacency, num_src: int, edge_times: Any, vertex_times: Any
) -> HostArray | None:
    """`int64[E]` or `float64[E]`: when both the edge of a slot and its source are there."""
    parts = []
    sizes = {"edge_times": adjacency.num_edges, "vertex_times": num_src}
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
