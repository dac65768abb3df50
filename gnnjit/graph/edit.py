"""Edge lists edited as plain arrays: self loops, symmetry, duplicates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.errors import GraphError
from gnnjit.graph import validate
from gnnjit.graph.structure import counting_sort
from gnnjit.shapes import ArrayLike, HostArray, PyTree

if TYPE_CHECKING:
    from gnnjit.graph.graph import Graph


def coalesce(src: ArrayLike, dst: ArrayLike) -> tuple[HostArray, HostArray, HostArray]:
    """Merge duplicate edges, on the host.

    Returns:
        `(src[E'], dst[E'], group[E])`: the distinct edges, sorted by destination, then source; and
        the new number of each old edge, so that edge data are merged by
        `jax.ops.segment_sum(edges, group, len(src))`.

    Raises:
        GraphError: if the arrays are not one-dimensional, integer, of one length and >= 0.
    """
    src, dst = _host_edges(src, dst)
    src, dst, order, starts = _sort_edges(src, dst)
    group = np.empty_like(order)
    group[order] = np.cumsum(starts, dtype=order.dtype) - 1
    return src[starts], dst[starts], group


def symmetrize(src: ArrayLike, dst: ArrayLike) -> tuple[HostArray, HostArray, HostArray]:
    """Every edge in both directions, each distinct edge and self loop once, on the host.

    Returns:
        `(src[E'], dst[E'], origin[E'])`, sorted by destination, then source; `origin` is the
        number of the first old edge that each comes from (its own direction first), so that edge
        data are carried over by `edges[origin]`.

    Raises:
        GraphError: as `coalesce`.
    """
    src, dst = _host_edges(src, dst)
    num_edges = len(src)
    both = np.concatenate([src, dst]), np.concatenate([dst, src])
    src, dst, order, starts = _sort_edges(*both)
    first = order[starts]
    origin = np.where(first < num_edges, first, first - order.dtype.type(num_edges))
    return src[starts], dst[starts], origin


def _host_edges(src: ArrayLike, dst: ArrayLike) -> tuple[HostArray, HostArray]:
    if validate.is_traced(src, dst):
        raise GraphError(
            "the edges are traced, expected concrete ones: the number of edges that remain is "
            "unknown inside jit, so edit the edge list before"
        )
    src, dst = validate.as_indices("src", src), validate.as_indices("dst", dst)
    validate.same_length(src, dst)
    src, dst = np.asarray(src), np.asarray(dst)
    validate.not_negative("src", src)
    validate.not_negative("dst", dst)
    largest = max(2 * len(src), int(max(src.max(), dst.max())) + 1 if src.size else 0)
    dtype = np.int32 if largest < validate.INT32_MAX else np.int64
    return src.astype(dtype, copy=False), dst.astype(dtype, copy=False)


def _sort_edges(src: HostArray, dst: HostArray) -> tuple[HostArray, ...]:
    """Edges by destination, then source, then number: `(src, dst, order, starts)`, all `[E]`.

    `order` holds their numbers before, `starts` is True on the first of each distinct edge.

    Two counting sorts, the less significant key first: O(edges + vertices).
    """
    count = max(int(src.max()), int(dst.max())) + 1 if src.size else 0
    _, dst_by_src, by_src = counting_sort(src, dst, count)
    first_slot, order, _ = counting_sort(dst_by_src, by_src, count)
    src = src[order]
    dst = np.repeat(np.arange(count, dtype=dst.dtype), np.diff(first_slot))
    starts = np.ones(len(order), bool)
    starts[1:] = (src[1:] != src[:-1]) | (dst[1:] != dst[:-1])
    return src, dst, order, starts


def self_loops_to_add(graph: Graph, missing_only: bool) -> tuple[Any, Any]:
    """`(vertex[k], mask[k] or None)`: the vertices that get a self loop.

    Concrete graphs: exactly those. Traced ones: all, with a mask, since shapes are fixed.
    """
    vertices = np.arange(graph.num_nodes, dtype=graph.src.dtype)
    if not missing_only:
        return vertices, None
    if not validate.is_traced(graph):
        src, dst = real_edges(graph)
        return np.setdiff1d(vertices, src[src == dst], assume_unique=False), None
    is_loop = graph.src == graph.dst
    is_loop = is_loop if graph.mask is None else is_loop & graph.mask
    at = jnp.where(is_loop, graph.src, graph.num_nodes)
    has_loop = jnp.zeros(graph.num_nodes, bool).at[at].set(True, mode="drop")
    return vertices, ~has_loop


def real_edges(graph: Graph) -> tuple[HostArray, HostArray]:
    """The endpoints of the edges that are not padding, on the host."""
    src, dst = np.asarray(graph.src), np.asarray(graph.dst)
    if graph.mask is None:
        return src, dst
    mask = np.asarray(graph.mask)
    return src[mask], dst[mask]


def append_rows(tree: PyTree, count: int, fill: Any) -> PyTree:
    """Every array of `tree` with `count` rows of `fill` appended."""

    def append(leaf: Any) -> jax.Array:
        leaf = jnp.asarray(leaf)
        rows = jnp.broadcast_to(jnp.asarray(fill, leaf.dtype), (count, *leaf.shape[1:]))
        return jnp.concatenate([leaf, rows])

    return jax.tree.map(append, tree)
