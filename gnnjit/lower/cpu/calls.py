"""A kernel's table of facts, and the function that makes a job of a call by it: one for all
kernels."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from llvmlite import ir

from gnnjit.lower.cpu import ffi_abi
from gnnjit.lower.cpu.frame import Frame
from gnnjit.lower.cpu.job import JobReader, Word
from gnnjit.lower.cpu.simd import I32, I64, PTR

NEVER = 2**63 - 1
"""More keys than a call has."""

_KERNEL_WORDS = (Word.TASK, Word.FINISH, Word.PADDING, Word.WORK)


class Fact(enum.IntEnum):
    """The words (8 bytes each) of a kernel's facts, which its calls have in common."""

    ROWS = 0
    """Rows; -1: as many as `indptr`, the first argument, has, and as many slots as that says."""
    ELEMENTS = 1
    """The argument, or after them the result, that is as long as the edge arrays."""
    WIDE = 2
    """Whether `indptr` has 64 bits."""
    GIVEN = 3
    """Arguments that are of the structure, the first ones."""
    INDEX_ARRAYS = 4
    """Those of a job. For those that are not given stands the last one that is, or where none is,
    the first argument."""
    ARGUMENTS = 5
    RESULTS = 6
    BLOCKS = 7
    """Blocks of features."""
    PADDED = 8
    """Whether tasks clear padding: 1 or 0."""
    SOURCES = 9
    """The argument whose elements are copied, block by block, or -1."""
    HEAD = 10
    """Bytes of a job before what is packed."""
    PACKED = 11
    """Bytes of what is packed."""
    RECORD = 12
    """Bytes of a task's record."""
    PIECE = 13
    """Keys of a task."""
    THREADS = 14
    HELPED = 15
    """Keys above which threads help."""
    LEFT = 16
    """Keys above which the caller leaves all tasks to them."""
    TASK = 17
    FINISH = 18
    PADDING = 19
    WORK = 20
    PACKING = 21
    """Functions of the kernel, or null."""
    ROW_BYTES = 22
    """The first of the results' bytes of a row; 0 where it has no rows."""


def table(
    module: ir.Module, facts: Mapping[Fact, int | ir.Constant], row_bytes: list[int]
) -> ir.Value:
    """The facts as a constant of the module."""
    words = [facts[fact] for fact in Fact if fact is not Fact.ROW_BYTES] + row_bytes
    values = [I64(x) if isinstance(x, int) else x for x in words]
    content = ir.Constant(ir.ArrayType(I64, len(values)), values)
    made = ir.GlobalVariable(module, content.type, "facts")
    made.linkage, made.global_constant, made.initializer = "internal", True, content
    return made


class Calls(Frame, JobReader):
    """Emits `call(frame, facts)`, for `support`."""

    def emit_call(self, frame: ir.Value, facts: ir.Value, run: ir.Function) -> None:
        """What an entry point does: it answers, or makes a job and runs it."""
        self.frame, self.facts = frame, facts
        b, m = self.b, self.m
        self.answer(self.frame, b.ret_void)
        rows, slots = self._rows_and_slots()
        capacity = self._length(self._fact(Fact.ELEMENTS))
        slots = b.select(b.icmp_signed("<", slots, I64(0)), capacity, slots)
        keys = b.add(rows, slots)
        row_tasks = self._pieces(keys)
        padding = b.mul(self._fact(Fact.PADDED), self._pieces(b.sub(capacity, slots)))
        head, packed = self._fact(Fact.HEAD), self._fact(Fact.PACKED)
        records = b.add(head, packed)
        size = b.add(records, b.mul(row_tasks, self._fact(Fact.RECORD)))
        self.read_job(m.allocate(size))
        m.ask_for_large_pages(self.job, size)
        values = {
            Word.NEXT: I64(0),
            Word.DONE: I64(0),
            Word.REFS: I64(1),
            Word.ROW_TASKS: row_tasks,
            Word.TASKS: b.add(b.mul(row_tasks, self._fact(Fact.BLOCKS)), padding),
            Word.ROWS: rows,
            Word.SLOTS: slots,
            Word.CAPACITY: capacity,
            Word.PARTIAL: m.offset(self.job, records, 1),
            Word.PACKED: m.offset(self.job, head, 1),
            Word.MODE: I64(0),
            Word.FUTURE: I64(0),
            Word.SOURCES: self._sources(),
        }
        values |= {word: self._fact(Fact[word.name]) for word in _KERNEL_WORDS}
        for word, value in values.items():
            b.store(value, self.place(word))
        self._store_arrays()
        packing = self._fact(Fact.PACKING)
        with m.when(b.icmp_signed("!=", packing, I64(0))):
            signature = ir.PointerType(ir.FunctionType(ir.VoidType(), [PTR]))
            b.call(b.inttoptr(packing, signature), [self.job])
        more = [b.icmp_signed(">", keys, self._fact(fact)) for fact in (Fact.HELPED, Fact.LEFT)]
        b.call(run, [self.job, self.frame, self._fact(Fact.THREADS), *more])
        b.ret_void()

    def _fact(self, fact: Fact) -> ir.Value:
        return self.field(self.facts, 8 * fact, I64)

    def _pieces(self, keys: ir.Value) -> ir.Value:
        piece = self._fact(Fact.PIECE)
        return self.b.sdiv(self.b.add(keys, self.b.sub(piece, I64(1))), piece)

    def _argument(self, number: ir.Value) -> ir.Value:
        return self._entry(ffi_abi.FRAME_ARGS, number)

    def _result(self, number: ir.Value) -> ir.Value:
        return self._entry(ffi_abi.FRAME_RETS, number)

    def _entry(self, table: int, number: ir.Value) -> ir.Value:
        buffers = self.field(self.frame, table, PTR)
        return self.b.load(self.b.gep(buffers, [number], source_etype=I64), typ=PTR)

    def _length(self, number: ir.Value) -> ir.Value:
        """Of an argument or, after them, a result."""
        b, arguments = self.b, self._fact(Fact.ARGUMENTS)
        found = self.m.stack(1)
        with b.if_else(b.icmp_signed("<", number, arguments)) as (then, otherwise):
            with then:
                b.store(self.length(self._argument(number)), found)
            with otherwise:
                b.store(self.length(self._result(b.sub(number, arguments))), found)
        return b.load(found, typ=I64)

    def _rows_and_slots(self) -> tuple[ir.Value, ir.Value]:
        """Slots are -1 where rows are a fact."""
        b, m = self.b, self.m
        places = m.stack(2)
        self.put(places, 0, self._fact(Fact.ROWS))
        self.put(places, 8, I64(-1))
        with m.when(b.icmp_signed("<", self._fact(Fact.ROWS), I64(0))):
            indptr = self._argument(I64(0))
            rows = b.sub(self.length(indptr), I64(1))
            self.put(places, 0, rows)
            wide = b.icmp_signed("!=", self._fact(Fact.WIDE), I64(0))
            with b.if_else(wide) as (then, otherwise):
                for branch, kind in ((then, I64), (otherwise, I32)):
                    with branch:
                        last = b.gep(self.data(indptr), [rows], source_etype=kind)
                        slots = b.load(last, typ=kind)
                        self.put(places, 8, b.sext(slots, I64) if kind is I32 else slots)
        return self.field(places, 0, I64), self.field(places, 8, I64)

    def _sources(self) -> ir.Value:
        number = self._fact(Fact.SOURCES)
        found = self.m.stack(1)
        self.put(found, 0, I64(0))
        with self.m.when(self.b.icmp_signed(">=", number, I64(0))):
            self.put(found, 0, self.length(self._argument(number)))
        return self.field(found, 0, I64)

    def _store_arrays(self) -> None:
        """The addresses of all arrays, and a counter for each block; large pages for results."""
        b, m = self.b, self.m
        given, arrays = self._fact(Fact.GIVEN), self._fact(Fact.INDEX_ARRAYS)
        arguments, results = self._fact(Fact.ARGUMENTS), self._fact(Fact.RESULTS)
        with m.loop(I64(0), arrays) as number:
            last = m.larger(b.sub(given, I64(1)), I64(0))
            self._store_array(number, self.data(self._argument(m.smaller(number, last))))
        operands = b.sub(arrays, given)
        with m.loop(given, arguments) as number:
            self._store_array(b.add(operands, number), self.data(self._argument(number)))
        first = b.add(operands, arguments)
        with m.loop(I64(0), results) as number:
            result = self._result(number)
            self._store_array(b.add(first, number), self.data(result))
            place = b.gep(self.facts, [b.add(number, I64(Fact.ROW_BYTES))], source_etype=I64)
            size = b.load(place, typ=I64)
            with m.when(b.icmp_signed(">", size, I64(0))):  # what has no rows may have no length
                m.ask_for_large_pages(self.data(result), b.mul(self.length(result), size))
        with m.loop(I64(0), self._fact(Fact.BLOCKS)) as block:
            self._store_array(b.add(b.add(first, results), block), ir.Constant(PTR, None))

    def _store_array(self, number: ir.Value, value: ir.Value) -> None:
        place = self.b.add(number, I64(Word.POINTERS))
        self.b.store(value, self.b.gep(self.job, [place], source_etype=I64))
