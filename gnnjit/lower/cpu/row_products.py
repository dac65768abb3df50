"""Sums over products of rows with matrices, several of them in one pass over the rows.

    result[n] = bias + sum over its products of x[n] @ w + sum over its addends of y[n] / d[n]

XLA multiplies, writes, reads and adds, one array after the other. Here a block of a result stays in
registers while all that is added to it passes by, and what several results are made of is read
while it is near. Each row of a result is computed by itself: the same bits on any number of threads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from llvmlite import ir

from gnnjit.ir.program import Program, Reduce, Value
from gnnjit.ir.space import Space
from gnnjit.lower.cpu import ffi_abi
from gnnjit.lower.cpu.ffi_handler import Handler
from gnnjit.lower.cpu.index_rules import combiner
from gnnjit.lower.cpu.simd import I64, PTR, Vec, register_type
from gnnjit.lower.cpu.spec import INT32, CodeConfig, Spec
from gnnjit.lower.lowering import RowResult

PIECE = 480
"""Rows of one task."""

NEAR = 48
"""Rows that all results are computed of before the next rows are: what they read stays near."""

WIDE = 4
"""Vectors of a block of a result at most; its rows take the other registers."""

MOST_ROWS = 8
"""Rows of a block at most."""


def spec_of(count: int, results: Sequence[RowResult], dtype: np.dtype, config: CodeConfig) -> Spec:
    """What `Handler` asks of a kernel: arrays and tasks. `count`: of the operands."""
    operands = tuple(Value((), dtype, Space.SRC) for _ in range(count))
    outs = tuple(Value((r.columns,), dtype, Space.DST) for r in results)
    config = dataclasses.replace(config, piece=PIECE, tile=0)
    reductions = (Reduce("sum", Space.DST),) * len(outs)
    return Spec(Program(operands, (), outs, "rows"), reductions, Space.DST, INT32, config)


class RowProducts(Handler):
    """A kernel whose task computes some consecutive rows of all results."""

    def __init__(self, results: Sequence[RowResult], spec: Spec, module: ir.Module):
        super().__init__(spec, module)
        self.results, self.record = results, 0
        (self.dtype,) = {v.dtype for v in spec.body.outputs}
        self.registers = 24 if spec.config.lanes_bytes == 64 else 12

    def call_arrays(self, frame: ir.Value) -> tuple[list[ir.Value], tuple[ir.Value, ...]]:
        body = self.spec.body
        operands = [self.buffer(frame, ffi_abi.FRAME_ARGS, i) for i in range(len(body.inputs))]
        results = [self.buffer(frame, ffi_abi.FRAME_RETS, i) for i in range(len(body.outputs))]
        arrays = [self.data(x) for x in (*operands, *results)]
        rows = self.length(results[0])
        return [arrays[0]] * self.spec.index_arrays + arrays, (I64(0), rows, rows, I64(0))

    def vectors_of_row(self) -> int:
        """Roughly the vector operations of a row."""
        sizes = ((1 + sum(inner for _, _, inner in r.products), r.columns) for r in self.results)
        return sum(-(-columns // self.spec.lanes) * depth for depth, columns in sizes)

    def emit_finish(self) -> None:
        """Nothing is left to do after the tasks."""
        self.begin("finish")
        self.b.ret_void()

    def emit_task(self, name: str) -> None:
        task, _, _ = self.begin(name, I64, I64, PTR)
        b, m = self.b, self.m
        low = b.mul(task, I64(self.piece))
        high = m.smaller(b.add(low, I64(self.piece)), self.slots)
        with m.loop(low, high, NEAR) as since:
            until = m.smaller(b.add(since, I64(NEAR)), high)
            for number, result in enumerate(self.results):
                self._rows(number, result, since, until)
        b.ret_void()

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
        tall = min(MOST_ROWS, self.registers // len(widths))
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
            for x, w, inner in result.products:
                self._multiply((x, w, inner, result.columns), each, sums, column, zero)
            for row, place in zip(each, sums, strict=True):
                at = b.add(b.mul(row, I64(result.columns)), column)
                total = m.value_of(place, zero)
                for y, divisor in result.addends:
                    total = self._plus(total, m.offset(self.operand(y), at, item), divisor, row)
                m.store(total, m.offset(self.output(number), at, item), np.arange(size))

    def _multiply(
        self, product: tuple[int, int, int, int], each: Sequence[ir.Value],
        sums: Sequence[tuple[ir.Value, ...]], column: ir.Value, like: Vec,
    ) -> None:  # fmt: skip
        """Add the product of some rows to their sums."""
        m, b, item = self.m, self.m.b, self.dtype.itemsize
        x, w, inner, columns = product
        rows = [m.offset(self.operand(x), n, inner * item) for n in each]
        strip = m.offset(self.operand(w), column, item)
        with m.loop(I64(0), I64(inner)) as k:
            right = m.load(m.offset(strip, k, columns * item), self.dtype, np.arange(like.size))
            for row, place in zip(rows, sums, strict=True):
                left = self._scalar(m.offset(row, k, item))
                m.assign(place, self._grown(m.value_of(place, like), left, right))

    def _plus(
        self, total: Vec, pointer: ir.Value, divisor: int | None = None, row: ir.Value | None = None
    ) -> Vec:
        m = self.m
        more = m.load(pointer, self.dtype, np.arange(total.size))
        if divisor is None:
            return combiner(m, "sum", self.dtype)(total, more)
        assert row is not None
        left = self._scalar(m.offset(self.operand(divisor), row, self.dtype.itemsize))
        return self._grown(total, m.b.fdiv(m.like(left, 1), left), more)

    def _scalar(self, pointer: ir.Value) -> ir.Value:
        kind = ir.VectorType(register_type(self.dtype), 1)
        return self.m.b.load(pointer, align=self.dtype.itemsize, typ=kind)

    def _grown(self, total: Vec, left: ir.Value, right: Vec) -> Vec:
        """`total + left * right`, with a scalar `left`."""
        m, pairs = self.m, zip(right.chunks, total.chunks, strict=True)
        chunks = [m.intrinsic("fma", m.splat(left, 0, r.type.count), r, t) for r, t in pairs]
        return Vec(total.dtype, total.size, tuple(chunks))

    def _takes(self, work: int) -> ir.Value:
        return self.b.icmp_signed(">", self.keys, I64(-(-work // self.vectors_of_row())))
