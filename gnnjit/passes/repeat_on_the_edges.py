"""`repeat-on-the-edges`: a vertex's value is repeated where edges read it, not in memory.

before:  h: f32[src, 4, 8] = broadcast_in_dim(x)      after:  h: f32[edge, 4, 8] =
         m: f32[edge, 4, 8] = alpha * h[u]                        broadcast_in_dim(x[u])
                                                              m: f32[edge, 4, 8] = alpha * h

`place-in-smallest-space` hoists every operation on one endpoint; hoisting this one would only make
edges read the same numbers from several places. Features that are summed per head before their
matrix is applied are such values.

Legal: nothing is computed. Refuses what something besides edges and their reductions reads, and
broadcasts that repeat nothing; and those of single numbers (which belong to `scale-on-the-edges`),
but for `numbers`: generated kernels repeat them for nothing, where an array of them is read back.
"""

from __future__ import annotations

import dataclasses

from gnnjit.ir.program import Atom, Equation, Lax, Program, Reduce, Value
from gnnjit.ir.space import Space
from gnnjit.passes.analysis.move_to_edges import to_the_edges


@dataclasses.dataclass(frozen=True)
class RepeatOnTheEdges:
    name: str = "repeat-on-the-edges"
    numbers: bool = False

    def __call__(self, program: Program) -> Program:
        return to_the_edges(program, _moved(program, 0 if self.numbers else 1))


def _moved(program: Program, larger: int) -> set[Equation]:
    elsewhere: set[Atom] = set(program.outputs)
    moved: set[Equation] = set()
    for eqn in reversed(program.equations):
        if _repeats(eqn, larger) and elsewhere.isdisjoint(eqn.outputs):
            moved.add(eqn)
        elif not isinstance(eqn.op, Reduce) and eqn.space is not Space.EDGE:
            elsewhere.update(eqn.inputs)
    return moved


def _repeats(eqn: Equation, larger: int) -> bool:
    if not isinstance(eqn.op, Lax) or eqn.op.name != "broadcast_in_dim":
        return False
    x, out = eqn.inputs[0], eqn.outputs[0]
    return out.space.is_vertex and isinstance(x, Value) and larger < x.size < out.size
