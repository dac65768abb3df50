"""The function on tiles that a kernel evaluates; reading, reducing and writing tiles."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_kernels import triton

Tiles = list[Any]
"""One tile for each value; a pair of tiles where an outer product is summed."""

DOT = 16
"""The least size that a matrix product takes along each axis."""


@dataclasses.dataclass(frozen=True)
class TileOperand:
    """An array that the edge function reads, `[size(place), *shape]`, shared ones `[*shape]`.

    place: `row` (the endpoint that owns the row), `neighbor` (the other one), `edge`, `shared`.
    """

    place: str
    shape: tuple[int, ...]
    dtype: np.dtype


@dataclasses.dataclass(frozen=True)
class TileOutput:
    """An output of the edge function and its reduction.

    reduction: `sum`, `max`, `min`, `exp_sum`, `outer_sum` or None (written for each edge).
        An `exp_sum` is the sum of `exp(s - max s) * value`, where `s` is the output number
        `score`, reduced by max. An `outer_sum` of shape `[F, G]` is the sum of outer products;
        the edge function gives a pair of tiles, `[lanes, F]` and `[lanes, G]`, both padded to at
        least `DOT`.
    """

    reduction: str | None
    shape: tuple[int, ...]
    dtype: np.dtype
    score: int | None = None


@dataclasses.dataclass(frozen=True)
class TileProgram:
    """`body` maps a tile of each operand to the number and the tile of each output, each as soon as
    it is known: what is written at once takes no registers after.

    The tile of a value of shape `s` is `[lanes, *padded(s)]`, one edge a lane, or
    `[1, *padded(s)]` if it is the same for all lanes. What lies in the padding is undefined.
    """

    body: Callable[[Tiles], Iterable[tuple[int, Any]]]
    operands: tuple[TileOperand, ...]
    outputs: tuple[TileOutput, ...]

    @functools.cached_property
    def reduced(self) -> tuple[TileOutput, ...]:
        """The outputs that are reduced, their scores renumbered."""
        at = [i for i, o in enumerate(self.outputs) if o.reduction is not None]
        return tuple(
            dataclasses.replace(o, score=None if o.score is None else at.index(o.score))
            for o in self.outputs
            if o.reduction is not None
        )

    @property
    def needs_edge(self) -> bool:
        """Whether the numbers of the edges matter."""
        read = any(o.place == "edge" for o in self.operands)
        return read or any(o.reduction is None for o in self.outputs)


@dataclasses.dataclass(frozen=True)
class Refs:
    """The arrays of one launch over tasks."""

    tasks: Sequence[Any]
    neighbor: Any
    edge: Any
    operands: Sequence[Any]
    outs: Sequence[Any]


def padded(shape: Sequence[int]) -> tuple[int, ...]:
    """Each size rounded up to a power of two."""
    return tuple(1 << max(n - 1, 0).bit_length() for n in shape)


def accumulator_dtype(dtype: Any) -> Any:
    """Half precision is reduced in float32."""
    return jnp.float32 if dtype in (jnp.bfloat16, jnp.float16) else dtype


# ------------------------------------------------------------------------- reading and writing


def places(
    lead: Any, shape: tuple[int, ...], mask: Any, full: tuple[int, ...]
) -> tuple[tuple[Any, ...], Any]:
    """Index and mask of the elements `[lead, *shape]` of an array, as tiles of `[lanes, *full]`.

    lead: `int[lanes]`, mask: `bool[lanes]`; None where the array has no leading axis.
    """
    rank = len(shape) + (lead is not None)
    index, keep = [], None
    if lead is not None:
        index.append(_along(lead, 0, rank))
        keep = _along(mask, 0, rank)
    for axis, (size, room) in enumerate(zip(shape, full, strict=True), rank - len(shape)):
        at = _along(jnp.arange(room), axis, rank)
        index.append(at)
        if room != size:
            inside = at < size
            keep = inside if keep is None else keep & inside
    return tuple(index), keep


def _along(x: Any, axis: int, rank: int) -> Any:
    return lax.broadcast_in_dim(
        x, tuple(x.shape[0] if a == axis else 1 for a in range(rank)), (axis,)
    )


def read(ref: Any, lead: Any, shape: tuple[int, ...], mask: Any) -> jax.Array:
    """The tile `[lanes, *padded(shape)]` (lanes 1 without `lead`), 0 where nothing is read."""
    if lead is None and not shape:
        return ref[...].reshape(1)
    index, keep = places(lead, shape, mask, padded(shape))
    tile = triton.load(ref, index, keep, _zero(ref.dtype) if keep is not None else None)
    return tile if lead is not None else tile[None]


def _zero(dtype: Any) -> Any:
    return False if dtype == jnp.bool_ else np.zeros((), dtype)


def write(ref: Any, lead: Any, shape: tuple[int, ...], mask: Any, tile: jax.Array) -> None:
    """Write the entries of `tile` that belong to `shape` to `ref[lead]`, where `mask` is True."""
    # Lanes that write nothing point behind the array: interpreted, they would write back what was
    # there before, over what another lane has written.
    lead = jnp.where(mask, lead, jnp.full_like(lead, ref.shape[0]))
    index, keep = places(lead, shape, mask, tile.shape[1:])
    keep = jnp.broadcast_to(keep, (lead.shape[0], *tile.shape[1:]))
    triton.store(ref, index, keep, spread(tile, lead.shape[0]).astype(ref.dtype))


def spread(tile: jax.Array, lanes: int) -> jax.Array:
    """`tile` with `lanes` lanes."""
    if tile.shape[0] == lanes:
        return tile
    return jnp.broadcast_to(tile, (lanes, *tile.shape[1:]))


def lift(mask: Any, rank: int) -> Any:
    """`mask[lanes]` as `[lanes, 1, ...]`."""
    return triton.reshape(mask, (mask.shape[0], *(1,) * (rank - 1)))


# ----------------------------------------------------------------------------------- reductions


def neutral(output: TileOutput) -> Any:
    """The neutral element of a reduction."""
    dtype = np.dtype(accumulator_dtype(output.dtype))
    if output.reduction in ("sum", "exp_sum", "outer_sum"):
        return np.zeros((), dtype)
    sign = -1 if output.reduction == "max" else 1
    if dtype.kind == "f":
        return np.asarray(sign * np.inf, dtype)
    info = np.iinfo(dtype)
    return np.asarray(info.min if sign < 0 else info.max, dtype)


def start(outputs: Sequence[TileOutput], lanes: int) -> Tiles:
    """The states before the first edge, `[lanes, *padded(shape)]` each."""
    out = []
    for o in outputs:
        dtype, full = accumulator_dtype(o.dtype), padded(o.shape)
        if o.reduction == "outer_sum":  # the lanes are summed at once
            out.append(jnp.zeros((1, *(max(n, DOT) for n in full)), dtype))
        else:
            out.append(jnp.full((lanes, *full), neutral(o), dtype))
    return out


def states(outputs: Sequence[TileOutput], values: Tiles, keep: Any) -> Tiles:
    """The states that one edge a lane amounts to; `keep[lanes]` says which lanes hold one."""
    out = []
    for o, x in zip(outputs, values, strict=True):
        if o.reduction == "outer_sum":
            left, right = (_keep(part, keep, 0) for part in x)
            out.append(triton.outer(left, right)[None].astype(accumulator_dtype(o.dtype)))
        else:
            out.append(_keep(x.astype(accumulator_dtype(o.dtype)), keep, neutral(o)))
    return out


def _keep(x: jax.Array, keep: Any, otherwise: Any) -> jax.Array:
    """`x` on the lanes of `keep`, a constant on the others."""
    x = spread(x, keep.shape[0])
    mask = jnp.broadcast_to(lift(keep, x.ndim), x.shape)
    return jnp.where(mask, x, jnp.full_like(x, otherwise))


def merge(outputs: Sequence[TileOutput], a: Tiles, b: Tiles) -> Tiles:
    """The states of two disjoint sets of edges, as the states of all of them."""
    simple = {
        "sum": jnp.add, "outer_sum": jnp.add, "max": triton.maximum, "min": triton.minimum,
    }  # fmt: skip
    out = []
    for o, x, y in zip(outputs, a, b, strict=True):
        if o.reduction == "exp_sum":
            assert o.score is not None
            p, q = a[o.score], b[o.score]
            shift = _finite(jnp.maximum(p, q))  # a NaN among them makes the sum NaN
            out.append(_scale(x, p, shift) + _scale(y, q, shift))
        else:
            assert o.reduction is not None
            out.append(simple[o.reduction](x, y))
    return out


def _finite(x: jax.Array) -> jax.Array:
    """Softmax's shift: the largest score, 0 where that is infinite (no edge, or all -inf)."""
    return jnp.where(jnp.abs(x) < np.inf, x, jnp.zeros_like(x))


def _scale(x: jax.Array, score: jax.Array, shift: jax.Array) -> jax.Array:
    """`exp(score - shift) * x`; the score may lack trailing axes. No finite score is above the
    shift, except that a compiler may round it otherwise in the difference."""
    gap = score - shift
    above = (gap > 0) & (score < np.inf)
    factor = jnp.exp(jnp.where(above, jnp.zeros_like(gap), gap))
    factor = triton.reshape(factor, (*factor.shape, *(1,) * (x.ndim - factor.ndim)))
    return jnp.broadcast_to(factor, x.shape) * x


def merge_lanes(outputs: Sequence[TileOutput], x: Tiles) -> Tiles:
    """All lanes in one: `[1, *padded(shape)]`."""
    simple = {"sum": jnp.sum, "max": triton.reduce_max, "min": triton.reduce_min}
    out: Tiles = []
    for o, tile in zip(outputs, x, strict=True):
        if o.reduction == "exp_sum":
            assert o.score is not None
            score = x[o.score]
            top = _finite(jnp.max(score, axis=0))
            out.append(jnp.sum(_scale(tile, score, jnp.broadcast_to(top, score.shape)), 0)[None])
        elif o.reduction == "outer_sum":
            out.append(tile)
        else:
            assert o.reduction is not None
            out.append(simple[o.reduction](tile, axis=0)[None])
    return out
