"""Products of two values of one edge as loops: their code does not grow with the sizes.

    outer:     left right^T      for each scalar of left:    store scalar * right
    columns:   vector @ matrix   for each scalar of vector:  row += scalar * matrix's row
    rows:      matrix @ vector   for each row of matrix:     store sum(row * vector)
    matrices:  left @ right      for each row of left:       as columns
    across:    left @ right^T    for each row of left:       store sum(row * other), some at a time

What was made for one edge is multiplied here, as in NNConv, where an edge has a matrix of its own.
Products with shared matrices are in `matvec` and `tile_code`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Literal as Choice

import numpy as np
from llvmlite import ir

from gnnjit.ir.build import with_params
from gnnjit.ir.program import Atom, Equation, Lax, Value
from gnnjit.ir.space import Space
from gnnjit.lower.cpu.control_flow import Emitter
from gnnjit.lower.cpu.elementwise_rules import arithmetic
from gnnjit.lower.cpu.index_rules import combiner
from gnnjit.lower.cpu.math_rules import convert
from gnnjit.lower.cpu.matvec import VectorMatrix, register_dtype
from gnnjit.lower.cpu.simd import I64, Vec, is_float
from gnnjit.lower.cpu.stored import Stored, is_looped, on_stack, scratch

BLOCK = 8
"""Vectors of sums that grow at a time."""

Read = Callable[[Atom], Vec | Stored]


def without_transposes(equations: Sequence[Equation], kept: set[Atom]) -> list[Equation]:
    """Transposed products as products of the factors in the other order; those that nobody reads
    any more are left out. `kept`: what is read afterwards."""
    made = {v: e for e in equations for v in e.outputs}

    def straight(eqn: Equation) -> Equation:
        if eqn.op.name == "transpose" and eqn.inputs[0] in made:
            inner = made[eqn.inputs[0]]  # type: ignore[index]
            if isinstance(inner.op, Lax) and _turns(inner):
                summed, batch = inner.op["dimension_numbers"]
                op = with_params(inner.op, dimension_numbers=(summed[::-1], batch))
                return dataclasses.replace(eqn, op=op, inputs=inner.inputs[::-1])
        return eqn

    found = [straight(eqn) for eqn in equations]
    read = kept | {a for e in found for a in e.inputs}
    return [e for e in found if not _turns(e) or e.outputs[0] in read]


def _turns(eqn: Equation) -> bool:
    """Whether it is a product of two values of an edge that is transposed with its factors in the
    other order."""
    if not isinstance(eqn.op, Lax) or eqn.op.name != "dot_general":
        return False
    summed, batch = eqn.op["dimension_numbers"]
    free = [len(a.shape) - len(axes) for a, axes in zip(eqn.inputs, summed, strict=True)]
    of_edges = all(a.space is not Space.SHARED for a in eqn.inputs)
    return not any(batch) and free == [1, 1] and (of_edges or not any(summed))


def _is_outer(eqn: Equation) -> bool:
    if not isinstance(eqn.op, Lax) or eqn.op.name != "dot_general":
        return False
    return not any(map(any, eqn.op["dimension_numbers"])) and _ranks(eqn) == [1, 1]


def _ranks(eqn: Equation) -> list[int]:
    return [len(a.shape) for a in eqn.inputs]


@dataclasses.dataclass(frozen=True)
class EdgeProduct:
    """`first` and `second` multiplied: see the module; of `columns`, `second` is the matrix, of
    `rows` the vector. `turned`: of `matrices`, the columns of `first` are multiplied."""

    form: Choice["outer", "columns", "rows", "matrices", "across"]
    first: Atom
    second: Atom
    out: Value
    turned: bool = False

    @staticmethod
    def of(eqn: Equation, lanes: int) -> EdgeProduct | None:
        """None where it is something else, or small enough to be written out.
        `lanes`: of a vector."""
        if not isinstance(eqn.op, Lax) or eqn.op.name != "dot_general":
            return None
        (out,) = eqn.outputs
        left, right = eqn.inputs
        if not all(is_float(a.dtype) for a in (left, right, out)):
            return None
        if _is_outer(eqn):
            return EdgeProduct("outer", left, right, out) if is_looped(lanes, out.size) else None
        contracted, batch = eqn.op["dimension_numbers"]
        if any(batch) or len(contracted[0]) != 1:
            return None
        if _ranks(eqn) == [2, 2] and contracted[1] == (0,) and is_looped(lanes, out.size):
            return EdgeProduct("matrices", left, right, out, contracted[0] == (0,))
        if _ranks(eqn) == [2, 2] and contracted == ((1,), (1,)):
            sizes = [math.prod(a.shape) for a in (left, right, out)]
            return EdgeProduct("across", left, right, out) if is_looped(lanes, max(sizes)) else None
        if sorted(_ranks(eqn)) != [1, 2]:
            return None
        side = _ranks(eqn).index(2)
        matrix, vector = eqn.inputs[side], eqn.inputs[1 - side]
        if not is_looped(lanes, math.prod(matrix.shape)):
            return None
        if contracted[side] == (0,):
            return EdgeProduct("columns", vector, matrix, out)
        return EdgeProduct("rows", matrix, vector, out)

    def emit(self, m: Emitter, read: Read) -> Vec | Stored:
        """The product: in memory if values of its size are."""
        kind = register_dtype(self.out.dtype)
        first, second = (in_memory(m, read(a), kind) for a in (self.first, self.second))
        result = scratch(m, self.out)
        if self.form == "outer":
            _outer(m, first, second, result)
        elif self.form == "rows":
            _rows(m, first, second, result)
        elif self.form == "matrices":
            _matrices(m, first, second, result, self.second.shape[0], self.turned)
        elif self.form == "across":
            _across(m, first, second, result, self.second.shape[1])
        elif result.size > BLOCK * m.lanes:
            _matrices(m, first, second, result, first.size)
        else:
            product = VectorMatrix(m, kind, first.size, result.size, BLOCK)
            result.store(m, product.of(first.pointer, second.pointer), I64(0))
        return result if is_looped(m.lanes, result.size) else result.whole(m)


def in_memory(m: Emitter, value: Vec | Stored, kind: np.dtype) -> Stored:
    """A value as scalars of `kind` in memory."""
    if isinstance(value, Stored) and value.kind == kind:
        return dataclasses.replace(value, dtype=kind)
    result = on_stack(m, kind, kind, value.size)
    copy(m, value, result)
    return result


def copy(m: Emitter, value: Vec | Stored, result: Stored) -> None:
    """Store a value of the same size, converted."""
    if not isinstance(value, Stored):
        result.store(m, convert(m, value, result.dtype), I64(0))
        return

    def some(at: ir.Value, width: int) -> None:
        result.store(m, convert(m, value.load(m, at, width), result.dtype), at)

    m.each_vector(value.size, some)


def _outer(m: Emitter, left: Stored, right: Stored, result: Stored) -> None:
    held = None if is_looped(m.lanes, right.size) else right.whole(m)
    with m.loop(I64(0), I64(left.size)) as i:
        scalar, start = left.load(m, i, 1), m.b.mul(i, I64(right.size))

        def multiply(at: ir.Value, row: Vec) -> None:
            result.store(m, _times(m, scalar, row), m.b.add(start, at))

        if held is not None:
            multiply(I64(0), held)
        else:
            m.each_vector(right.size, lambda at, width: multiply(at, right.load(m, at, width)))


def _matrices(
    m: Emitter, left: Stored, right: Stored, result: Stored, inner: int, turned: bool = False
) -> None:
    """`left @ right`, or `left^T @ right`; `inner`: the scalars that are summed."""
    columns, rows = right.size // inner, left.size // inner
    plus = combiner(m, "sum", right.kind)

    def row(i: ir.Value) -> None:
        def multiply(at: ir.Value, width: int) -> None:
            zero = m.literal(right.kind, 0, width)
            place = m.variable(zero)
            m.assign(place, zero)
            with m.loop(I64(0), I64(inner)) as k:
                if turned:
                    scalar = left.load(m, m.b.add(m.b.mul(k, I64(rows)), i), 1)
                else:
                    scalar = left.load(m, m.b.add(m.b.mul(i, I64(inner)), k), 1)
                vec = right.load(m, m.b.add(m.b.mul(k, I64(columns)), at), width)
                m.assign(place, plus(m.value_of(place, zero), _times(m, scalar, vec)))
            result.store(m, m.value_of(place, zero), m.b.add(m.b.mul(i, I64(columns)), at))

        m.each_vector(columns, multiply, BLOCK)

    if rows == 1:
        row(I64(0))
    else:
        with m.loop(I64(0), I64(rows)) as i:
            row(i)


def _across(m: Emitter, left: Stored, right: Stored, result: Stored, inner: int) -> None:
    """`left @ right^T`; `inner`: the scalars of a row of each."""
    columns, rows = right.size // inner, left.size // inner
    plus, zero = combiner(m, "sum", right.kind), m.literal(right.kind, 0, m.lanes)

    def some(i: ir.Value, first: ir.Value, count: int) -> None:
        """With so many rows of `right`: each vector of the row `i` is read once for them."""
        places = [m.variable(zero) for _ in range(count)]
        rest: list[Vec] = []
        for place in places:
            m.assign(place, zero)

        def multiply(at: ir.Value, width: int) -> None:
            row = left.load(m, m.b.add(m.b.mul(i, I64(inner)), at), width)
            for k, place in enumerate(places):
                start = m.b.mul(m.b.add(first, I64(k)), I64(inner))
                product = _times(m, row, right.load(m, m.b.add(start, at), width))
                if width == m.lanes:
                    m.assign(place, plus(m.value_of(place, zero), product))
                else:
                    rest.append(product)

        m.each_vector(inner, multiply)
        sums = [m.value_of(place, zero) for place in places] if inner >= m.lanes else []
        totals = [_totals(m, vecs) for vecs in (sums, rest) if vecs]
        total = plus(*totals) if len(totals) > 1 else totals[0]
        result.store(m, total, m.b.add(m.b.mul(i, I64(columns)), first))

    with m.loop(I64(0), I64(rows)) as i:
        whole = columns - columns % BLOCK
        if whole:
            with m.loop(I64(0), I64(whole), BLOCK) as first:
                some(i, first, BLOCK)
        if columns > whole:
            some(i, I64(whole), columns - whole)


def _rows(m: Emitter, matrix: Stored, vector: Stored, result: Stored) -> None:
    held = None if is_looped(m.lanes, vector.size) else vector.whole(m)
    with m.loop(I64(0), I64(result.size)) as i:
        start = m.b.mul(i, I64(vector.size))
        if held is None:
            total = _long_dot(m, matrix, start, vector)
        else:
            total = _total(m, _times(m, matrix.load(m, start, vector.size), held))
        result.store(m, total, i)


def _long_dot(m: Emitter, matrix: Stored, start: ir.Value, vector: Stored) -> Vec:
    """The product of a row, which begins at `start`, and the vector."""
    kind = vector.kind
    zero = m.literal(kind, 0, m.lanes)
    plus, place = combiner(m, "sum", kind), m.variable(zero)
    m.assign(place, zero)
    rest: list[Vec] = []

    def multiply(at: ir.Value, width: int) -> None:
        row = matrix.load(m, m.b.add(start, at), width)
        product = _times(m, row, vector.load(m, at, width))
        if width == m.lanes:
            m.assign(place, plus(m.value_of(place, zero), product))
        else:
            rest.append(_total(m, product))

    m.each_vector(vector.size, multiply)
    total = _total(m, m.value_of(place, zero))
    return plus(total, rest[0]) if rest else total


def _times(m: Emitter, a: Vec, b: Vec) -> Vec:
    return m.map("mul", a.dtype, arithmetic(m, "mul", a.dtype), a, b)


def _total(m: Emitter, vec: Vec) -> Vec:
    return _totals(m, [vec])


def _totals(m: Emitter, vecs: Sequence[Vec]) -> Vec:
    """The sum of each of some vectors of one size."""
    groups = np.arange(len(vecs) * vecs[0].size).reshape(len(vecs), -1)
    return m.fold(combiner(m, "sum", vecs[0].dtype), m.take(vecs, groups), groups)
