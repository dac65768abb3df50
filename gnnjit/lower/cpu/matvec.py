"""Products of a shared matrix with a value of each edge or row, as a loop over what is contracted.

The matrix stays in memory. Written out, 64 x 64 multiplications were 4,000 instructions and a
matrix in registers that did not fit them; the loop is as long as the result has vectors.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from gnnjit.ir.large_products import MATRIX
from gnnjit.ir.program import Atom, Equation, Lax, Literal, Value
from gnnjit.ir.space import Space
from gnnjit.ir.tables import TableRows, read_of
from gnnjit.lower.cpu.control_flow import Emitter
from gnnjit.lower.cpu.index_rules import combiner
from gnnjit.lower.cpu.math_rules import convert
from gnnjit.lower.cpu.register_blocks import grown, scalar
from gnnjit.lower.cpu.simd import I64, Vec, is_float, is_half

UNROLLED = MATRIX - 1
"""Multiplications of a product that is written out at most."""

CHAINS = 8
"""Sums that grow beside each other: an addition waits for the one before it, four steps."""


@dataclasses.dataclass(frozen=True)
class SharedMatrix:
    """A shared input as `[batch, inner, columns]`, row-major, of floats as they are in registers.

    axes: of the input, in this order.
    """

    value: Value
    axes: tuple[int, ...]
    dtype: np.dtype

    @property
    def bytes(self) -> int:
        return self.value.size * self.dtype.itemsize

    @property
    def room(self) -> int:
        """Bytes of a copy, in whole cache lines."""
        return -(-self.bytes // 64) * 64

    @functools.cached_property
    def lies_so(self) -> bool:
        """Whether the array is so in memory as it is given."""
        return self.axes == tuple(range(len(self.axes))) and self.value.dtype == self.dtype


@dataclasses.dataclass(frozen=True)
class Matvec:
    """A `dot_general` of a matrix with another value.

    other: that value. places: numbers of its scalars, `[batch, rows, inner]`.
    rows: the matrix is this row of a table, which `matrix` then is.
    """

    matrix: SharedMatrix
    other: Atom
    places: np.ndarray
    columns: int
    rows: TableRows | None = None

    @property
    def reads(self) -> tuple[Atom, ...]:
        """The values that it reads beside the matrix."""
        return (self.other,) if self.rows is None else (self.other, *self.rows.index)

    @property
    def row_bytes(self) -> int:
        """Bytes of the matrix, where it is a row of a table."""
        leading = 0 if self.rows is None else self.rows.leading
        return math.prod(self.matrix.value.shape[leading:]) * self.matrix.dtype.itemsize

    @property
    def multiplications(self) -> int:
        return self.places.size * self.columns


def register_dtype(dtype: np.dtype) -> np.dtype:
    return np.dtype(np.float32) if is_half(dtype) else dtype


Makers = Mapping[Any, Equation]


def matvec_of(eqn: Equation, inputs: Sequence[Value], made: Makers) -> Matvec | None:
    """How an equation is a product with a shared input, or with a row of one; None if it is none,
    or a small one."""
    if not isinstance(eqn.op, Lax) or eqn.op.name != "dot_general":
        return None
    (out,) = eqn.outputs
    if not all(is_float(v.dtype) for v in (*eqn.inputs, out)) or out.size == 0:
        return None
    for side in (1, 0):
        if isinstance(eqn.inputs[1 - side], Literal):
            continue
        table, rows = _matrix(eqn.inputs[side], inputs, made)
        if table is not None and (rows or eqn.inputs[1 - side].space is not Space.SHARED):
            found = _matvec(eqn, table, rows, side)
            return found if found and found.multiplications > UNROLLED else None
    return None


def _matrix(
    atom: Atom, inputs: Sequence[Value], made: Makers
) -> tuple[Value | None, TableRows | None]:
    """The input that a matrix is, or is a row of."""
    if not isinstance(atom, Value):
        return None, None
    if atom in inputs:
        return (atom, None) if atom.space is Space.SHARED else (None, None)
    shape, eqn = atom.shape, made[atom]
    while eqn.op.name in ("squeeze", "reshape") and _as_long(eqn.inputs[0].shape, shape):
        if eqn.inputs[0] not in made:
            return None, None
        eqn = made[eqn.inputs[0]]
    rows = table_read(eqn, inputs)
    if rows is None or rows.row != shape or math.prod(rows.batch) != 1:
        return None, None
    usual = rows.fill is None or (isinstance(rows.fill, float) and math.isnan(rows.fill))
    return (rows.table, rows) if usual else (None, None)  # type: ignore[return-value]


def _as_long(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether two shapes differ in axes of length 1 alone."""
    return [n for n in a if n != 1] == [n for n in b if n != 1]


def table_read(eqn: Equation, inputs: Sequence[Value]) -> TableRows | None:
    """Which rows of a shared input an equation reads, if it does."""
    rows = read_of(eqn)
    if rows is None or rows.table not in inputs or rows.table.space is not Space.SHARED:
        return None
    return rows if all(a.dtype.kind in "iu" for a in rows.index) else None


def _matvec(eqn: Equation, matrix: Value, rows: TableRows | None, side: int) -> Matvec | None:
    assert isinstance(eqn.op, Lax)
    contracted, batch = eqn.op["dimension_numbers"]
    first, other = 0 if rows is None else rows.leading, eqn.inputs[1 - side]
    inner = tuple(first + a for a in contracted[side])
    outer = tuple(first + a for a in batch[side])
    inner_other, outer_other = tuple(contracted[1 - side]), tuple(batch[1 - side])
    free = tuple(a for a in range(first, len(matrix.shape)) if a not in (*inner, *outer))
    kept = tuple(a for a in range(len(other.shape)) if a not in (*inner_other, *outer_other))
    count = math.prod(other.shape[a] for a in kept)
    if (side == 0 and count != 1) or 0 in matrix.shape:
        return None  # the result has the rows of `other` last
    places = np.arange(math.prod(other.shape)).reshape(other.shape)
    places = places.transpose([*outer_other, *kept, *inner_other])
    places = places.reshape(math.prod(matrix.shape[a] for a in outer), count, -1)
    axes = (*range(first), *outer, *inner, *free)
    made = SharedMatrix(matrix, axes, register_dtype(eqn.outputs[0].dtype))
    return Matvec(made, other, places, math.prod(matrix.shape[a] for a in free), rows)


def pack(m: Emitter, matrix: SharedMatrix, source: ir.Value, target: ir.Value) -> None:
    """Copy a matrix into its order, with a loop for each axis."""
    shape = matrix.value.shape
    steps = [math.prod(shape[a + 1 :]) for a in range(len(shape))]

    def over(axes: Sequence[int], at: ir.Value, to: ir.Value) -> None:
        if not axes:
            read = m.offset(source, at, matrix.value.dtype.itemsize)
            scalar = convert(m, m.load(read, matrix.value.dtype, np.arange(1)), matrix.dtype)
            m.store(scalar, m.offset(target, to, matrix.dtype.itemsize), np.arange(1))
            return
        first, *rest = axes
        inside = math.prod(shape[a] for a in rest)
        with m.loop(I64(0), I64(shape[first])) as k:
            b = m.b
            over(rest, b.add(at, b.mul(k, I64(steps[first]))), b.add(to, b.mul(k, I64(inside))))

    over(matrix.axes, I64(0), I64(0))


@dataclasses.dataclass(frozen=True)
class Product:
    """Code for one product. pointer: to the matrix; registers: vectors of sums at most."""

    m: Emitter
    plan: Matvec
    pointer: ir.Value
    registers: int

    def of(self, other: Vec, dtype: np.dtype) -> Vec:
        """The product with `other`, a value of `dtype`."""
        m, kind = self.m, self.plan.matrix.dtype
        batch, rows, inner = self.plan.places.shape
        taken = m.take([convert(m, other, kind)], self.plan.places)
        given = m.stack(-(-taken.size * kind.itemsize // 8))
        m.store(taken, given, np.arange(taken.size))
        columns = self.plan.columns
        product = VectorMatrix(m, kind, inner, columns, self.registers)
        if batch * rows == 1:
            return dataclasses.replace(product.of(given, self.pointer), dtype=dtype)
        result = m.stack(-(-batch * rows * columns * kind.itemsize // 8))
        with m.loop(I64(0), I64(batch)) as b:
            matrix = m.offset(self.pointer, b, inner * columns * kind.itemsize)
            with m.loop(I64(0), I64(rows)) as r:
                row = m.b.add(m.b.mul(b, I64(rows)), r)
                sums = product.of(m.offset(given, row, inner * kind.itemsize), matrix)
                m.store(sums, m.offset(result, row, columns * kind.itemsize), np.arange(columns))
        found = m.load(result, kind, np.arange(batch * rows * columns))
        return dataclasses.replace(found, dtype=dtype)


@dataclasses.dataclass(frozen=True)
class VectorMatrix:
    """Code for `[inner] @ [inner, columns]`, both in memory, of floats as they are in registers.

    registers: vectors of sums at most.
    """

    m: Emitter
    dtype: np.dtype
    inner: int
    columns: int
    registers: int

    def of(self, given: ir.Value, matrix: ir.Value) -> Vec:
        """The product of what pointers point to."""
        chunks: list[ir.Value] = []
        for first, widths in self._strips():
            chunks += self._strip(given, self.m.offset(matrix, first, self.dtype.itemsize), widths)
        return Vec(self.dtype, self.columns, tuple(chunks))

    def _strips(self) -> Iterator[tuple[int, list[int]]]:
        """Columns whose sums fit registers: the first of them, and the widths of their vectors."""
        widths, start = self.m.widths(self.columns), 0
        for strip in np.array_split(widths, -(-len(widths) // self.registers)):
            yield start, strip.tolist()
            start += int(strip.sum())

    def _strip(self, given: ir.Value, matrix: ir.Value, widths: list[int]) -> Sequence[ir.Value]:
        m, kind, size = self.m, self.dtype, sum(widths)
        inner, step = self.inner, kind.itemsize
        zero = m.literal(kind, 0, size)
        chains = max(1, min(CHAINS // len(widths), inner))
        sums = [m.variable(zero) for _ in range(chains)]
        for place in sums:
            m.assign(place, zero)

        def grow(place: tuple[ir.Value, ...], k: ir.Value) -> None:
            left = scalar(m, m.offset(given, k, step), kind)
            row = m.load(m.offset(matrix, k, self.columns * step), kind, np.arange(size))
            m.assign(place, grown(m, m.value_of(place, zero), left, row))

        rest = inner % chains
        with m.loop(I64(0), I64(inner - rest), chains) as k:
            for number, place in enumerate(sums):
                grow(place, m.b.add(k, I64(number)))
        for number in range(rest):
            grow(sums[number], I64(inner - rest + number))
        found = [m.value_of(place, zero) for place in sums]
        plus = combiner(m, "sum", kind)
        while len(found) > 1:
            found = [plus(*found[k : k + 2]) if k + 1 < len(found) else found[k]
                     for k in range(0, len(found), 2)]  # fmt: skip
        return found[0].chunks
