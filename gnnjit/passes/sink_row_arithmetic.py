"""`sink-row-arithmetic`: arithmetic on the vertex that owns a row moves into the row's traversal.

before:  a: f32[dst, 8] = abs(x)                after:  a: f32[edge, 8] = abs(x[v])
         y = sum over (u -> v) of m[e] * a[v]           y = sum over (u -> v) of m[e] * a

A kernel that goes over the edges row by row computes what depends on the row alone once per row,
wherever the program has it. So this moves arithmetic of the vertices that own the rows into the
traversal: the same work, without an array `[N, 8]` that is written and read once.

Legal: the same operations run on the same values. Refuses what something besides edges and their
reductions reads, functions that are more than arithmetic (other kernels compute them for each
edge), and traversals whose reductions have rows of both endpoints.
"""

from __future__ import annotations

import dataclasses

from gnnjit.ir.program import Equation, Lax, Program, Reduce
from gnnjit.ir.space import Space
from gnnjit.passes.analysis.move_to_edges import sink, sinkable

_ARITHMETIC = frozenset(
    """
    abs add add_any and broadcast_in_dim convert_element_type eq ge gt is_finite le lt max min mul
    ne neg not or reshape select_n sign square stop_gradient sub
    """.split()
)


@dataclasses.dataclass(frozen=True)
class SinkRowArithmetic:
    name: str = "sink-row-arithmetic"

    def __call__(self, program: Program) -> Program:
        reductions = [e.op.into for e in program.equations if isinstance(e.op, Reduce)]
        owners = set(reductions) - {Space.SHARED}
        if not reductions or len(owners) > 1:
            return program
        (rows,) = owners or {Space.DST}
        return sink(program, sinkable(program, lambda e: e.space is rows and _is_arithmetic(e)))


def _is_arithmetic(eqn: Equation) -> bool:
    """Or a broadcast, which a kernel does not write either."""
    return isinstance(eqn.op, Lax) and eqn.op.name in _ARITHMETIC
