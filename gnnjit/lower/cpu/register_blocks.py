"""Blocks of a product's result that grow in registers.

Each step of a loop takes some vectors of one factor and, for each row of the block, one scalar of
the other, which is multiplied with all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from llvmlite import ir

from gnnjit.lower.cpu.control_flow import Emitter
from gnnjit.lower.cpu.simd import I64, LINE, Vec, register_type

WIDE, MOST_ROWS = 4, 8
"""Vectors of a block of a result, and its rows, at most."""

AHEAD, NEAR_BYTES = 8, 1 << 14
"""Rows of a matrix ahead that are asked for, and bytes of a matrix that stays in the nearest cache.
A strip of columns of a larger one lies in lines far apart, which share few places of that cache and
leave it before the next block of rows needs them."""


def rows_of_block(registers: int, vectors: int) -> int:
    """Rows of a block, each of so many vectors."""
    return min(MOST_ROWS, registers // vectors)


def scalar(m: Emitter, pointer: ir.Value, dtype: np.dtype) -> ir.Value:
    """A vector with one lane."""
    return m.b.load(pointer, align=dtype.itemsize, typ=ir.VectorType(register_type(dtype), 1))


def grown(m: Emitter, total: Vec, left: ir.Value, right: Vec) -> Vec:
    """`total + left * right`, with a vector `left` of one lane."""
    pairs = zip(right.chunks, total.chunks, strict=True)
    chunks = [m.intrinsic("fma", m.splat(left, 0, r.type.count), r, t) for r, t in pairs]
    return Vec(total.dtype, total.size, tuple(chunks))


def add_product(
    m: Emitter, rows: Sequence[ir.Value], strip: ir.Value, sizes: tuple[int, int],
    sums: Sequence[tuple[ir.Value, ...]], like: Vec,
) -> None:  # fmt: skip
    """Add to the sums of some rows their products with some columns of a matrix.

    rows: pointers to the left factors, `[inner]` each. strip: to the first of the columns.
    sizes: of the matrix, inner and columns. sums: variables of values like `like`.
    """
    inner, columns = sizes
    item = like.dtype.itemsize
    with m.loop(I64(0), I64(inner)) as k:
        start = m.offset(strip, k, columns * item)
        right = m.load(start, like.dtype, np.arange(like.size))
        if inner * columns * item > NEAR_BYTES:
            ask_for_lines(m, m.offset(start, AHEAD * columns * item, 1), like)
        for row, place in zip(rows, sums, strict=True):
            left = scalar(m, m.offset(row, k, item), like.dtype)
            m.assign(place, grown(m, m.value_of(place, like), left, right))


def ask_for_lines(m: Emitter, pointer: ir.Value, like: Vec) -> None:
    """Ask for as many bytes as `like` has."""
    for at in range(0, like.size * like.dtype.itemsize, LINE):
        m.ask_for_line(m.offset(pointer, at, 1))
