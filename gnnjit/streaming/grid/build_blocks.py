"""How the edges of a grid get into a store: counted, placed into their cells, and sorted there.

A sort outside of memory in two passes over the edges. The first counts the edges of each of the
P x P cells, and so where each cell begins; the second writes every edge into its cell. Then one
cell at a time is sorted in memory.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from gnnjit.errors import GraphError
from gnnjit.graph import validate
from gnnjit.graph.host_sort import counting_sort
from gnnjit.graph.reading import as_indices
from gnnjit.shapes import ArrayLike, HostArray
from gnnjit.store.store import VertexStore

EdgeSource = Callable[[], Iterable[tuple[ArrayLike, ArrayLike]]]
"""Called once a pass: blocks `(src, dst)` of `int[n]`, the same edges each time."""
Watch = Callable[[int, int], None]

IN, OUT = ("in.row", "in.neighbor", "in.number"), ("out.row", "out.neighbor", "out.position")
IN_ENDS, OUT_ENDS = ENDS = ("in.ends", "out.ends")
"""Where the edges of each row of each cell end, among those of the cell."""
EDGE_BYTES = 48
"""What an edge takes while it is held to be placed, the sort of what is held included."""
PIECES = 8
"""A block is taken in pieces of this share of what is held."""
TABLE_BITS = 16
"""The chunks of vertices are looked up in a table of at most 2**16 entries, which fits a cache."""


@dataclasses.dataclass(frozen=True, eq=False)
class Cells:
    """Where the edges of each chunk lie in the arrays of a store. Cell (i, j) holds the edges from
    vertex chunk i to vertex chunk j; the arrays `in.*` have the cells by column, `out.*` by row.

    Attributes:
        store, name: the arrays are `<name>.in.row` and so on.
        bounds: `int64[P + 1]`, of the vertex chunks.
        counts: `int64[P, P]`, the edges of cell (i, j).
        with_ends: whether the arrays `ENDS` are there too, with P rows a vertex.
    """

    store: VertexStore
    name: str
    bounds: HostArray
    counts: HostArray
    with_ends: bool = False

    @property
    def num_parts(self) -> int:
        """P."""
        return len(self.bounds) - 1

    @property
    def num_nodes(self) -> int:
        """N."""
        return int(self.bounds[-1])

    @functools.cached_property
    def num_edges(self) -> int:
        """E."""
        return int(self.counts.sum())

    @functools.cached_property
    def sizes(self) -> list[int]:
        """The vertices of each chunk."""
        return np.diff(self.bounds).tolist()

    @functools.cached_property
    def in_starts(self) -> HostArray:
        """`int64[P, P]`: the first edge of cell (i, j) in the arrays `in.*`."""
        return _starts(self.counts.T).T

    @functools.cached_property
    def out_starts(self) -> HostArray:
        """`int64[P, P]`: the first edge of cell (i, j) in the arrays `out.*`."""
        return _starts(self.counts)

    def array(self, part: str) -> str:
        """The name of an array in the store."""
        return f"{self.name}.{part}"

    def span(self, part: str, i: int, j: int) -> tuple[int, int]:
        """Where cell (i, j) begins and ends in that array."""
        start = int((self.in_starts if part in IN else self.out_starts)[i, j])
        return start, start + int(self.counts[i, j])

    def read(self, part: str, i: int, j: int, out: HostArray | None = None) -> HostArray:
        """`int32[E']`, of cell (i, j); in `out`, where that is given."""
        return self.store.read(self.array(part), *self.span(part, i, j), out)

    def write(self, part: str, i: int, j: int, rows: HostArray) -> None:
        """`rows` as those of cell (i, j)."""
        self.store.write(self.array(part), self.span(part, i, j)[0], rows)

    def read_indptr(self, ends: str, i: int, j: int, out: HostArray) -> None:
        """Fill `out`, `int32[1 + rows of the cell]`. `ends`: one of `ENDS`."""
        out[0] = 0
        if self.with_ends:
            start = self._first_end(ends, i, j)
            self.store.read(self.array(ends), start, start + len(out) - 1, out[1:])
            return
        row = self.read(IN[0] if ends == IN_ENDS else OUT[0], i, j)
        np.cumsum(np.bincount(row, minlength=len(out) - 1), out=out[1:])

    def write_indptr(self, ends: str, i: int, j: int, indptr: HostArray) -> None:
        """Where the array `ends` is there."""
        if self.with_ends:
            self.store.write(self.array(ends), self._first_end(ends, i, j), indptr[1:])

    def _first_end(self, ends: str, i: int, j: int) -> int:
        block, other = (j, i) if ends == IN_ENDS else (i, j)
        return self.num_parts * int(self.bounds[block]) + other * self.sizes[block]


class Progress:
    """Tells `watch` of the edges done, of `total`."""

    def __init__(self, watch: Watch | None, total: int) -> None:
        self._watch, self._done, self._total = watch, 0, total

    def add(self, edges: int) -> None:
        self._done += edges
        if self._watch is not None:
            self._watch(self._done, self._total)


def count(edges: EdgeSource, bounds: HostArray, memory: int) -> HostArray:
    """`int64[P, P]`, the edges from chunk i to chunk j.

    Raises GraphError for blocks that are no edges among these vertices, and for 2**31 or more.
    """
    parts = len(bounds) - 1
    chunk_of = _chunk_finder(bounds)
    counts = np.zeros(parts * parts, np.int64)
    for _, src, dst in _pieces(edges, int(bounds[-1]), _capacity(memory)):
        counts += np.bincount(chunk_of(src) * parts + chunk_of(dst), minlength=parts * parts)
    return counts.reshape(parts, parts)


def place(cells: Cells, edges: EdgeSource, memory: int, progress: Progress) -> None:
    """Write each edge into its cell of the arrays `in.*`, in the original order within a cell.

    Raises GraphError where the edges are not those that were counted.
    """
    chunk_of = _chunk_finder(cells.bounds)
    placer = _Placer(cells, min(_capacity(memory), max(1, cells.num_edges)))
    for first, src, dst in _pieces(edges, cells.num_nodes, _capacity(memory)):
        if first + len(src) > cells.num_edges:
            raise _changed(cells)
        i, j = chunk_of(src), chunk_of(dst)
        number = np.arange(first, first + len(src), dtype=np.int32)
        placer.add(j * cells.num_parts + i, dst - cells.bounds[j], src - cells.bounds[i], number)
        progress.add(len(src))
    placer.finish()


def sort_by_destination(cells: Cells, progress: Progress) -> HostArray:
    """Sort each cell by destination, source and original number, and write the in-degrees.

    Returns `int32[P, P]`, the distinct destinations of cell (i, j).
    """

    def sort(i: int, j: int) -> Sorted:
        dst, src, number = (cells.read(part, i, j) for part in IN)
        # Two stable sorts by one key each; both take time in proportion to the edges.
        _, dst, order = counting_sort(src, dst, cells.sizes[i])
        indptr, order, _ = counting_sort(dst, order, cells.sizes[j])
        return indptr, src[order], number[order]

    return _write_sorted(cells, progress, sort, IN, IN_ENDS, "in_degree", by_source=False)


def sort_by_source(cells: Cells, progress: Progress) -> HostArray:
    """From the cells by destination, write them by source, and the out-degrees.

    Returns `int32[P, P]`, the distinct sources of cell (i, j).
    """

    def sort(i: int, j: int) -> Sorted:
        dst, src, _ = IN
        return counting_sort(cells.read(src, i, j), cells.read(dst, i, j), cells.sizes[i])

    return _write_sorted(cells, progress, sort, OUT, OUT_ENDS, "out_degree", by_source=True)


Sorted = tuple[HostArray, HostArray, HostArray]
"""Where the edges of each row of a cell begin, and two numbers of each edge."""


def _write_sorted(
    cells: Cells,
    progress: Progress,
    sort: Callable[[int, int], Sorted],
    parts: Sequence[str],
    ends: str,
    degrees: str,
    *,
    by_source: bool,
) -> HostArray:
    """Write what `sort` makes of each cell, and the degrees; the distinct rows of each cell."""
    used = np.zeros_like(cells.counts, np.int32)
    for own, size in enumerate(cells.sizes):
        degree = np.zeros(size, np.int32)
        counts = cells.counts[own] if by_source else cells.counts[:, own]
        for other in np.flatnonzero(counts).tolist():
            i, j = (own, other) if by_source else (other, own)
            indptr, *rest = sort(i, j)
            here = np.diff(indptr)
            for part, rows in zip(parts, (_rows(here), *rest), strict=True):
                cells.write(part, i, j, rows)
            cells.write_indptr(ends, i, j, indptr)
            degree += here
            used[i, j] = np.count_nonzero(here)
            progress.add(len(rest[0]))
        cells.store.write(cells.array(degrees), int(cells.bounds[own]), degree)
    return used


class _Placer:
    """Holds edges until many of a cell can be written at once."""

    def __init__(self, cells: Cells, capacity: int) -> None:
        self._cells = cells
        self._held = np.empty((4, capacity), np.int32)  # cell, destination, source, number
        self._size = 0
        self._next = cells.in_starts.T.flatten()
        self._end = self._next + cells.counts.T.ravel()

    def add(self, *edges: HostArray) -> None:
        """`int[n]` each: cell, destination, source, original number."""
        size = len(edges[0])
        if self._size + size > self._held.shape[1]:
            self._write()
        for held, new in zip(self._held, edges, strict=True):
            held[self._size : self._size + size] = new
        self._size += size

    def finish(self) -> None:
        if self._size:
            self._write(every=True)
        if (self._next < self._end).any():
            raise _changed(self._cells)

    def _write(self, every: bool = False) -> None:
        """Write the cells of which at least half as many edges are held as of the mean cell: half
        of all that is held, or more, in writes that are not small. The others stay."""
        cell, dst, src, number = self._held[:, : self._size]
        first, dst, order = counting_sort(cell, dst, len(self._next))
        src, number = src[order], number[order]
        size = np.diff(first)
        if (self._next + size > self._end).any():
            raise _changed(self._cells)
        least = 1 if every else self._size / (2 * np.count_nonzero(size))
        for c in np.flatnonzero(size >= least).tolist():
            for part, rows in zip(IN, (dst, src, number), strict=True):
                here = rows[first[c] : first[c + 1]]
                self._cells.store.write(self._cells.array(part), int(self._next[c]), here)
            self._next[c] += size[c]
        left = np.where(size < least, size, 0)
        stays = np.repeat(size < least, size)
        self._size = int(left.sum())
        for held, rows in zip(self._held[1:], (dst, src, number), strict=True):
            held[: self._size] = rows[stays]
        self._held[0, : self._size] = _rows(left)


def _changed(cells: Cells) -> GraphError:
    return GraphError(
        f"edges() gave other edges in its second pass than in its first (of {cells.num_edges}): "
        "each call must give the same ones, from a new iterator"
    )


def _starts(counts: HostArray) -> HostArray:
    """Where each entry begins when all are laid one after the other, row by row."""
    return np.cumsum(counts).reshape(counts.shape) - counts


def _rows(degree: HostArray) -> HostArray:
    """`int32`: row r `degree[r]` times."""
    return np.repeat(np.arange(len(degree), dtype=np.int32), degree)


def _capacity(memory: int) -> int:
    return max(1, memory // EDGE_BYTES)


def _chunk_finder(bounds: HostArray) -> Callable[[HostArray], HostArray]:
    """What gives the chunk of each vertex, `int64[n]`; never an empty one.

    From a table of the chunks of 2**k vertices each; only vertices whose entry there spans several
    chunks are searched for among the bounds (which takes five times as long).
    """
    shift = max(0, int(bounds[-1]).bit_length() - TABLE_BITS)
    begin = np.arange((bounds[-1] >> shift) + 1) << shift

    def search(vertex: HostArray) -> HostArray:
        return np.searchsorted(bounds[1:], vertex, side="right")

    first, last = search(begin), search(begin + (1 << shift) - 1)
    table = np.where(first == last, first, -1)

    def chunk_of(vertex: HostArray) -> HostArray:
        found = table[vertex >> shift]
        several = np.flatnonzero(found < 0)
        found[several] = search(vertex[several])
        return found

    return chunk_of


def _pieces(
    edges: EdgeSource, num_nodes: int, capacity: int
) -> Iterator[tuple[int, HostArray, HostArray]]:
    """(original number of the first edge, src, dst), of at most a share of `capacity` edges, which
    are checked."""
    size = max(1, capacity // PIECES)
    first = 0
    for src, dst in edges():
        src, dst = as_indices("src", src), as_indices("dst", dst)
        validate.same_length(src, dst)
        if first + len(src) > validate.INT32_MAX:
            raise GraphError(
                f"there are {first + len(src)} edges or more, expected at most "
                f"{validate.INT32_MAX}, which have 32-bit numbers: split the graph"
            )
        src, dst = _in_range("src", src, first, num_nodes), _in_range("dst", dst, first, num_nodes)
        for at in range(0, len(src), size):
            here = slice(at, at + size)
            yield first + at, src[here].astype(np.int64), dst[here].astype(np.int64)
        first += len(src)


def _in_range(name: str, index: ArrayLike, first: int, num_nodes: int) -> HostArray:
    """`index` in NumPy, if it holds vertices; `first` is the number of its first edge."""
    index = np.asarray(index)
    if index.size == 0 or (index.min() >= 0 and index.max() < num_nodes):
        return index
    at = int(((index < 0) | (index >= num_nodes)).argmax())
    valid = f"a vertex from 0 to {num_nodes - 1}" if num_nodes else "no edges"
    raise GraphError(
        f"{name} of edge {first + at} is {index[at]}, expected {valid} (num_nodes={num_nodes}): "
        "number the vertices from 0, leave padding edges out, or pass a larger num_nodes"
    )
