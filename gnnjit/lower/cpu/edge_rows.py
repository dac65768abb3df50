"""Values of one edge repeated, reduced over their rows and joined, as loops.

    rows:     [n] -> [k, n]       for each row:     store the vector
              [g, n] -> [g, k, n] for each vector, likewise
    scalars:  [k] -> [k, n]       for each scalar:  store a row of it
    down:     [k, n] -> [n]       for each vector:  for each row: sum += its part
              [g, k, n] -> [g, n] for each k rows, likewise
    across:   [k, n] -> [k]       for each row:     store its sum
    joined:   [k], [n] -> [k + n] for each part:    store its vectors, row by row
    cut:      [k, n] -> [k, some] for each row:     store some of its vectors

Their code does not grow with the sizes; `edge_products` has products.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Literal as Choice

import numpy as np
from llvmlite import ir

from gnnjit.ir.build import broadcast_in_dim_op
from gnnjit.ir.program import Atom, Equation, Lax, Value
from gnnjit.lower.cpu.control_flow import Emitter
from gnnjit.lower.cpu.edge_products import BLOCK, Read, copy, in_memory
from gnnjit.lower.cpu.index_rules import combiner, identity
from gnnjit.lower.cpu.math_rules import ELEMENTWISE
from gnnjit.lower.cpu.matvec import register_dtype
from gnnjit.lower.cpu.simd import I64, Vec
from gnnjit.lower.cpu.stored import Stored, is_looped, scratch

REDUCTIONS = {"reduce_sum": "sum", "reduce_max": "max", "reduce_min": "min"}

Form = Choice["rows", "scalars", "down", "across"]


def with_repeats(equations: Iterable[Equation], lanes: int) -> list[Equation]:
    """Elementwise equations of long values that repeat some of their inputs, after equations that
    repeat those."""
    found: list[Equation] = []
    for eqn in equations:
        inputs = []
        for atom in eqn.inputs:
            if _is_repeated(eqn, atom, lanes):
                (out,) = eqn.outputs
                op = broadcast_in_dim_op(tuple(out.shape), tuple(range(len(out.shape))))
                repeated = Value(out.shape, atom.dtype, out.space)
                found.append(Equation(op, (atom,), (repeated,), eqn.location))
                atom = repeated
            inputs.append(atom)
        changed = tuple(inputs) != eqn.inputs
        found.append(dataclasses.replace(eqn, inputs=tuple(inputs)) if changed else eqn)
    return found


def _is_repeated(eqn: Equation, atom: Atom, lanes: int) -> bool:
    if eqn.op.name not in ELEMENTWISE or not is_looped(lanes, eqn.outputs[0].size):
        return False
    (out,) = eqn.outputs
    return math.prod(atom.shape) not in (1, out.size) and len(atom.shape) == len(out.shape)


@dataclasses.dataclass(frozen=True)
class EdgeRows:
    """`value`, seen as `count` rows of `length` scalars or to be repeated so. `kind`: of a
    reduction. `groups`: of rows, each repeated from, or reduced to, a vector of its own."""

    form: Form
    value: Atom
    out: Value
    count: int
    length: int
    kind: str = ""
    groups: int = 1

    @staticmethod
    def of(eqn: Equation, lanes: int) -> EdgeRows | None:
        """None where it is something else, or small enough to be written out.
        `lanes`: of a vector."""
        if not isinstance(eqn.op, Lax) or len(eqn.outputs) != 1:
            return None
        if eqn.op.name == "broadcast_in_dim" and is_looped(lanes, eqn.outputs[0].size):
            return _repeat(eqn, eqn.op["broadcast_dimensions"])
        if eqn.op.name in REDUCTIONS and is_looped(lanes, math.prod(eqn.inputs[0].shape)):
            return _reduction(eqn, eqn.op["axes"])
        return None

    def emit(self, m: Emitter, read: Read) -> Vec | Stored:
        """The result: in memory if values of its size are."""
        value = in_memory(m, read(self.value), register_dtype(self.value.dtype))
        result = scratch(m, self.out)
        {"rows": self._rows, "scalars": self._scalars, "down": self._down, "across": self._across}[
            self.form
        ](m, value, result)
        return result if is_looped(m.lanes, result.size) else result.whole(m)

    def _rows(self, m: Emitter, value: Stored, result: Stored) -> None:
        with self._each_group(m) as group:
            own, rows = self._vector_of(m, value, group), self._rows_of(m, result, group)

            def repeat(at: ir.Value, width: int) -> None:
                vec = own.load(m, at, width)
                with m.loop(I64(0), I64(self.count)) as row:
                    rows.store(m, vec, m.b.add(m.b.mul(row, I64(self.length)), at))

            m.each_vector(self.length, repeat, BLOCK)

    def _each_group(self, m: Emitter) -> contextlib.AbstractContextManager[ir.Value]:
        if self.groups == 1:
            return contextlib.nullcontext(I64(0))
        return m.loop(I64(0), I64(self.groups))

    def _vector_of(self, m: Emitter, value: Stored, group: ir.Value) -> Stored:
        return row_of(m, value, group, self.length, 0, self.length)

    def _rows_of(self, m: Emitter, value: Stored, group: ir.Value) -> Stored:
        size = self.count * self.length
        return row_of(m, value, group, size, 0, size)

    def _scalars(self, m: Emitter, value: Stored, result: Stored) -> None:
        with m.loop(I64(0), I64(self.count)) as row:
            scalar, start = value.load(m, row, 1), m.b.mul(row, I64(self.length))
            m.each_vector(
                self.length,
                lambda at, width: result.store(m, m.spread(scalar, width), m.b.add(start, at)),
            )

    def _down(self, m: Emitter, value: Stored, result: Stored) -> None:
        combine = combiner(m, self.kind, value.kind)
        with self._each_group(m) as group:
            rows, own = self._rows_of(m, value, group), self._vector_of(m, result, group)

            def total(at: ir.Value, width: int) -> None:
                nothing = self._nothing(m, value, width)
                place = m.variable(nothing)
                m.assign(place, nothing)
                with m.loop(I64(0), I64(self.count)) as row:
                    part = rows.load(m, m.b.add(m.b.mul(row, I64(self.length)), at), width)
                    m.assign(place, combine(m.value_of(place, nothing), part))
                own.store(m, m.value_of(place, nothing), at)

            m.each_vector(self.length, total, BLOCK)

    def _across(self, m: Emitter, value: Stored, result: Stored) -> None:
        with m.loop(I64(0), I64(self.count)) as row:
            result.store(m, self._total(m, value, m.b.mul(row, I64(self.length))), row)

    def _total(self, m: Emitter, value: Stored, start: ir.Value) -> Vec:
        """Of the row that starts there."""
        combine = combiner(m, self.kind, value.kind)
        nothing, rest = self._nothing(m, value, m.lanes), list[Vec]()
        place = m.variable(nothing)
        m.assign(place, nothing)

        def add(at: ir.Value, width: int) -> None:
            part = value.load(m, m.b.add(start, at), width)
            if width == m.lanes:
                m.assign(place, combine(m.value_of(place, nothing), part))
            else:
                rest.append(_folded(m, combine, part))

        m.each_vector(self.length, add)
        total = _folded(m, combine, m.value_of(place, nothing))
        return combine(total, rest[0]) if rest else total

    def _nothing(self, m: Emitter, value: Stored, width: int) -> Vec:
        return m.literal(value.dtype, identity(self.kind, value.dtype), width)


@dataclasses.dataclass(frozen=True)
class Joined:
    """A concatenation: each of `rows` rows of the result has one of each part."""

    parts: tuple[Atom, ...]
    out: Value
    rows: int

    @staticmethod
    def of(eqn: Equation, lanes: int) -> Joined | None:
        """None where it is something else, or small enough to be written out."""
        if not isinstance(eqn.op, Lax) or eqn.op.name != "concatenate":
            return None
        (out,), axis = eqn.outputs, eqn.op["dimension"]
        rows = math.prod(out.shape[:axis])
        return Joined(eqn.inputs, out, rows) if is_looped(lanes, out.size) else None

    def emit(self, m: Emitter, read: Read) -> Stored:
        result, start = scratch(m, self.out), 0
        parts = []
        for atom in self.parts:
            length, value = math.prod(atom.shape) // self.rows, read(atom)
            if self.rows > 1:
                value = in_memory(m, value, result.kind)
            parts.append((value, start, length))
            start += length
        if self.rows == 1:
            for value, at, _ in parts:
                copy(m, value, result.part(m, at))
            return result
        with m.loop(I64(0), I64(self.rows)) as i:
            for value, at, length in parts:
                to = row_of(m, result, i, start, at, length)
                copy(m, row_of(m, value, i, length, 0, length), to)
        return result


def cut(m: Emitter, value: Stored, rows: int, start: int, out: Value) -> Stored:
    """The scalars from `start` on of each of `rows` rows."""
    result, length = scratch(m, out), out.size // rows
    with m.loop(I64(0), I64(rows)) as i:
        some = row_of(m, value, i, value.size // rows, start, length)
        copy(m, some, row_of(m, result, i, length, 0, length))
    return result


def row_of(m: Emitter, value: Stored, i: ir.Value, whole: int, start: int, length: int) -> Stored:
    """`length` scalars from `start` on of the row `i`, each of `whole` scalars."""
    at = m.b.add(m.b.mul(i, I64(whole)), I64(start))
    pointer = m.offset(value.pointer, at, value.kind.itemsize)
    return dataclasses.replace(value, pointer=pointer, size=length)


def _repeat(eqn: Equation, axes: tuple[int, ...]) -> EdgeRows | None:
    (value,), (out,) = eqn.inputs, eqn.outputs
    size = math.prod(value.shape)
    if not isinstance(value, Value) or size in (1, out.size):
        return None
    own = {axis for axis, n in zip(axes, value.shape, strict=True) if n > 1}
    match _parts(out.shape, own):
        case [(False, count), (True, length)]:
            return EdgeRows("rows", value, out, count, length)
        case [(True, groups), (False, count), (True, length)]:
            return EdgeRows("rows", value, out, count, length, groups=groups)
        case [(True, count), (False, length)]:
            return EdgeRows("scalars", value, out, count, length)
    return None


def _reduction(eqn: Equation, axes: tuple[int, ...]) -> EdgeRows | None:
    (value,), (out,) = eqn.inputs, eqn.outputs
    if not isinstance(value, Value):
        return None
    kind = REDUCTIONS[eqn.op.name]
    match _parts(value.shape, axes):
        case [(True, count), (False, length)]:
            return EdgeRows("down", value, out, count, length, kind)
        case [(False, groups), (True, count), (False, length)]:
            return EdgeRows("down", value, out, count, length, kind, groups)
        case [(False, count), (True, length)]:
            return EdgeRows("across", value, out, count, length, kind)
    return None


def _parts(shape: Sequence[int], some: Container[int]) -> list[tuple[bool, int]]:
    """Axes side by side that are all among `some`, or none of them: which, and their scalars."""
    wide = [(axis in some, n) for axis, n in enumerate(shape) if n > 1]
    parts = itertools.groupby(wide, key=lambda axis: axis[0])
    return [(among, math.prod(n for _, n in axes)) for among, axes in parts]


def _folded(m: Emitter, combine: Callable[[Vec, Vec], Vec], vec: Vec) -> Vec:
    return m.fold(combine, vec, np.arange(vec.size).reshape(1, -1))
