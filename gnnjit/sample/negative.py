"""Negative sampling: pairs of vertices that are no edges, for link prediction."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args

import numpy as np
from numba import njit

from gnnjit.errors import SampleError
from gnnjit.graph import Graph
from gnnjit.graph.validate import shown
from gnnjit.sample.adjacency import Adjacency, numbers_of, read_only
from gnnjit.sample.alias import AliasTable, pick
from gnnjit.sample.frontier import at_least_one
from gnnjit.sample.random import below, key_of, stream
from gnnjit.sample.workers import ALONE, Workers
from gnnjit.shapes import ArrayLike, HostArray

Drawing = Literal["uniform", "degree", "batch"]


@dataclasses.dataclass(frozen=True, eq=False)
class Negatives:
    """Destinations for the sources of some links.

    Attributes:
        dst: `int[B, k]`, k for each link.
        false: `bool[B, k]`, where the last try was an edge too, or the source itself.
    """

    dst: HostArray
    false: HostArray

    @property
    def left(self) -> int:
        """How many are false."""
        return int(np.count_nonzero(self.false))


class NegativeSampler:
    """Destinations that the source of a link has no edge to.

    A destination that the source has an edge to, at whatever time, or that is the source itself, is
    drawn again, up to `tries` draws in all; what is left then is marked.

    Args:
        graph: a concrete graph, whose edges are no negatives: of one vertex set, or one between
            sources and destinations, such as a relation of a `TypedGraph`.
        count: k, negatives of each link.
        by: "uniform": all destinations with the same chance; "degree": in proportion to their
            in-edges to the `power` (Mikolov et al., "Distributed Representations of Words and
            Phrases and their Compositionality" (2013), section 2.2, has 3/4); "batch": the
            destinations of the batch's links, each link with the same chance, so that vertices
            are drawn as often as links lead to them.
        power: of "degree".
        destinations: `int[C]` or a mask `bool[num_dst]`, what is drawn from; all if left out.
        tries: draws of each.

    Raises:
        SampleError: a number or name is none of these, or there is nothing to draw from.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        count: int = 1,
        by: Drawing = "uniform",
        power: float = 0.75,
        destinations: ArrayLike | None = None,
        tries: int = 10,
    ) -> None:
        where = "NegativeSampler"
        self.adjacency = Adjacency.of(where, graph, two_sets=True)
        self.num_src, self.num_dst = graph.num_src, graph.num_dst
        self._one_set = not graph.bipartite
        self.count = at_least_one(where, "count", count)
        self.tries = at_least_one(where, "tries", tries)
        if by not in get_args(Drawing):
            raise SampleError(
                f"{where}: by is {shown(by)}, expected one of {', '.join(get_args(Drawing))}"
            )
        self.by = by
        if not isinstance(power, int | float | np.number) or not np.isfinite(power):
            raise SampleError(f"{where}: power is {shown(power)}, expected a finite number")
        self._candidates = self._destinations(where, destinations)
        self._table = None
        if by == "degree":
            weights = _powers(self.adjacency.degree()[self._candidates], float(power))
            self._table = AliasTable.of(where, "degrees to the power", weights)
        self._sorted = self.adjacency.neighbor.copy()
        _sort_rows(self.adjacency.indptr, self._sorted)
        self._sorted = read_only(self._sorted)

    def sample(
        self, src: ArrayLike, dst: ArrayLike, seed: int = 0, *, workers: Workers = ALONE
    ) -> Negatives:
        """Negatives of the links `src[i] -> dst[i]`.

        Args:
            src, dst: `int[B]`.
            seed: of the batch.
            workers: threads that share the work; the result is the same.

        Raises:
            SampleError: a vertex is out of range, or there are not as many of both.
        """
        where = "NegativeSampler.sample"
        src, dst = checked_links(where, src, dst, (self.num_src, self.num_dst))
        src, dst = (ends.astype(self.adjacency.indptr.dtype) for ends in (src, dst))
        candidates = read_only(dst) if self.by == "batch" else self._candidates
        shape = (len(src), self.count)
        drawn, false = np.empty(shape, self.adjacency.indptr.dtype), np.empty(shape, np.bool_)
        table = self._table or _NO_TABLE
        key = key_of(where, seed)
        workers.run(
            lambda b, e: _draw(
                self.adjacency.indptr, self._sorted, src, candidates, table.share, table.alias,
                self._one_set, self.tries, key, b, e, drawn, false,
            ),
            len(src),
        )  # fmt: skip
        return Negatives(drawn, false)

    def _destinations(self, where: str, destinations: Any) -> HostArray:
        if destinations is not None and self.by == "batch":
            raise SampleError(
                f"{where}: got destinations with by='batch', expected none: those of the batch's "
                f"links are drawn"
            )
        adjacency = self.adjacency
        if destinations is None:
            found = np.arange(adjacency.num_nodes, dtype=adjacency.indptr.dtype)
        else:
            found = adjacency.checked(where, "destinations", destinations)
        if not len(found):
            raise SampleError(
                f"{where}: there are 0 destinations in a graph of {adjacency.num_nodes} vertices, "
                f"expected at least one to draw"
            )
        return read_only(found)


def checked_links(
    where: str, src: Any, dst: Any, counts: tuple[int, int]
) -> tuple[HostArray, HostArray]:
    """Both ends of links, `int[B]`, of so many sources and destinations. Raises SampleError where
    one is out of range, or there are not as many of both."""
    hint = ": number vertices as the graph does"
    src = numbers_of(where, "src", src, counts[0], "vertex", hint)
    dst = numbers_of(where, "dst", dst, counts[1], "vertex", hint)
    if len(src) != len(dst):
        raise SampleError(
            f"{where}: src has {len(src)} entries and dst has {len(dst)}, expected one of each per "
            f"link"
        )
    return src, dst


_NO_TABLE = AliasTable(read_only(np.empty(0, np.float64)), read_only(np.empty(0, np.int32)))


def _powers(degree: HostArray, power: float) -> HostArray:
    """`float64[C]`: 0 of a vertex without in-edges, whatever the power."""
    some = degree > 0
    return np.where(some, np.maximum(degree, 1).astype(np.float64) ** power, 0.0)


@njit(nogil=True, cache=True)
def _sort_rows(indptr, neighbor):  # type: ignore[no-untyped-def]
    for v in range(len(indptr) - 1):
        neighbor[indptr[v] : indptr[v + 1]].sort()


@njit(nogil=True, cache=True, inline="always")
def _is_edge(indptr, neighbor, u, v):  # type: ignore[no-untyped-def]
    """Whether `u` is in the sorted row of `v`."""
    low, high = np.int64(indptr[v]), np.int64(indptr[v + 1])
    end = high
    while low < high:
        middle = (low + high) // 2
        if neighbor[middle] < u:
            low = middle + 1
        else:
            high = middle
    return low < end and neighbor[low] == u


@njit(nogil=True, cache=True)
def _draw(  # type: ignore[no-untyped-def]
    indptr, neighbor, src, candidates, share, alias, one_set, tries, key, begin, end, drawn, false
):
    for i in range(begin, end):
        own, u, position = stream(key, i), src[i], np.int64(0)
        for j in range(drawn.shape[1]):
            bad, held = True, 0
            while bad and held < tries:
                if len(share) > 0:
                    v = candidates[pick(share, alias, own, position)]
                else:
                    v = candidates[below(own, position, len(candidates))]
                position += 1
                held += 1
                bad = (one_set and v == u) or _is_edge(indptr, neighbor, u, v)
                drawn[i, j] = v
            false[i, j] = bad
