"""`factor-out-of-reduce`: what is the same on all edges of a row leaves the sum.

before:  y = sum over (u -> v) of a[v] * m[e]
after:   y = (a * sum over (u -> v) of s[v] * m[e]) * n        with n the number of edges, s = 1 / n

Factors are found through products, quotients, negations, broadcasts of smaller values and casts
between float32 and half precision. So the division of softmax leaves the edges. What is left is
often linear, and the gradient of the factor then needs no traversal. Factors of one shape are
multiplied in that shape, and what they give is repeated: one number of a head scales its row.

Legal: products distribute over sums (re-associated rounding). What is left is taken as a mean,
since its sum may be too large for a number where that of the products is not (features near 1e37
and attention); half precision is computed in float32. A factor of a vertex is replaced by 1 where
the vertex has no edges, so that `0 * inf` cannot arise there.

Refuses sums into another space than the factor's, sums over all edges, maxima and minima, integers,
denominators that live on the edges, and constants below 1 that are alone. With `keep_fixed`,
refuses single numbers that no gradient reaches: they stay in the sum, so that its gradient
multiplies by them in the traversal. Refuses results of matmuls of vertices in `keep`, whose work
belongs on the edges. Without `rows` (nothing will be differentiated any more), refuses all but
constants: a kernel holds a row's factor anyway.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable

import numpy as np
from jax import lax

from gnnjit.ir import build
from gnnjit.ir.dtypes import is_inexact
from gnnjit.ir.program import (
    Atom,
    Builder,
    Equation,
    Lax,
    Literal,
    Program,
    Reduce,
    Value,
    op_key,
    rewrite,
)
from gnnjit.ir.space import Space
from gnnjit.passes.analysis.no_gradient import fixed_values
from gnnjit.passes.wide import edge_count, is_softmax_total, rounds_only, share, widened, working


@dataclasses.dataclass(frozen=True)
class FactorOutOfReduce:
    keep_fixed: bool = False
    keep: frozenset[Space] = frozenset()
    rows: bool = True
    name: str = "factor-out-of-reduce"

    def __call__(self, program: Program) -> Program:
        made = {o: e for e in program.equations for o in e.outputs}
        kept = {v for v in fixed_values(program) if v.size == 1} if self.keep_fixed else set()
        multiplied = _multiplied(program, self.keep)

        def rule(builder: Builder, eqn: Equation) -> bool:
            return _Sum(builder, eqn, made, kept, multiplied, self.rows).factor()

        return rewrite(program, rule)


@dataclasses.dataclass(frozen=True)
class _SumFactor:
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
        rows: bool,
    ):
        self.builder, self.eqn, self.made, self.kept = builder, eqn, made, kept
        self.multiplied, self.rows = multiplied, rows
        self.dtype = working(eqn.outputs[0].dtype)

    def factor(self) -> bool:
        op, out = self.eqn.op, self.eqn.outputs[0]
        if not isinstance(op, Reduce) or op.kind != "sum" or not is_inexact(out.dtype):
            return False
        operand = self.eqn.inputs[0]
        factors = self.decompose(operand, (), operand.shape)
        outside = [f for f in factors if self.may_leave(f)]
        averages = any(isinstance(f.atom, Value) for f in outside)
        if not averages:
            outside = [f for f in outside if _is_safe(f)]
        inside = [f for f in factors if f not in outside]
        if not outside or not inside or all(f.inverse for f in inside):
            return False
        where = self.eqn.location
        count = edge_count(self.builder, op.into, self.dtype, where) if averages else None
        product = self.product(inside, operand.shape, safe=None, count=count)
        summed = Value(out.shape, self.dtype, op.into)
        self.builder.emit(op, [product], [summed], where)
        result = self.apply(summed, outside, count)
        self.builder.env[out] = widened(self.builder, result, out.dtype, where)
        return True

    def may_leave(self, factor: _SumFactor) -> bool:
        """Whether the sum may be multiplied by a factor in place of its terms."""
        atom, into = factor.atom, self.eqn.op.into  # type: ignore[union-attr]
        if isinstance(atom, Literal):
            return True
        if not self.rows or into is Space.SHARED or not atom.space <= into:
            return False
        kept = atom in self.kept and self.eqn.outputs[0].size > 1
        return not kept and atom not in self.multiplied

    def decompose(
        self, atom: Atom, broadcasts: tuple[Lax, ...], shape: tuple[int, ...]
    ) -> list[_SumFactor]:
        """The factors of `atom`; `broadcasts` are what was passed on the way, outermost first."""
        eqn = self.made.get(atom) if isinstance(atom, Value) else None
        if eqn is None or not isinstance(eqn.op, Lax) or atom.space is not Space.EDGE:
            return [_SumFactor(atom, shape, broadcasts)]
        if atom.shape != shape:  # an operand that its array operation broadcasts
            return self.decompose(atom, (*broadcasts, build.broadcast_op(atom, shape)), atom.shape)
        first = eqn.inputs[0] if eqn.inputs else atom
        match eqn.op.name:
            case "mul":
                return [f for a in eqn.inputs for f in self.decompose(a, broadcasts, shape)]
            case "div":
                above = self.decompose(first, broadcasts, shape)
                return [*above, _SumFactor(eqn.inputs[1], shape, broadcasts, inverse=True)]
            case "neg":
                minus = Literal(_one(atom, -1), atom.dtype)
                return [
                    _SumFactor(minus, shape, broadcasts),
                    *self.decompose(first, broadcasts, shape),
                ]
            case "broadcast_in_dim" if len(eqn.inputs) == 1:
                return self.decompose(first, (*broadcasts, eqn.op), first.shape)
            case "convert_element_type" if rounds_only(eqn):
                return self.decompose(first, broadcasts, shape)
        return [_SumFactor(atom, shape, broadcasts)]

    def product(
        self,
        factors: list[_SumFactor],
        shape: tuple[int, ...],
        safe: Space | None,
        count: Value | None = None,
    ) -> Atom:
        """The product of the factors as one value of `shape`; quotients last. `count`: the smallest
        factor is divided by it."""
        total: Atom | None = None
        ordered = sorted(factors, key=lambda f: f.inverse)
        above = [f for f in ordered if not f.inverse]
        smallest = min(above, key=lambda f: math.prod(f.atom.shape)) if count is not None else None
        for factor in ordered:
            over = count if factor is smallest else None
            value = self.materialise(factor, shape, safe, over)
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

    def apply(self, summed: Value, outside: list[_SumFactor], count: Value | None) -> Value:
        """The sum times the factors that leave it, and times `count`. Factors of one shape are
        multiplied in it. A softmax's total among them is divided by `count` instead: its inverse
        is then at most twice the number of edges, and so in range."""
        where = self.eqn.location
        groups = _alike(outside)
        over = count if any(map(self.is_total, outside)) else None
        small = math.prod(outside[0].atom.shape) < summed.size
        if len(groups) == 1 and (len(outside) > 1 or (over is not None and small)):
            scale = self.scale(groups[0], summed.space, over)
            result = build.mul(self.builder, scale, summed, where)
        elif len(outside) == 1 and outside[0].inverse:
            (factor,) = outside
            below = self.repeated(factor, self.single(factor, summed.space, over))
            result = build.combine(self.builder, lax.div, summed, below, where)
        else:
            over = None
            scale = self.product(outside, summed.shape, safe=summed.space)
            result = build.mul(self.builder, scale, summed, where)
        if count is None or over is not None:
            return result
        return build.mul(
            self.builder, result, build.broadcast(self.builder, count, summed.shape, where)
        )

    def is_total(self, factor: _SumFactor) -> bool:
        """Whether it is the total of a softmax, by which is divided."""
        return factor.inverse and is_softmax_total(factor.atom, self.made)

    def scale(self, factors: list[_SumFactor], safe: Space, over: Value | None) -> Atom:
        """The product of factors of one shape, computed in that shape; quotients last. `over`:
        what the first softmax's total among them is divided by."""
        first, where = factors[0], self.eqn.location
        total = next(filter(self.is_total, factors), None)
        found: Atom | None = None
        for factor in sorted(factors, key=lambda f: f.inverse):
            value = self.single(factor, safe, over if factor is total else None)
            if found is None and factor.inverse:
                found = build.constant(self.builder, 1, value.shape, value.dtype)
            fn: Callable = lax.div if factor.inverse else lax.mul
            found = value if found is None else build.combine(self.builder, fn, found, value, where)
        assert found is not None
        return self.repeated(first, found)

    def materialise(
        self, factor: _SumFactor, shape: tuple[int, ...], safe: Space | None, over: Value | None
    ) -> Atom:
        """The factor as a value of `shape`; `safe`, `over`: as in `single`."""
        found = self.single(factor, safe, over)
        if isinstance(found, Literal):
            return build.constant(self.builder, found.value, shape, found.dtype)
        return self.repeated(factor, found)

    def single(self, factor: _SumFactor, safe: Space | None, over: Value | None) -> Atom:
        """The factor in its own shape; 1 where a vertex of `safe` has no edges; times the inverse
        of `over`."""
        where = self.eqn.location
        atom = widened(self.builder, self.builder[factor.atom], self.dtype, where)
        if over is not None:
            part = share(self.builder, over, where)
            atom = build.mul(self.builder, build.broadcast(self.builder, part, atom.shape), atom)
        if safe is None or atom.space is not safe or safe is Space.SHARED:
            return atom
        if self.is_total(factor):
            return atom  # 1 without edges
        some = build.has_edges(self.builder, safe, atom.shape, where)
        one = build.constant(self.builder, 1, atom.shape, atom.dtype)
        return build.elementwise(self.builder, lax.select_n_p.bind, [some, one, atom], where)

    def repeated(self, factor: _SumFactor, atom: Atom) -> Atom:
        """A value of the factor's own shape as one of the shape that it fills."""
        where = self.eqn.location
        atom = build.broadcast(self.builder, atom, factor.shape, where)
        for op in reversed(factor.broadcasts):
            atom = build.emit_op(self.builder, op, [atom], where)
        return atom


def _alike(factors: list[_SumFactor]) -> list[list[_SumFactor]]:
    """The factors by their shapes and by how they are repeated; literals apart."""
    found: dict[Hashable, list[_SumFactor]] = {}
    for number, f in enumerate(factors):
        apart = number if isinstance(f.atom, Literal) else None
        ops = tuple(map(op_key, f.broadcasts))
        found.setdefault((apart, f.atom.space, f.atom.shape, f.shape, ops), []).append(f)
    return list(found.values())


def _is_safe(factor: _SumFactor) -> bool:
    """Whether a sum is not larger without the factor."""
    atom = factor.atom
    size = abs(atom.value) if isinstance(atom, Literal) else 0
    return bool(0 < size <= 1 if factor.inverse else size >= 1)


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
