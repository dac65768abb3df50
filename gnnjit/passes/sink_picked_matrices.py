"""`sink-picked-matrices`: edges pick the matrix that a vertex's number stands for themselves.

before:  m: f32[dst, 64, 64] = w[kind]            after:  m: f32[edge, 64, 64] = w[kind[v]]
         h: f32[edge, 64] = x[u] @ m[v]                   h: f32[edge, 64] = x[u] @ m

`place-in-smallest-space` hoists every operation on one endpoint; hoisting this one would write a
matrix for each vertex. On the edges it is in no memory: they read it in the table.

Legal: the same values. Refuses what something besides edges and their reductions reads, as a
product that is the vertex's own, tables that are not shared, and rows that are no large matrix.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from gnnjit.ir.large_products import MATRIX
from gnnjit.ir.program import Equation, Program
from gnnjit.ir.space import Space
from gnnjit.ir.tables import read_of
from gnnjit.passes.analysis.move_to_edges import sink, sinkable


@dataclasses.dataclass(frozen=True)
class SinkPickedMatrices:
    name: str = "sink-picked-matrices"

    def __call__(self, program: Program) -> Program:
        made: dict[Any, Equation] = {o: e for e in program.equations for o in e.outputs}

        def picked(eqn: Equation) -> bool:
            if not eqn.outputs[0].space.is_vertex:
                return False
            if eqn.op.name in ("squeeze", "reshape"):
                source = made.get(eqn.inputs[0])
                return source is not None and picked(source)
            rows = read_of(eqn)
            if rows is None or rows.table.space is not Space.SHARED:
                return False
            return len(rows.row) > 1 and math.prod(rows.row) >= MATRIX

        return sink(program, sinkable(program, picked))
