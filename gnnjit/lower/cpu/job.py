"""The record that all tasks of one call share, and the code that reads it."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from llvmlite import ir

from gnnjit.lower.cpu.control_flow import Emitter
from gnnjit.lower.cpu.simd import I64, PTR

if TYPE_CHECKING:
    from gnnjit.lower.cpu.spec import Spec


class Word(enum.IntEnum):
    """The words (8 bytes each) of a job, the record that all tasks of one call share."""

    NEXT = 0
    """The first task that nobody has taken."""
    DONE = 1
    """The tasks that are done."""
    REFS = 2
    """Threads that may still look at the job."""
    ROW_TASKS = 3
    """Tasks that reduce rows, of each block of features; those after them clear padding."""
    TASKS = 4
    """Tasks in all."""
    ROWS = 5
    SLOTS = 6
    """Edges."""
    CAPACITY = 7
    """The length of the edge arrays, padding included."""
    PARTIAL = 8
    """The partial buffer: a record for each task."""
    PACKED = 9
    """Shared matrices in another order."""
    MODE = 10
    """The caller's x86 rounding and denormal modes."""
    FUTURE = 11
    """What XLA waits for in place of the caller's return, or null."""
    API = 12
    SOURCES = 13
    """Elements that a block of features is copied of."""
    TASK = 14
    FINISH = 15
    """Functions of the kernel."""
    PADDING = 16
    """Likewise; null where no output is on the edges."""
    WORK = 17
    """Likewise; null where tasks are taken one after the other."""
    POINTERS = 18
    """The first of `Spec.arrays`: indptr, neighbor, edge (and of groups the other endpoint),
    operands, what outputs start with, outputs."""


class JobReader:
    """Reads what stays as it is during a call, once in a function that wants it."""

    spec: Spec
    m: Emitter
    b: ir.IRBuilder

    def read_job(self, job: ir.Value) -> None:
        """At the start of a function."""
        self.job = job
        self._read: dict[int, ir.Value] = {}

    def place(self, number: int) -> ir.Value:
        """The place of a word of the job."""
        return self.b.gep(self.job, [I64(number)], source_etype=I64)

    def word(self, number: int, kind: ir.Type = I64) -> ir.Value:
        """A word as it is now."""
        return self.b.load(self.place(number), typ=kind)

    def _given(self, number: int, kind: ir.Type = PTR) -> ir.Value:
        if number not in self._read:
            with self.b.goto_entry_block():
                self._read[number] = self.word(number, kind)
        return self._read[number]

    @property
    def rows(self) -> ir.Value:
        return self._given(Word.ROWS, I64)

    @property
    def slots(self) -> ir.Value:
        return self._given(Word.SLOTS, I64)

    @property
    def capacity(self) -> ir.Value:
        return self._given(Word.CAPACITY, I64)

    @property
    def partial(self) -> ir.Value:
        return self._given(Word.PARTIAL)

    @property
    def copies(self) -> ir.Value:
        return self._given(Word.PACKED)

    @property
    def indptr(self) -> ir.Value:
        return self._given(Word.POINTERS)

    @property
    def neighbor(self) -> ir.Value:
        return self._given(Word.POINTERS + 1)

    @property
    def edge(self) -> ir.Value:
        return self._given(Word.POINTERS + 2)

    @property
    def other(self) -> ir.Value:
        """The destination of each edge of a group, whose `neighbor` is the source."""
        return self._given(Word.POINTERS + 3)

    @property
    def _operands(self) -> int:
        return Word.POINTERS + self.spec.index_arrays

    def operand(self, position: int) -> ir.Value:
        return self._given(self._operands + position)

    def start(self, output: int) -> ir.Value:
        """What an output starts with."""
        first = self._operands + len(self.spec.body.inputs)
        return self._given(first + self.spec.starts.index(output))

    def output(self, number: int) -> ir.Value:
        first = self._operands + len(self.spec.body.inputs) + len(self.spec.starts)
        return self._given(first + number)
