"""The second stage and XLA's entry point of a kernel.

The entry point cuts the work into tasks and runs them with the help of XLA's own thread pool
(`support`). Helpers that start late find no task left; nobody ever waits for a helper that has not
started, so a busy pool delays nothing and cannot deadlock: unless the caller may leave long work to
the pool (`kernel.left_to_pool`). The job is counted by reference because a helper may look at it
after the call has returned.
"""

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir

from gnnjit.ir.space import Space
from gnnjit.lower.cpu import ffi_abi, support
from gnnjit.lower.cpu.accumulators import Accumulator
from gnnjit.lower.cpu.feature_blocks import FeatureBlocks
from gnnjit.lower.cpu.frame import NULL, Frame
from gnnjit.lower.cpu.job import Word
from gnnjit.lower.cpu.matvec import pack
from gnnjit.lower.cpu.simd import I32, I64, PTR

PARALLEL_WORK = 1 << 16
"""Vector operations below which one thread does it all."""

LONG_WORK = 1 << 20
"""Vector operations above which the caller leaves all tasks to the pool, if it may."""

FALSE = ir.Constant(ir.IntType(1), 0)


class Handler(Frame, FeatureBlocks):
    """Adds to the traversal: `finish`, `padding`, `packing` and the entry point."""

    def emit(self, layout: ffi_abi.Abi, entry: str) -> None:
        self.layout = layout
        if self.spec.tiling:
            self.emit_tile("tile")
        self.emit_task("task")
        self.emit_finish()
        if None in self.spec.reductions:
            self.emit_padding()
        if self.spec.packed:
            self.emit_packing()
        if self.spec.outer_block:
            self.emit_copy_block()
            self.emit_work_in_blocks()
        self.emit_entry(entry)

    # -- second stage -----------------------------------------------------------------------

    def emit_finish(self) -> None:
        self.begin("finish")
        b, m = self.b, self.m
        tasks = self.word(Word.ROW_TASKS)
        for acc in self.of_all:
            self._combine_all(acc, tasks)
        if self.of_rows:
            place, piece = m.stack(1), I64(self.piece)
            with m.loop(I64(1), tasks) as task:
                row = support.hub_of_task(m, self.index_dtype, self.job, task, piece, place)
                with m.when(b.icmp_signed(">=", row, I64(0))):
                    last = b.load(place, typ=I64)
                    for acc in self.of_rows:
                        self._combine_hub(acc, row, task, last)
        b.ret_void()

    def _combine_all(self, acc: Accumulator, tasks: ir.Value) -> None:
        empty = self.b.icmp_signed("==", self.slots, I64(0))
        self._combine(acc, None, I64(0), tasks, self.output(acc.output), empty)

    def _combine_hub(self, acc: Accumulator, row: ir.Value, task: ir.Value, last: ir.Value) -> None:
        size = math.prod(acc.value.shape)
        before = self.m.offset(self.partial, self.b.sub(task, I64(1)), self.record)
        first = self.m.offset(before, acc.trailing, 1)
        out = self.m.offset(self.output(acc.output), row, size * acc.value.dtype.itemsize)
        self._combine(acc, first, task, last, out, FALSE)

    def _combine(
        self,
        acc: Accumulator,
        first: ir.Value | None,
        task: ir.Value,
        last: ir.Value,
        out: ir.Value,
        empty: ir.Value,
    ) -> None:
        """Reduce one accumulator over the records `task .. last`, in order, into `out`."""
        m, kind, dtype, size = self.m, acc.op.kind, acc.dtype, math.prod(acc.value.shape)
        first = NULL if first is None else first
        start = m.offset(self.partial, acc.leading, 1)
        records = support.Records(start, I64(self.record), task, last)
        if dtype == acc.value.dtype and support.combines(kind, dtype):
            nothing = FALSE if kind == "sum" or self.spec.partial else empty
            support.combine(m, kind, dtype, records, out, first, I64(size), nothing)
            return

        def part(at: ir.Value, width: int) -> None:
            total = support.reduced(m, kind, dtype, records, first, at, width)
            place = m.offset(out, at, acc.value.dtype.itemsize)
            m.store(self.finished(acc, total, empty), place, np.arange(width))

        m.each_vector(size, part)

    def emit_padding(self) -> None:
        """Zero the per-edge outputs of padding slots."""
        (task,) = self.begin("padding", I64)
        b, m = self.b, self.m
        first = b.add(self.slots, b.mul(task, I64(self.piece)))
        last = m.smaller(b.add(first, I64(self.piece)), self.capacity)
        wanted = [
            (self.output(i), math.prod(v.shape) * v.dtype.itemsize)
            for i, v in enumerate(self.spec.body.outputs)
            if self.spec.reductions[i] is None
        ]
        with m.loop(first, last) as slot:
            edge = m.index(self.edge, slot, self.spec.index_dtypes.edge)
            with m.when(b.icmp_unsigned("<", edge, self.capacity)):
                for output, size in wanted:
                    m.call("memset", PTR, [m.offset(output, edge, size), I32(0), I64(size)])
        b.ret_void()

    def emit_packing(self) -> None:
        """Copy shared matrices into the order in which loops read them, once a call."""
        self.begin("packing")
        for at, matrix in self.spec.packed.values():
            source = self.operand(self.spec.body.inputs.index(matrix.value))
            pack(self.m, matrix, source, self.m.offset(self.copies, at, 1))
        self.b.ret_void()

    # -- sharing the work -------------------------------------------------------------------

    def task_done(self) -> None:
        support.task_done(self.m, self.job)

    # -- entry ------------------------------------------------------------------------------

    def emit_entry(self, name: str) -> None:
        frame = self.open_entry(name, self.spec.lanes)
        self.m.as_it_stands()
        with self.b.if_then(support.answers(self.m, frame)):
            self.b.ret(NULL)
        self._create_job(frame)
        if self.spec.packed:
            self.local("packing", self.job)
        config = self.spec.config
        several = config.threads > 1
        helped = self._takes(PARALLEL_WORK) if several else FALSE
        left = self._takes(LONG_WORK) if several and config.left else FALSE
        support.run(self.m, self.job, frame, I64(config.threads), helped, left)
        self.b.ret(NULL)

    def _create_job(self, frame: ir.Value) -> None:
        b, spec = self.b, self.spec
        pointers, (rows, slots, capacity, sources) = self.call_arrays(frame)
        row_tasks = self._pieces(b.add(rows, slots))
        blocks = spec.outer_block.count if spec.outer_block else 1
        tasks = b.mul(row_tasks, I64(blocks))
        if None in spec.reductions:
            tasks = b.add(tasks, self._pieces(b.sub(capacity, slots)))
        head = -(-8 * (Word.POINTERS + spec.arrays + blocks) // 64) * 64
        copies = sum(-(-m.bytes // 64) * 64 for _, m in spec.packed.values())
        size = b.add(I64(head + copies), b.mul(row_tasks, I64(self.record)))
        self.read_job(self.m.allocate(size))
        self.m.ask_for_large_pages(self.job, size)
        self._ask_for_large_pages(frame)
        values = {
            Word.NEXT: I64(0),
            Word.DONE: I64(0),
            Word.REFS: I64(1),
            Word.ROW_TASKS: row_tasks,
            Word.SOURCES: sources,
            Word.TASKS: tasks,
            Word.ROWS: rows,
            Word.SLOTS: slots,
            Word.CAPACITY: capacity,
            Word.MODE: I64(0),
            Word.FUTURE: I64(0),
            Word.TASK: self._function("task"),
            Word.FINISH: self._function("finish"),
            Word.PADDING: self._function("padding"),
            Word.WORK: self._function("work"),
            Word.PARTIAL: self.m.offset(self.job, head + copies, 1),
            Word.PACKED: self.m.offset(self.job, head, 1),
        }
        values |= {Word.POINTERS + i: p for i, p in enumerate(pointers)}
        values |= {Word.POINTERS + spec.arrays + k: I64(0) for k in range(blocks)}
        for number, value in values.items():
            b.store(value, self.place(number))
        self.keys = b.add(rows, slots)

    def _function(self, name: str) -> ir.Value:
        """Its address, null where the kernel has none of that name."""
        found = self.module.globals.get(name)
        return I64(0) if found is None else self.b.ptrtoint(found, I64)

    def _ask_for_large_pages(self, frame: ir.Value) -> None:
        """For results of rows and of edges."""
        pairs = zip(self.spec.reductions, self.spec.body.outputs, strict=True)
        for number, (op, value) in enumerate(pairs):
            if op is None or op.into is not Space.SHARED:
                result = self.buffer(frame, ffi_abi.FRAME_RETS, number)
                row = I64(math.prod(value.shape) * value.dtype.itemsize)
                self.m.ask_for_large_pages(self.data(result), self.b.mul(self.length(result), row))

    def call_arrays(self, frame: ir.Value) -> tuple[list[ir.Value], tuple[ir.Value, ...]]:
        """The arrays of a call; its rows, slots, capacity, and sources where those are copied."""
        spec = self.spec
        first = spec.index_arrays if spec.needs_edge or spec.grouped else 2
        count = first + len(spec.body.inputs) + len(spec.starts)
        arguments = [self.buffer(frame, ffi_abi.FRAME_ARGS, i) for i in range(count)]
        results = [self.buffer(frame, ffi_abi.FRAME_RETS, i) for i in range(len(spec.body.outputs))]
        structure = [self.data(a) for a in arguments[:first]]
        structure += structure[-1:] * (spec.index_arrays - first)
        pointers = [self.data(a) for a in [*arguments[first:], *results]]
        rows = self.b.sub(self.length(arguments[0]), I64(1))
        slots = self.m.index(structure[0], rows, spec.index_dtypes.indptr)
        sources = self.length(arguments[first + spec.copied[0][0]]) if spec.copied else I64(0)
        return [*structure, *pointers], (rows, slots, self.length(arguments[1]), sources)

    def _pieces(self, keys: ir.Value) -> ir.Value:
        return self.b.sdiv(self.b.add(keys, I64(self.piece - 1)), I64(self.piece))

    def _takes(self, work: int) -> ir.Value:
        """Whether there is more to do than so many vector operations."""
        blocks = self.spec.outer_block.count if self.spec.outer_block else 1
        return self.b.icmp_signed(">", self.keys, I64(-(-work // (self.spec.weight * blocks))))
