"""Which values no gradient reaches."""

from __future__ import annotations

from gnnjit.ir.dtypes import is_inexact
from gnnjit.ir.program import Degree, Index, Lax, Literal, Program, Store, Value


def fixed_values(program: Program) -> set[Value]:
    """Values made, without reductions, of integers, degrees and what `stop_gradient` gave."""
    fixed = {v for v in program.inputs if not is_inexact(v.dtype)}
    for eqn in program.equations:
        match eqn.op:
            case Degree() | Index():
                fixed.update(eqn.outputs)
            case Lax(primitive) if primitive.name == "stop_gradient":
                fixed.update(eqn.outputs)
            case Lax() | Store() if all(isinstance(a, Literal) or a in fixed for a in eqn.inputs):
                fixed.update(eqn.outputs)
    return fixed


def stopped_values(program: Program) -> set[Value]:
    """Values whose derivatives nobody reads: a `stop_gradient` alone reads them."""
    made = {v for eqn in program.equations for v in eqn.outputs}
    return made.difference(
        program.outputs,
        *(eqn.inputs for eqn in program.equations if eqn.op.name != "stop_gradient"),
    )
