"""Which rows and edges each task has: see `traversal`."""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from gnnjit.lower.cpu.job import JobReader
from gnnjit.lower.cpu.simd import I64


class RowRanges(JobReader):
    """Code about the rows of a graph. index_dtype: of `indptr`. keys_of_task: the piece."""

    index_dtype: np.dtype
    keys_of_task: ir.Value

    def start_of(self, row: ir.Value) -> ir.Value:
        return self.m.index(self.indptr, row, self.index_dtype)

    def key(self, row: ir.Value) -> ir.Value:
        return self.b.add(self.start_of(row), row)

    def is_hub(self, begin: ir.Value, end: ir.Value) -> ir.Value:
        return self.b.icmp_signed(">=", self.b.sub(end, begin), self.keys_of_task)

    def first_row(self, key: ir.Value) -> ir.Value:
        """The first row whose key is at least `key` (binary search)."""
        b = self.b
        with b.goto_entry_block():
            low, high = b.alloca(I64), b.alloca(I64)
        b.store(I64(0), low)
        b.store(self.rows, high)
        head, body, done = (b.append_basic_block(n) for n in ("search", "halve", "found"))
        b.branch(head)
        b.position_at_end(head)
        lo, hi = b.load(low, typ=I64), b.load(high, typ=I64)
        b.cbranch(b.icmp_signed("<", lo, hi), body, done)
        b.position_at_end(body)
        middle = b.lshr(b.add(lo, hi), I64(1))
        below = b.icmp_signed("<", self.key(middle), key)
        b.store(b.select(below, b.add(middle, I64(1)), lo), low)
        b.store(b.select(below, hi, middle), high)
        b.branch(head)
        b.position_at_end(done)
        return lo

    def back_to_hub(self, first: ir.Value, low: ir.Value) -> ir.Value:
        """One row earlier where a hub that started before `low` runs into this task."""
        b = self.b
        before = self.m.larger(b.sub(first, I64(1)), I64(0))
        cut = b.icmp_signed("!=", self.key(first), low)
        hub = self.is_hub(self.start_of(before), self.start_of(first))
        some = b.icmp_signed(">", first, I64(0))
        return b.select(b.and_(some, b.and_(cut, hub)), before, first)

    def last_slot_of(self, first: ir.Value, last: ir.Value, high: ir.Value) -> ir.Value:
        """Where the slots of the rows `first .. last` of a task end."""
        b, row = self.b, self.m.larger(self.b.sub(last, I64(1)), first)
        begin, end = self.start_of(row), self.start_of(last)
        cut = self.m.smaller(end, b.sub(high, b.add(row, I64(1))))
        return b.select(self.is_hub(begin, end), cut, end)
