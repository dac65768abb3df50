"""Sums of outer products `left right^T` of some elements, tile by tile of the sum.

A tile grows in registers while the elements pass by; then it is added to the sum in memory. So an
element's product costs its multiplications, not a pass over the sum.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
from llvmlite import ir

from gnnjit.lower.cpu.control_flow import Emitter
from gnnjit.lower.cpu.index_rules import combiner
from gnnjit.lower.cpu.lines_ahead import Ahead, LinesAhead
from gnnjit.lower.cpu.register_blocks import ask_for_lines, grown, scalar
from gnnjit.lower.cpu.simd import I64, PTR, Vec

COLLECTED_BYTES = 16384
"""Bytes of collected factors: they stay in the nearest cache."""

SOME = 24
"""Elements whose factors are read from memory that are multiplied at a time at most."""

WAYS, APART = 8, 4096
"""Lines that the nearest cache has for one place at least, and bytes from a line to the next one
with the same place."""

Arrays = tuple[ir.Value, ir.Value]
"""Pointers to the left factors `[elements, num_left]` and the right ones `[elements, num_right]`,
row-major, of floats as they are in registers."""


@dataclasses.dataclass(frozen=True)
class Products:
    """Code for one sum `[num_left, num_right]`, or for `batch` of them, one after the other, as
    the factors of an element are.

    total: a pointer to it.
    registers: vectors of a tile at most.
    steps: bytes from one element's left and right factors to the next one's; None: they lie side by
        side.
    asking: for what each tile asks.
    """

    m: Emitter
    dtype: np.dtype
    num_left: int
    num_right: int
    total: ir.Value
    registers: int
    batch: int = 1
    steps: tuple[int, int] | None = None
    asking: LinesAhead | None = None

    @property
    def factor_bytes(self) -> tuple[int, int]:
        """Bytes from one element's left and right factors to the next one's."""
        each = self.batch * self.dtype.itemsize
        return self.steps or (self.num_left * each, self.num_right * each)

    def clear(self) -> None:
        """Begin with zero."""
        zero, size = self.m.literal(self.dtype, 0), self.batch * self.num_left * self.num_right
        with self.m.loop(I64(0), I64(size)) as at:
            self.m.store(zero, self.m.offset(self.total, at, self.dtype.itemsize), np.arange(1))

    def add(
        self, arrays: Arrays, since: ir.Value, until: ir.Value, ahead: Sequence[Ahead] = ()
    ) -> None:
        """Add the products of the elements `since .. until`. ahead: what is asked for meanwhile."""
        sizes = (
            self.num_left, self.num_right, self.batch, *self.factor_bytes, self.registers
        )  # fmt: skip
        lines = [a.lines(self._blocks()) for a in ahead]
        name = "_".join(map(str, ("outer", self.dtype.name, *sizes, *lines)))
        emit, starts = functools.partial(self._emit, lines), [a.start for a in ahead]
        self.m.call_shared(name, emit, *arrays, self.total, since, until, *starts)

    def add_many(self, arrays: Arrays, since: ir.Value, until: ir.Value) -> None:
        """As `add`, of any number of elements whose factors come from memory: as many at a time as
        the nearest cache has room for, asking for the next ones."""
        b, m, some = self.m.b, self.m, min(map(_near, self.factor_bytes))
        with m.loop(since, until, some) as start:
            end = m.smaller(b.add(start, I64(some)), until)
            pairs = zip(arrays, self.factor_bytes, strict=True)
            self.add(arrays, start, end, [Ahead(m.offset(x, end, n), some * n) for x, n in pairs])

    def _blocks(self) -> int:
        """About how many the sum has."""
        side = math.isqrt(self.registers)
        strips = -(-self.num_right // (side * self.m.lanes))
        return self.batch * strips * -(-self.num_left // (self.registers // side))

    def _emit(
        self, lines: Sequence[int], m: Emitter, left: ir.Value, right: ir.Value,
        total: ir.Value, since: ir.Value, until: ir.Value, *starts: ir.Value,
    ) -> None:  # fmt: skip
        asking = LinesAhead(m, starts, lines) if lines else None
        item = self.dtype.itemsize
        own = dataclasses.replace(self, m=m, total=total, asking=asking)
        if self.batch == 1:
            own._columns((left, right), (since, until))
            return
        with m.loop(I64(0), I64(self.batch)) as k:
            part = m.offset(total, k, self.num_left * self.num_right * item)
            arrays = (
                m.offset(left, k, self.num_left * item), m.offset(right, k, self.num_right * item)
            )  # fmt: skip
            dataclasses.replace(own, total=part)._columns(arrays, (since, until))

    def _columns(self, arrays: Arrays, span: tuple[ir.Value, ir.Value]) -> None:
        m = self.m
        side = math.isqrt(self.registers)  # nearly as many rows as vectors: little is loaded then
        wide = side * m.lanes
        full = self.num_right - self.num_right % wide
        if full:
            with m.loop(I64(0), I64(full), wide) as column:
                self._strip(arrays, span, column, [m.lanes] * side)
        if full < self.num_right:
            self._strip(arrays, span, I64(full), m.widths(self.num_right - full))

    def _strip(
        self, arrays: Arrays, span: tuple[ir.Value, ir.Value], column: ir.Value, widths: list[int]
    ) -> None:
        tall = self.registers // len(widths)
        rest = self.num_left % tall
        with self.m.loop(I64(0), I64(self.num_left - rest), tall) as first:
            self._tile(arrays, span, first, tall, column, widths)
        if rest:
            self._tile(arrays, span, I64(self.num_left - rest), rest, column, widths)

    def _tile(
        self,
        arrays: Arrays,
        span: tuple[ir.Value, ir.Value],
        first: ir.Value,
        tall: int,
        column: ir.Value,
        widths: list[int],
    ) -> None:
        m, b, size, places = self.m, self.m.b, self.dtype.itemsize, np.arange(sum(widths))
        if self.asking:
            self.asking.ask()
        left_array, right_array = arrays
        rows = [b.add(first, I64(i)) for i in range(tall)]
        at = [m.offset(self.total, b.add(b.mul(r, I64(self.num_right)), column), size)
              for r in rows]  # fmt: skip
        zero = m.literal(self.dtype, 0, sum(widths))
        kept = [m.variable(zero) for _ in rows]
        for place in kept:
            m.assign(place, zero)
        for pointer in at:
            ask_for_lines(m, pointer, zero)
        with m.loop(*span) as element:
            left, right = (
                m.offset(array, element, step)
                for array, step in zip((left_array, right_array), self.factor_bytes, strict=True)
            )
            factor = m.load(m.offset(right, column, size), self.dtype, places)
            for row, place in zip(rows, kept, strict=True):
                multiple = scalar(m, m.offset(left, row, size), self.dtype)
                m.assign(place, grown(m, m.value_of(place, factor), multiple, factor))
        for place, pointer in zip(kept, at, strict=True):
            before = m.load(pointer, self.dtype, places)
            sums = combiner(m, "sum", self.dtype)(before, m.value_of(place, zero))
            m.store(sums, pointer, places)


def _near(step: int) -> int:
    """Elements so many bytes apart whose lines have places of their own."""
    return min(SOME, WAYS * APART // math.gcd(step, APART))


class Collector:
    """Collects the factors of some elements, and multiplies them when there is no more room.

    It is made in the code before the loop over the elements.
    """

    def __init__(
        self, m: Emitter, sums: Sequence[Products], memory: tuple[ir.Value, int] | None = None,
        moving: bool = False,
    ):  # fmt: skip
        """memory: a pointer to room for the factors of so many elements; by default, some on the
        stack. moving: `start` says where the sums are, again and again."""
        self.m, self.sums = m, sums
        sizes = [p.factor_bytes for p in sums]
        self.room = max(8, min(64, COLLECTED_BYTES // sum(map(sum, sizes))))
        if memory is None:
            self.arrays = [
                (m.stack(-(-left * self.room // 8)), m.stack(-(-right * self.room // 8)))
                for left, right in sizes
            ]
        else:
            start, self.room = memory
            ends = np.cumsum([0, *(n * self.room for pair in sizes for n in pair)])
            places = [m.offset(start, int(end), 1) for end in ends[:-1]]
            self.arrays = list(zip(places[::2], places[1::2], strict=True))
        with m.b.goto_entry_block():
            self.count = m.b.alloca(I64)
            self.totals = [m.b.alloca(PTR) for _ in sums] if moving else []
        m.b.store(I64(0), self.count)
        if not moving:
            for products in sums:
                products.clear()

    def start(self, totals: Sequence[ir.Value]) -> None:
        """The elements that follow belong to other sums; those before them are multiplied."""
        for place, total, products in zip(self.totals, totals, self.sums, strict=True):
            self.m.b.store(total, place)
            dataclasses.replace(products, total=total).clear()

    def take(self, factors: Sequence[tuple[Vec, Vec]]) -> None:
        """One element's factors of each sum."""
        vectors = [vec for pair in factors for vec in pair]
        for vec, pointer in zip(vectors, self.places(), strict=True):
            self.m.store(vec, pointer, np.arange(vec.size))
        self.next()

    def places(self) -> list[ir.Value]:
        """Where an element's factors of each sum go, left and right."""
        m, at = self.m, self.m.b.load(self.count, typ=I64)
        out = []
        for (left, right), products in zip(self.arrays, self.sums, strict=True):
            steps = products.factor_bytes
            out += [m.offset(left, at, steps[0]), m.offset(right, at, steps[1])]
        return out

    def next(self) -> None:
        """An element's factors are there."""
        m, b = self.m, self.m.b
        more = b.add(b.load(self.count, typ=I64), I64(1))
        b.store(more, self.count)
        with m.when(b.icmp_signed("==", more, I64(self.room))):
            self.multiply()

    def multiply(self) -> None:
        """Add what was collected to the sums."""
        sums = self.sums
        if self.totals:
            totals = [self.m.b.load(place, typ=PTR) for place in self.totals]
            pairs = zip(sums, totals, strict=True)
            sums = [dataclasses.replace(p, total=total) for p, total in pairs]
        for products, arrays in zip(sums, self.arrays, strict=True):
            products.add(arrays, I64(0), self.m.b.load(self.count, typ=I64))
        self.m.b.store(I64(0), self.count)
