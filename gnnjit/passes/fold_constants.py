"""`fold-constants`: operations that return an operand, or that work on literals alone.

before:  b = a * 1.0; c = neg (neg a); d = a - 0.0; f = 2.0 * 3.0
after:   b, c and d are a; f is 6.0

An array that is filled with 1.0 counts as 1.0.

Refuses whatever could change a bit: `x + 0.0` stays, because -0.0 + 0.0 is 0.0.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from gnnjit.ir.build import is_filled_with
from gnnjit.ir.dtypes import is_extended
from gnnjit.ir.evaluate import folded
from gnnjit.ir.program import Atom, Builder, Equation, Lax, Literal, Program, Value, rewrite


@dataclasses.dataclass(frozen=True)
class FoldConstants:
    name: str = "fold-constants"

    def __call__(self, program: Program) -> Program:
        negated: dict[Value, Atom] = {}
        made = {o: e for e in program.equations for o in e.outputs}

        def rule(builder: Builder, eqn: Equation) -> bool:
            if not isinstance(eqn.op, Lax):
                return False
            inputs = [builder[a] for a in eqn.inputs]
            found = _identity(eqn, inputs, negated, made) or _scalar(eqn, inputs)
            if found is None:
                if eqn.op.name == "neg":
                    negated[eqn.outputs[0]] = inputs[0]
                return False
            builder.env[eqn.outputs[0]] = found
            return True

        return rewrite(program, rule)


def _identity(
    eqn: Equation, ins: list[Atom], negated: dict[Value, Atom], made: dict[Value, Equation]
) -> Atom | None:
    """The operand that `eqn` returns unchanged, if there is one. `negated`: of which atoms values
    are the negation."""
    out, name = eqn.outputs[0], eqn.op.name

    def same(a: Atom) -> Atom | None:
        fits = a.shape == out.shape and a.dtype == out.dtype and a.space is out.space
        return a if fits else None

    match name:
        case "mul":
            for one, other in (ins, ins[::-1]):
                if is_filled_with(one, 1, made) and (found := same(other)):
                    return found
        case "div" | "pow" if is_filled_with(ins[1], 1, made):
            return same(ins[0])
        case "sub" if isinstance(ins[1], Literal) and _is_zero(ins[1].value):
            return same(ins[0])
        case "neg":
            inner = negated.get(ins[0]) if isinstance(ins[0], Value) else None
            return None if inner is None else same(inner)
        case "convert_element_type" | "reshape" | "broadcast_in_dim" | "copy" | "squeeze":
            return same(ins[0])
        case "integer_pow" if eqn.op["y"] == 1:  # type: ignore[index]
            return same(ins[0])
    return None


def _is_zero(number: Any) -> bool:
    """Whether it is 0, and not -0.0: that is subtracted from -0.0 to give 0.0."""
    return bool(number == 0 and not np.signbit(number))


def _scalar(eqn: Equation, ins: list[Atom]) -> Atom | None:
    """A literal, where everything is one."""
    out = eqn.outputs[0]
    literals = [a for a in ins if isinstance(a, Literal)]
    foldable = len(eqn.outputs) == 1 and out.shape == () and ins
    if not foldable or len(literals) < len(ins) or is_extended(out.dtype):
        return None
    assert isinstance(eqn.op, Lax)
    value = folded(eqn.op, literals)
    return Literal(value[()], value.dtype)
