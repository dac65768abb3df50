"""`sink-zeros`: a table of zeros moves to the edges that write rows of a gradient into it.

before:  z: f32[9, 4] = broadcast_in_dim(0.0)
         d: f32[edge, 9, 4] = dynamic_update_slice(z, m, i);  g = sum over all edges of d
after:   z: f32[edge, 9, 4] = broadcast_in_dim(0.0);  ...

The zeros are never written, neither once nor for each edge: the lowerings recognise them and add
`m` to the rows `i` of the sum (`ir.tables`). Legal: the same values. Refuses tables that are not
zeros, or not read or written by whole rows.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from gnnjit.ir.program import Builder, Equation, Program, Value, rewrite
from gnnjit.ir.space import Space
from gnnjit.ir.tables import sum_of
from gnnjit.passes.drop_dead import DropDead


@dataclasses.dataclass(frozen=True)
class SinkZeros:
    name: str = "sink-zeros"

    def __call__(self, program: Program) -> Program:
        made: dict[Any, Equation] = {o: e for e in program.equations for o in e.outputs}

        def rule(builder: Builder, eqn: Equation) -> bool:
            table = eqn.inputs[0] if eqn.inputs else None
            zeros = made.get(table)
            if eqn.space is not Space.EDGE or zeros is None or zeros.space is Space.EDGE:
                return False
            if sum_of(eqn, made) is None:
                return False
            assert isinstance(table, Value)
            local = Value(table.shape, table.dtype, Space.EDGE, table.name)
            builder.emit(zeros.op, zeros.inputs, [local], zeros.location)
            inputs = [local, *(builder[a] for a in eqn.inputs[1:])]
            builder.emit(eqn.op, inputs, eqn.outputs, eqn.location)
            return True

        after = rewrite(program, rule)
        return program if after.is_made_of(program) else DropDead()(after)
