"""The edges of a tile by the row of a table that each picks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from llvmlite import ir

from gnnjit.lower.cpu import tables
from gnnjit.lower.cpu.control_flow import Emitter
from gnnjit.lower.cpu.edge_tiles import Grouping, TileProduct
from gnnjit.lower.cpu.simd import I32, I64, Vec
from gnnjit.lower.cpu.tile_products import INT32, TileMemory


@dataclasses.dataclass(frozen=True)
class SortedTile:
    """Emits the order of a tile's edges. bytes_each: of the tile's memory, for each edge."""

    tile: TileMemory
    grouping: Grouping
    bytes_each: int

    @property
    def m(self) -> Emitter:
        return self.tile.m

    @property
    def order(self) -> ir.Value:
        """`int32`: the edges by row."""
        return self.tile.array(self.grouping.order)

    @property
    def _key(self) -> ir.Value:
        return self.tile.array(self.grouping.key)

    def put(self, index: Sequence[Vec]) -> None:
        """The edge at hand picks the row that `index` says."""
        b = self.m.b
        number, inside = tables.number_of(self.m, self.grouping.rows, index)
        if inside is not None:
            number = b.select(inside, number, I64(self.grouping.count))
        self._put(self._key, self.tile.position, number)

    def sort(self, count: ir.Value) -> None:
        """A counting sort of `count` edges, stable."""
        b, m, rows = self.m.b, self.m, self.grouping.count
        with m.loop(I64(0), I64(rows + 2)) as row:
            b.store(I64(0), self._place(row))
        with m.loop(I64(0), count) as edge:  # counted one place further on, where a row ends
            self._next_of(b.add(m.index(self._key, edge, INT32), I64(1)))
        with m.loop(I64(1), I64(rows + 1)) as row:
            total = b.add(self._start(b.sub(row, I64(1))), self._start(row))
            b.store(total, self._place(row))
        with m.loop(I64(0), count) as edge:
            self._put(self.order, self._next_of(m.index(self._key, edge, INT32)), edge)
        # Each place has moved on to the next row's.
        with m.loop(I64(0), I64(rows + 1)) as step:
            row = b.sub(I64(rows + 1), step)
            b.store(self._start(b.sub(row, I64(1))), self._place(row))
        b.store(I64(0), self._place(I64(0)))

    def bounds(self, row: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Where the edges of a row are in `order`."""
        return self._start(row), self._start(self.m.b.add(row, I64(1)))

    def fill(self, product: TileProduct) -> None:
        """The results of edges that pick no row of the table."""
        m, fill = self.m, self.grouping.rows.fill
        if fill is None:
            return
        size = product.plan.places.shape[0] * product.plan.columns
        value, item = m.literal(product.dtype, fill), product.dtype.itemsize
        with m.loop(*self.bounds(I64(self.grouping.count))) as at:
            edge = m.index(self.order, at, INT32)
            row = m.offset(self.tile.array(product.result.at), edge, product.result.step)
            with m.loop(I64(0), I64(size)) as column:
                m.store(value, m.offset(row, column, item), np.arange(1))

    def _place(self, row: ir.Value) -> ir.Value:
        starts = self.m.offset(self.tile.array(self.bytes_each), self.grouping.starts, 1)
        return self.m.b.gep(starts, [row], source_etype=I64)

    def _start(self, row: ir.Value) -> ir.Value:
        return self.m.b.load(self._place(row), typ=I64)

    def _next_of(self, row: ir.Value) -> ir.Value:
        found = self._start(row)
        self.m.b.store(self.m.b.add(found, I64(1)), self._place(row))
        return found

    def _put(self, array: ir.Value, at: ir.Value | None, value: ir.Value) -> None:
        self.m.b.store(self.m.b.trunc(value, I32), self.m.b.gep(array, [at], source_etype=I32))
