"""Locality orderings: neighbours get numbers that are close, so that they share a chunk.

NeuGraph, section 3.2: a random order of the vertices spreads the edges over all chunks, and then
nearly every vertex of a chunk is used by every other; an ordering that keeps neighbours together
gathers the edges on the diagonal of the grid, and selective transfer pays.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnjit.errors import GraphError
from gnnjit.graph import validate
from gnnjit.graph.reading import as_indices, read_on_host
from gnnjit.partition.metis import metis_parts, pymetis, symmetric_pattern
from gnnjit.partition.validate import whole
from gnnjit.shapes import ArrayLike, HostArray

if TYPE_CHECKING:  # a tenth of a second, for those who part graphs
    import scipy.sparse

METHODS = ("auto", "metis", "rcm", "given")


@dataclasses.dataclass(frozen=True, eq=False)
class Ordering:
    """A new numbering of N vertices.

    Attributes:
        rank: `int64[N]`, the new number of each old vertex.
        vertex: `int64[N]`, the old number of each new vertex: the inverse of `rank`.
        method: what made it: "metis", "rcm", "given" or "array" (the user's permutation).
    """

    rank: HostArray
    vertex: HostArray
    method: str

    @classmethod
    def of(cls, vertex: HostArray, method: str) -> Ordering:
        """From `vertex`, which must be a permutation."""
        vertex = np.asarray(vertex, np.int64)
        rank = np.empty_like(vertex)
        rank[vertex] = np.arange(len(vertex))
        return cls(rank, vertex, method)

    def to_new(self, rows: ArrayLike) -> Any:
        """`rows`, `[N, ...]` of the old vertices, in the new order; NumPy, or JAX if it is JAX's.

        Raises GraphError unless there are N rows.
        """
        return self._with_rows(rows)[self.vertex]

    def to_old(self, rows: ArrayLike) -> Any:
        """`rows`, `[N, ...]` of the new vertices, in the old order: undoes `to_new`.

        Raises GraphError unless there are N rows.
        """
        return self._with_rows(rows)[self.rank]

    def _with_rows(self, rows: ArrayLike) -> Any:
        array = rows if hasattr(rows, "shape") else np.asarray(rows)
        if array.shape[:1] != self.rank.shape:
            raise GraphError(
                f"the array has shape {tuple(array.shape)}, expected ({len(self.rank)}, ...), one "
                "row per vertex: pass vertex data of the graph that was ordered"
            )
        return array


def order_vertices(
    src: ArrayLike,
    dst: ArrayLike,
    num_nodes: int,
    *,
    method: str | ArrayLike = "auto",
    parts: int = 1,
    seed: int = 0,
) -> Ordering:
    """An ordering of the vertices 0 to `num_nodes - 1` in which neighbours are close.

    The direction of the edges, their number between two vertices and self loops do not count.

    Args:
        src, dst: `int[E]`, the endpoints of each edge; no padding.
        num_nodes: N.
        method: one of
            "metis": METIS cuts the graph into `parts` of nearly equal size with few edges between
                them (NeuGraph, section 4); vertices are sorted by their part and, which NeuGraph
                leaves open, within a part by reverse Cuthill-McKee of the whole graph. Needs the
                package `pymetis`. METIS lets the sizes of the parts differ
                (by 3% with more than 8), so the bounds of equal chunks are near those of the parts,
                not the same. With one part, or without edges, METIS is not called.
            "rcm": reverse Cuthill-McKee (SciPy), a breadth-first order of small bandwidth.
            "given": as they are numbered.
            "auto": "metis" where pymetis can be imported and `parts` > 1, else "rcm".
            an integer array `[N]`: the old number of each new vertex, a permutation.
        parts: the number of chunks to come; only METIS uses it.
        seed: of METIS's random choices. The same arguments give the same ordering.

    Raises:
        GraphError: an unknown method, METIS without pymetis, an array that is no permutation,
            endpoints that are no vertices, or a size that is none.
    """
    num_nodes = whole("num_nodes", num_nodes, 0)
    parts, seed = whole("parts", parts, 1), whole("seed", seed, 0)
    src, dst = endpoints(src, dst, num_nodes)
    if not isinstance(method, str):
        return Ordering.of(_permutation(method, num_nodes), "array")
    if method not in METHODS:
        raise _unknown(method)
    if method == "auto":
        method = "metis" if parts > 1 and pymetis() is not None else "rcm"
    if method == "metis" and pymetis() is None:
        raise GraphError(
            'method is "metis", which needs the package pymetis, and it cannot be imported: pip '
            'install pymetis, or pass method="rcm"'
        )
    if method == "given" or not num_nodes:
        return Ordering.of(np.arange(num_nodes), method)
    pattern = symmetric_pattern(src, dst, num_nodes)
    vertex = _cuthill_mckee(pattern)
    if method == "metis":
        part = np.zeros(num_nodes, np.int64)
        if parts > 1 and pattern.nnz:
            instead = 'pass method="rcm"'
            part = metis_parts(pattern, min(parts, num_nodes), seed, instead=instead)
        vertex = vertex[np.argsort(part[vertex], kind="stable")]
    return Ordering.of(vertex, method)


def endpoints(src: ArrayLike, dst: ArrayLike, num_nodes: int) -> tuple[HostArray, HostArray]:
    """Both as NumPy arrays, int32 where `num_nodes` fits, else int64. Raises GraphError unless
    they are `int[E]` of the same length with entries from 0 to `num_nodes - 1`."""
    arrays = [as_indices(n, a) for n, a in (("src", src), ("dst", dst))]
    validate.same_length(*arrays)
    dtype = np.int32 if num_nodes <= validate.INT32_MAX else np.int64
    checked = []
    for name, array in zip(("src", "dst"), arrays, strict=True):
        index = np.asarray(array)
        _in_range(name, index, num_nodes)
        checked.append(index.astype(dtype, copy=False))
    return checked[0], checked[1]


def _in_range(name: str, index: HostArray, num_nodes: int) -> None:
    if index.size == 0 or (index.min() >= 0 and index.max() < num_nodes):
        return
    at = int(((index < 0) | (index >= num_nodes)).argmax())
    valid = f"a vertex from 0 to {num_nodes - 1}" if num_nodes else "no entries"
    raise GraphError(
        f"{name}[{at}] is {index[at]}, expected {valid} (num_nodes={num_nodes}): number the "
        "vertices from 0, leave padding edges out, or pass a larger num_nodes"
    )


def _unknown(method: Any) -> GraphError:
    names = ", ".join(f'"{name}"' for name in METHODS)
    return GraphError(
        f"method is {validate.shown(method)}, expected one of {names}, or an integer array (the "
        "old number of each new vertex): pass one of these"
    )


def _permutation(method: ArrayLike, num_nodes: int) -> HostArray:
    vertex = read_on_host("method", method)
    if vertex.ndim == 0:
        raise _unknown(method)
    if vertex.shape != (num_nodes,):
        raise GraphError(
            f"method is an array of shape {vertex.shape}, expected ({num_nodes},): pass the old "
            "number of each new vertex"
        )
    if vertex.size and not np.issubdtype(vertex.dtype, np.integer):
        raise GraphError(
            f"method is an array of dtype {vertex.dtype}, expected integers: pass the old number "
            "of each new vertex"
        )
    vertex = vertex.astype(np.int64)
    outside = (vertex < 0) | (vertex >= num_nodes)
    if outside.any():
        at = int(outside.argmax())
        raise GraphError(
            f"method[{at}] is {vertex[at]}, expected a vertex from 0 to {num_nodes - 1}: pass each "
            "old number once, as numpy.argsort(key) does"
        )
    times = np.bincount(vertex, minlength=num_nodes)
    if (times != 1).any():
        twice = int(times.argmax())
        raise GraphError(
            f"method holds vertex {twice} {times[twice]} times and lacks vertex {times.argmin()}, "
            "expected a permutation: pass each old number once, as numpy.argsort(key) does"
        )
    return vertex


def _cuthill_mckee(pattern: scipy.sparse.csr_array) -> HostArray:
    """`int64[N]`, the vertices in reverse Cuthill-McKee order.

    SciPy sorts the new neighbours of each vertex by degree, and by insertion: quadratic in the
    degree of a hub. It gets them sorted already, by a stable counting sort, and so has nothing to
    move; the order is the same.
    """
    import scipy.sparse.csgraph

    by_degree = np.argsort(np.diff(pattern.indptr), kind="stable")
    # Row k holds the neighbours of by_degree[k]: as columns, each vertex's neighbours by degree.
    columns = pattern[by_degree].tocsc()
    neighbors = by_degree.astype(columns.indptr.dtype)[columns.indices]
    graph = scipy.sparse.csr_array((columns.data, neighbors, columns.indptr), pattern.shape)
    order = scipy.sparse.csgraph.reverse_cuthill_mckee(graph, symmetric_mode=True)
    return order.astype(np.int64)
