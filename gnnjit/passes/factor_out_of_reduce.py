"""`factor-out-of-reduce`: what is the same on all edges of a row leaves the sum.

before:  y = sum over (u -> v) of a[v] * m[e]        after:  y = a * sum over (u -> v) of m[e]

Factors are found through products, quotients, negations and broadcasts of smaller values, so the
division of softmax and the count of mean leave the edges, and what is left is often linear.

Legal: products distribute over sums (re-associated rounding). A factor of a vertex is replaced by
1 where the vertex has no edges, so that `0 * inf` cannot arise there. Refuses sums into another
space than the factor's, maxima and minima, integers, and denominators that live on the edges; with
`keep_fixed`, also single numbers that no gradient reaches: they stay in the sum, so that its
gradient multiplies by them in the traversal, and leave it when that is lowered. Refuses what a
matmul gave vertices in `keep` too: their work shall be done on the edges.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from jax import lax

from gnnjit.ir import build
from gnnjit.ir.dtypes import is_inexact
from gnnjit.ir.program import Atom, Builder, Equation, Lax, Literal, Program, Reduce, Value, rewrite
from gnnjit.ir.space import Space
from gnnjit.passes.fixed import fixed_values


@dataclasses.dataclass(frozen=True)
class FactorOutOfReduce:
    keep_fixed: bool = False
    keep: frozenset[Space] = frozenset()
    name: str = "factor-out-of-reduce"

    def __call__(self, program: Program) -> Program:
        made = {o: e for e in program.equations for o in e.outputs}
        kept = {v for v in fixed_values(program) if v.size == 1} if self.keep_fixed else set()
        multiplied = _multiplied(program, self.keep)

        def rule(builder: Builder, eqn: Equation) -> bool:
            return _Sum(builder, eqn, made, kept, multiplied).factor()

        return rewrite(program, rule)


@dataclasses.dataclass(frozen=True)
class _Factor:
    """A multiplicand (or divisor): `atom`, filling `shape`, then the broadcasts that follow
    (outermost first)."""

    atom: Atom
    shape: tuple[int, ...]
    broadcasts: tuple[Lax, ...]
    inverse: bool = False


class _Sum:
    """One reduction under consideration."""

    def __init__(
        self,
        builder: Builder,
        eqn: Equation,
        made: dict[Value, Equation],
        kept: set[Value],
        multiplied: set[Atom],
    ):
        self.builder, self.eqn, self.made, self.kept = builder, eqn, made, kept
        self.multiplied = multiplied

    def factor(self) -> bool:
        op, out = self.eqn.op, self.eqn.outputs[0]
        if not isinstance(op, Reduce) or op.kind != "sum" or not is_inexact(out.dtype):
            return False
        operand = self.eqn.inputs[0]
        factors = self.decompose(operand, (), operand.shape)
        outside = [f for f in factors if f.atom.space <= op.into and op.into is not Space.SHARED]
        outside += [f for f in factors if op.into is f.atom.space is Space.SHARED]
        if out.size > 1:
            outside = [f for f in outside if f.atom not in self.kept]
        outside = [f for f in outside if f.atom not in self.multiplied]
        inside = [f for f in factors if f not in outside]
        if not outside or not inside or all(f.inverse for f in inside):
            return False
        product = self.product(inside, operand.shape, safe=None)
        where = self.eqn.location
        summed = Value(out.shape, out.dtype, op.into)
        self.builder.emit(op, [product], [summed], where)
        scale = self.product(outside, out.shape, safe=op.into)
        self.builder.env[out] = self.apply(summed, scale, outside)
        return True

    def decompose(
        self, atom: Atom, broadcasts: tuple[Lax, ...], shape: tuple[int, ...]
    ) -> list[_Factor]:
        """The factors of `atom`; `broadcasts` are what was passed on the way, outermost first."""
        eqn = self.made.get(atom) if isinstance(atom, Value) else None
        if eqn is None or not isinstance(eqn.op, Lax) or atom.space is not Space.EDGE:
            return [_Factor(atom, shape, broadcasts)]
        if atom.shape != shape:  # an operand that its array operation broadcasts
            return self.decompose(atom, (*broadcasts, build.broadcast_op(atom, shape)), atom.shape)
        first = eqn.inputs[0] if eqn.inputs else atom
        match eqn.op.name:
            case "mul":
                return [f for a in eqn.inputs for f in self.decompose(a, broadcasts, shape)]
            case "div":
                above = self.decompose(first, broadcasts, shape)
                return [*above, _Factor(eqn.inputs[1], shape, broadcasts, inverse=True)]
            case "neg":
                minus = Literal(_one(atom, -1), atom.dtype)
                return [
                    _Factor(minus, shape, broadcasts),
                    *self.decompose(first, broadcasts, shape),
                ]
            case "broadcast_in_dim" if len(eqn.inputs) == 1:
                return self.decompose(first, (*broadcasts, eqn.op), first.shape)
        return [_Factor(atom, shape, broadcasts)]

    def product(self, factors: list[_Factor], shape: tuple[int, ...], safe: Space | None) -> Atom:
        """The product of the factors as one value of `shape`; quotients last."""
        total: Atom | None = None
        for factor in sorted(factors, key=lambda f: f.inverse):
            value = self.materialise(factor, shape, safe)
            if total is None and factor.inverse:
                one = build.constant(self.builder, 1, shape, value.dtype)
                total = build.combine(self.builder, lax.div, one, value, self.eqn.location)
            elif total is None:
                total = value
            else:
                fn: Callable = lax.div if factor.inverse else lax.mul
                total = build.combine(self.builder, fn, total, value, self.eqn.location)
        assert total is not None
        return total

    def apply(self, summed: Value, scale: Atom, outside: list[_Factor]) -> Value:
        if all(f.inverse for f in outside) and len(outside) == 1:
            divisor = self.materialise(outside[0], summed.shape, summed.space)
            return build.combine(self.builder, lax.div, summed, divisor, self.eqn.location)
        return build.mul(self.builder, scale, summed, self.eqn.location)

    def materialise(self, factor: _Factor, shape: tuple[int, ...], safe: Space | None) -> Atom:
        atom, where = self.builder[factor.atom], self.eqn.location
        if isinstance(atom, Literal):
            return build.constant(self.builder, atom.value, shape, atom.dtype)
        if safe is not None and atom.space is safe and safe is not Space.SHARED:
            some = build.has_edges(self.builder, safe, atom.shape, where)
            one = build.constant(self.builder, 1, atom.shape, atom.dtype)
            atom = build.elementwise(self.builder, lax.select_n_p.bind, [some, one, atom], where)
        atom = build.broadcast(self.builder, atom, factor.shape, where)
        for op in reversed(factor.broadcasts):
            atom = build.emit_op(self.builder, op, [atom], where)
        return atom


def _multiplied(program: Program, spaces: frozenset[Space]) -> set[Atom]:
    """What vertices of `spaces` compute with matmuls."""
    found: set[Atom] = set()
    for eqn in program.equations:
        matmul = eqn.op.name == "dot_general" or not found.isdisjoint(eqn.inputs)
        if isinstance(eqn.op, Lax) and eqn.space in spaces and matmul:
            found.update(eqn.outputs)
    return found


def _one(atom: Atom, value: int) -> object:
    return np.asarray(value, atom.dtype)[()]
