"""Sums over products of rows with matrices, several of them in one pass over the rows.

    result[n] = bias + sum over its products of x[n] @ w + sum over its addends of y[n] / d[n]
    tall      = sum over n of left[n] x[n]^T, the gradient of a matrix w

XLA multiplies, writes, reads and adds, one array after the other. Here a block of a result stays in
registers while all that is added to it passes by, and what several results are made of is read
while it is near. Rows `x` may be sums over edges: then they are never written, but to a buffer of a
few rows. Each row of a result is computed by itself, and records of tasks are added up in order:
the same bits on any number of threads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from llvmlite import ir

from gnnjit.ir.program import Program, Reduce, Value
from gnnjit.ir.space import Space
from gnnjit.lower.cpu.calls import Fact
from gnnjit.lower.cpu.control_flow import Emitter
from gnnjit.lower.cpu.ffi_handler import Handler
from gnnjit.lower.cpu.index_rules import combiner
from gnnjit.lower.cpu.job import Word
from gnnjit.lower.cpu.matvec import SharedMatrix
from gnnjit.lower.cpu.outer_products import Products
from gnnjit.lower.cpu.register_blocks import WIDE, add_product, grown, rows_of_block, scalar
from gnnjit.lower.cpu.simd import I64, PTR, Vec
from gnnjit.lower.cpu.spec import INT32, CodeConfig, Spec
from gnnjit.lower.row_results import Neighbours, RowProduct, RowResult, Source, TallResult

PIECE, TALL_PIECE = 480, 1920
"""Rows of one task, and where each has a copy of the tall results."""

NEAR = 48
"""Rows that all results are computed of before the next rows are: what they read stays near."""

AHEAD = 16
"""Edges ahead whose rows are asked for."""


@dataclasses.dataclass(frozen=True)
class RowSums:
    """What a kernel computes. count: of its operands."""

    count: int
    dtype: np.dtype
    results: tuple[RowResult, ...]
    talls: tuple[TallResult, ...] = ()

    def spec(self, config: CodeConfig) -> Spec:
        """What `Handler` asks of a kernel: arrays and tasks."""
        operands = tuple(Value((), self.dtype, Space.SRC) for _ in range(self.count))
        outs = [Value((r.columns,), self.dtype, Space.DST) for r in self.results]
        outs += [Value(t.shape, self.dtype, Space.SHARED) for t in self.talls]
        into = [Space.DST] * len(self.results) + [Space.SHARED] * len(self.talls)
        piece = TALL_PIECE if self.talls else PIECE
        config = dataclasses.replace(config, piece=piece, tile=0)
        body = Program(operands, (), tuple(outs), "rows")
        reductions = tuple(Reduce("sum", space) for space in into)
        return Spec(body, reductions, Space.DST, INT32, config)

    @property
    def turned(self) -> dict[int, tuple[int, int]]:
        """The operands that are matrices to be turned, and their shapes."""
        pairs = ((p, r.columns) for r in self.results for p in r.products)
        return {p.w: (columns, p.inner) for p, columns in pairs if p.turned}

    @property
    def gathered(self) -> dict[Neighbours, int]:
        """The rows that are sums over edges, and their widths."""
        found = {p.x: p.inner for r in self.results for p in r.products}
        found |= {t.right: t.shape[1] for t in self.talls}
        return {x: n for x, n in found.items() if isinstance(x, Neighbours)}


class RowProducts(Handler):
    """A kernel whose task computes some consecutive rows of all results."""

    def __init__(self, sums: RowSums, spec: Spec, module: ir.Module):
        super().__init__(spec, module)
        self.sums, self.dtype = sums, sums.dtype
        self.block = spec.block_registers
        self.turned: dict[int, tuple[int, SharedMatrix]] = {}
        at = 0
        for k, shape in sums.turned.items():
            matrix = SharedMatrix(Value(shape, sums.dtype, Space.SHARED), (1, 0), sums.dtype)
            self.turned[k] = at, matrix
            at += matrix.room

    def packed(self) -> list[tuple[int, int, SharedMatrix]]:
        return [(k, at, matrix) for k, (at, matrix) in self.turned.items()]

    def facts(self) -> dict[Fact, int | ir.Constant]:
        count = self.sums.count
        own = {Fact.ROWS: 0, Fact.ELEMENTS: count, Fact.GIVEN: 0, Fact.ARGUMENTS: count}
        return super().facts() | own

    def vectors_of_key(self) -> int:
        """Edges left out."""
        pairs = [(1 + sum(p.inner for p in r.products), r.columns) for r in self.sums.results]
        pairs += [t.shape for t in self.sums.talls]
        return sum(depth * -(-columns // self.spec.lanes) for depth, columns in pairs)

    def emit_finish(self) -> None:
        """Adds up the records of the tasks."""
        self.begin("finish")
        for acc in self.of_all:
            self._combine_all(acc, self.word(Word.ROW_TASKS))
        self.b.ret_void()

    def emit_task(self, name: str) -> None:
        task, _, _ = self.begin(name, I64, I64, PTR)
        b, m = self.b, self.m
        low = b.mul(task, I64(self.piece))
        high = m.smaller(b.add(low, I64(self.piece)), self.slots)
        item, room = self.dtype.itemsize, self.sums.gathered
        memory = m.allocate(I64(NEAR * item * sum(room.values()))) if room else None
        talls = self._records(task)
        for products in talls:
            products.clear()
        with m.loop(low, high, NEAR) as since:
            until = m.smaller(b.add(since, I64(NEAR)), high)
            self.first: dict[Source, ir.Value] = {}
            at = 0
            for source, inner in room.items():
                self.first[source] = m.offset(memory, at, item)
                self._gather(source, inner, since, until)
                at += NEAR * inner
            for number, result in enumerate(self.sums.results):
                self._rows(number, result, since, until)
            for tall, products in zip(self.sums.talls, talls, strict=True):
                left = m.offset(self.operand(tall.left), since, tall.shape[0] * item)
                right = self._start(tall.right, since, tall.shape[1])
                products.add_many((left, right), I64(0), b.sub(until, since))
        if memory is not None:
            m.call("free", ir.VoidType(), [memory])
        b.ret_void()

    def _records(self, task: ir.Value) -> list[Products]:
        """The sums of outer products of a task."""
        record, m = self.m.offset(self.partial, task, self.record), self.m
        return [
            Products(m, acc.dtype, *tall.shape, m.offset(record, acc.leading, 1), self.block)
            for acc, tall in zip(self.of_all, self.sums.talls, strict=True)
        ]

    def _start(self, source: Source, row: ir.Value, width: int) -> ir.Value:
        """Where rows are from `row` on, the first of those that are near."""
        if isinstance(source, Neighbours):
            return self.first[source]
        return self.m.offset(self.operand(source), row, width * self.dtype.itemsize)

    # -- rows that are sums over edges ------------------------------------------------------

    def _gather(self, source: Neighbours, width: int, since: ir.Value, until: ir.Value) -> None:
        indptr, neighbor = (np.dtype(name) for name in source.index)
        name = f"gather_{source.index}_{width}_{source.factor is None}_{source.divisor is None}"
        given = [source.table, source.indptr, source.neighbor, source.factor, source.divisor]
        arrays = [self.operand(0 if k is None else k) for k in given]

        def emit(m: Emitter, *found: ir.Value) -> None:
            *pointers, target, low, high, rows = found
            gather = _Gather(m, self.dtype, width, (indptr, neighbor), tuple(pointers))
            gather.run(source, target, (low, high), rows)

        target = self.first[source]
        self.m.call_local(name, emit, *arrays, target, since, until, self.slots)

    # -- results of rows --------------------------------------------------------------------

    def _rows(self, number: int, result: RowResult, since: ir.Value, until: ir.Value) -> None:
        m, wide = self.m, WIDE * self.m.lanes
        full = result.columns - result.columns % wide
        if full:
            with m.loop(I64(0), I64(full), wide) as column:
                self._strip(number, result, (since, until), column, [m.lanes] * WIDE)
        if full < result.columns:
            widths = m.widths(result.columns - full)
            self._strip(number, result, (since, until), I64(full), widths)

    def _strip(
        self, number: int, result: RowResult, span: tuple[ir.Value, ir.Value],
        column: ir.Value, widths: list[int],
    ) -> None:  # fmt: skip
        """Some columns of rows, block by block. Beyond the last row it is taken again."""
        m, b, item = self.m, self.m.b, self.dtype.itemsize
        tall = rows_of_block(self.block, len(widths))
        last, size = b.sub(span[1], I64(1)), sum(widths)
        with m.loop(*span, tall) as first:
            each = [m.smaller(b.add(first, I64(k)), last) for k in range(tall)]
            zero = m.literal(self.dtype, 0, size)
            sums = [m.variable(zero) for _ in each]
            start = zero
            for k in result.biases:
                start = self._plus(start, m.offset(self.operand(k), column, item))
            for place in sums:
                m.assign(place, start)
            for product in result.products:
                starts = self._start(product.x, span[0], product.inner)
                near = [b.sub(n, span[0]) for n in each]
                rows = [m.offset(starts, n, product.inner * item) for n in near]
                self._multiply(product, result.columns, rows, sums, column, zero)
            for row, place in zip(each, sums, strict=True):
                at = b.add(b.mul(row, I64(result.columns)), column)
                total = m.value_of(place, zero)
                for y, divisor in result.addends:
                    total = self._plus(total, m.offset(self.operand(y), at, item), divisor, row)
                m.store(total, m.offset(self.output(number), at, item), np.arange(size))

    def _multiply(
        self, product: RowProduct, columns: int, rows: Sequence[ir.Value],
        sums: Sequence[tuple[ir.Value, ...]], column: ir.Value, like: Vec,
    ) -> None:  # fmt: skip
        """Add the product of some rows to their sums."""
        matrix = self.operand(product.w)
        if product.turned:
            matrix = self.m.offset(self.copies, self.turned[product.w][0], 1)
        strip = self.m.offset(matrix, column, self.dtype.itemsize)
        add_product(self.m, rows, strip, (product.inner, columns), sums, like)

    def _plus(
        self, total: Vec, pointer: ir.Value, divisor: int | None = None, row: ir.Value | None = None
    ) -> Vec:
        m = self.m
        more = m.load(pointer, self.dtype, np.arange(total.size))
        if divisor is not None:
            assert row is not None
            below = m.offset(self.operand(divisor), row, self.dtype.itemsize)
            more = _divided(m, more, scalar(m, below, self.dtype))
        return combiner(m, "sum", self.dtype)(total, more)


@dataclasses.dataclass(frozen=True)
class _Gather:
    """Code that sums rows of a table over the edges of some rows.

    index: the dtypes of `indptr` and `neighbor`. arrays: table, indptr, neighbor, factor, divisor.
    """

    m: Emitter
    dtype: np.dtype
    width: int
    index: tuple[np.dtype, np.dtype]
    arrays: tuple[ir.Value, ...]

    def run(
        self, source: Neighbours, target: ir.Value, span: tuple[ir.Value, ir.Value], rows: ir.Value
    ) -> None:
        m, b, item = self.m, self.m.b, self.dtype.itemsize
        _, indptr, _, _, divisor = self.arrays
        zero, places = m.literal(self.dtype, 0, self.width), np.arange(self.width)
        last = b.sub(m.index(indptr, rows, self.index[0]), I64(1))
        with m.loop(*span) as row:
            sums = m.variable(zero)
            m.assign(sums, zero)
            since, until = (m.index(indptr, at, self.index[0]) for at in (row, b.add(row, I64(1))))
            with m.loop(since, until) as slot:
                m.assign(sums, self._edge(source, slot, last, m.value_of(sums, zero)))
            total = m.value_of(sums, zero)
            if source.divisor is not None:
                total = _divided(m, total, scalar(m, m.offset(divisor, row, item), self.dtype))
            m.store(total, m.offset(target, b.sub(row, span[0]), self.width * item), places)

    def _edge(self, source: Neighbours, slot: ir.Value, last: ir.Value, total: Vec) -> Vec:
        m, b, item = self.m, self.m.b, self.dtype.itemsize
        table, _, neighbor, factor, _ = self.arrays
        later = m.smaller(b.add(slot, I64(AHEAD)), last)
        ahead = m.offset(table, m.index(neighbor, later, self.index[1]), self.width * item)
        for line in range(0, self.width * item, 64):
            m.ask_for_line(m.offset(ahead, line, 1))
        end = m.index(neighbor, slot, self.index[1])
        row = m.load(m.offset(table, end, self.width * item), self.dtype, np.arange(self.width))
        if source.factor is None:
            return combiner(m, "sum", self.dtype)(total, row)
        return grown(m, total, scalar(m, m.offset(factor, end, item), self.dtype), row)


def _divided(m: Emitter, above: Vec, below: ir.Value) -> Vec:
    """`above / below`, with a scalar `below`."""
    chunks = [m.b.fdiv(c, m.splat(below, 0, c.type.count)) for c in above.chunks]
    return Vec(above.dtype, above.size, tuple(chunks))
