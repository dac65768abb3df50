"""Code that reads rows of a table in memory, and that adds to them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np
from llvmlite import ir

from gnnjit.ir.tables import TableRows
from gnnjit.lower.cpu.control_flow import Emitter
from gnnjit.lower.cpu.index_rules import combiner
from gnnjit.lower.cpu.simd import I32, I64, Vec, is_signed, register_type
from gnnjit.lower.lowering import Unsupported

Number = tuple[ir.Value, ir.Value | None]
"""The number of a row among all rows of a table, moved inside; and whether it was inside, or None
where rows that are not there read as the nearest one."""


def number_of(m: Emitter, rows: TableRows, index: Sequence[Vec], which: int = 0) -> Number:
    """The number of row `which` of those that an element picks."""
    b, number, inside = m.b, I64(0), ir.Constant(ir.IntType(1), 1)
    for axis, length in enumerate(rows.lengths):
        vec, at = index[axis if len(index) > 1 else 0], which * rows.leading + axis
        at = 0 if len(index) > 1 else at
        i = _scalar(m, vec, at)
        inside = b.and_(inside, b.icmp_unsigned("<", i, I64(length)))
        near = m.smaller(m.larger(i, I64(0)), I64(length - 1))
        number = b.add(b.mul(number, I64(length)), near)
    return number, None if rows.fill is None else inside


def _scalar(m: Emitter, vec: Vec, at: int) -> ir.Value:
    """One scalar of an integer value, as i64."""
    if vec.dtype == np.uint64:
        raise Unsupported("a row of a table by an index of uint64")
    chunk, lane = divmod(at, m.lanes)
    found = m.b.extract_element(vec.chunks[chunk], I32(lane))
    if found.type == I64:
        return found
    return m.b.sext(found, I64) if is_signed(vec.dtype) else m.b.zext(found, I64)


def filled(m: Emitter, vec: Vec, rows: TableRows, inside: ir.Value | None) -> Vec:
    """`vec`, or what stands for rows that there are not."""
    if inside is None:
        return vec
    other = m.literal(vec.dtype, rows.fill, vec.size)
    pairs = zip(vec.chunks, other.chunks, strict=True)
    chunks = tuple(m.b.select(inside, a, b) for a, b in pairs)
    return Vec(vec.dtype, vec.size, chunks)


def read(m: Emitter, rows: TableRows, index: Sequence[Vec], pointer: ir.Value) -> Vec:
    """The rows that an element picks of the table at `pointer`."""
    dtype, size = rows.table.dtype, math.prod(rows.row)
    found = []
    for which in range(math.prod(rows.batch)):
        number, inside = number_of(m, rows, index, which)
        at = m.offset(pointer, number, size * dtype.itemsize)
        found.append(filled(m, m.load(at, dtype, np.arange(size)), rows, inside))
    return found[0] if len(found) == 1 else m.take(found, np.arange(size * len(found)))


def clear(m: Emitter, dtype: np.dtype, size: int, pointer: ir.Value) -> None:
    """Begin a sum of `size` scalars with zero."""
    for width in (m.lanes, 1):
        since = 0 if width > 1 else size // m.lanes * m.lanes
        until = size // m.lanes * m.lanes if width > 1 else size
        zero = m.literal(dtype, 0, width)
        with m.loop(I64(since), I64(until), width) as at:
            m.store(zero, m.offset(pointer, at, dtype.itemsize), np.arange(width))


@dataclasses.dataclass(frozen=True)
class TableSums:
    """A table of sums of `dtype` at `pointer`, to which elements add."""

    m: Emitter
    rows: TableRows
    dtype: np.dtype
    pointer: ir.Value

    def add(self, index: Sequence[Vec], update: Vec) -> None:
        """Add the rows of `update`."""
        size = math.prod(self.rows.row)
        for which, row in self._picked(index):
            one = self.m.take([update], np.arange(which * size, (which + 1) * size))
            self._add(row, one)

    def add_products(self, index: Sequence[Vec], pairs: Sequence[tuple[Vec, Vec]]) -> None:
        """Add outer products to the one row that an element picks."""
        m, step = self.m, self.dtype.itemsize
        ((_, row),) = self._picked(index)
        for left, right in pairs:
            held = m.stack(-(-left.size * step // 8))
            m.store(left, held, np.arange(left.size))
            with m.loop(I64(0), I64(left.size)) as k:
                one = ir.VectorType(register_type(self.dtype), 1)
                scalar = m.b.load(m.offset(held, k, step), align=step, typ=one)
                parts = [
                    m.b.fmul(m.splat(scalar, 0, c.type.count), c, flags=("contract",))
                    for c in right.chunks
                ]
                self._add(m.offset(row, k, right.size * step), dataclasses.replace(
                    right, chunks=tuple(parts)
                ))  # fmt: skip

    def _picked(self, index: Sequence[Vec]) -> Iterator[tuple[int, ir.Value]]:
        """Where each picked row lies; a row that is dropped lies in a place that nobody reads."""
        m, size = self.m, math.prod(self.rows.row) * self.dtype.itemsize
        for which in range(math.prod(self.rows.batch)):
            number, inside = number_of(m, self.rows, index, which)
            row = m.offset(self.pointer, number, size)
            if inside is not None:
                nowhere = m.stack(-(-size // 8))
                row = m.b.select(inside, row, nowhere)
            yield which, row

    def _add(self, pointer: ir.Value, update: Vec) -> None:
        m, places = self.m, np.arange(update.size)
        before = m.load(pointer, self.dtype, places)
        m.store(combiner(m, "sum", self.dtype)(before, update), pointer, places)
