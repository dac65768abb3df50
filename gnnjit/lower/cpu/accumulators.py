"""The reduced values of a task while they grow: in registers, or in memory where they are long."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from llvmlite import ir

from gnnjit.ir.program import Atom, Reduce
from gnnjit.lower.cpu.index_rules import combiner, identity
from gnnjit.lower.cpu.job import JobReader
from gnnjit.lower.cpu.simd import I64, Vec, is_half
from gnnjit.lower.cpu.spec import Spec
from gnnjit.lower.cpu.stored import Stored, is_looped


@dataclasses.dataclass(frozen=True)
class Accumulator:
    """A reduced output: where its parts lie in a task's record (bytes), and its dtype there."""

    output: int
    op: Reduce
    value: Atom
    dtype: np.dtype
    leading: int
    trailing: int


Place = tuple[ir.Value, ...] | Stored
"""Where an accumulator is kept while it grows: variables of its vectors, or memory."""

Places = dict[Accumulator, Place]


def accumulators(spec: Spec) -> tuple[list[Accumulator], int]:
    """The reduced outputs and the size of a task's record."""
    out, at = [], 0
    for number, (op, value) in enumerate(zip(spec.reductions, spec.body.outputs, strict=True)):
        if op is None:
            continue
        dtype = np.dtype(np.float32) if is_half(value.dtype) else value.dtype
        size = math.prod(value.shape) * dtype.itemsize
        out.append(Accumulator(number, op, value, dtype, at, at + size))
        at += 2 * size
    return out, -(-at // 64) * 64


class GrowingSums(JobReader):
    """The part of a traversal's code that starts accumulators, adds to them and stores them."""

    feature: ir.Value

    if TYPE_CHECKING:
        read: Callable[[Atom], Vec]
        _element: Callable[[ir.Value, Atom, ir.Value], ir.Value]

    def nothing(self, acc: Accumulator, size: int) -> Vec:
        """What scalars of an accumulator start with."""
        return self.m.literal(acc.dtype, identity(acc.op.kind, acc.dtype), size)

    def fresh(self, group: list[Accumulator]) -> Places:
        return {acc: self._fresh(acc) for acc in group}

    def _fresh(self, acc: Accumulator) -> Place:
        m, size = self.m, math.prod(self.spec.shape(acc.value))
        if not self.spec.tiling or not is_looped(m.lanes, size):
            place = m.variable(self.nothing(acc, size))
            m.assign(place, self.nothing(acc, size))
            return place
        words = -(-size * acc.dtype.itemsize // 8)
        memory = Stored(m.stack(words, align=64), acc.dtype, acc.dtype, size)
        m.each_vector(size, lambda at, width: memory.store(m, self.nothing(acc, width), at))
        return memory

    def go_on(self, acc: Accumulator, place: Place, row: ir.Value, leads: ir.Value) -> None:
        """Start with what the row goes on from; with nothing where another task has begun it."""
        m, pointer = self.m, self._element(self.start(acc.output), acc.value, row)

        def given(at: ir.Value, places: np.ndarray) -> Vec:
            found = m.load(m.offset(pointer, at, acc.value.dtype.itemsize), acc.value.dtype, places)
            pairs = zip(self.nothing(acc, places.size).chunks, found.chunks, strict=True)
            chunks = tuple(self.b.select(leads, nothing, x) for nothing, x in pairs)
            return Vec(acc.dtype, places.size, chunks)

        if isinstance(place, Stored):
            memory = place
            m.each_vector(
                memory.size, lambda at, width: memory.store(m, given(at, np.arange(width)), at)
            )
        else:
            m.assign(place, given(I64(0), self.spec.places(acc.value)))

    def grow(self, acc: Accumulator, place: Place, vec: Vec, at: ir.Value | None = None) -> None:
        """Add a value to an accumulator, or take the larger or smaller of both: all of it, or the
        vector at the scalar `at`."""
        m, combine = self.m, combiner(self.m, acc.op.kind, acc.dtype)
        new = Vec(acc.dtype, vec.size, vec.chunks)
        if isinstance(place, Stored):
            assert at is not None
            place.store(m, combine(place.load(m, at, vec.size), new), at)
            return
        some = place if at is None else place[at.constant // m.lanes :][:1]
        m.assign(some, combine(m.value_of(some, new), new))

    def store_part(self, acc: Accumulator, pointer: ir.Value, place: Place) -> None:
        """Store a raw accumulator into a task's record."""
        if self.spec.shape(acc.value) != acc.value.shape:
            pointer = self.m.offset(pointer, self.feature, acc.dtype.itemsize)
        self._write(acc, pointer, place, acc.dtype, lambda vec: vec)

    def finish_row(self, acc: Accumulator, row: ir.Value, empty: ir.Value, place: Place) -> None:
        pointer = self._element(self.output(acc.output), acc.value, row)
        dtype = acc.value.dtype
        self._write(acc, pointer, place, dtype, lambda vec: self.finished(acc, vec, empty))

    def _write(
        self, acc: Accumulator, pointer: ir.Value, place: Place, dtype: np.dtype,
        done: Callable[[Vec], Vec],
    ) -> None:  # fmt: skip
        m, places = self.m, self.spec.places(acc.value)
        if not isinstance(place, Stored):
            size = math.prod(self.spec.shape(acc.value))
            m.store(done(m.value_of(place, self.nothing(acc, size))), pointer, places)
            return
        memory, result = place, Stored(pointer, dtype, dtype, place.size)
        m.each_vector(
            memory.size, lambda at, width: result.store(m, done(memory.load(m, at, width)), at)
        )

    def finished(self, acc: Accumulator, vec: Vec, empty: ir.Value) -> Vec:
        """The result in its own dtype; 0 where nothing was reduced, unless it is partial."""
        chunks = vec.chunks
        if acc.op.kind != "sum" and not self.spec.partial:
            chunks = tuple(self.b.select(empty, ir.Constant(c.type, None), c) for c in chunks)
        return Vec(acc.value.dtype, vec.size, chunks)
