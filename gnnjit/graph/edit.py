"""Edge lists edited as plain arrays: self loops, symmetry, duplicates."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.errors import GraphError
from gnnjit.graph import hosting, validate
from gnnjit.graph.host_sort import counting_sort
from gnnjit.graph.reading import as_indices, is_integer, is_number, read_array, shown_shape
from gnnjit.graph.structure import Structure
from gnnjit.graph.validate import cut, shown
from gnnjit.shapes import ArrayLike, HostArray, PyTree

FILLS: dict[str, np.ufunc] = {
    "mean": np.add, "sum": np.add, "add": np.add, "max": np.maximum, "min": np.minimum,
    "mul": np.multiply,
}  # fmt: skip
"""What a self loop's data can be of the edges into its vertex."""


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
    src, dst = as_indices("src", src), as_indices("dst", dst)
    validate.same_length(src, dst)
    src, dst = np.asarray(src), np.asarray(dst)
    validate.not_negative("src", src)
    validate.not_negative("dst", dst)
    for name, index in (("src", src), ("dst", dst)):
        validate.plausible_count(name, index, None)
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


def self_loops_to_add(src: Any, dst: Any, mask: Any, num_nodes: int) -> tuple[Any, Any]:
    """`(vertex[k], mask[k] or None)`: the vertices that have no self loop.

    Concrete edges: exactly those. Traced ones: all, with a mask, since shapes are fixed.
    """
    vertices = np.arange(num_nodes, dtype=src.dtype)
    if hosting.on_host(src, dst, mask):
        src, dst = real_edges(src, dst, mask)
        return np.setdiff1d(vertices, src[src == dst], assume_unique=False), None
    is_loop = src == dst if mask is None else (src == dst) & mask
    at = jnp.where(is_loop, src, num_nodes)
    has_loop = jnp.zeros(num_nodes, bool).at[at].set(True, mode="drop")
    return vertices, ~has_loop


def real_edges(src: Any, dst: Any, mask: Any) -> tuple[HostArray, HostArray]:
    """The endpoints of the edges that are not padding, on the host."""
    src, dst = np.asarray(src), np.asarray(dst)
    if mask is None:
        return src, dst
    mask = np.asarray(mask)
    return src[mask], dst[mask]


def append_rows(
    tree: PyTree, dst: Any, mask: Any, structure: Structure, vertices: Any, fill: Any
) -> PyTree:
    """Every array of `tree`, one row per edge, with one row more for each of `vertices`: `fill`, or
    what it says of the edges into the vertex (`structure`: the edges by destination)."""

    def append(path: Any, leaf: Any) -> Any:
        name = "edges" + jax.tree_util.keystr(path)
        leaf = _as_jax_holds(name, read_array(name, leaf))
        if isinstance(fill, str):
            rows = reduced_into(name, leaf, dst, mask, structure, fill)[vertices]
        else:
            rows = _constant(name, leaf, len(vertices), fill)
        return hosting.concatenated([leaf, rows])

    filled = jax.tree_util.tree_map_with_path(append, tree)
    return hosting.to_device(filled)


def _constant(name: str, leaf: Any, count: int, fill: Any) -> Any:
    """`count` rows of `fill`."""
    filled, dtype = read_array("fill", fill), leaf.dtype
    if not is_number(filled.dtype):
        raise GraphError(
            f"fill has dtype {cut(str(filled.dtype))}, expected numbers: pass what a new edge holds"
        )
    if hosting.on_host(filled):
        filled = _converted(name, np.asarray(filled), dtype)
    shape = (count, *leaf.shape[1:])
    xp: Any = np if hosting.on_host(filled) else jnp
    try:
        return xp.broadcast_to(filled.astype(dtype), shape)
    except ValueError as error:
        raise GraphError(
            f"fill has shape {shown_shape(filled)}, expected one that broadcasts to a row of "
            f"{name}, shape {cut(str(shape[1:]))}: pass a number, or one row"
        ) from error


def _as_jax_holds(name: str, array: Any) -> Any:
    """An array of numbers, in 32 bits unless 64-bit types are on."""
    if not is_number(array.dtype):
        raise GraphError(
            f"{name} has dtype {cut(str(array.dtype))}, expected numbers: pass what an edge holds"
        )
    if isinstance(array, jax.Array):
        return array
    with np.errstate(over="ignore"):
        return array.astype(jax.dtypes.canonicalize_dtype(array.dtype))


def _converted(name: str, fill: HostArray, dtype: Any) -> HostArray:
    """`fill` in the type of the edges; fractions are cut off integers."""
    real = not jnp.issubdtype(dtype, np.complexfloating)
    if not (real and jnp.issubdtype(fill.dtype, np.complexfloating)):
        with np.errstate(all="ignore"):
            found = fill.astype(dtype)
            wide = np.float64 if real else np.complex128
            was, now = fill.astype(wide), found.astype(wide)
            kept = np.isfinite(was) == np.isfinite(now)
            if is_integer(dtype):
                kept &= np.abs(was - now) < 1
        if kept.all():
            return found
    raise GraphError(
        f"fill is {shown(fill if fill.ndim else fill.item())}, which {name} of type {dtype} cannot "
        f"hold: pass a number of that type"
    )


def check_fill(fill: Any) -> None:
    """Raises GraphError on a string that names no reduction."""
    if isinstance(fill, str) and fill not in FILLS:
        raise GraphError(
            f"fill is {shown(fill)}, expected a number, a row, or one of "
            f"{', '.join(map(repr, FILLS))}: 'mean' gives a self loop the mean over the edges into "
            f"its vertex"
        )


def reduced_into(name: str, rows: Any, dst: Any, mask: Any, structure: Structure, how: str) -> Any:
    """`[num_dst, ...]`: `rows` of the edges into each vertex, padding left out; where there are
    none 0, or 1 for a product."""
    if not jnp.issubdtype(rows.dtype, np.number) or (how == "mean" and is_integer(rows.dtype)):
        raise GraphError(
            f"{name} has dtype {cut(str(rows.dtype))}, which has no {how}: pass a value as fill=, "
            f"or convert it to numbers of floating point"
        )
    count = structure.num_rows
    if hosting.on_host(dst, mask, structure, rows):
        real = slice(None) if mask is None else np.asarray(mask)
        return _reduced_on_host(np.asarray(rows)[real], np.asarray(dst)[real], count, how)
    at = dst if mask is None else jnp.where(mask, dst, count)
    wide = jnp.asarray(rows).astype(_wide(rows.dtype))
    if how in ("sum", "add", "mul"):
        reduce = jax.ops.segment_prod if how == "mul" else jax.ops.segment_sum
        return reduce(wide, at, count).astype(rows.dtype)
    degree = structure.degree().reshape(-1, *(1,) * (rows.ndim - 1))
    if how == "mean":
        total = jax.ops.segment_sum(wide, at, count)
        return (total / jnp.maximum(degree, 1)).astype(rows.dtype)
    reduce = jax.ops.segment_max if how == "max" else jax.ops.segment_min
    return jnp.where(degree > 0, reduce(wide, at, count), 0).astype(rows.dtype)


def _wide(dtype: Any) -> Any:
    """What numbers of half precision are added up in."""
    return np.float32 if dtype.itemsize < 4 and not is_integer(dtype) else dtype


def _reduced_on_host(rows: HostArray, at: HostArray, count: int, how: str) -> HostArray:
    values = rows.astype(_wide(rows.dtype))
    ufunc = FILLS[how]
    shape = (count, *rows.shape[1:])
    if how in ("max", "min"):
        out = np.zeros(shape, values.dtype)
        out[at] = values  # any of them: a vertex without edges stays 0
    else:
        out = np.full(shape, ufunc.identity, values.dtype)
    ufunc.at(out, at, values)
    if how == "mean":
        degree = np.maximum(np.bincount(at, minlength=count), 1)
        out = out / degree.reshape(-1, *(1,) * (rows.ndim - 1))
    return out.astype(rows.dtype)
