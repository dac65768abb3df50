"""A traversal in blocks of features: all edges for some features, then for the next ones.

Edges gather rows in no order. Where the rows do not fit the cache next to a core, each comes from
far away as often as it has edges. Most edge functions work on each feature by itself: for them, a
thread takes a block of features, copies those of all sources into memory of its own, and traverses
all edges for them. This is the propagation of graph sampling-based GCN (section V-B, Algorithm 6):
each processor has a block of its own, in its own cache.

The copy is needed: in place, the block's parts of rows that lie a power of two apart would share
a few places of the cache. As every source is copied once and
gathered once per edge, the copy is the smaller part.

A block is cut into the same tasks as the whole traversal, and a task's record has a place for each
feature, so what is added to what, in which order, is the same. Threads begin at different blocks,
and help with those of others when theirs are done, on a copy of their own.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from gnnjit.ir.program import Value
from gnnjit.lower.cpu.job import Word
from gnnjit.lower.cpu.simd import I64, LINE, PTR
from gnnjit.lower.cpu.traversal import TraversalCode

AHEAD = 16
"""Rows that are asked for ahead while a block is copied."""


class FeatureBlocks(TraversalCode):
    """Adds `copy_block`, and a `work` that goes from block to block."""

    def local(self, name: str, *args: ir.Value) -> None:
        """Call a function of the kernel."""
        self.b.call(self.module.get_global(name), args)

    def counter(self, block: ir.Value) -> ir.Value:
        """The place of the first task of a block that nobody has taken: after the arrays."""
        number = self.b.add(I64(Word.POINTERS + self.spec.arrays), block)
        return self.b.gep(self.job, [number], source_etype=I64)

    def emit_copy_block(self) -> None:
        """Copy the features from `feature` on, of all sources, to where `own` points."""
        self.feature, self.own = self.begin("copy_block", I64, PTR)
        sources = self.word(Word.SOURCES)
        for position, value in self.spec.copied:
            with self.m.loop(I64(0), sources) as source:
                self._copy(position, value, source, sources)
        self.b.ret_void()

    def _copy(self, position: int, value: Value, source: ir.Value, sources: ir.Value) -> None:
        m, b, block = self.m, self.b, self.spec.outer_block
        assert block is not None
        size, array = value.dtype.itemsize, self.operand(position)
        later = m.smaller(b.add(source, I64(AHEAD)), b.sub(sources, I64(1)))
        lines = np.unique(self.spec.places(value) * size // LINE)
        self._ask_for(self._element(array, value, later), lines)
        given, copy = self._element(array, value, source), self.input(position, value, source)
        kind, length = ir.VectorType(I64, LINE // 8), block.size * size
        for part in range(value.size // block.full):
            for at in range(0, length, LINE):
                line = b.load(m.offset(given, part * block.full * size + at, 1), typ=kind, align=1)
                b.store(line, m.offset(copy, part * length + at, 1), align=LINE)

    def emit_work_in_blocks(self) -> None:
        """Take tasks, block by block, until none is left."""
        self.begin("work")
        self.m.as_it_stands()
        b, m, block = self.b, self.m, self.spec.outer_block
        assert block is not None
        threads, count = I64(self.spec.config.threads), I64(block.count)
        number = b.atomic_rmw("add", self.place(Word.NEXT), I64(1), "seq_cst")
        first = b.sdiv(b.mul(b.srem(number, threads), count), threads)
        memory = m.stack(1)
        b.store(ir.Constant(PTR, None), memory)
        with m.loop(I64(0), count) as step:
            number = b.srem(b.add(first, step), count)
            # The last block ends with the features: some are computed again, to the same bits.
            start = b.mul(number, I64(block.size))
            self.feature = m.smaller(start, I64(block.full - block.size))
            self._work_on(number, memory)
        m.call("free", ir.VoidType(), [b.load(memory, typ=PTR)])
        b.ret_void()

    def _work_on(self, block: ir.Value, memory: ir.Value) -> None:
        """Copy a block and take its tasks; neither where all are taken."""
        b, m = self.b, self.m
        before = b.block
        head, body, done = (b.append_basic_block(n) for n in ("take", "run", "none"))
        b.branch(head)
        b.position_at_end(head)
        copied = b.phi(ir.IntType(1))
        copied.add_incoming(ir.Constant(copied.type, 0), before)
        task = b.atomic_rmw("add", self.counter(block), I64(1), "seq_cst")
        b.cbranch(b.icmp_signed("<", task, self.word(Word.ROW_TASKS)), body, done)
        b.position_at_end(body)
        with m.when(b.not_(copied)):
            self.local("copy_block", self.job, self.feature, self._own_memory(memory))
        self.local("task", self.job, task, self.feature, self._own_memory(memory))
        self.task_done()
        copied.add_incoming(ir.Constant(copied.type, 1), b.block)
        b.branch(head)
        b.position_at_end(done)

    def _own_memory(self, memory: ir.Value) -> ir.Value:
        """The thread's own memory, from where a cache line begins; taken where it has none."""
        b, m = self.b, self.m
        with m.when(b.icmp_unsigned("==", b.load(memory, typ=PTR), ir.Constant(PTR, None))):
            size = b.mul(self.word(Word.SOURCES), I64(self.spec.copied_bytes))
            b.store(m.allocate(b.add(size, I64(LINE))), memory)
        address = b.add(b.load(memory, typ=I64), I64(LINE - 1))
        return b.inttoptr(b.and_(address, I64(-LINE)), PTR)

    def task_done(self) -> None:
        raise NotImplementedError
