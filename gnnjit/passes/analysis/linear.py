"""What is linear in a vector of features, and the same expression over other features.

A factor that is one number per element, or per head, does not see whether the features it scales
have been multiplied by a matrix. `Algebra` says which operands an equation is linear in, and
`Rebuild` writes a linear expression once more, over features of another width.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from jax import lax

from gnnjit.ir import build
from gnnjit.ir.program import (
    Atom,
    Builder,
    Degree,
    Equation,
    Lax,
    Literal,
    Location,
    Reduce,
    Value,
)
from gnnjit.ir.space import Space
from gnnjit.passes.wide import in_float32, rounds_only, widened

ADD = ("add", "add_any", "sub")
_ELEMENTWISE = tuple("add convert_element_type div max min mul neg select_n sub".split())
_LONGEST_FACTOR = 32
"""Operations at full width, one after the other, that make a factor."""
_SAME_NUMBERS = ("broadcast_in_dim", "reshape", "squeeze")

Axes = tuple[int, ...]
DimensionNumbers = tuple[tuple[Axes, Axes], tuple[Axes, Axes]]


def dot(
    builder: Builder, like: Equation, a: Atom, b: Atom, numbers: DimensionNumbers, space: Space
) -> Value:
    """Append a product as `like`, but of other axes."""
    assert isinstance(like.op, Lax)
    op = like.op if a.dtype == like.outputs[0].dtype else in_float32(like.op)
    params = dict(op.params) | {"dimension_numbers": numbers}
    (contracted_a, contracted_b), (batch_a, batch_b) = numbers
    used_a, used_b = {*contracted_a, *batch_a}, {*contracted_b, *batch_b}
    free_a = [n for i, n in enumerate(a.shape) if i not in used_a]
    free_b = [n for i, n in enumerate(b.shape) if i not in used_b]
    shape = (*(a.shape[i] for i in batch_a), *free_a, *free_b)
    op = Lax(like.op.primitive, tuple(sorted(params.items())))
    out = Value(shape, a.dtype, space)
    return builder.emit(op, [a, b], [out], like.location)[0]


def reshape(builder: Builder, a: Atom, shape: tuple[int, ...], where: Location | None) -> Atom:
    if a.shape == shape:
        return a
    return build.emit_op(builder, build.reshape_op(shape), [a], where, a.space)


def fill(
    builder: Builder,
    a: Atom,
    shape: tuple[int, ...],
    axes: Iterable[int],
    space: Space,
    where: Location | None = None,
) -> Atom:
    """`a`, whose axes are `axes` of the result, repeated along the others."""
    if a.shape == shape:
        return a
    op = build.broadcast_in_dim_op(shape, tuple(axes))
    return build.emit_op(builder, op, [a], where, space)


def zeros(builder: Builder, like: Atom, shape: tuple[int, ...]) -> Atom:
    zero = Literal(np.zeros((), like.dtype)[()], np.dtype(like.dtype))
    return fill(builder, zero, shape, (), Space.SHARED)


def where_edges(builder: Builder, x: Atom, space: Space, where: Location | None) -> Value:
    """`x`, and 0 at vertices of `space` that no edge reads."""
    (count,) = builder.emit(Degree(), [], [Value((), np.dtype(np.int32), space)], where)
    none = Literal(np.int32(0), np.dtype(np.int32))
    some = build.elementwise(builder, lax.gt, [count, none], where, space)
    mask = fill(builder, some, x.shape, (), space, where)
    values = [mask, zeros(builder, x, x.shape), x]
    return build.elementwise(builder, lax.select_n_p.bind, values, where, space)


class Algebra:
    """Which operands an equation is linear in, if no factor varies along the features' axis.

    Values have the shape `[F]`, or `[H, F]`: a vector of features for each head.
    """

    def __init__(self) -> None:
        self.made: dict[Value, Equation] = {}
        self.known: dict[Value, tuple[int, int]] = {}
        """For factors of full width: what `axes` says, and how many operations have made them."""

    def add(self, eqn: Equation) -> None:
        """The next equation of the program."""
        self.made.update(dict.fromkeys(eqn.outputs, eqn))
        if not isinstance(eqn.op, Lax) or eqn.op.name not in ("broadcast_in_dim", *_ELEMENTWISE):
            return
        out = eqn.outputs[0]
        if eqn.op.name == "broadcast_in_dim" and eqn.inputs[0].shape != out.shape:
            found = [_broadcast_axes(eqn)]
        else:
            found = [self.axes(a, out.shape) for a in eqn.inputs]
        steps = 1 + max(self.known[a][1] if a in self.known else 0 for a in eqn.inputs)
        if None not in found and steps <= _LONGEST_FACTOR:
            self.known[out] = max(n for n in found if n is not None), steps

    def operands(self, eqn: Equation, accept: Callable[[Atom], bool]) -> tuple[int, ...] | None:
        """The positions of the operands of which `eqn` is a linear function, the same for every
        feature; None if it is none. `accept` says which operands may be such."""
        out, ins = eqn.outputs[0], eqn.inputs
        linear = [accept(a) and a.shape == out.shape for a in ins]
        match eqn.op:
            case Reduce("sum", into) if into.is_vertex:
                return (0,) if linear[0] else None
            case Lax() if rounds_only(eqn):
                return (0,) if linear[0] else None
            case Lax() if eqn.op.name in (*ADD, "neg"):
                return tuple(range(len(ins))) if all(linear) else None
            case Lax() if eqn.op.name in ("mul", "div"):
                sides = (0, 1) if eqn.op.name == "mul" else (0,)
                scaled = [i for i in sides if linear[i] and self.is_factor(ins[1 - i], out)]
                return (scaled[0],) if scaled else None
            case Lax() if eqn.op.name == "select_n" and self.is_factor(ins[0], out):
                cases = tuple(i for i in range(1, len(ins)) if not self.is_zero(ins[i]))
                return cases if cases and all(linear[i] for i in cases) else None
        return None

    def is_zero(self, atom: Atom) -> bool:
        return build.is_filled_with(atom, 0, self.made)  # type: ignore[arg-type]

    def is_factor(self, atom: Atom, out: Value) -> bool:
        return self.axes(atom, out.shape) is not None

    def axes(self, atom: Atom, shape: tuple[int, ...]) -> int | None:
        """How `atom` fills `shape`: 0, one number; 1, one for each head; None, it varies along the
        features' axis."""
        if isinstance(atom, Literal) or atom.size == 1:
            return 0
        if len(shape) == 2 and atom.shape == (shape[0], 1):
            return 1
        return self.known.get(atom, (None, 0))[0] if atom.shape == shape else None

    def narrow(self, builder: Builder, atom: Atom, shape: tuple[int, ...]) -> Atom:
        """The factor `atom` of `shape` itself: of shape `()`, or `[H]` with one for each head."""
        if isinstance(atom, Literal):
            return atom
        target = shape[: self.axes(atom, shape)]
        if atom.shape == target:
            return builder[atom]
        eqn = self.made.get(atom)
        if eqn is not None and eqn.op.name in _SAME_NUMBERS:
            source = eqn.inputs[0]
            if source.shape == target:
                return builder[source]
            one = not target and math.prod(source.shape) == 1
            if one or source.shape in (shape, (*target, 1)):
                return self.narrow(builder, source, shape)
        if atom.size == math.prod(target):
            return reshape(builder, builder[atom], target, None)
        assert eqn is not None
        inputs = []
        for a in eqn.inputs:
            small = self.narrow(builder, a, shape)
            axes = range(len(small.shape))
            inputs.append(fill(builder, small, target, axes, small.space, eqn.location))
        out = Value(target, atom.dtype, atom.space)
        return builder.emit(eqn.op, inputs, [out], eqn.location)[0]


def _broadcast_axes(eqn: Equation) -> int | None:
    source, shape = eqn.inputs[0], eqn.outputs[0].shape
    assert isinstance(eqn.op, Lax)
    sizes = zip(eqn.op["broadcast_dimensions"], source.shape, strict=True)
    varied = {axis for axis, size in sizes if size > 1}
    if not varied:
        return 0
    return 1 if varied == {0} and len(shape) == 2 else None


@dataclasses.dataclass
class Rebuild:
    """Writes linear expressions over other features.

    `tree` gives, for each value that is to be written again, the operands in which it is linear;
    what is none of its keys is a leaf, and `leaf(value, on_edges)` is what stands for it: features
    of the new `width`, with heads before them or not. `on_edges`: only edges read it.
    `share`: one over the number of edges; sums are taken as means with it, and what is added to
    them is divided likewise.
    """

    algebra: Algebra
    builder: Builder
    tree: Mapping[Value, tuple[int, ...]]
    width: int
    leaf: Callable[[Value, bool], Atom]
    share: Value | None = None
    done: dict[tuple[Value, bool], Atom] = dataclasses.field(default_factory=dict)

    def __call__(self, value: Atom, on_edges: bool = False) -> Atom:
        assert isinstance(value, Value)
        key = value, on_edges
        if key not in self.done:
            node = value in self.tree
            found = self.node(value, on_edges) if node else self.leaf(value, on_edges)
            if not node and not on_edges:
                found = self.averaged(found)
            self.done[key] = found
        return self.done[key]

    def averaged(self, x: Atom) -> Atom:
        if self.share is None:
            return x
        part = fill(self.builder, self.share, tuple(x.shape), (), self.share.space)
        return build.mul(self.builder, part, x)

    def node(self, value: Value, on_edges: bool) -> Atom:
        eqn, where = self.algebra.made[value], self.algebra.made[value].location
        if isinstance(eqn.op, Reduce):
            x = self(eqn.inputs[0], True)
            x = x if on_edges else self.averaged(x)
            out = Value(x.shape, x.dtype, value.space)
            return self.builder.emit(eqn.op, [x], [out], where)[0]
        if eqn.op.name == "reshape" or rounds_only(eqn):  # the heads are those of the features now
            return self(eqn.inputs[0], on_edges)
        linear = {i: self(eqn.inputs[i], on_edges) for i in self.tree[value]}
        shape = self.shape(value, eqn, list(linear.values()))
        dtype = next(iter(linear.values())).dtype
        inputs = [
            fill(self.builder, linear[i], shape, (len(shape) - 1,), value.space, where)
            if i in linear
            else self.factor(eqn, i, shape, dtype)
            for i in range(len(eqn.inputs))
        ]
        out = Value(shape, dtype, value.space)
        return self.builder.emit(eqn.op, inputs, [out], where)[0]

    def shape(self, value: Value, eqn: Equation, linear: list[Atom]) -> tuple[int, ...]:
        """With heads, if an operand has some or a factor is one for each."""
        heads = {a.shape[0] for a in linear if len(a.shape) == 2}
        if per_head(self.algebra, eqn, self.tree[value]):
            heads.add(value.shape[0])
        return (*heads, self.width)

    def factor(self, eqn: Equation, i: int, shape: tuple[int, ...], dtype: Any) -> Atom:
        """Operand `i`, which is a factor, or the zero of a choice, for features of `shape`."""
        atom, old = eqn.inputs[i], eqn.outputs[0].shape
        choice = eqn.op.name == "select_n"
        if choice and i > 0:
            return zeros(self.builder, Value(shape, dtype, Space.SHARED), shape)
        kept = atom.dtype if choice else dtype
        if atom.shape == ():
            return widened(self.builder, self.builder[atom], kept, eqn.location)
        small = self.algebra.narrow(self.builder, atom, old)
        small = widened(self.builder, small, kept, eqn.location)
        axes = range(len(small.shape))
        return fill(self.builder, small, shape, axes, small.space, eqn.location)


def per_head(algebra: Algebra, eqn: Equation, linear: tuple[int, ...]) -> bool:
    """Whether a factor of the equation is one for each head."""
    shape, name = eqn.outputs[0].shape, eqn.op.name
    factors = [a for i, a in enumerate(eqn.inputs) if i not in linear]
    factors = factors[:1] if name == "select_n" else factors
    return name in ("mul", "div", "select_n") and any(algebra.axes(a, shape) for a in factors)
