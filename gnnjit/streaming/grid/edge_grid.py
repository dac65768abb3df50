"""The edge grid: P chunks of vertices, P x P chunks of edges (NeuGraph, section 3.1).

Chunk (i, j) holds the edges from vertex chunk i to vertex chunk j. Forward, a column of the grid
is done at a time, and the accumulator of its destinations stays on the device; backward a row, and
the gradient of its sources stays. NeuGraph (section 4) keeps each edge chunk twice, as CSC and as
CSR; here once, sorted by destination, and the order by source is computed when it is asked for.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np

from gnnjit.errors import GraphError
from gnnjit.graph import validate
from gnnjit.partition.locality import endpoints
from gnnjit.partition.validate import whole
from gnnjit.shapes import ArrayLike, HostArray

MAX_NODES = 3_037_000_499
"""The largest N whose N * N cells have int64 numbers."""

SHADES = " .:-=+*#%@"
PICTURE = 64


def cut(num_nodes: int, parts: int) -> HostArray:
    """`int64[parts + 1]`: the bounds of `parts` contiguous chunks of 0 to `num_nodes - 1`, whose
    sizes differ by at most 1. Chunk k is `bounds[k]` to `bounds[k + 1] - 1`; it may be empty.

    Raises GraphError unless `num_nodes` >= 0 and `parts` >= 1.
    """
    num_nodes, parts = whole("num_nodes", num_nodes, 0), whole("parts", parts, 1)
    size, larger = divmod(num_nodes, parts)
    number = np.arange(parts + 1, dtype=np.int64)
    return number * size + np.minimum(number, larger)


@dataclasses.dataclass(frozen=True, eq=False)
class Chunk:
    """The E' edges from vertex chunk `row` to vertex chunk `column`, sorted by destination, then
    source, then original number. The arrays are views of the grid's: do not write into them.

    Attributes:
        row, column: i and j.
        num_src, num_dst: vertices of vertex chunks i and j.
        src, dst: `int32[E']`, numbers within the vertex chunk: 0 is its first vertex.
        edge: `int64[E']`, the original number of each edge: its data is `edges[chunk.edge]`.
    """

    row: int
    column: int
    num_src: int
    num_dst: int
    src: HostArray
    dst: HostArray
    edge: HostArray

    @property
    def num_edges(self) -> int:
        """E'."""
        return len(self.edge)

    @functools.cached_property
    def by_source(self) -> HostArray:
        """`int64[E']`, the permutation that sorts the edges by source, then destination, then
        original number: for the backward pass."""
        return np.argsort(self.src, kind="stable")

    @functools.cached_property
    def used_sources(self) -> HostArray:
        """`int32[U]`, the sources that have an edge here, ascending."""
        return _distinct(self.src, self.num_src)

    @functools.cached_property
    def used_destinations(self) -> HostArray:
        """`int32[U]`, the destinations that have an edge here, ascending."""
        return _distinct(self.dst, self.num_dst)


@dataclasses.dataclass(frozen=True, eq=False)
class EdgeGrid:
    """E edges among N vertices as P x P chunks, in the order of the forward pass.

    Attributes:
        bounds: `int64[P + 1]`, the bounds of the vertex chunks (`cut`).
        src, dst: `int32[E]`, endpoints within their vertex chunks; edges sorted by column
            (destination chunk), row (source chunk), destination, source, original number.
        edge: `int64[E]`, the original number of each edge: a permutation.
        offsets: `int64[P, P + 1]`: chunk (i, j) is `offsets[j, i]` to `offsets[j, i + 1] - 1`.
    """

    bounds: HostArray
    src: HostArray
    dst: HostArray
    edge: HostArray
    offsets: HostArray

    @classmethod
    def of(
        cls,
        src: ArrayLike,
        dst: ArrayLike,
        num_nodes: int,
        parts: int | None = None,
        *,
        bounds: ArrayLike | None = None,
    ) -> EdgeGrid:
        """The grid of the edges `src[e] -> dst[e]`. One sort: O(E log E) time, a few `int64[E]`.

        Args:
            src, dst: `int[E]`, endpoints in the order that is cut (`Ordering.rank[src]`); no
                padding.
            num_nodes: N.
            parts: P, for chunks of nearly equal size (`cut`).
            bounds: `int[P + 1]` instead of `parts`, ascending from 0 to N.

        Raises:
            GraphError: a size, bounds or endpoints that do not fit; more vertices than can be
                sorted (N > 3,037,000,499) or numbered within a chunk (2,147,483,647).
        """
        num_nodes = whole("num_nodes", num_nodes, 0)
        bounds = _resolve_bounds(num_nodes, parts, bounds)
        src, dst = endpoints(src, dst, num_nodes)
        return _sort(src, dst, bounds)

    @property
    def num_parts(self) -> int:
        """P."""
        return len(self.bounds) - 1

    @property
    def num_nodes(self) -> int:
        """N."""
        return int(self.bounds[-1])

    @property
    def num_edges(self) -> int:
        """E."""
        return len(self.edge)

    @functools.cached_property
    def counts(self) -> HostArray:
        """`int64[P, P]`: the edges of chunk (i, j)."""
        return np.ascontiguousarray(np.diff(self.offsets, axis=1).T)

    @functools.cached_property
    def used_fraction(self) -> HostArray:
        """`float64[P, P]`: the share of vertex chunk i that chunk (i, j) reads, 0 to 1 (0 if it is
        empty). Below T_copy / (T_copy + T_transfer), transferring those rows alone is quicker than
        the whole vertex chunk (NeuGraph, section 3.2)."""
        fraction = np.zeros((self.num_parts, self.num_parts))
        for i, j in np.argwhere(self.counts).tolist():
            chunk = self.chunk(i, j)
            fraction[i, j] = len(chunk.used_sources) / chunk.num_src
        return fraction

    @property
    def imbalance(self) -> float:
        """The edges of the largest column over the mean of all: 1 is even (also without edges),
        P is all in one."""
        columns = self.counts.sum(axis=0)
        return float(columns.max() / columns.mean()) if self.num_edges else 1.0

    def chunk(self, i: int, j: int) -> Chunk:
        """The edges from vertex chunk `i` to vertex chunk `j`: views, no copy.

        Raises GraphError unless both are from 0 to P - 1.
        """
        self._check("row", i)
        self._check("column", j)
        size = np.diff(self.bounds)
        here = slice(int(self.offsets[j, i]), int(self.offsets[j, i + 1]))
        src, dst, edge = self.src[here], self.dst[here], self.edge[here]
        return Chunk(i, j, int(size[i]), int(size[j]), src, dst, edge)

    def columns(self, j: int | None = None) -> Iterator[Chunk]:
        """The chunks of column `j` by row; without `j`, of one column after the other: the order
        of the forward pass. Empty chunks included. Raises GraphError as `chunk` does."""
        every = range(self.num_parts)
        chosen = every if j is None else [self._check("column", j)]
        return (self.chunk(i, column) for column in chosen for i in every)

    def rows(self, i: int | None = None) -> Iterator[Chunk]:
        """The chunks of row `i` by column; without `i`, of one row after the other: the order of
        the backward pass. Empty chunks included. Raises GraphError as `chunk` does."""
        every = range(self.num_parts)
        chosen = every if i is None else [self._check("row", i)]
        return (self.chunk(row, j) for row in chosen for j in every)

    def heat_map(self) -> str:
        """As the function `heat_map`, of `counts`."""
        return heat_map(self.counts)

    def _check(self, what: str, number: int) -> int:
        if not 0 <= number < self.num_parts:
            raise GraphError(
                f"{what} is {number}, expected one from 0 to {self.num_parts - 1}: the grid has "
                f"{self.num_parts} x {self.num_parts} chunks, so pass one of them"
            )
        return number


def heat_map(counts: HostArray) -> str:
    """A picture of the edges of P x P chunks, `int64[P, P]`: a line per row, a character per chunk,
    darker with more edges by share of the largest (blank: none); a grid of more than 64 x 64 is
    summed to that. Then a line with the numbers."""
    cells, summed = summed_to(counts, PICTURE), ""
    if len(cells) < len(counts):
        summed = f" (summed to {PICTURE} x {PICTURE} here)"
    # Rounded up: blank is empty, and nothing else.
    shade = -(-cells * (len(SHADES) - 1) // max(int(cells.max()), 1))
    lines = ["".join(SHADES[s] for s in row) for row in shade.tolist()]
    legend = (
        f"P = {len(counts)}{summed}, {int(counts.sum()):,} edges, largest chunk "
        f"{int(counts.max()):,}, {int((counts == 0).sum()):,} empty chunks; "
        "rows: sources, columns: destinations"
    )
    return "\n".join([*lines, legend])


def summed_to(counts: HostArray, most: int) -> HostArray:
    """The edges of chunks, with neighbours summed where there are more than `most` x `most`."""
    if len(counts) <= most:
        return counts
    first = cut(len(counts), most)[:-1]
    return np.add.reduceat(np.add.reduceat(counts, first, axis=0), first, axis=1)


def _sort(src: HostArray, dst: HostArray, bounds: HostArray) -> EdgeGrid:
    """The grid of checked edges.

    They are sorted by one key: the number of the edge's cell in the N x N matrix, laid out chunk
    by chunk. Column j begins at bounds[j] * N, within it chunk i at bounds[i] * size[j], and
    within that each destination has size[i] cells. It stays below N * N, however uneven the chunks.
    """
    parts, num_nodes = len(bounds) - 1, int(bounds[-1])
    size = np.diff(bounds)
    row, column = _chunk_of(src, bounds), _chunk_of(dst, bounds)
    counts = np.bincount(column * np.int64(parts) + row, minlength=parts * parts)
    local_src = (src - bounds[row]).astype(np.int32)
    local_dst = (dst - bounds[column]).astype(np.int32)
    key = (bounds[:-1] * num_nodes)[column]
    key += bounds[row] * size[column]
    key += local_dst * size[row]
    key += local_src
    edge = np.argsort(key, kind="stable")
    ends = np.cumsum(counts).reshape(parts, parts)
    before = np.concatenate([[0], ends[:-1, -1]])
    offsets = np.concatenate([before[:, None], ends], axis=1)
    return EdgeGrid(bounds, local_src[edge], local_dst[edge], edge, offsets)


def _chunk_of(vertex: HostArray, bounds: HostArray) -> HostArray:
    """The chunk of each vertex; never an empty one, though it may begin at the same vertex."""
    found = np.searchsorted(bounds[1:].astype(vertex.dtype), vertex, side="right")
    return found.astype(np.int32)


def _distinct(local: HostArray, size: int) -> HostArray:
    """`int32`, ascending: by marking, without a sort."""
    used = np.zeros(size, bool)
    used[local] = True
    return np.flatnonzero(used).astype(np.int32)


def _resolve_bounds(num_nodes: int, parts: int | None, bounds: ArrayLike | None) -> HostArray:
    """`int64[P + 1]`, checked."""
    if (parts is None) == (bounds is None):
        raise GraphError(
            f"{'neither' if parts is None else 'both'} of parts and bounds came, expected one of "
            "them: pass parts=P for chunks of equal size, or the bounds= of your own"
        )
    if num_nodes > MAX_NODES:
        raise GraphError(
            f"num_nodes is {num_nodes}, expected at most {MAX_NODES}, so that the cells of the "
            "matrix have 64-bit numbers: split the graph"
        )
    found = cut(num_nodes, parts) if parts is not None else _as_bounds(bounds, num_nodes)
    largest = int(np.diff(found).max())
    if largest > validate.INT32_MAX:
        raise GraphError(
            f"the largest chunk has {largest} vertices, expected at most {validate.INT32_MAX} for "
            "32-bit indices: cut into more parts"
        )
    return found


def _as_bounds(bounds: ArrayLike, num_nodes: int) -> HostArray:
    array = np.asarray(bounds)
    fits = array.ndim == 1 and array.size >= 2 and np.issubdtype(array.dtype, np.integer)
    if not fits:
        raise GraphError(
            f"bounds has dtype {array.dtype} and shape {array.shape}, expected integers of shape "
            f"(P + 1,) with P >= 1: pass the first vertex of each chunk, and then {num_nodes}"
        )
    array = array.astype(np.int64)
    if array[0] != 0 or array[-1] != num_nodes or (np.diff(array) < 0).any():
        raise GraphError(
            f"bounds is {array.tolist()}, expected numbers that ascend from 0 to {num_nodes}: pass "
            f"the first vertex of each chunk, and then {num_nodes}"
        )
    return array
