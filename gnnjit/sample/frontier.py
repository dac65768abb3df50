"""Frontier sampling on the Dashboard: a table in which a popped vertex is found by O(1) probes.

Zeng, Zhou, Srivastava, Kannan & Prasanna, "Accurate, Efficient and Scalable Graph Embedding"
(2019), section IV, algorithms 2 to 4.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from gnnjit.errors import SampleError
from gnnjit.graph import Graph
from gnnjit.graph.validate import as_count, shown
from gnnjit.sample.induced import InducedSampler
from gnnjit.sample.prefetching import prefetch
from gnnjit.sample.random import below, key_of, stream
from gnnjit.sample.workers import ALONE, Workers
from gnnjit.shapes import ArrayLike, HostArray

_VERTEX, _ENTRIES, _NEXT, _NEXT_SLOT, _NEXT_DEGREE = range(5)
"""The columns of the index array."""

_UNREAD, _KNOWN = -2, -1
"""What stands in place of a next slot. Unread: instead of the next vertex there is the place in the
graph where it is read. Known: the vertex is read, but not its slot and its degree."""

_AHEAD = 12
"""Vertices between asking for memory and reading it. A next vertex is read so many vertices after
it was drawn, and its degree after twice as many."""

_PROBES_AHEAD = 4
"""How many probes ahead an index is asked for; an entry of the table twice as far."""

_CACHED = 1 << 16
"""Entries of a table that a cache holds."""

_SPARE = 1 / 16
"""The room behind the used part of the table, over the used part, at most."""

_PROBING, _STARTING, _MOVING = range(3)
"""Streams of random numbers."""

_MOST = 2**31 - 1


class FrontierSampler(InducedSampler):
    """The subgraph of a frontier of vertices, each of which walks, those of high degree more often.

    A vertex `u` of the frontier is popped with chance `deg(u) / sum of deg over the frontier`, and
    a neighbour of it, each with the same chance, takes its place. `V_sub` is the first frontier and
    the popped vertices (algorithm 2, lines 2 and 7; algorithm 3, line 24, takes the vertices that
    come in instead, which is the last frontier more). The budget counts repetitions, as the paper's
    does: a vertex that is popped again, and the first pop of each of the first frontier, add
    nothing, so a sample has fewer than `vertices` vertices.

    Neighbours are in-neighbours and degrees in-degrees; on a symmetric graph that is the paper's. A
    vertex of degree 0 has no chance to be popped. Where all of the frontier have degree 0, the
    sample ends early.

    The Dashboard has `min(deg(u), most_entries)` entries for `u` (section VI-C2 takes 30 on skewed
    graphs), and chances are by that number then. Where we differ from the paper:

    - An entry holds the number of its vertex alone, so it takes 4 bytes, not 12. Whether that
      vertex is still in the frontier stands in the index array: a pop writes nothing to the table.
    - Probes are over the used part and some room behind it, which are cleaned up when the table or
      the index array is full or less than `1 / enlargement` of them is valid: so the expected
      probes of a pop are at most `enlargement`. The range of the probes changes only when the room
      is used up, so the next ones are known, and their memory is asked for. A table that is too
      small for a frontier of high degrees grows.
    - Where a vertex will move is drawn when it comes in, not when it is popped. The processor is
      asked for that memory at once, and the memory is read some pops later, so no pop waits for the
      graph. The distribution is the same.

    Args:
        graph: a concrete graph of one vertex set.
        frontier: m, the vertices of the frontier.
        vertices: n, the budget, the first frontier included.
        enlargement: eta > 1.
        most_entries: the cap on the entries of a vertex; none if left out.
        roots: the vertices that the first frontier is drawn from, each time from all of them:
            `int[R]` or a mask `bool[N]`; all if left out. Pass the training vertices.

    Raises:
        SampleError: a number is out of range, there are no roots, or one is no vertex.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        frontier: int = 1000,
        vertices: int = 8000,
        enlargement: float = 2.0,
        most_entries: int | None = None,
        roots: ArrayLike | None = None,
    ) -> None:
        super().__init__(graph)
        where = self._name
        self.frontier = at_least_one(where, "frontier", frontier)
        self.vertices = at_least_one(where, "vertices", vertices)
        if self.vertices < self.frontier:
            raise SampleError(
                f"{where}: vertices is {vertices} and frontier {frontier}, expected a budget of at "
                f"least the frontier, which is part of the sample"
            )
        is_number = isinstance(enlargement, int | float | np.number)
        if not is_number or not math.isfinite(enlargement) or enlargement <= 1:
            raise SampleError(
                f"{where}: enlargement is {shown(enlargement)}, expected a number above 1: the "
                f"table over the entries that are valid; 2 is usual"
            )
        self.enlargement = float(enlargement)
        self.most_entries = None
        if most_entries is not None:
            self.most_entries = at_least_one(where, "most_entries", most_entries)
        self._first = self._roots(roots)

    def drawn(self, seed: int = 0, *, workers: Workers = ALONE) -> HostArray:
        """`int[n]`: the first frontier, then the popped vertices, as they were drawn. One thread
        draws them: a pop needs the one before it. Sample several batches at a time instead.

        Raises SampleError unless `seed` is a whole number from 0 to 2**64 - 1.
        """
        adjacency = self.adjacency
        key = key_of(f"{self._name}.sample", seed)
        average = adjacency.num_edges / max(1, adjacency.num_nodes)
        most = _MOST if self.most_entries is None else self.most_entries
        room = math.ceil(self.enlargement * self.frontier * min(average, most)) + 1
        found = np.empty(self.vertices, adjacency.indptr.dtype)
        count, _ = walked(
            adjacency.indptr, adjacency.neighbor, self._first, self.frontier, most,
            self.enlargement, room, key, found,
        )  # fmt: skip
        return found[:count]


def at_least_one(where: str, name: str, value: int) -> int:
    """`value` as an int. Raises SampleError unless it is a whole number from 1 to 2**31 - 1."""
    count = as_count(f"{where}: {name}", value)
    if not 1 <= count <= _MOST:
        raise SampleError(f"{where}: {name} is {count}, expected a number from 1 to {_MOST}")
    return count


@njit(nogil=True, cache=True)
def walked(indptr, neighbor, roots, size, most, eta, room, key, found):  # type: ignore[no-untyped-def]
    """Algorithm 3. Fills `found` with the first frontier, of `size` vertices, and what is popped;
    `room` is that of the table. Gives the vertices found and the probes made."""
    table = np.empty(room, np.int32)
    index = np.empty((np.int64(math.ceil(eta * size)) + 1, 5), indptr.dtype)
    starting, moving, probing = stream(key, _STARTING), stream(key, _MOVING), stream(key, _PROBING)
    used, bound, valid, probes = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    held, known, ready = np.int64(0), np.int64(0), np.int64(0)
    spare = min(_SPARE, (eta - 1) / 4)
    for i in range(len(found)):
        if i < size:
            vertex = _first(indptr, roots, starting, i)
            slot = np.int64(indptr[vertex])
            degree = indptr[vertex + 1] - slot
            found[i] = vertex
        else:
            if valid == 0:
                return i, probes
            number, probes = _pop(table, index, used, bound, probing, probes)
            if index[number, _NEXT_SLOT] < 0:
                _read_vertex(neighbor, indptr, index, number)
                _read_degree(indptr, index, number)
            found[i] = index[number, _VERTEX]
            index[number, _VERTEX] = -1
            valid -= index[number, _ENTRIES]
            vertex, slot = np.int64(index[number, _NEXT]), np.int64(index[number, _NEXT_SLOT])
            degree = np.int64(index[number, _NEXT_DEGREE])
        if degree == 0:
            continue
        entries = min(degree, most)
        if held == len(index) or used + entries > len(table) or bound > eta * valid:
            table, used, held = _cleaned(table, index, held, entries, eta)
            bound, known, ready = used, held, held  # what was not read yet is read when popped
        table[used : used + entries] = held
        index[held, _VERTEX], index[held, _ENTRIES] = vertex, entries
        place = slot + below(moving, i, degree)
        index[held, _NEXT], index[held, _NEXT_SLOT] = place, _UNREAD
        prefetch(neighbor, place)
        used, valid, held = used + entries, valid + entries, held + 1
        if used > bound:
            bound = used + (np.int64(spare * used) if used > _CACHED else 0)
        if held - known > _AHEAD:
            _read_vertex(neighbor, indptr, index, known)
            known += 1
        if known - ready > _AHEAD:
            _read_degree(indptr, index, ready)
            ready += 1
    return len(found), probes


@njit(nogil=True, cache=True, inline="always")
def _first(indptr, roots, key, i):  # type: ignore[no-untyped-def]
    """Vertex `i` of the first frontier; those after it are asked for."""
    count = len(roots)
    prefetch(roots, below(key, i + 2 * _AHEAD, count))
    prefetch(indptr, roots[below(key, i + _AHEAD, count)])
    return np.int64(roots[below(key, i, count)])


@njit(nogil=True, cache=True, inline="always")
def _read_vertex(neighbor, indptr, index, number):  # type: ignore[no-untyped-def]
    """Where vertex `number` of the frontier will move; its own neighbours are asked for."""
    if index[number, _NEXT_SLOT] == _UNREAD:
        after = neighbor[index[number, _NEXT]]
        index[number, _NEXT], index[number, _NEXT_SLOT] = after, _KNOWN
        prefetch(indptr, after)


@njit(nogil=True, cache=True, inline="always")
def _read_degree(indptr, index, number):  # type: ignore[no-untyped-def]
    """The slot and the degree of the vertex to which vertex `number` of the frontier will move."""
    if index[number, _NEXT_SLOT] == _KNOWN:
        after = index[number, _NEXT]
        index[number, _NEXT_SLOT] = indptr[after]
        index[number, _NEXT_DEGREE] = indptr[after + 1] - indptr[after]


@njit(nogil=True, cache=True, inline="always")
def _pop(table, index, used, bound, key, probes):  # type: ignore[no-untyped-def]
    """The number of a vertex of the frontier, by one of its entries, and the probes so far. Entries
    from `used` to `bound` are no one's."""
    rows = index.reshape(-1)
    while True:
        if used > _CACHED:
            prefetch(table, below(key, probes + 2 * _PROBES_AHEAD, bound))
            soon = below(key, probes + _PROBES_AHEAD, bound)
            if soon < used:
                prefetch(rows, table[soon] * index.shape[1])
        at = below(key, probes, bound)
        probes += 1
        if at < used:
            number = np.int64(table[at])
            if index[number, _VERTEX] >= 0:
                return number, probes


@njit(nogil=True, cache=True)
def _cleaned(table, index, held, entries, eta):  # type: ignore[no-untyped-def]
    """Entries and numbers of the vertices that are in the frontier move to the front. Gives a table
    with room for `entries` more and the enlargement, what is used of it, and how many vertices."""
    valid = entries
    for i in range(held):
        if index[i, _VERTEX] >= 0:
            valid += index[i, _ENTRIES]
    if eta * valid > len(table):
        table = np.empty(np.int64(2 * eta * valid), np.int32)
    used, kept = np.int64(0), 0
    for i in range(held):
        if index[i, _VERTEX] < 0:
            continue
        index[kept] = index[i]
        table[used : used + index[i, _ENTRIES]] = kept
        used += index[i, _ENTRIES]
        kept += 1
    return table, used, kept
