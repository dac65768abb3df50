"""The second stage and XLA's entry point of a kernel.

The entry point hands the kernel's facts (`calls.Fact`) to `support`, which cuts the work into tasks
and runs them with the help of XLA's own thread pool. Helpers that start late find no task left;
nobody ever waits for a helper that has not started, so a busy pool delays nothing and cannot
deadlock: unless the caller may leave long work to the pool (`kernel.left_to_pool`). The job is
counted by reference because a helper may look at it after the call has returned.
"""

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir

from gnnjit.ir.space import Space
from gnnjit.lower.cpu import support
from gnnjit.lower.cpu.accumulators import Accumulator
from gnnjit.lower.cpu.calls import NEVER, Fact, table
from gnnjit.lower.cpu.control_flow import Emitter
from gnnjit.lower.cpu.feature_blocks import FeatureBlocks
from gnnjit.lower.cpu.frame import NULL
from gnnjit.lower.cpu.job import Word
from gnnjit.lower.cpu.matvec import SharedMatrix, pack
from gnnjit.lower.cpu.simd import I32, I64, PTR

PARALLEL_WORK = 1 << 16
"""Vector operations below which one thread does it all."""

LONG_WORK = 1 << 20
"""Vector operations above which the caller leaves all tasks to the pool, if it may."""

FALSE = ir.Constant(ir.IntType(1), 0)


class Handler(FeatureBlocks):
    """Adds to the traversal: `finish`, `padding`, `packing` and the entry point."""

    def emit(self, entry: str) -> None:
        if self.spec.tiling:
            self.emit_tile("tile")
        self.emit_task("task")
        self.emit_finish()
        if None in self.spec.reductions:
            self.emit_padding()
        if self.packed():
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

    def packed(self) -> list[tuple[int, int, SharedMatrix]]:
        """Matrices that are copied into another order: the operand of each, and where its copy lies
        (bytes)."""
        inputs = self.spec.body.inputs
        return [(inputs.index(m.value), at, m) for at, m in self.spec.packed.values()]

    def emit_packing(self) -> None:
        """Copy shared matrices into the order in which loops read them, once a call."""
        self.begin("packing")
        for k, at, matrix in self.packed():
            pack(self.m, matrix, self.operand(k), self.m.offset(self.copies, at, 1))
        self.b.ret_void()

    # -- sharing the work -------------------------------------------------------------------

    def task_done(self) -> None:
        support.task_done(self.m, self.job)

    # -- entry ------------------------------------------------------------------------------

    def emit_entry(self, name: str) -> None:
        """It tells `support` what a call is about."""
        function = ir.Function(self.module, ir.FunctionType(PTR, [PTR]), name)
        b = ir.IRBuilder(function.append_basic_block())
        facts = table(self.module, self.facts(), self._row_bytes())
        support.call(Emitter(self.module, b, self.spec.lanes), function.args[0], facts)
        b.ret(NULL)

    def facts(self) -> dict[Fact, int | ir.Constant]:
        spec, config = self.spec, self.spec.config
        given = spec.index_arrays if spec.needs_edge or spec.grouped else 2
        blocks = spec.outer_block.count if spec.outer_block else 1
        several = config.threads > 1
        return {
            Fact.ROWS: -1,
            Fact.ELEMENTS: 1,
            Fact.WIDE: int(spec.index_dtypes.indptr == np.int64),
            Fact.GIVEN: given,
            Fact.INDEX_ARRAYS: spec.index_arrays,
            Fact.ARGUMENTS: given + len(spec.body.inputs) + len(spec.starts),
            Fact.RESULTS: len(spec.body.outputs),
            Fact.BLOCKS: blocks,
            Fact.PADDED: int(None in spec.reductions),
            Fact.SOURCES: given + spec.copied[0][0] if spec.copied else -1,
            Fact.HEAD: -(-8 * (Word.POINTERS + spec.arrays + blocks) // 64) * 64,
            Fact.PACKED: sum(matrix.room for *_, matrix in self.packed()),
            Fact.RECORD: self.record,
            Fact.PIECE: self.piece,
            Fact.THREADS: config.threads,
            Fact.HELPED: self._keys(PARALLEL_WORK) if several else NEVER,
            Fact.LEFT: self._keys(LONG_WORK) if several and config.left else NEVER,
            Fact.TASK: self._function("task"),
            Fact.FINISH: self._function("finish"),
            Fact.PADDING: self._function("padding"),
            Fact.WORK: self._function("work"),
            Fact.PACKING: self._function("packing"),
        }

    def _row_bytes(self) -> list[int]:
        """Of results of rows and of edges; 0 of others."""
        pairs = zip(self.spec.reductions, self.spec.body.outputs, strict=True)
        return [
            0 if op is not None and op.into is Space.SHARED
            else math.prod(value.shape) * value.dtype.itemsize
            for op, value in pairs
        ]  # fmt: skip

    def _function(self, name: str) -> int | ir.Constant:
        """Its address, null where the kernel has none of that name."""
        found = self.module.globals.get(name)
        return 0 if found is None else found.ptrtoint(I64)

    def _keys(self, work: int) -> int:
        """The keys that take so many vector operations."""
        return -(-work // self.vectors_of_key())

    def vectors_of_key(self) -> int:
        """Roughly the vector operations of a row or an edge."""
        return self.spec.weight * (self.spec.outer_block.count if self.spec.outer_block else 1)
