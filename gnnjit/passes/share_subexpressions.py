"""`share-subexpressions`: the same operation on the same operands is computed once.

before:  a = x @ w; b = x @ w; c = a + b        after:  a = x @ w; c = a + a

Two equations are the same when operation, parameters, operands and space are. Always legal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable

from gnnjit.ir.program import Atom, Builder, Equation, Literal, Program, Value, op_key, rewrite


@dataclasses.dataclass(frozen=True)
class ShareSubexpressions:
    name: str = "share-subexpressions"

    def __call__(self, program: Program) -> Program:
        seen: dict[Hashable, tuple[Value, ...]] = {}

        def rule(builder: Builder, eqn: Equation) -> bool:
            inputs = tuple([_atom_key(builder[a]) for a in eqn.inputs])
            key = (op_key(eqn.op), inputs, eqn.space)
            if key in seen:
                builder.env.update(zip(eqn.outputs, seen[key], strict=True))
                return True
            seen[key] = eqn.outputs
            return False

        return rewrite(program, rule)


def _atom_key(a: Atom) -> Hashable:
    return a.key if isinstance(a, Literal) else id(a)
