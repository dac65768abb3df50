"""Rules on tiles for operations that move or combine the entries of an element."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from gnnjit.lower.lowering import Unsupported
from gnnjit.lower.pallas.tile import TileSite, clear, rule
from pallas_kernels import triton
from pallas_kernels.traversal import padded


@rule("broadcast_in_dim")
def _broadcast(site: TileSite) -> Sequence[Any]:
    x, shape = site.args[0], site.out.shape
    dims = (0, *(d + 1 for d in site.params["broadcast_dimensions"]))
    return [lax.broadcast_in_dim(x, (x.shape[0], *padded(shape)), dims)]


@rule("reshape", "squeeze", "expand_dims")
def _reshape(site: TileSite) -> Sequence[Any]:
    if site.params.get("dimensions") and site.op.name == "reshape":
        raise Unsupported("a reshape that permutes has no GPU kernel code")
    return [reshape(site.args[0], site.shapes[0], tuple(site.out.shape))]


def reshape(x: Any, before: tuple[int, ...], after: tuple[int, ...]) -> Any:
    """The same scalars in another shape, where the padding allows it."""
    if not np.array_equal(_positions(before), _positions(after)):
        raise Unsupported(f"reshaping {list(before)} to {list(after)} moves padded entries")
    if math.prod(padded(before)) != math.prod(padded(after)):
        raise Unsupported(f"reshaping {list(before)} to {list(after)} moves padded entries")
    return triton.reshape(x, (x.shape[0], *padded(after)))


def _positions(shape: tuple[int, ...]) -> np.ndarray:
    """Where each scalar of an element lies in its tile."""
    full = padded(shape)
    places = np.arange(math.prod(full)).reshape(full)
    return places[tuple(slice(n) for n in shape)].ravel()


@rule("transpose")
def _transpose(site: TileSite) -> Sequence[Any]:
    return [jnp.transpose(site.args[0], (0, *(p + 1 for p in site.params["permutation"])))]


@rule("iota")
def _iota(site: TileSite) -> Sequence[Any]:
    shape = (1, *padded(site.out.shape))
    return [lax.broadcasted_iota(site.dtype, shape, site.params["dimension"] + 1)]


def _reduction(name: str, neutral: Any, fn: Any) -> None:
    @rule(name)
    def reduce(site: TileSite) -> Sequence[Any]:
        (x,), (shape,) = site.args, site.shapes
        axes = site.params["axes"]
        sizes = [n if a in axes else padded((n,))[0] for a, n in enumerate(shape)]
        x = clear(x, sizes, neutral(x.dtype))
        for axis in sorted(axes, reverse=True):
            x = fn(x, axis=axis + 1)
        return [x]


def _least(dtype: Any) -> Any:
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def _most(dtype: Any) -> Any:
    return np.inf if dtype.kind == "f" else np.iinfo(dtype).max


_reduction("reduce_sum", lambda dtype: 0, lambda x, axis: jnp.sum(x, axis, dtype=x.dtype))
_reduction("reduce_max", _least, triton.reduce_max)
_reduction("reduce_min", _most, triton.reduce_min)


def _boolean(name: str, otherwise: int, fn: Any) -> None:
    @rule(name)
    def reduce(site: TileSite) -> Sequence[Any]:
        (x,), (shape,) = site.args, site.shapes
        if site.dtype != np.bool_:
            raise Unsupported(f"{name} of {site.out.dtype} has no GPU kernel code")
        x = clear(x.astype(jnp.int32), shape, otherwise)
        for axis in sorted(site.params["axes"], reverse=True):
            x = fn(x, axis=axis + 1)
        return [x > 0]


_boolean("reduce_and", 1, jnp.min)
_boolean("reduce_or", 0, jnp.max)


@rule("cumsum")
def _cumsum(site: TileSite) -> Sequence[Any]:
    if site.params["reverse"]:
        raise Unsupported("a reversed cumsum has no GPU kernel code")
    return [lax.cumsum(site.args[0], site.params["axis"] + 1)]


@rule("concatenate")
def _concatenate(site: TileSite) -> Sequence[Any]:
    """Pieces of one size, a power of two: a new axis, on which each piece has its place."""
    axis, shapes = site.params["dimension"], site.shapes
    size = shapes[0][axis]
    if any(s[axis] != size for s in shapes) or padded((size,))[0] != size:
        raise Unsupported(f"concatenating sizes {[s[axis] for s in shapes]} on the edges")
    total, shape = _stacked(site, axis)
    return [reshape(total, shape, tuple(site.out.shape))]


@rule("stack")
def _stack(site: TileSite) -> Sequence[Any]:
    return [_stacked(site, site.params["axis"])[0]]


def _stacked(site: TileSite, axis: int) -> tuple[Any, tuple[int, ...]]:
    """The arguments along a new axis, and the shape of the result."""
    count, one = len(site.args), site.shapes[0]
    shape = (*one[:axis], count, *one[axis:])
    lanes = max(x.shape[0] for x in site.args)
    total = jnp.zeros((lanes, *padded(shape)), site.dtype)
    place = lax.broadcasted_iota(jnp.int32, total.shape, axis + 1)
    for k, x in enumerate(site.args):
        here = jnp.broadcast_to(jnp.expand_dims(x, axis + 1), total.shape)
        total = jnp.where(place == k, here, total)
    return total, shape


@rule("slice")
def _slice(site: TileSite) -> Sequence[Any]:
    """One piece of an axis that falls into pieces of equal size, a power of two."""
    x, shape = site.args[0], site.shapes[0]
    if any(s != 1 for s in site.params["strides"] or ()):
        raise Unsupported("a slice with strides has no GPU kernel code")
    limits = zip(site.params["start_indices"], site.params["limit_indices"], strict=True)
    for axis, (start, limit) in enumerate(limits):
        x, shape = take(x, shape, axis, start, limit)
    return [x]


@rule("split")
def _split(site: TileSite) -> Sequence[Any]:
    ends = np.cumsum(site.params["sizes"])
    axis = site.params["axis"]
    return [
        take(site.args[0], site.shapes[0], axis, int(end - size), int(end))[0]
        for size, end in zip(site.params["sizes"], ends, strict=True)
    ]


def take(
    x: Any, shape: tuple[int, ...], axis: int, start: int, limit: int
) -> tuple[Any, tuple[int, ...]]:
    """Entries `start : limit` of one axis, and the shape of the result."""
    size, full = limit - start, padded(shape)[axis]
    after = (*shape[:axis], size, *shape[axis + 1 :])
    if size == shape[axis]:
        return x, after
    if start % size or padded((size,))[0] != size:
        raise Unsupported(f"entries {start}:{limit} of {shape[axis]} on the edges")
    x = clear(x, [shape[a] if a == axis else padded(shape)[a] for a in range(len(shape))])
    x = x.reshape(*x.shape[: axis + 1], full // size, size, *x.shape[axis + 2 :])
    here = lax.broadcasted_iota(jnp.int32, x.shape, axis + 1) == start // size
    if x.dtype == jnp.bool_:
        return jnp.max(jnp.where(here, x.astype(jnp.int32), 0), axis + 1) > 0, after
    return jnp.sum(jnp.where(here, x, jnp.zeros_like(x)), axis + 1, dtype=x.dtype), after
