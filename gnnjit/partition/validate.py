"""Checks of what a partition is made from: what came, what was expected, what to do."""

from __future__ import annotations

import operator
from typing import Any

import jax.numpy as jnp
import numpy as np

from gnnjit.errors import GraphError
from gnnjit.graph import validate
from gnnjit.graph.reading import as_indices, is_integer, is_number, read_on_host
from gnnjit.shapes import ArrayLike, HostArray

MOST = 1 << 36
"""Vertices, shards and the like, of each of which something is held."""


def whole(name: str, value: Any, least: int) -> int:
    """`value` as an int. Raises GraphError unless it is a whole number >= `least`."""
    try:
        number = None if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise GraphError(
            f"{name} is {validate.shown(value)}, expected a whole number, {least} or more: pass "
            f"such an int"
        )
    if number > MOST:
        raise GraphError(
            f"{name} is {validate.shown(value)}, expected a whole number, {least} to {MOST}: no "
            f"memory holds an entry for each"
        )
    return number


def along(order: ArrayLike | None, num_nodes: int) -> HostArray:
    """`int64[N]`: `order`, checked, or the vertices by number."""
    return np.arange(num_nodes) if order is None else permutation(order, num_nodes)


def permutation(order: ArrayLike, num_nodes: int | None = None) -> HostArray:
    """`int64[N]`. Raises GraphError unless each vertex is in it once."""
    vertex = read_on_host("order", order)
    expected = len(vertex) if num_nodes is None and vertex.ndim == 1 else num_nodes
    if vertex.shape != (expected,):
        raise GraphError(
            f"order has shape {vertex.shape}, expected "
            f"{'(num_nodes,)' if expected is None else f'({expected},)'}: pass the vertex at each "
            "position"
        )
    vertex = _as_whole("order", vertex, "the vertex at each position")
    outside = (vertex < 0) | (vertex >= len(vertex))
    if outside.any():
        at = int(outside.argmax())
        raise GraphError(
            f"order[{at}] is {vertex[at]}, expected a vertex from 0 to {len(vertex) - 1}: pass "
            "each vertex once, as numpy.argsort(key) does"
        )
    times = np.bincount(vertex, minlength=len(vertex))
    if (times != 1).any():
        twice = int(times.argmax())
        raise GraphError(
            f"order holds vertex {twice} {times[twice]} times and lacks vertex {times.argmin()}, "
            "expected a permutation: pass each vertex once, as numpy.argsort(key) does"
        )
    return vertex


def _as_whole(name: str, array: HostArray, what: str) -> HostArray:
    if array.size and not is_integer(array.dtype):
        raise GraphError(
            f"{name} has dtype {validate.cut(str(array.dtype))}, expected integers: pass {what}"
        )
    return array.astype(np.int64, copy=False)


def endpoints(src: ArrayLike, dst: ArrayLike, num_nodes: int) -> tuple[HostArray, HostArray]:
    """Both as int32 or int64 arrays of NumPy. Raises GraphError unless they are `int[E]` of one
    length with entries from 0 to `num_nodes - 1`."""
    src, dst = as_indices("src", src), as_indices("dst", dst)
    validate.same_length(src, dst)
    src, dst = np.asarray(src), np.asarray(dst)
    validate.in_range("src", src, None, num_nodes, "num_nodes")
    validate.in_range("dst", dst, None, num_nodes, "num_nodes")
    # Narrower and unsigned ones would overflow, or turn into floats, in products of numbers.
    same = src.dtype == dst.dtype and src.dtype in (np.int32, np.int64)
    return (src, dst) if same else (src.astype(np.int64), dst.astype(np.int64))


def as_costs(
    name: str, cost: ArrayLike, count: int | None = None, kind: str = "vertex"
) -> HostArray:
    """`float64[N]`. Raises GraphError unless all are finite and >= 0, and as many as `count` where
    that is given. `kind`: what each belongs to."""
    out = as_reals(name, cost)
    if out.ndim != 1 or (count is not None and len(out) != count):
        expected = "(num_nodes,)" if count is None else f"({count},)"
        raise GraphError(
            f"{name} has shape {out.shape}, expected {expected}, one number per {kind}: pass what "
            f"each {kind} costs"
        )
    wrong = ~(np.isfinite(out) & (out >= 0))
    if wrong.any():
        at = int(wrong.argmax())
        raise GraphError(
            f"{name}[{at}] is {out[at]}, expected a finite number >= 0: no {kind} takes less than "
            "nothing"
        )
    return out


def as_reals(name: str, values: ArrayLike) -> HostArray:
    """`float64`. Raises GraphError unless all are real numbers."""
    array = read_on_host(name, values)
    dtype = array.dtype
    if array.size and (not is_number(dtype) or jnp.issubdtype(dtype, np.complexfloating)):
        raise GraphError(
            f"{name} has dtype {validate.cut(str(dtype))}, expected real numbers: pass an array of "
            f"them"
        )
    return array.astype(np.float64)


def as_bounds(bounds: ArrayLike, num_nodes: int) -> HostArray:
    """`int64[P + 1]`. Raises GraphError unless they rise from 0 to `num_nodes`."""
    out = read_on_host("bounds", bounds)
    if out.ndim != 1 or len(out) < 2:
        raise GraphError(
            f"bounds has shape {out.shape}, expected (num_shards + 1,), with one shard or more: "
            "pass where each shard begins, and the number of vertices"
        )
    out = _as_whole("bounds", out, "positions")
    if out[0] != 0 or out[-1] != num_nodes or (np.diff(out) < 0).any():
        raise GraphError(
            f"bounds is {validate.shown(out.tolist())}, expected numbers that rise from 0 to "
            f"{num_nodes}: pass where each shard begins, and the number of vertices"
        )
    return out


def as_shards(shard: ArrayLike, num_shards: int) -> HostArray:
    """`int64[N]`. Raises GraphError unless each is from 0 to `num_shards - 1`."""
    out = read_on_host("shard", shard)
    if out.ndim != 1:
        raise GraphError(
            f"shard has shape {out.shape}, expected (num_nodes,): pass the shard of each vertex"
        )
    out = _as_whole("shard", out, "the shard of each vertex")
    outside = (out < 0) | (out >= num_shards)
    if outside.any():
        at = int(outside.argmax())
        raise GraphError(
            f"shard[{at}] is {out[at]}, expected a shard from 0 to {num_shards - 1}: pass a larger "
            "num_shards"
        )
    return out
