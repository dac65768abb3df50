"""Edges sorted by one endpoint (compressed rows): what every traversal runs over."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.graph import hosting
from gnnjit.graph.degree_buckets import make_buckets
from gnnjit.graph.host_sort import Sorted, counting_sorts
from gnnjit.graph.row_tasks import make_tasks
from gnnjit.graph.sorting import sort_edges
from gnnjit.shapes import EdgeIndex, HostArray, RowPointer, SlotIndex


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["indptr", "neighbor", "edge", "buckets", "tasks"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True, eq=False)
class Structure:
    """The edges of a graph in slots, sorted by row.

    Rows are the destinations, or in the transposed structure the sources. Row `r` owns the slots
    `indptr[r]` to `indptr[r + 1] - 1`; the slots from `indptr[-1]` on hold padding edges. Within a
    row, edges stand in the order in which they were given. Traced edges that were said to be
    symmetric are an exception: their second structure has the order of the first.

    Attributes:
        indptr: `int[rows + 1]`, first slot of each row.
        neighbor: `int[E]`, the other endpoint of the edge in each slot; 0 in padding.
        edge: `int[E]`, the original number of the edge in each slot: a permutation.
        buckets: rows grouped by degree (`make_buckets`); None where the structure is traced, is
            padded to capacities, or no lowering wants them.
        tasks: rows as the tasks of GPU programs (`make_tasks`); None likewise.
    """

    indptr: RowPointer
    neighbor: SlotIndex
    edge: SlotIndex
    buckets: Any = None
    tasks: Any = None

    @property
    def num_rows(self) -> int:
        """The number of rows (static)."""
        return self.indptr.shape[-1] - 1

    def degree(self) -> jax.Array:
        """`int[rows]`: the edges of each row, padding not counted."""
        if hosting.on_host(self.indptr):
            return hosting.to_device(np.diff(np.asarray(self.indptr)), self.indptr)
        return jnp.diff(self.indptr)


def sort_on_host(
    src: HostArray, dst: HostArray, mask: HostArray | None, counts: tuple[int, int]
) -> tuple[Structure, Structure]:
    """The in-structure and the out-structure of concrete edges, by counting sorts: O(E + rows).

    Indices must be in range; those under a False `mask` are padding. Arrays are NumPy's.
    counts: sources and destinations.
    """
    num_src, num_dst = counts
    by_dst, dst_keys = _with_padding(dst, mask, num_dst)
    by_src, src_keys = _with_padding(src, mask, num_src)
    into, outward = counting_sorts([(by_dst, src, dst_keys), (by_src, dst, src_keys)])
    return _structure(into, num_dst, dst.dtype), _structure(outward, num_src, src.dtype)


def _with_padding(row: HostArray, mask: HostArray | None, num_rows: int) -> tuple[HostArray, int]:
    """Keys of a sort that puts padding last, and how many there are."""
    if mask is None:
        return row, num_rows
    return np.where(mask, row, row.dtype.type(num_rows)), num_rows + 1


def _structure(found: Sorted, num_rows: int, dtype: np.dtype) -> Structure:
    indptr, neighbor, edge = found
    indptr = indptr[: num_rows + 1].astype(dtype, copy=False)
    return Structure(
        indptr,  # type: ignore[arg-type]
        neighbor,  # type: ignore[arg-type]
        edge.astype(dtype, copy=False),  # type: ignore[arg-type]
        make_buckets(indptr),
        make_tasks(indptr),
    )


def sort_traced(
    row: EdgeIndex, neighbor: EdgeIndex, mask: jax.Array, num_rows: int, rises: bool = False
) -> Structure:
    """The structure of traced edges, sorted on the device; no buckets or tasks.

    neighbor: 0 in padding.
    rises: the rows of real edges are said to rise.
    """
    key = jnp.where(mask, row, num_rows).astype(row.dtype)
    indptr, neighbor, edge = sort_edges(key, neighbor, num_rows, rises)
    return Structure(indptr, neighbor, edge, None)


def append_padding(structure: Structure, num_rows: int, num_edges: int) -> Structure:
    """`structure` with empty rows and padding slots appended, up to the given capacities.

    The result has no buckets and tasks: their shapes follow the degrees, and padding is for fixed
    shapes.
    """
    indptr, neighbor, edge = structure.indptr, structure.neighbor, structure.edge
    xp: Any = np if isinstance(indptr, np.ndarray) else jnp
    new_rows = num_rows - structure.num_rows
    new_edges = num_edges - edge.shape[-1]
    indptr = xp.concatenate([indptr, xp.broadcast_to(indptr[-1:], (new_rows,))])
    neighbor = xp.pad(neighbor, (0, new_edges))
    edge = xp.concatenate([edge, xp.arange(edge.shape[-1], num_edges, dtype=edge.dtype)])
    return Structure(indptr, neighbor, edge, None)
