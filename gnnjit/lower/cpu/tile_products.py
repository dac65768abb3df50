"""Products of a tile of edges with matrices, and the memory that they read and write."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
from llvmlite import ir

from gnnjit.ir.program import Value
from gnnjit.lower.cpu.control_flow import Emitter
from gnnjit.lower.cpu.edge_tiles import TileArray, TileFactor, TileProduct
from gnnjit.lower.cpu.lines_ahead import Ahead, LinesAhead
from gnnjit.lower.cpu.matvec import register_dtype
from gnnjit.lower.cpu.register_blocks import MOST_ROWS, WIDE, add_product, rows_of_block
from gnnjit.lower.cpu.simd import I64
from gnnjit.lower.cpu.stored import Stored

INT32 = np.dtype(np.int32)

ROOM = MOST_ROWS
"""Edges that a tile's memory has room for beyond the tile: a block of rows may end there."""


@dataclasses.dataclass(frozen=True)
class TileMemory:
    """A tile's memory: for each value an array of all edges of the tile.

    start: a pointer. size: edges. position: which edge of the tile is at hand.
    """

    m: Emitter
    start: ir.Value
    size: int
    position: ir.Value | None = None

    def array(self, at: int) -> ir.Value:
        return self.m.offset(self.start, at * (self.size + ROOM), 1)

    def element(self, array: TileArray) -> ir.Value:
        assert self.position is not None
        return self.m.offset(self.array(array.at), self.position, array.step)

    def value(self, value: Value, array: TileArray) -> Stored:
        """A value of the edge at hand."""
        return Stored(self.element(array), value.dtype, register_dtype(value.dtype), value.size)

    def factor(self, factor: TileFactor) -> Stored:
        """A factor of outer products."""
        kind, size = register_dtype(factor.dtype), math.prod(factor.value.shape)
        return Stored(self.element(factor.array), factor.dtype, kind, size)

    def operand(self, product: TileProduct) -> Stored:
        """What a product multiplies."""
        size = product.plan.places.size
        return Stored(self.element(product.operand), product.dtype, product.dtype, size)


@dataclasses.dataclass(frozen=True)
class EdgeRows:
    """Rows of an array that a product writes its results to as well.

    numbers: a pointer to the row of each edge of the tile, of a dtype. past_caches: see
        `Emitter.store`.
    """

    array: ir.Value
    numbers: ir.Value
    dtype: np.dtype
    past_caches: bool

    def name(self) -> str:
        """Tells the code that writes them from other such code."""
        return f"written_{self.dtype.name}_{self.past_caches}"


@dataclasses.dataclass(frozen=True)
class TileMatmul:
    """`[count, inner] @ [inner, columns]`, block by block of the result in registers.

    registers: vectors of a block at most.
    steps: bytes from one row to the next, of both arrays.
    batch: of a row of so many products of their own, one after the other, matrices likewise.
    sorted: rows are taken in an order that is given.
    asking: for what each block asks.
    written: where results go as well, of the rows before `until`.
    """

    m: Emitter
    dtype: np.dtype
    inner: int
    columns: int
    registers: int
    steps: tuple[int, int]
    batch: int = 1
    sorted: bool = False
    asking: LinesAhead | None = None
    written: EdgeRows | None = None
    until: ir.Value | None = None

    def call(
        self,
        arrays: tuple[ir.Value, ir.Value],
        matrix: ir.Value,
        rows: tuple[ir.Value, ...],
        ahead: Sequence[Ahead] = (),
        count: int = 1,
        written: EdgeRows | None = None,
    ) -> None:
        """arrays: the left factors, and where results go. ahead: what is asked for meanwhile, where
        there are as many as `count` rows. written: where results go as well.

        rows: since, until and order: of the rows `since .. until`, or, where they are sorted, of
            those that `order` (`int32`) has there. If they are not, both arrays have room for a
            whole number of blocks beyond them, and order is not read.
        """
        kind = "sorted" if self.sorted else "matmul"
        sizes = (self.inner, self.columns, self.batch, *self.steps, self.registers)
        lines = [a.lines(self._blocks(count)) for a in ahead]
        name = "_".join(map(str, (kind, self.dtype.name, *sizes, *lines)))
        more = [a.start for a in ahead]
        if written is not None:
            name, more = f"{name}_{written.name()}", [*more, written.array, written.numbers]
        emit = functools.partial(self._emit, lines, written)
        self.m.call_shared(name, emit, *arrays, matrix, *rows, *more)

    def _blocks(self, rows: int) -> int:
        """About how many the results of so many rows are."""
        widths = self.m.widths(min(self.columns, WIDE * self.m.lanes))
        return -(-self.columns // sum(widths)) * -(-rows // self.tall(widths))

    def _emit(
        self, lines: Sequence[int], written: EdgeRows | None, m: Emitter, *given: ir.Value
    ) -> None:
        left, result, matrix, *rest = given
        rows, rest = rest[:3], rest[3:]
        asking = LinesAhead(m, rest[: len(lines)], lines) if lines else None
        if written is not None:
            written = dataclasses.replace(written, array=rest[-2], numbers=rest[-1])
        own = dataclasses.replace(self, m=m, asking=asking, written=written, until=rows[1])
        item = self.dtype.itemsize
        if self.batch == 1:
            own._columns((left, matrix, result), rows)
            return
        sizes = self.inner, self.inner * self.columns, self.columns
        with m.loop(I64(0), I64(self.batch)) as k:
            pairs = zip((left, matrix, result), sizes, strict=True)
            own._columns(tuple(m.offset(x, k, n * item) for x, n in pairs), rows)

    def _columns(self, arrays: tuple[ir.Value, ...], rows: Sequence[ir.Value]) -> None:
        m, wide = self.m, WIDE * self.m.lanes
        full = self.columns - self.columns % wide
        if full:
            with m.loop(I64(0), I64(full), wide) as column:
                self._strip(arrays, rows, column, [m.lanes] * WIDE)
        if full < self.columns:
            self._strip(arrays, rows, I64(full), m.widths(self.columns - full))

    def _strip(
        self, arrays: tuple[ir.Value, ...], rows: Sequence[ir.Value],
        column: ir.Value, widths: list[int],
    ) -> None:  # fmt: skip
        m, b, tall = self.m, self.m.b, self.tall(widths)
        since, until, order = rows
        if not self.sorted:
            with m.loop(since, until, tall) as first:
                each = [b.add(first, I64(k)) for k in range(tall)]
                self._block(arrays, each, column, widths)
            return
        last = b.sub(until, I64(1))

        def take(first: ir.Value, count: int) -> None:
            # Beyond the last row it is taken again, to the same bits.
            at = [m.smaller(b.add(first, I64(k)), last) for k in range(count)]
            self._block(arrays, [m.index(order, k, INT32) for k in at], column, widths)

        low = tall // 2
        rest = b.srem(b.sub(until, since), I64(tall))
        few = b.and_(b.icmp_signed(">", rest, I64(0)), b.icmp_signed("<=", rest, I64(low)))
        end = b.select(few, b.sub(until, rest), until)
        with m.loop(since, end, tall) as first:
            take(first, tall)
        with m.when(few):
            take(end, low)

    def tall(self, widths: Sequence[int]) -> int:
        """Rows of a block."""
        return rows_of_block(self.registers, len(widths))

    def _block(
        self, arrays: tuple[ir.Value, ...], each: Sequence[ir.Value],
        column: ir.Value, widths: list[int],
    ) -> None:  # fmt: skip
        m, b, item, size = self.m, self.m.b, self.dtype.itemsize, sum(widths)
        left, matrix, result = arrays
        if self.asking:
            self.asking.ask()
        places = np.arange(size)
        zero = m.literal(self.dtype, 0, size)
        sums = [m.variable(zero) for _ in each]
        for place in sums:
            m.assign(place, zero)
        rows = [m.offset(left, n, self.steps[0]) for n in each]
        strip = m.offset(matrix, column, item)
        add_product(m, rows, strip, (self.inner, self.columns), sums, zero)
        for n, place in zip(each, sums, strict=True):
            row, found = m.offset(result, n, self.steps[1]), m.value_of(place, zero)
            m.store(found, m.offset(row, column, item), places)
            if self.written:
                with m.when(b.icmp_signed("<", n, self.until)):
                    edge = m.index(self.written.numbers, n, self.written.dtype)
                    at = m.offset(self.written.array, edge, self.columns * item)
                    at, past = m.offset(at, column, item), self.written.past_caches
                    m.store(found, at, places, past_caches=past)
