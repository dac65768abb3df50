"""Edges sorted by their rows, in time that is linear in edges and rows.

Where rows rise and padding is last, edges are copied as they are. Where rows rise and padding is
among them, edges are moved past it. Else rows are counted, and each edge goes to its row's next
slot: a counting sort, stable. Each case is tried until an edge
contradicts it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
from llvmlite import ir

from gnnjit.lower.cpu import ffi_abi
from gnnjit.lower.cpu.frame import NULL, Frame
from gnnjit.lower.cpu.simd import I32, I64, PTR

_BLOCK = 1024
"""Edges that are looked at before it is asked whether their rows rise."""

_LANES = 16


class SortKernel(Frame):
    """The entry point: `key[B, E], payload[B, E]` to `indptr[B, rows + 1]`, `payload` by slot,
    position by slot, and `[B, rows + 1]` to work in."""

    def __init__(self, dtype: np.dtype, module: ir.Module, layout: ffi_abi.Abi):
        self.module, self.layout = module, layout
        self.kind, self.step = ir.IntType(8 * dtype.itemsize), dtype.itemsize

    def emit(self, entry: str) -> None:
        frame = self.begin_entry(entry, 1)
        key, payload = (self.buffer(frame, ffi_abi.FRAME_ARGS, i) for i in range(2))
        indptr, *rest = (self.buffer(frame, ffi_abi.FRAME_RETS, i) for i in range(4))
        self.edges = self.length(key, 1)
        self.rows = self.b.sub(self.length(indptr, 1), I64(1))
        buffers = [key, payload, indptr, *rest]
        arrays = [self.data(x) for x in buffers]
        widths = [self.length(x, 1) for x in buffers]
        for result in (indptr, *rest):
            numbers = self.b.mul(self.length(result), self.length(result, 1))
            self.m.ask_for_large_pages(self.data(result), self.b.mul(numbers, I64(self.step)))
        with self.m.loop(I64(0), self.length(key)) as batch:
            pairs = zip(arrays, widths, strict=True)
            moved = [self.m.offset(x, self.b.mul(batch, n), self.step) for x, n in pairs]
            self.key, self.payload, self.indptr, self.neighbor, self.edge, self.next = moved
            self._sort()
        self.b.ret(NULL)

    def _sort(self) -> None:
        with self.b.if_else(self._rises()) as (then, otherwise):
            with then:
                self._end_rows()
                self._copy()
            with otherwise:
                rises, real = self._walk()
                with self.b.if_else(rises) as (shifted, unordered):
                    with shifted:
                        self._move_padding(real)
                    with unordered:
                        self._count()
                        self._place()

    # -- the rows rise, padding last ----------------------------------------------------------

    def _rises(self) -> ir.Value:
        """Whether they do. Writes the end of each row to `next`, 0 for a row without edges."""
        b = self.b
        position, rises = self._variable(0), self._variable(1)
        self._fill(self.next, I64(0), b.add(self.rows, I64(1)), I64(0))
        last = self.m.larger(b.sub(self.edges, I64(_LANES)), I64(0))  # each looks at one more
        with self._while(lambda: self._more(position, rises, last)):
            start = b.load(position, typ=I64)
            stop = self.m.smaller(b.add(start, I64(_BLOCK)), last)
            with self.m.loop(start, stop, _LANES) as at:
                self._end_some(at, rises)
            steps = b.sdiv(b.add(b.sub(stop, start), I64(_LANES - 1)), I64(_LANES))
            b.store(b.add(start, b.mul(steps, I64(_LANES))), position)
        before = self._variable(0)
        start = b.load(position, typ=I64)
        b.store(self._row(self.m.larger(b.sub(start, I64(1)), I64(0))), before)
        with self.m.loop(start, self.edges) as at:
            row = self._row(at)
            self._put(self.next, row, b.add(at, I64(1)))
            falls = b.icmp_signed("<", row, b.load(before, typ=I64))
            b.store(b.select(falls, I64(0), b.load(rises, typ=I64)), rises)
            b.store(row, before)
        return b.icmp_signed("==", b.load(rises, typ=I64), I64(1))

    def _end_some(self, at: ir.Value, rises: ir.Value) -> None:
        """Look at `_LANES` edges and the one after them: where rows end among them, write it."""
        b = self.b
        here, after = self._rows_from(at), self._rows_from(b.add(at, I64(1)))
        falls = b.icmp_unsigned(">", here, after)
        none = ir.Constant(ir.IntType(_LANES), 0)
        fine = b.icmp_unsigned("==", b.bitcast(falls, ir.IntType(_LANES)), none)
        b.store(b.select(fine, b.load(rises, typ=I64), I64(0)), rises)
        ends = self._variable(0)
        among = b.bitcast(b.icmp_unsigned("!=", here, after), ir.IntType(_LANES))
        b.store(b.zext(among, I64), ends)
        with self._while(lambda: b.icmp_unsigned("!=", b.load(ends, typ=I64), I64(0))):
            left = b.load(ends, typ=I64)
            edge = b.add(at, b.cttz(left, ir.Constant(ir.IntType(1), 1)))
            self._put(self.next, self._row(edge), b.add(edge, I64(1)))
            b.store(b.and_(left, b.sub(left, I64(1))), ends)

    def _rows_from(self, at: ir.Value) -> ir.Value:
        """The rows of `_LANES` edges, at most `rows`, whatever is in memory."""
        b, kind = self.b, ir.VectorType(self.kind, _LANES)
        found = b.load(b.gep(self.key, [at], source_etype=self.kind), typ=kind, align=self.step)
        most = self._filled(self.rows, kind)
        return b.select(b.icmp_unsigned("<", found, most), found, most)

    def _end_rows(self) -> None:
        """Write `indptr` from the ends of rows in `next`."""
        highest = self._variable(0)
        self._put(self.indptr, I64(0), I64(0))
        with self.m.loop(I64(0), self.rows) as row:
            end = self.m.larger(self._get(self.next, row), self.b.load(highest, typ=I64))
            self.b.store(end, highest)
            self._put(self.indptr, self.b.add(row, I64(1)), end)

    def _copy(self) -> None:
        b = self.b
        size = b.mul(self.edges, I64(self.step))
        copy = self.module.declare_intrinsic("llvm.memcpy", [PTR, PTR, I64])
        b.call(copy, [self.neighbor, self.payload, size, ir.Constant(ir.IntType(1), 0)])
        whole = b.and_(self.edges, I64(-_LANES))
        kind = ir.VectorType(self.kind, _LANES)
        numbers = ir.Constant(kind, list(range(_LANES)))
        with self.m.loop(I64(0), whole, _LANES) as at:
            value = b.add(numbers, self._filled(at, kind))
            place = b.gep(self.edge, [at], source_etype=self.kind)
            b.store(value, place).align = self.step
        with self.m.loop(whole, self.edges) as at:
            self._put(self.edge, at, at)

    def _filled(self, value: ir.Value, kind: ir.VectorType) -> ir.Value:
        value = value if self.kind == I64 else self.b.trunc(value, self.kind)
        one = self.b.insert_element(ir.Constant(kind, ir.Undefined), value, I32(0))
        zeros = ir.Constant(ir.VectorType(I32, _LANES), [0] * _LANES)
        return self.b.shuffle_vector(one, ir.Constant(kind, ir.Undefined), zeros)

    # -- the rows rise, padding among them ----------------------------------------------------

    def _walk(self) -> tuple[ir.Value, ir.Value]:
        """Write `indptr` while rows rise. Whether they do; how many edges are no padding."""
        b = self.b
        highest, real, rises = (self._variable(v) for v in (-1, 0, 1))
        position = self._variable(0)
        with self._while(lambda: self._more(position, rises, self.edges)):
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
            b.store(b.add(at, I64(1)), position)
        before, count = b.load(highest, typ=I64), b.load(real, typ=I64)
        self._fill(self.indptr, b.add(before, I64(1)), b.add(self.rows, I64(1)), count)
        return b.icmp_signed("==", b.load(rises, typ=I64), I64(1)), count

    def _more(self, position: ir.Value, rises: ir.Value, stop: ir.Value) -> ir.Value:
        b = self.b
        inside = b.icmp_signed("<", b.load(position, typ=I64), stop)
        return b.and_(inside, b.icmp_signed("==", b.load(rises, typ=I64), I64(1)))

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
