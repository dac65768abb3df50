"""Global vertex numbers to those of a batch: a hash table with open addressing.

GraphTensor, section V-B: threads that update one table wait for each other, so the choice of
neighbours runs in parallel and the updates of the table do not. A table of the size of the batch
stays in a cache; an array with an entry for each vertex of the graph does not. For the same reason
the table holds numbers alone: the vertex of a number is looked up beside it.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from gnnjit.shapes import HostArray

_STEP = np.uint64(0x9E3779B97F4A7C15)
_TREE = np.uint64(0xD1B54A32D192ED03)
_EMPTY = -1


class Numbering:
    """The vertices of one batch, in the order in which they were found.

    Attributes:
        vertices: `int[capacity]`, global numbers, of which the first `count` are set.
        tree: `int32[capacity]`, the seed whose tree a vertex is in, or None where trees share
            vertices.
    """

    def __init__(self, num_nodes: int, dtype: np.dtype, disjoint: bool) -> None:
        self._num_nodes = num_nodes
        self.count = 0
        self.vertices = np.empty(0, dtype)
        self.tree = np.empty(0, np.int32) if disjoint else None
        self._table = np.empty(0, np.int32)

    @classmethod
    def of(cls, vertices: HostArray, num_nodes: int) -> Numbering:
        """That of `vertices`, `int[n]`, in which one may stand more than once."""
        numbering = cls(num_nodes, vertices.dtype, disjoint=False)
        numbering.add_seeds(vertices)
        return numbering

    @property
    def found(self) -> HostArray:
        """`int[count]`: the global number of each vertex."""
        return self.vertices[: self.count]

    @property
    def table(self) -> tuple[HostArray, HostArray]:
        """What `number_of` searches, where trees share vertices."""
        return self._table, self.vertices

    def filter(self) -> HostArray:
        """`uint64[words]`: a bit for each hash of a vertex, 16 times as many as vertices. A vertex
        that is not there is mostly told by one look at it, which a cache nearer than the table's
        holds (Bloom 1970, with one hash function)."""
        words = np.zeros(1 << max(1, (16 * self.count).bit_length() - 6), np.uint64)
        _mark(self.found, words)
        return words

    def add_seeds(self, seeds: HostArray, first_tree: int = 0) -> HostArray:
        """`int32[n]`, the number of each seed. Two that are equal get one number, unless each has a
        tree of its own, `first_tree` and those after it."""
        offsets, first = np.arange(len(seeds) + 1), self.count
        if self.tree is not None:
            self._reserve(len(seeds))
            self.tree[first : first + len(seeds)] = np.arange(first_tree, first_tree + len(seeds))
        return self.add(seeds, offsets, first)

    def add(
        self,
        found: HostArray,
        offsets: HostArray,
        first_row: int,
        rows: Numbering | None = None,
    ) -> HostArray:
        """`int32[n]`, the numbers of `found`, the neighbours of the rows from `first_row` on; row
        `i` of them found those from `offsets[i]` to `offsets[i + 1] - 1`. Rows are vertices of this
        numbering, or of another: that of another type of vertices."""
        self._reserve(len(found))
        numbers = np.empty(len(found), np.int32)
        of_rows = self if rows is None else rows
        none = np.empty(0, np.int32)
        tree = none if self.tree is None else self.tree
        row_tree = none if of_rows.tree is None else of_rows.tree
        self.count = _add(
            self._table, self.vertices, tree, row_tree, self.count, found, offsets, first_row,
            numbers,
        )  # fmt: skip
        return numbers

    def _reserve(self, more: int) -> None:
        """Room for `more` vertices, with half of the table empty."""
        needed = self.count + more
        if needed > len(self.vertices):
            self.vertices = _grown(self.vertices, self.count, needed)
            if self.tree is not None:
                self.tree = _grown(self.tree, self.count, needed)
        if 2 * needed > len(self._table):
            size = 1 << max(4, (2 * needed - 1).bit_length())
            self._table = np.full(size, _EMPTY, np.int32)
            tree = np.empty(0, np.int32) if self.tree is None else self.tree
            _insert_again(self._table, self.vertices, tree, self.count)


def _grown(array: HostArray, count: int, size: int) -> HostArray:
    """An array of `size`, with the first `count` of `array`."""
    grown = np.empty(size, array.dtype)
    grown[:count] = array[:count]
    return grown


@njit(nogil=True, cache=True, inline="always")
def _hash(vertex, own):  # type: ignore[no-untyped-def]
    """`uint64`, of a vertex and the tree that it is in, 0 where trees share vertices."""
    return (np.uint64(vertex) + np.uint64(own) * _TREE) * _STEP


@njit(nogil=True, cache=True, inline="always")
def number_of(table, vertices, vertex, shift):  # type: ignore[no-untyped-def]
    """The number of a vertex, or -1 of one that is not there. `shift` is `shift_of(len(table))`."""
    at = np.int64(_hash(vertex, 0) >> shift)
    last = len(table) - 1
    while table[at] != _EMPTY and vertices[table[at]] != vertex:
        at = (at + 1) & last
    return table[at]


@njit(nogil=True, cache=True, inline="always")
def bit_of(words, vertex, shift):  # type: ignore[no-untyped-def]
    """The bit of a vertex in a filter: 1 if it may be there. `shift` is `shift_of(64 * words)`."""
    at = (np.uint64(vertex) * _STEP) >> shift
    return np.int64((words[at >> np.uint64(6)] >> (at & np.uint64(63))) & np.uint64(1))


@njit(nogil=True, cache=True, inline="always")
def shift_of(size):  # type: ignore[no-untyped-def]
    """64 less the bits of a table's size."""
    bits = 0
    while (1 << bits) < size:
        bits += 1
    return np.uint64(64 - bits)


@njit(nogil=True, cache=True)
def _add(table, vertices, tree, row_tree, count, found, offsets, first_row, out):  # type: ignore[no-untyped-def]
    shift, last, disjoint = shift_of(len(table)), len(table) - 1, len(tree) > 0
    for row in range(len(offsets) - 1):
        own = row_tree[first_row + row] if disjoint else np.int32(0)
        for i in range(offsets[row], offsets[row + 1]):
            vertex = found[i]
            at = np.int64(_hash(vertex, own) >> shift)
            while True:
                number = table[at]
                if number == _EMPTY:
                    number = np.int32(count)
                    table[at] = number
                    vertices[count] = vertex
                    if disjoint:
                        tree[count] = own
                    count += 1
                    break
                if vertices[number] == vertex and (not disjoint or tree[number] == own):
                    break
                at = (at + 1) & last
            out[i] = number
    return count


@njit(nogil=True, cache=True)
def _insert_again(table, vertices, tree, count):  # type: ignore[no-untyped-def]
    shift, last = shift_of(len(table)), len(table) - 1
    for i in range(count):
        at = np.int64(_hash(vertices[i], tree[i] if len(tree) > 0 else 0) >> shift)
        while table[at] != _EMPTY:
            at = (at + 1) & last
        table[at] = i


@njit(nogil=True, cache=True)
def _mark(vertices, words):  # type: ignore[no-untyped-def]
    shift = shift_of(64 * len(words))
    for vertex in vertices:
        at = (np.uint64(vertex) * _STEP) >> shift
        words[at >> np.uint64(6)] |= np.uint64(1) << (at & np.uint64(63))
