"""Rules on tiles for products of vectors and matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from gnnjit.lower.lowering import Unsupported
from gnnjit.lower.pallas.tile import MAX_SCALARS, TileSite, clear, rule
from pallas_kernels import triton
from pallas_kernels.traversal import DOT, padded

MAX_MATRIX = 32 * 32
"""Scalars of a shared matrix that a program holds. With larger ones XLA multiplies all edges at
once, at many times the speed (gnnjit/design/0014)."""


@rule("dot_general")
def _dot_general(site: TileSite) -> Sequence[Any]:
    (lc, rc), (lb, rb) = site.params["dimension_numbers"]
    (left, right), (sl, sr) = site.args, site.shapes
    # The matrix unit sums in float32, which is less than wider floats and integers need.
    if not lb and len(lc) == 1 and site.dtype == jnp.float32:
        if _takes(right, sr, left, sl):
            x, shape = _last(left, sl, lc[0])
            matrix = _matrix(right, rc[0] == 1)
            return [_apply(site, x, shape, matrix, _other(sr, rc[0]))]
        if len(sr) == 1 and _takes(left, sl, right, sr):
            matrix = _matrix(left, lc[0] == 1)
            return [_apply(site, right, sr, matrix, _other(sl, lc[0]))]
    return [_multiply_and_sum(site, tuple(lc), tuple(rc), tuple(lb), tuple(rb))]


def _matrix(x: Any, transposed: bool) -> Any:
    return x[0].T if transposed else x[0]


def _takes(matrix: Any, shape: tuple[int, ...], x: Any, x_shape: tuple[int, ...]) -> bool:
    """Whether the matrix unit takes `x @ matrix`: one matrix for all edges, sizes large enough."""
    if matrix.shape[0] != 1 or len(shape) != 2 or min(padded(shape)) < DOT:
        return False
    return x.shape[0] * math.prod(padded(x_shape[:-1])) >= DOT


def _other(shape: tuple[int, ...], axis: int) -> int:
    return shape[1 - axis]


def _last(x: Any, shape: tuple[int, ...], axis: int) -> tuple[Any, tuple[int, ...]]:
    """`x` with the element axis `axis` moved to the end, and its element shape."""
    order = [a for a in range(len(shape)) if a != axis] + [axis]
    if order == list(range(len(shape))):
        return x, shape
    return jnp.transpose(x, (0, *(a + 1 for a in order))), tuple(shape[a] for a in order)


def _apply(site: TileSite, x: Any, shape: tuple[int, ...], matrix: Any, width: int) -> Any:
    """`x @ matrix` along the last element axis."""
    if math.prod(matrix.shape) > MAX_MATRIX:
        size = f"{matrix.shape[0]} x {matrix.shape[1]}"
        raise Unsupported(f"a matrix of {size} on the edges is larger than a program holds")
    rows = x.shape[0] * math.prod(padded(shape[:-1]))
    x = clear(x, [*padded(shape[:-1]), shape[-1]])
    flat = triton.reshape(x, (rows, x.shape[-1]))
    out = triton.matmul(*_operands(site, flat, matrix), site.params["precision"])
    return triton.reshape(out.astype(site.dtype), (*x.shape[:-1], padded((width,))[0]))


def _operands(site: TileSite, a: Any, b: Any) -> tuple[Any, Any]:
    """Half precision goes to the matrix unit as it is."""
    half = [d.dtype for d in site.eqn.inputs]
    if all(d.itemsize == 2 for d in map(np.dtype, half)) and half[0] == half[1]:
        return a.astype(half[0]), b.astype(half[0])
    return a, b


def _multiply_and_sum(
    site: TileSite,
    lc: tuple[int, ...],
    rc: tuple[int, ...],
    lb: tuple[int, ...],
    rb: tuple[int, ...],
) -> Any:
    """Any product, entry by entry, where the tile of all of them is small enough."""
    a, b = site.args
    (sa, sb) = site.shapes
    la = [i for i in range(len(sa)) if i not in (*lc, *lb)]
    ra = [i for i in range(len(sb)) if i not in (*rc, *rb)]
    sizes = [sa[i] for i in (*lb, *la)] + [sb[i] for i in ra] + [sa[i] for i in lc]
    if math.prod(padded(sizes)) > MAX_SCALARS:
        raise Unsupported(f"a product over {sizes} scalars an edge fits no tile")
    wide_a = _arrange(a, (*lb, *la, *lc), len(lb) + len(la), len(ra))
    wide_b = _arrange(b, (*rb, *ra, *rc), len(rb), len(la))
    lanes = max(a.shape[0], b.shape[0])
    full = (lanes, *padded(sizes))
    product = jnp.broadcast_to(wide_a, full) * jnp.broadcast_to(wide_b, full)
    if not lc:
        return product
    kept = len(sizes) - len(lc)
    product = clear(product, [*padded(sizes[:kept]), *sizes[kept:]])
    for axis in range(len(sizes), kept, -1):
        product = jnp.sum(product, axis=axis, dtype=product.dtype)
    return product


def _arrange(x: Any, order: tuple[int, ...], before: int, count: int) -> Any:
    """`x` with its element axes in `order`, and `count` axes of size 1 after the first `before`."""
    x = jnp.transpose(x, (0, *(i + 1 for i in order)))
    shape = x.shape
    return triton.reshape(x, (*shape[: before + 1], *(1,) * count, *shape[before + 1 :]))
