"""`slopes-of-softplus`: the derivative of `jax.nn.softplus` is a logistic function.

before:  s = softplus(x);  d = exp(x - s);  i = s == inf
after:   s = softplus(x);  d = logistic(x);  i = x == inf

JAX takes the derivative of `logaddexp(x, 0)` from its value, which costs an exponential and, where
nothing else reads the value, a logarithm; second derivatives ask whether the value is infinite.
SchNet's activation is a softplus, and each traversal of a loss of forces has its derivative.

Legal: both are 1 / (1 + exp(-x)), also at infinities and NaN, within rounding. Refuses `logaddexp`
of two values, whose derivatives are of both.
"""

from __future__ import annotations

import dataclasses
import math

from jax import lax

from gnnjit.ir import build
from gnnjit.ir.program import Atom, Builder, Equation, Literal, Program, Value, rewrite


@dataclasses.dataclass(frozen=True)
class SlopesOfSoftplus:
    name: str = "slopes-of-softplus"

    def __call__(self, program: Program) -> Program:
        if all(e.op.name != "log1p" for e in program.equations):
            return program
        made = _Made({o: e for e in program.equations for o in e.outputs})

        def rule(builder: Builder, eqn: Equation) -> bool:
            if (x := made.slope(eqn)) is not None:
                out = build.elementwise(builder, lax.logistic, [builder[x]], eqn.location)
                builder.env[eqn.outputs[0]] = out
                return True
            if (x := made.infinite(eqn)) is not None:
                inputs = [builder[x], builder[eqn.inputs[1]]]
                builder.emit(eqn.op, inputs, eqn.outputs, eqn.location)
                return True
            return False

        return rewrite(program, rule)


@dataclasses.dataclass(frozen=True)
class _Made:
    """The equation of each value."""

    equations: dict[Value, Equation]

    def inputs(self, a: Atom, name: str) -> tuple[Atom, ...] | None:
        """The operands of the operation that made a value, if it has this name."""
        eqn = self.equations.get(a) if isinstance(a, Value) else None
        return eqn.inputs if eqn is not None and eqn.op.name == name else None

    def slope(self, eqn: Equation) -> Atom | None:
        """`x`, where the equation is `exp(x - softplus(x))`."""
        if eqn.op.name != "exp" or (pair := self.inputs(eqn.inputs[0], "sub")) is None:
            return None
        x, value = map(self.finite, pair)
        return x if self.softplus(value) is x and isinstance(x, Value) else None

    def infinite(self, eqn: Equation) -> Atom | None:
        """`x`, where the equation is `softplus(x) == inf`: so is `x` there."""
        if eqn.op.name != "eq" or not self.is_number(eqn.inputs[1], math.inf):
            return None
        return self.softplus(eqn.inputs[0])

    def finite(self, a: Atom) -> Atom:
        """`x`, of an `x` whose infinity was replaced by 0."""
        match self.inputs(a, "select_n"):
            case (test, x, other) if self.is_number(other, 0.0):
                tested = self.inputs(test, "eq")
                if tested and tested[0] is x and self.is_number(tested[1], math.inf):
                    return x
        return a

    def softplus(self, a: Atom) -> Atom | None:
        """`x`, of `softplus(x)` as `jnp.logaddexp(x, 0)` writes it."""
        match self.inputs(a, "select_n"):
            case (_, total, _) if sides := self.inputs(total, "add"):
                top, rest = self.inputs(sides[0], "max"), self.of_chain(sides[1])
                if top and top[0] is rest and self.is_number(top[1], 0.0):
                    return rest
        return None

    def of_chain(self, a: Atom) -> Atom | None:
        """`x`, of `log1p(exp(-abs(x)))`."""
        for name in ("log1p", "exp", "neg", "abs"):
            if (found := self.inputs(a, name)) is None:
                return None
            a = found[0]
        less = self.inputs(a, "sub")
        return less[0] if less and self.is_number(less[1], 0.0) else a

    def is_number(self, a: Atom, number: float) -> bool:
        while spread := self.inputs(a, "broadcast_in_dim"):
            a = spread[0]
        return isinstance(a, Literal) and bool(a.value == number)
