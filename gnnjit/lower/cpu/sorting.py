"""Edges sorted by their rows, in time that is linear in edges and rows.

A first walk over the edges writes where each row begins, as long as the rows rise; padding may
stand anywhere. Where they do rise, edges are copied as they are, or moved past the padding among
them. Else rows are counted, and each edge goes to its row's next slot: a counting sort, stable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
from llvmlite import ir

from gnnjit.lower.cpu import abi
from gnnjit.lower.cpu.frame import NULL, Frame
from gnnjit.lower.cpu.vectors import I64


class SortKernel(Frame):
    """The entry point: `key[B, E], payload[B, E]` to `indptr[B, rows + 1]`, `payload` by slot,
    position by slot, and `[B, rows + 1]` to work in."""

    def __init__(self, dtype: np.dtype, module: ir.Module, layout: abi.Abi):
        self.module, self.layout = module, layout
        self.kind, self.step = ir.IntType(8 * dtype.itemsize), dtype.itemsize

    def emit(self, entry: str) -> None:
        frame = self.begin_entry(entry, 1)
        arguments = [self.buffer(frame, abi.FRAME_ARGS, i) for i in range(2)]
        results = [self.buffer(frame, abi.FRAME_RETS, i) for i in range(4)]
        self.edges = self.length(arguments[0], 1)
        self.rows = self.b.sub(self.length(results[0], 1), I64(1))
        arrays = [self.data(x) for x in [*arguments, *results]]
        widths = [self.length(x, 1) for x in [*arguments, *results]]
        with self.m.loop(I64(0), self.length(arguments[0])) as batch:
            pairs = zip(arrays, widths, strict=True)
            moved = [self.m.offset(x, self.b.mul(batch, n), self.step) for x, n in pairs]
            self.key, self.payload, self.indptr, self.neighbor, self.edge, self.next = moved
            self._sort()
        self.b.ret(NULL)

    def _sort(self) -> None:
        b = self.b
        rises, real, dense = self._walk()
        with b.if_else(rises) as (then, otherwise):
            with then:
                with b.if_else(dense) as (copied, shifted):
                    with copied:
                        self._copy()
                    with shifted:
                        self._move_padding(real)
            with otherwise:
                self._count()
                self._place()

    # -- the rows rise ----------------------------------------------------------------------

    def _walk(self) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Write `indptr` while rows rise. Whether they do; how many edges are no padding; whether
        no padding is before the last of those."""
        b = self.b
        highest, real, end, rises = (self._variable(v) for v in (-1, 0, 0, 1))
        position = self._variable(0)
        with self._while(lambda: self._more(position, rises)):
            at = b.load(position, typ=I64)
            row = self._row(at)
            with b.if_then(b.icmp_signed("<", row, self.rows)):
                before, count = b.load(highest, typ=I64), b.load(real, typ=I64)
                with b.if_then(b.icmp_signed(">", row, before)):
                    self._fill(self.indptr, b.add(before, I64(1)), b.add(row, I64(1)), count)
                    b.store(row, highest)
                with b.if_then(b.icmp_signed("<", row, before)):
                    b.store(I64(0), rises)
                b.store(b.add(count, I64(1)), real)
                b.store(b.add(at, I64(1)), end)
            b.store(b.add(at, I64(1)), position)
        before, count = b.load(highest, typ=I64), b.load(real, typ=I64)
        self._fill(self.indptr, b.add(before, I64(1)), b.add(self.rows, I64(1)), count)
        dense = b.icmp_signed("==", b.load(end, typ=I64), count)
        return b.icmp_signed("==", b.load(rises, typ=I64), I64(1)), count, dense

    def _more(self, position: ir.Value, rises: ir.Value) -> ir.Value:
        b = self.b
        inside = b.icmp_signed("<", b.load(position, typ=I64), self.edges)
        return b.and_(inside, b.icmp_signed("==", b.load(rises, typ=I64), I64(1)))

    def _copy(self) -> None:
        with self.m.loop(I64(0), self.edges) as at:
            self._put(self.neighbor, at, self._get(self.payload, at))
            self._put(self.edge, at, at)

    def _move_padding(self, real: ir.Value) -> None:
        b = self.b
        front, back = self._variable(0), self._variable(0)
        b.store(real, back)
        with self.m.loop(I64(0), self.edges) as at:
            padding = b.icmp_signed("==", self._row(at), self.rows)
            first, last = b.load(front, typ=I64), b.load(back, typ=I64)
            self._settle(at, b.select(padding, last, first))
            b.store(b.select(padding, first, b.add(first, I64(1))), front)
            b.store(b.select(padding, b.add(last, I64(1)), last), back)

    # -- they do not ------------------------------------------------------------------------

    def _count(self) -> None:
        """Where each row begins, and the same as the next slot of each row."""
        b = self.b
        self._fill(self.next, I64(0), b.add(self.rows, I64(1)), I64(0))
        with self.m.loop(I64(0), self.edges) as at:
            row = self._row(at)
            self._put(self.next, row, b.add(self._get(self.next, row), I64(1)))
        total = self._variable(0)
        with self.m.loop(I64(0), b.add(self.rows, I64(1))) as row:
            start = b.load(total, typ=I64)
            b.store(b.add(start, self._get(self.next, row)), total)
            self._put(self.indptr, row, start)
            self._put(self.next, row, start)

    def _place(self) -> None:
        with self.m.loop(I64(0), self.edges) as at:
            row = self._row(at)
            slot = self._get(self.next, row)
            self._put(self.next, row, self.b.add(slot, I64(1)))
            self._settle(at, slot)

    # -- parts ------------------------------------------------------------------------------

    def _settle(self, at: ir.Value, slot: ir.Value) -> None:
        self._put(self.neighbor, slot, self._get(self.payload, at))
        self._put(self.edge, slot, at)

    def _row(self, at: ir.Value) -> ir.Value:
        """At most `rows`, whatever is in memory."""
        row = self._get(self.key, at)
        return self.b.select(self.b.icmp_unsigned("<", row, self.rows), row, self.rows)

    def _fill(self, array: ir.Value, start: ir.Value, stop: ir.Value, value: ir.Value) -> None:
        with self.m.loop(start, stop) as at:
            self._put(array, at, value)

    def _get(self, array: ir.Value, at: ir.Value) -> ir.Value:
        return self.m.index(array, at, np.dtype(f"int{8 * self.step}"))

    def _put(self, array: ir.Value, at: ir.Value, value: ir.Value) -> None:
        value = value if self.kind == I64 else self.b.trunc(value, self.kind)
        self.b.store(value, self.b.gep(array, [at], source_etype=self.kind))

    def _variable(self, value: int) -> ir.Value:
        with self.b.goto_entry_block():
            place = self.b.alloca(I64)
        self.b.store(I64(value), place)
        return place

    @contextlib.contextmanager
    def _while(self, condition) -> Iterator[None]:
        b = self.b
        head, body, done = (b.append_basic_block(n) for n in ("head", "body", "done"))
        b.branch(head)
        b.position_at_end(head)
        b.cbranch(condition(), body, done)
        b.position_at_end(body)
        yield
        b.branch(head)
        b.position_at_end(done)
