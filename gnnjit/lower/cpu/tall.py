"""`a.T @ b` of two tall arrays, the gradient of a matrix that multiplies every vertex.

XLA's dot transposes `a` on the way and takes three times as long. The product is a sum over all
elements, of outer products: it runs as a traversal does, each task into a record of its own,
records added up in order. So the result is the same bit for bit on any number of threads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
from jax import lax
from llvmlite import ir

from gnnjit.ir.build import emit_jax
from gnnjit.ir.program import Builder, Program, Reduce, Value
from gnnjit.ir.space import Space
from gnnjit.lower.cpu.handler import Handler
from gnnjit.lower.cpu.movement import combiner
from gnnjit.lower.cpu.spec import Config, Spec
from gnnjit.lower.cpu.traversal import Accumulator
from gnnjit.lower.cpu.vectors import I64, Vec, memory_type

PIECE = 4096
"""Elements of one task at least."""

NEAR_BYTES = 32768
"""Of `a` and `b` together, read again and again from the nearest cache."""

REGISTERS = 16
"""Vectors of the result that grow in registers at a time."""


def spec_of(left: int, right: int, dtype: np.dtype, config: Config) -> Spec:
    """The product as a traversal: the sum over all edges `u` of `a[u] b[u]^T`."""
    a, b = (Value((n,), dtype, Space.SRC) for n in (left, right))
    builder = Builder((a, b))
    outer = emit_jax(builder, lambda x, y: lax.dot_general(x, y, (((), ()), ((), ()))), [a, b])
    body = Program((a, b), tuple(builder.equations), (outer,), "tall")
    index = (np.dtype(np.int32),) * 3
    # The records of all tasks together stay small beside `a` and `b`.
    config = dataclasses.replace(config, piece=max(PIECE, left * right // 4))
    return Spec(body, (Reduce("sum", Space.SHARED),), Space.DST, index, config)


class TallProduct(Handler):
    """A kernel whose task multiplies some consecutive rows of `a` and `b`.

    There is one row, whose edges are the elements: its own key is 0, element `i` has key `i + 1`.
    """

    def emit_task(self, name: str) -> None:
        (task,) = self.begin(name, I64)
        b, m = self.b, self.m
        low = b.mul(task, I64(self.piece))
        since = m.larger(b.sub(low, I64(1)), I64(0))
        until = m.smaller(b.add(low, I64(self.piece - 1)), self.slots)
        (acc,) = self.of_all
        self.left, self.right = (v.shape[0] for v in self.spec.body.inputs)
        self.own = m.offset(m.offset(self.partial, task, self.record), acc.leading, 1)
        self._clear(acc)
        step = max(16, NEAR_BYTES // ((self.left + self.right) * acc.dtype.itemsize))
        with m.loop(since, until, step) as start:
            self._rows(acc, start, m.smaller(b.add(start, I64(step)), until))
        b.ret_void()

    def _clear(self, acc: Accumulator) -> None:
        zero = self.m.literal(acc.dtype, 0)
        with self.m.loop(I64(0), I64(self.left * self.right)) as at:
            self.m.store(zero, self.m.offset(self.own, at, acc.dtype.itemsize), np.arange(1))

    def _rows(self, acc: Accumulator, since: ir.Value, until: ir.Value) -> None:
        """Add the products of a few rows, one tile of the result after the other."""
        for column, widths in self._columns():
            tall = max(1, REGISTERS // len(widths))
            rest = self.left % tall
            with self.m.loop(I64(0), I64(self.left - rest), tall) as first:
                self._tile(acc, (since, until), first, tall, column, widths)
            if rest:
                self._tile(acc, (since, until), I64(self.left - rest), rest, column, widths)

    def _columns(self) -> Iterator[tuple[int, list[int]]]:
        """Where each strip of the result starts, and the widths of its vectors."""
        widths, start = self.m.widths(self.right), 0
        for k in range(0, len(widths), 4):
            strip = widths[k : k + 4]
            yield start, strip
            start += sum(strip)

    def _tile(
        self,
        acc: Accumulator,
        span: tuple[ir.Value, ir.Value],
        first: ir.Value,
        tall: int,
        column: int,
        widths: list[int],
    ) -> None:
        m, size, places = self.m, acc.dtype.itemsize, np.arange(sum(widths))
        rows = [self.b.add(first, I64(i)) for i in range(tall)]
        at = [m.offset(self.own, self.b.add(self.b.mul(r, I64(self.right)), I64(column)), size)
              for r in rows]  # fmt: skip
        zero = m.literal(acc.dtype, 0, sum(widths))
        kept = [m.variable(zero) for _ in rows]
        for place in kept:
            m.assign(place, zero)
        with m.loop(*span) as element:
            a = m.offset(self.operands[0], self.b.mul(element, I64(self.left)), size)
            b = m.offset(self.operands[1], self.b.mul(element, I64(self.right)), size)
            right = m.load(m.offset(b, column, size), acc.dtype, places)
            for row, place in zip(rows, kept, strict=True):
                m.assign(place, self._add(m.value_of(place, right), m.offset(a, row, size), right))
        for place, pointer in zip(kept, at, strict=True):
            before = m.load(pointer, acc.dtype, places)
            sums = combiner(m, "sum", acc.dtype)(before, m.value_of(place, zero))
            m.store(sums, pointer, places)

    def _add(self, total: Vec, pointer: ir.Value, right: Vec) -> Vec:
        """`total + a * right`, with the scalar `a` at `pointer`."""
        kind = ir.VectorType(memory_type(right.dtype), 1)
        scalar = self.b.load(pointer, align=right.dtype.itemsize, typ=kind)
        pairs = zip(right.chunks, total.chunks, strict=True)
        chunks = [
            self.m.intrinsic("fma", self.m.splat(scalar, 0, r.type.count), r, t) for r, t in pairs
        ]
        return Vec(total.dtype, total.size, tuple(chunks))
