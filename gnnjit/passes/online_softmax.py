"""`online-softmax`: the maximum, the sum of exponentials and the weighted sums, one traversal.

before:  m: f32[dst] = max over (u -> v) of s
         k: f32[dst] = select_n(is_finite(stop_gradient(m)), 0.0, stop_gradient(m))
         w: f32[edge] = exp(at_most(s, stop_gradient(m)[v]) - k[v])
         t: f32[dst] = sum over (u -> v) of w
         y: f32[dst, 8] = sum over (u -> v) of w * x[u]
after:   t: f32[dst] = sum over (u -> v) of exp(s - max s) * 1.0
         y: f32[dst, 8] = sum over (u -> v) of exp(s - max s) * x[u]

A kernel that meets a larger score rescales what it has summed so far, so that it reads each edge
once. Every sum of something linear in `w` qualifies: products, quotients, negations, sums, casts
between floats, broadcasts, and choices between such a value and 0 (dropout). Division by softmax's
normaliser, which is positive by construction, leaves the sum on the way, even from inside a choice;
so does a last reshape, as of heads put side by side.

Legal: products are re-associated. Half precision is summed and divided in float32; a sum that is
divided afterwards is taken as a mean (see `factor-out-of-reduce`). A row with a score of +inf is
not finite, before and after; if dropout drops that very edge, the NaN was hidden before and is no
longer.

Refuses a shift that carries a gradient (no stop_gradient), lacks the guard against infinities, or
is the maximum over other edges; a sum whose value needs a reduction that stands beside the score's
maximum or later; a value whose first axes are not the score's; and programs in which it would save
no traversal. Other uses of `w`, as softmax returned on the edges, stay where they are.
"""

from __future__ import annotations

import dataclasses

from jax import lax

from gnnjit.ir import build
from gnnjit.ir.dtypes import is_floating
from gnnjit.ir.program import (
    Atom,
    Builder,
    Equation,
    Lax,
    Program,
    Reduce,
    Value,
    rewrite,
)
from gnnjit.ir.space import Space, join
from gnnjit.passes.drop_dead import DropDead
from gnnjit.passes.fuse_scatter_apply_gather import levels, traversals
from gnnjit.passes.wide import edge_count, share, widened, working

_RESHAPES = ("broadcast_in_dim", "reshape", "squeeze")


@dataclasses.dataclass(frozen=True)
class OnlineSoftmax:
    name: str = "online-softmax"

    def __call__(self, program: Program) -> Program:
        made = {o: e for e in program.equations for o in e.outputs}
        weights = [w for e in program.equations if (w := _match(e, made)) is not None]
        if not weights:
            return program
        rule = _Sums(program, made, weights)
        after = DropDead()(rewrite(program, rule))
        return after if _traversals(after) < _traversals(program) else program


def _traversals(program: Program) -> int:
    return traversals(DropDead()(program))


@dataclasses.dataclass(frozen=True)
class _Weight:
    """`value = exp(score - shift)`, shifted by the largest score of each row of `into`."""

    value: Value
    score: Value
    into: Space

    @property
    def shape(self) -> tuple[int, ...]:
        """The score's, without axes of length 1 at its end: what they fill is filled anyway."""
        shape = self.score.shape
        while shape and shape[-1] == 1:
            shape = shape[:-1]
        return shape


def _match(eqn: Equation, made: dict[Value, Equation]) -> _Weight | None:
    """The weight that `eqn` computes, if it is `exp(s - shift)` of a constant, guarded shift."""

    def inputs(atom: Atom, name: str) -> tuple[Atom, ...] | None:
        found = made.get(atom) if isinstance(atom, Value) else None
        return found.inputs if found is not None and found.op.name == name else None

    if not isinstance(eqn.op, Lax) or eqn.op.name != "exp" or eqn.space is not Space.EDGE:
        return None
    bounded, shift = inputs(eqn.inputs[0], "sub") or (None, None)
    if bounded is None or shift is None:
        return None
    score, bound = inputs(bounded, "at_most") or (None, None)
    if not isinstance(score, Value) or score.shape != shift.shape:
        return None
    finite, zero, top = _three(inputs(shift, "select_n"))
    if finite is None or inputs(finite, "is_finite") != (top,) or bound is not top:
        return None
    if not build.is_filled_with(zero, 0, made) or not inputs(top, "stop_gradient"):
        return None
    (largest,) = inputs(top, "stop_gradient") or (None,)
    reduced = made.get(largest) if isinstance(largest, Value) else None
    if reduced is None or reduced.op != Reduce("max", shift.space) or reduced.inputs != (score,):
        return None
    return _Weight(eqn.outputs[0], score, shift.space)


def _three(inputs: tuple[Atom, ...] | None) -> tuple:
    return inputs if inputs is not None and len(inputs) == 3 else (None, None, None)


class _Sums:
    """The rule: a sum of something linear in a weight becomes an `exp_sum`."""

    def __init__(self, program: Program, made: dict[Value, Equation], weights: list[_Weight]):
        self.program, self.made, self.weights = program, made, weights
        self.reach: dict[Atom, set[Value]] = {w.value: {w.value} for w in weights}
        for eqn in program.equations:
            if isinstance(eqn.op, Lax) and eqn.space is Space.EDGE:
                for out in eqn.outputs:
                    below = [self.reach.get(a, set()) for a in eqn.inputs]
                    self.reach[out] = self.reach.get(out, set()).union(*below)

    def __call__(self, builder: Builder, eqn: Equation) -> bool:
        if not isinstance(eqn.op, Reduce) or eqn.op.kind != "sum":
            return False
        read = self.reach.get(eqn.inputs[0], set())
        possible = [w for w in self.weights if w.value in read and w.into is eqn.op.into]
        return any(self.fire(builder, eqn, weight) for weight in possible)

    def fire(self, builder: Builder, eqn: Equation, weight: _Weight) -> bool:
        before = len(builder.equations)
        factor = _WeightFactor(builder, weight, self.made, self.reach)
        operand, merged = self.before_merging_axes(eqn.inputs[0], weight)
        value, score = factor.without(operand), factor.score()
        count = None
        if value is not None and factor.divisors:
            count = edge_count(builder, weight.into, working(operand.dtype), eqn.location)
        if value is not None:
            value = factor.in_range(value, operand.shape, count)
        level = levels(self.program.inputs, builder.equations)
        if value is None or level.get(value, 0) > level[score]:  # type: ignore[arg-type]
            del builder.equations[before:]
            return False
        out = eqn.outputs[0]
        summed = Value(operand.shape, working(out.dtype), weight.into)
        builder.emit(Reduce("exp_sum", weight.into), [score, value], [summed], eqn.location)
        for number, divisor in enumerate(factor.divisors):
            summed = factor.divide(summed, divisor, None if number else count)
        summed = widened(builder, summed, out.dtype)
        if merged is not None:
            whole = Value(out.shape, out.dtype, weight.into)
            (summed,) = builder.emit(merged.op, [summed], [whole], merged.location)
        builder.env[out] = summed
        return True

    def before_merging_axes(self, atom: Atom, weight: _Weight) -> tuple[Atom, Equation | None]:
        """The operand of a sum, before the reshape that puts its heads side by side, which may as
        well follow the sum; and that reshape, if there is one."""
        eqn = self.made.get(atom) if isinstance(atom, Value) else None
        merges = eqn is not None and eqn.op.name == "reshape"
        if eqn is None or not merges or atom.shape[: len(weight.shape)] == weight.shape:
            return atom, None
        return eqn.inputs[0], eqn


@dataclasses.dataclass
class _WeightFactor:
    """What one sum multiplies a weight with, as values of the new program.

    divisors: what the sum is divided by. ones: values that are 1. numbers: of values on the edges
    that repeat a number, that number.
    """

    builder: Builder
    weight: _Weight
    made: dict[Value, Equation]
    reach: dict[Atom, set[Value]]
    divisors: list[Value] = dataclasses.field(default_factory=list)
    ones: set[Atom] = dataclasses.field(default_factory=set)
    numbers: dict[Atom, Value] = dataclasses.field(default_factory=dict)

    def score(self) -> Value:
        score = build.reshape(self.builder, self.builder[self.weight.score], self.weight.shape)
        assert isinstance(score, Value)
        return score

    def without(self, atom: Atom) -> Atom | None:
        """`atom` with the weight replaced by 1; None if it is not linear in the weight, or if the
        weight's axes are not the first of it."""
        if atom is self.weight.value:
            return self.one(self.weight.value)
        assert isinstance(atom, Value)
        eqn, axes = self.made[atom], len(self.weight.shape)
        if atom.shape[:axes] != self.weight.shape:
            return None
        match eqn.op.name:
            case "mul":
                return self.product(eqn)
            case "div" if not self.depends(eqn.inputs[1]):
                return self.quotient(eqn)
            case "neg":
                return self.each(eqn, eqn.inputs)
            case "add" | "add_any" | "sub" if all(map(self.depends, eqn.inputs)):
                return self.each(eqn, eqn.inputs)
            case "convert_element_type" if is_floating(atom.dtype):
                return self.each(eqn, eqn.inputs)
            case "broadcast_in_dim" | "reshape" | "squeeze" if self.keeps_first_axes(eqn):
                return self.each(eqn, eqn.inputs)
            case "select_n" if not self.depends(eqn.inputs[0]):
                return self.choice(eqn)
        return None

    def depends(self, atom: Atom) -> bool:
        return self.weight.value in self.reach.get(atom, ())

    def keeps_first_axes(self, eqn: Equation) -> bool:
        """Whether the weight's axes, the first of the operand, stay where they are."""
        op, axes = eqn.op, len(self.weight.shape)
        assert isinstance(op, Lax)
        if op.name == "broadcast_in_dim":
            return tuple(op["broadcast_dimensions"][:axes]) == tuple(range(axes))
        return op.name != "squeeze" or all(d >= axes for d in op["dimensions"])

    def product(self, eqn: Equation) -> Atom | None:
        first, second = eqn.inputs
        if self.depends(first) and self.depends(second):
            return None
        mine, other = (first, second) if self.depends(first) else (second, first)
        inner = self.without(mine)
        if inner is None:
            return None
        if inner in self.ones and other.shape == eqn.outputs[0].shape:
            return widened(self.builder, self.builder[other], working(other.dtype))
        both = [inner, self.builder[other]]
        return self.emit(eqn, both if mine is first else both[::-1])

    def quotient(self, eqn: Equation) -> Atom | None:
        inner, divisor = self.without(eqn.inputs[0]), eqn.inputs[1]
        if inner is None:
            return None
        if self.is_normaliser(divisor):
            self.divisors.append(divisor)  # type: ignore[arg-type]
            return inner
        return self.emit(eqn, [inner, self.builder[divisor]])

    def is_normaliser(self, atom: Atom) -> bool:
        """Whether `atom` is `where(t == 0, 1, t)` of each row, which never divides by 0."""
        if not isinstance(atom, Value) or atom.size != self.weight.value.size:
            return False
        select = self.made.get(atom)
        if select is None or select.op.name != "select_n" or atom.space is not self.weight.into:
            return False
        empty, total, one = _three(select.inputs)
        test = self.made.get(empty)
        return (
            test is not None
            and test.op.name == "eq"
            and test.inputs[0] is total
            and build.is_filled_with(test.inputs[1], 0, self.made)
            and build.is_filled_with(one, 1, self.made)
        )

    def choice(self, eqn: Equation) -> Atom | None:
        """A choice between values that are linear in the weight, some of them 0."""
        cases = [a for a in eqn.inputs[1:] if not build.is_filled_with(a, 0, self.made)]
        return self.each(eqn, cases) if all(map(self.depends, cases)) else None

    def each(self, eqn: Equation, linear: list[Atom] | tuple[Atom, ...]) -> Atom | None:
        """`eqn` with its operands `linear` replaced, the others kept."""
        inputs: list[Atom] = []
        pulled = len(self.divisors)
        for atom in eqn.inputs:
            found = self.without(atom) if atom in linear else self.builder[atom]
            if found is None:
                return None
            inputs.append(found)
        if len(linear) > 1 and len(self.divisors) > pulled:
            return None  # what divides one term need not divide the other
        filled = eqn.op.name in (*_RESHAPES, "convert_element_type")
        if filled and inputs[0] in self.ones:
            return self.one(eqn.outputs[0])
        return self.emit(eqn, inputs)

    def one(self, like: Value) -> Atom:
        """1 of this shape and dtype, on the edges: a traversal needs no operand for it."""
        dtype = working(like.dtype)
        found: Atom = build.constant(self.builder, 1, (), dtype)
        if like.shape:
            out = Value(like.shape, dtype, Space.EDGE)
            (found,) = self.builder.emit(build.broadcast_op(found, like.shape), [found], [out])
        self.ones.add(found)
        return found

    def emit(self, eqn: Equation, inputs: list[Atom]) -> Atom:
        """`eqn` of other operands; of half precision, in float32."""
        out, op = eqn.outputs[0], eqn.op
        dtype = working(out.dtype)
        wide = [widened(self.builder, a, working(a.dtype), eqn.location) for a in inputs]
        if op.name == "convert_element_type":
            return widened(self.builder, wide[0], dtype, eqn.location)
        space = join(*(a.space for a in wide))
        made = Value(out.shape, dtype, space)
        if op.name == "broadcast_in_dim" and out.space is Space.EDGE:
            number = self.number_in(wide[0])
            if number is not None:  # an array of [N, F] would hold each number F times
                made = Value(out.shape, dtype, Space.EDGE)
                self.numbers[made] = number
                op, wide = build.broadcast_op(number, out.shape), [number]
        self.builder.emit(op, wide, [made], eqn.location)
        return made

    def number_in(self, atom: Atom) -> Value | None:
        """The number of each element that a value repeats, if it does nothing else."""
        if atom in self.numbers:
            return self.numbers[atom]
        while isinstance(atom, Value) and atom.shape:
            eqn = self.made.get(atom)
            if eqn is None or eqn.op.name != "broadcast_in_dim":
                return None
            atom = self.builder[eqn.inputs[0]]
        return atom if isinstance(atom, Value) else None

    def in_range(self, value: Atom, shape: tuple[int, ...], count: Value | None) -> Atom:
        """What is summed, in float32 if it was of half precision; over the number of edges where it
        is divided afterwards, so that the sum is not larger than its terms."""
        value = widened(self.builder, value, working(value.dtype))
        if count is None:
            return value
        part = share(self.builder, count, None)
        if shape:  # repeated on the edges: an array of [N, *shape] would be read back
            repeated = Value(shape, part.dtype, Space.EDGE)
            (part,) = self.builder.emit(build.broadcast_op(part, shape), [part], [repeated])
        return build.mul(self.builder, part, value)

    def divide(self, summed: Value, divisor: Value, count: Value | None) -> Value:
        """`summed` over a number for each of the weight's entries; times `count`, if it was summed
        as `in_range` says."""
        small = self.builder[divisor]
        small = build.reshape(self.builder, small, self.weight.shape)
        assert isinstance(small, Value)
        small = build.convert(self.builder, small, summed.dtype)
        if count is not None:
            part = share(self.builder, count, None)
            small = build.mul(self.builder, small, build.broadcast(self.builder, part, small.shape))
        if summed.shape != self.weight.shape:
            axes = tuple(range(len(self.weight.shape)))
            small = build.emit_op(
                self.builder, build.broadcast_in_dim_op(summed.shape, axes), [small]
            )
        return build.combine(self.builder, lax.div, summed, small)
