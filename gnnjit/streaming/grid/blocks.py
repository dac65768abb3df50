"""The edges of a grid in a vertex store: chunks that are built and loaded in bounded memory.

NeuGraph (section 3.1) cuts the edges into P x P chunks, and (section 4) keeps each twice: as CSC,
by destination, for the forward pass, and as CSR, by source, for the backward pass. So do we, in a
store (`gnnjit.store.store`), so that the edges may exceed the memory;
`gnnjit.streaming.grid.edge_grid` is the same grid in memory.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any, Literal, TypeAlias

import numpy as np

from gnnjit.errors import GraphError, StoreError
from gnnjit.partition.contiguous import contiguous_cut, prefix_sums
from gnnjit.partition.validate import whole
from gnnjit.shapes import ArrayLike, HostArray
from gnnjit.store.array_info import aligned
from gnnjit.store.store import VertexStore
from gnnjit.streaming.grid import build_blocks
from gnnjit.streaming.grid.build_blocks import (
    ENDS,
    IN,
    IN_ENDS,
    OUT,
    OUT_ENDS,
    Cells,
    EdgeSource,
    Progress,
    Watch,
)
from gnnjit.streaming.grid.edge_grid import EdgeGrid

By: TypeAlias = Literal["dst", "src"]

COMPLETE = "complete"
"""The array that is sealed after all others. Its row is the version of the format."""
FORMAT, WITH_ENDS = 1, 2
"""Versions of the format: without the arrays `ENDS`, and with them."""
ARRAYS = (
    *IN,
    *OUT,
    "in_degree",
    "out_degree",
    "sizes",
    "counts",
    "used_src",
    "used_dst",
    COMPLETE,
)


@dataclasses.dataclass(frozen=True, eq=False)
class LoadedChunk:
    """The E' edges between two vertex chunks, in slots sorted by row. The rows are the vertices of
    one of them; the other is what is read.

    Attributes:
        indptr: `int32[rows + 1]`, the first slot of each row.
        neighbor: `int32[slots]`, the other endpoint of the edge in each slot, numbered within its
            chunk; ascending within a row. Slots behind the last edge have 0.
        position: `int32[E']`, the place of the edge in the chunk's order by destination, in which
            edge data is kept: a permutation. None where it was not asked for.
    """

    indptr: HostArray
    neighbor: HostArray
    position: HostArray | None


@dataclasses.dataclass(frozen=True, eq=False)
class EdgeBlocks:
    """E edges among N vertices as P x P chunks in a store. Chunk (i, j) has the edges from vertex
    chunk i to vertex chunk j, by destination (then source, then original number), and by source.

    Made by `build`, or found by `open`. Several threads may load at once, as far as the store
    allows it. What `load`, `numbers` and `used` return are copies.

    Attributes:
        cells: where the edges are.
        num_used_src, num_used_dst: `int64[P, P]`, the distinct sources and destinations of chunk
            (i, j).
    """

    cells: Cells
    num_used_src: HostArray
    num_used_dst: HostArray

    @classmethod
    def build(
        cls,
        store: VertexStore,
        name: str,
        edges: EdgeSource,
        num_nodes: int,
        *,
        parts: int | None = None,
        bounds: ArrayLike | None = None,
        memory: int = 256 << 20,
        watch: Watch | None = None,
    ) -> EdgeBlocks:
        """The blocks of all edges, written to the store, and sealed. O(E) time in two passes.

        What `name` has in the store before is replaced, once the edges are found to be valid.
        After a crash or an error later on, `open` refuses what there is, and `build` starts over.

        Args:
            store: where the arrays `<name>.*` go: 24 bytes an edge, 8 a vertex; and where there are
                more edges than P rows for each vertex, 8 bytes for each of these, with which chunks
                load faster.
            edges: called twice, for blocks `(src, dst)` of `int[n]`, endpoints in the order that is
                cut; no padding. Both times the same edges.
            num_nodes: N.
            parts, bounds: P or the bounds of the vertex chunks, as in `EdgeGrid.of`.
            memory: bytes to be held, besides the block that `edges` gave. What a chunk takes is
                held whatever it is: about 32 bytes for each of its edges and 16 for each vertex.
            watch: called with (edges done, all) after the first pass; each edge counts three
                times, when it is placed, sorted by destination and sorted by source.

        Raises:
            GraphError: sizes or bounds as in `EdgeGrid.of`; an endpoint that is no vertex; 2**31
                edges or more; other edges in the second pass.
            StoreError: a name that the store refuses, or no room.
        """
        memory = whole("memory", memory, 1)
        checked = EdgeGrid.of([], [], num_nodes, parts, bounds=bounds).bounds
        counts = build_blocks.count(edges, checked, memory)
        rows = len(counts) * int(checked[-1])
        cells = Cells(store, name, checked, counts, with_ends=rows < counts.sum())
        _drop(store, name)
        for part in (*IN, *OUT):
            store.add(cells.array(part), cells.num_edges, (), np.int32)
        for part in ENDS if cells.with_ends else ():
            store.add(cells.array(part), rows, (), np.int32)
        for part in ("in_degree", "out_degree"):
            store.add(cells.array(part), cells.num_nodes, (), np.int32)
        progress = Progress(watch, 3 * cells.num_edges)
        build_blocks.place(cells, edges, memory, progress)
        used_dst = build_blocks.sort_by_destination(cells, progress)
        used_src = build_blocks.sort_by_source(cells, progress)
        _put(cells, "sizes", cells.sizes)
        _put(cells, "counts", cells.counts)
        _put(cells, "used_src", used_src)
        _put(cells, "used_dst", used_dst)
        for part in (*ARRAYS[:-1], *(ENDS if cells.with_ends else ())):
            store.seal(cells.array(part))
        _put(cells, COMPLETE, [WITH_ENDS if cells.with_ends else FORMAT])
        store.seal(cells.array(COMPLETE))
        return cls(cells, used_src.astype(np.int64), used_dst.astype(np.int64))

    @classmethod
    def open(cls, store: VertexStore, name: str) -> EdgeBlocks:
        """Those that were built before. Raises StoreError where there are none, or not all of them,
        or of another format."""
        names = {f"{name}.{part}" for part in ARRAYS}
        if names.isdisjoint(store.names()):
            raise StoreError(
                f"the store has no edge blocks {name!r}: make them with EdgeBlocks.build"
            )
        _check_complete(store, name, names)

        def get(part: str) -> HostArray:
            array = f"{name}.{part}"
            return store.read(array, 0, store.info(array).rows).astype(np.int64)

        found = get(COMPLETE).tolist()
        if found not in ([FORMAT], [WITH_ENDS]):
            raise StoreError(
                f"the edge blocks {name!r} have the format {found}, expected [{FORMAT}] or "
                f"[{WITH_ENDS}]: call EdgeBlocks.build again, which starts over"
            )
        with_ends = found == [WITH_ENDS]
        if with_ends:
            _check_complete(store, name, {f"{name}.{part}" for part in ENDS})
        bounds = np.concatenate([[0], np.cumsum(get("sizes"))])
        cells = Cells(store, name, bounds, get("counts"), with_ends)
        return cls(cells, get("used_src"), get("used_dst"))

    @property
    def store(self) -> VertexStore:
        """Where the arrays are."""
        return self.cells.store

    @property
    def name(self) -> str:
        """What the names of the arrays begin with, before a dot."""
        return self.cells.name

    @property
    def bounds(self) -> HostArray:
        """`int64[P + 1]`, the bounds of the vertex chunks (`edge_grid.cut`)."""
        return self.cells.bounds

    @property
    def counts(self) -> HostArray:
        """`int64[P, P]`, the edges of chunk (i, j)."""
        return self.cells.counts

    @functools.cached_property
    def slots(self) -> HostArray:
        """`int64[P, P]`, places for the edges of chunk (i, j), at least as many as it has."""
        return shared_sizes(self.counts)

    @property
    def num_parts(self) -> int:
        """P."""
        return self.cells.num_parts

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.cells.num_nodes

    @property
    def num_edges(self) -> int:
        """E."""
        return self.cells.num_edges

    @property
    def in_degree(self) -> str:
        """The array in the store, `int32[N]`, of the edges that end at each vertex."""
        return self.cells.array("in_degree")

    @property
    def out_degree(self) -> str:
        """The array in the store, `int32[N]`, of the edges that begin at each vertex."""
        return self.cells.array("out_degree")

    def load(
        self, i: int, j: int, by: By, positions: bool = True, *, rows: int = 0, slots: int = 0
    ) -> LoadedChunk:
        """Chunk (i, j). By "dst" its rows are the destinations, in vertex chunk j, and the
        neighbors sources, in vertex chunk i; by "src" the other way round.

        Args:
            positions: whether these are wanted too.
            rows, slots: at least so many; further ones are empty.

        Raises GraphError unless i and j are from 0 to P - 1.
        """
        forward = _forward(by)
        self._check(i, j)
        count, size = int(self.counts[i, j]), self.cells.sizes[j if forward else i]
        indptr = aligned((1 + max(rows, size),), np.int32)
        self.cells.read_indptr(IN_ENDS if forward else OUT_ENDS, i, j, indptr[: size + 1])
        indptr[size + 1 :] = count
        neighbor = aligned((max(slots, count),), np.int32)
        self.cells.read((IN if forward else OUT)[1], i, j, neighbor[:count])
        neighbor[count:] = 0
        position = None
        if positions:
            in_order = np.arange(count, dtype=np.int32)
            position = in_order if forward else self.cells.read(OUT[2], i, j)
        return LoadedChunk(indptr, neighbor, position)

    def numbers(self, i: int, j: int) -> HostArray:
        """`int32[E']`, the original numbers of the edges of chunk (i, j), in the order by
        destination. Raises GraphError as `load` does."""
        self._check(i, j)
        return self.cells.read("in.number", i, j)

    def numbers_between(self, start: int, stop: int) -> HostArray:
        """`int32[stop - start]`, the original numbers of these edges in the order by destination of
        all edges, as `edge_range` counts them."""
        return self.store.read(self.cells.array("in.number"), start, stop)

    def edge_range(self, i: int, j: int) -> tuple[int, int]:
        """Where chunk (i, j) begins and ends in the order by destination of all edges (columns,
        within each its chunks by row), for edge data that is kept in that order. Raises GraphError
        as `load` does."""
        self._check(i, j)
        return self.cells.span("in.row", i, j)

    def used(self, i: int, j: int, by: By) -> HostArray:
        """`int32[U]`, the vertices that `load(i, j, by)` reads: its distinct neighbors, ascending.
        Raises GraphError as `load` does."""
        # They are the rows of the other order, where equal ones are together.
        part = "out.row" if _forward(by) else "in.row"
        self._check(i, j)
        row = self.cells.read(part, i, j)
        return row[np.diff(row, prepend=np.int32(-1)) > 0]

    def used_counts(self, by: By) -> HostArray:
        """`int64[P, P]`: how many vertices `used` gives for chunk (i, j)."""
        return self.num_used_src if _forward(by) else self.num_used_dst

    def drop(self) -> None:
        """Remove all arrays from the store."""
        _drop(self.store, self.name)

    def _check(self, i: int, j: int) -> None:
        if not (0 <= i < self.num_parts and 0 <= j < self.num_parts):
            raise GraphError(
                f"the chunk is ({i}, {j}), expected numbers from 0 to {self.num_parts - 1}: there "
                f"are {self.num_parts} x {self.num_parts} chunks, so pass one of them"
            )


def _forward(by: By) -> bool:
    if by not in ("dst", "src"):
        raise GraphError(f'by is {by!r}, expected "dst" or "src": pass one of these')
    return by == "dst"


def _check_complete(store: VertexStore, name: str, arrays: set[str]) -> None:
    if not arrays <= {*store.names()} or not all(store.info(array).sealed for array in arrays):
        raise StoreError(
            f"the edge blocks {name!r} are not complete, their build has stopped: call "
            "EdgeBlocks.build again, which starts over"
        )


def _put(cells: Cells, part: str, rows: Any) -> None:
    rows = np.asarray(rows, np.int32)
    cells.store.add(cells.array(part), len(rows), rows.shape[1:], np.int32)
    cells.store.write(cells.array(part), 0, rows)


def _drop(store: VertexStore, name: str) -> None:
    """Whatever there is; first what says that the others are complete."""
    there = store.names()
    for part in (*reversed(ARRAYS), *ENDS):
        if f"{name}.{part}" in there:
            store.drop(f"{name}.{part}")


def shared_sizes(counts: HostArray) -> HostArray:
    """A size for each count: few different ones, multiples of 64, so that what is compiled for one
    serves many chunks; where it can be had, together at most 3 % too large."""
    wanted = np.maximum(1, -(-counts // 64)) * 64
    sizes = wanted
    for saved in (2, 4, 8, 16, 32):
        size, found = 0, {}
        for count in np.unique(wanted)[::-1].tolist():
            if not size - size // saved <= count <= size:
                size = count
            found[count] = size
        sizes = np.vectorize(found.__getitem__, otypes=[np.int64])(wanted)
        if sizes.sum() <= 1.03 * wanted.sum():
            break
    return sizes


def own_blocks(counts: HostArray, sizes: HostArray, processes: int) -> list[range]:
    """The blocks that each process does: runs of them, so that the most edges (into the blocks and
    out of them) and vertices that one has are the fewest; none is without one, if there are enough.

    Args:
        counts: `int64[P, P]`, the edges from block i to block j.
        sizes: `int64[P]`, the vertices of each.
    """
    work = counts.sum(axis=0) + counts.sum(axis=1) + sizes
    bounds = contiguous_cut(prefix_sums(work.astype(np.float64)), processes)
    if len(sizes) >= processes:
        least = np.arange(processes + 1)
        bounds = np.clip(bounds, least, len(sizes) - least[::-1])
    return [range(int(a), int(b)) for a, b in itertools.pairwise(bounds)]
