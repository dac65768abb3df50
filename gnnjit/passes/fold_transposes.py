"""`fold-transposes`: products of two values read them as they lie in memory.

before:  t: f32[src, 16, 3] = transpose(x)              after:  h: f32[edge, 16] =
         h: f32[edge, 16] = t[u] @ d                                dot_general(x[u], d) over axis 0
         p: f32[edge, 16, 3] = dot_general(x[u], a),            r: f32[edge, 3, 16] =
            with axis 1 of x and axis 0 of a in step                    broadcast_in_dim(a)
         q: f32[edge, 3, 16] = transpose(p)                     q: f32[edge, 3, 16] = x[u] * r

Tensor products (`einsum`) and their derivatives are such products. A transpose of a vertex's value
is an array more that vertices write and edges read; one on the edges moves every scalar. A product
that sums nothing is a multiplication, which any kernel does as part of others.

Legal: the same numbers are multiplied and summed. Refuses products with a shared array, whose
transposed forms the kernels know, and those that would order the result's axes otherwise. Of a
product that sums nothing, refuses those whose dtype changes.
"""

from __future__ import annotations

import dataclasses

from jax import lax

from gnnjit.ir import build
from gnnjit.ir.program import Atom, Builder, Equation, Lax, Program, Value, rewrite
from gnnjit.ir.space import Space

Axes = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class FoldTransposes:
    name: str = "fold-transposes"

    def __call__(self, program: Program) -> Program:
        if not any(e.op.name == "transpose" or _is_product(e) for e in program.equations):
            return program
        transposed = {
            e.outputs[0]: (e.inputs[0], tuple(e.op["permutation"]))
            for e in program.equations
            if isinstance(e.op, Lax) and e.op.name == "transpose"
        }

        def rule(builder: Builder, eqn: Equation) -> bool:
            if _is_product(eqn):
                return _product(builder, eqn, transposed)
            if eqn.outputs[0] in transposed:
                return _transpose(builder, eqn)
            return False

        return rewrite(program, rule)


def _is_product(eqn: Equation) -> bool:
    """Whether it is a product of two values, neither of them shared."""
    plain = isinstance(eqn.op, Lax) and eqn.op.name == "dot_general"
    return plain and all(a.space is not Space.SHARED for a in eqn.inputs)


def _transpose(builder: Builder, eqn: Equation) -> bool:
    """A transpose of a transpose, as one, or as none."""
    assert isinstance(eqn.op, Lax)
    source = builder[eqn.inputs[0]]
    before = next((e for e in builder.equations[::-1] if source in e.outputs), None)
    if before is None or not isinstance(before.op, Lax) or before.op.name != "transpose":
        return False
    if before.inputs[0].space is not eqn.outputs[0].space:
        return False
    order = tuple(before.op["permutation"][k] for k in eqn.op["permutation"])
    builder.env[eqn.outputs[0]] = _in_order(builder, before.inputs[0], order, eqn)
    return True


def _in_order(builder: Builder, value: Atom, order: Axes, eqn: Equation) -> Atom:
    if order == tuple(range(len(order))):
        return value
    op = build.transpose_op(order)
    return build.emit_op(builder, op, [value], eqn.location)


@dataclasses.dataclass(frozen=True)
class _Side:
    """A factor of a product: its value, and which of its axes are summed, and which are in step
    with the other's."""

    value: Atom
    summed: Axes
    batch: Axes

    @property
    def free(self) -> list[int]:
        return [k for k in range(len(self.value.shape)) if k not in self.summed + self.batch]

    def untransposed(self, source: Atom, order: Axes) -> _Side:
        """The same factor, as a transpose of it; itself where axes of the result would swap."""
        if (free := [order[k] for k in self.free]) != sorted(free):
            return self
        return _Side(source, *(tuple(order[k] for k in ks) for ks in (self.summed, self.batch)))


def _product(builder: Builder, eqn: Equation, transposed: dict[Value, tuple[Atom, Axes]]) -> bool:
    assert isinstance(eqn.op, Lax)
    summed, batch = eqn.op["dimension_numbers"]
    sides = []
    for side, value in enumerate(eqn.inputs):
        found = _Side(value, tuple(summed[side]), tuple(batch[side]))
        if value in transposed:
            found = found.untransposed(*transposed[value])  # type: ignore[index]
        sides.append(dataclasses.replace(found, value=builder[found.value]))
    if not summed[0] and batch[0] and _multiplied(builder, eqn, sides):
        return True
    if all(s.value is builder[v] for s, v in zip(sides, eqn.inputs, strict=True)):
        return False
    left, right = sides
    numbers = (left.summed, right.summed), (left.batch, right.batch)
    op = build.with_params(eqn.op, dimension_numbers=numbers)
    builder.emit(op, [left.value, right.value], eqn.outputs, eqn.location)
    return True


def _multiplied(builder: Builder, eqn: Equation, sides: list[_Side]) -> bool:
    """A product that sums nothing and repeats one factor at most, as a multiplication."""
    (out,) = eqn.outputs
    repeated = next((s for s in sides if not s.free), None)
    if repeated is None or any(s.value.dtype != out.dtype for s in sides):
        return False
    whole = sides[1 - sides.index(repeated)]
    axes = dict(zip(repeated.batch, whole.batch, strict=True))
    places = tuple(axes[k] for k in range(len(axes)))
    if list(places) != sorted(places):
        return False
    other = repeated.value
    if len(places) < len(whole.value.shape):
        spread = build.broadcast_in_dim_op(tuple(whole.value.shape), places)
        other = build.emit_op(builder, spread, [other], eqn.location)
    product = build.elementwise(builder, lax.mul, [whole.value, other], eqn.location, out.space)
    order = (*whole.batch, *whole.free)
    builder.env[out] = _in_order(builder, product, order, eqn)
    return True
