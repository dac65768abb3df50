"""`sink-broadcasts`: a vertex's value is repeated where edges read it, not in memory.

before:  h: f32[src, 4, 8] = broadcast_in_dim(x)      after:  h: f32[edge, 4, 8] =
         m: f32[edge, 4, 8] = alpha * h[u]                        broadcast_in_dim(x[u])
                                                              m: f32[edge, 4, 8] = alpha * h

`place-in-smallest-space` hoists every operation on one endpoint; hoisting this one would only make
edges read the same numbers from several places. Features that are summed per head before their
matrix is applied are such values.

Legal: nothing is computed. Refuses what something besides edges and their reductions reads, and
broadcasts that repeat nothing. Refuses single numbers, which belong to `sink-scaling`, unless
`numbers`: generated kernels repeat them at no cost, while an array of them would be read back.
"""

from __future__ import annotations

import dataclasses

from gnnjit.ir.program import Equation, Lax, Program, Value
from gnnjit.passes.analysis.move_to_edges import sink, sinkable


@dataclasses.dataclass(frozen=True)
class SinkBroadcasts:
    name: str = "sink-broadcasts"
    numbers: bool = False

    def __call__(self, program: Program) -> Program:
        larger = 0 if self.numbers else 1
        return sink(program, sinkable(program, lambda e: _repeats(e, larger)))


def _repeats(eqn: Equation, larger: int) -> bool:
    if not isinstance(eqn.op, Lax) or eqn.op.name != "broadcast_in_dim":
        return False
    x, out = eqn.inputs[0], eqn.outputs[0]
    return out.space.is_vertex and isinstance(x, Value) and larger < x.size < out.size
