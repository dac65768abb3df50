"""Moving equations of vertices to the edges that read them."""

from __future__ import annotations

from collections.abc import Collection

from gnnjit.ir.program import Builder, Equation, Program, Value, rewrite
from gnnjit.ir.space import Space


def to_the_edges(program: Program, moved: Collection[Equation]) -> Program:
    """`program` with the equations `moved` on the edges, where all that reads them is too."""

    def rule(builder: Builder, eqn: Equation) -> bool:
        if eqn not in moved:
            return False
        outs = [Value(v.shape, v.dtype, Space.EDGE, v.name) for v in eqn.outputs]
        builder.emit(eqn.op, map(builder.__getitem__, eqn.inputs), outs, eqn.location)
        builder.env.update(zip(eqn.outputs, outs, strict=True))
        return True

    return rewrite(program, rule) if moved else program
