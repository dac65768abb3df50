"""`sink-vertex-work`: work on vertices is done where edges read it, if there are fewer of them.

before:  a: f32[src, 8] = x @ w        after:  a: f32[edge, 8] = x[u] @ w
         b: f32[edge, 8] = relu(a[u])          b: f32[edge, 8] = relu(a)

The opposite of `place-in-smallest-space`, for graphs with fewer edges than vertices, as the blocks
that a sampler draws: most of their sources may be read by no edge at all. `spaces` says which
vertices (`src`, `dst` or both) have more elements than there are edges.

Legal: an edge computes from its endpoint's values what the vertex computed from them. Refuses what
something besides edges, their reductions and moved work reads, and what is made of a reduction,
which wrote a row for each vertex anyway (the guarded maximum of a softmax stays whole for
`online-softmax`).
"""

from __future__ import annotations

import dataclasses

from gnnjit.ir.program import Atom, Equation, Lax, Program, Reduce
from gnnjit.ir.space import Space
from gnnjit.passes.analysis.move_to_edges import sink, sinkable


@dataclasses.dataclass(frozen=True)
class SinkVertexWork:
    spaces: frozenset[Space] = frozenset()
    name: str = "sink-vertex-work"

    def __call__(self, program: Program) -> Program:
        reduced = _made_of_reductions(program)

        def wanted(eqn: Equation) -> bool:
            return isinstance(eqn.op, Lax) and eqn.space in self.spaces and eqn not in reduced

        return sink(program, sinkable(program, wanted))


def _made_of_reductions(program: Program) -> set[Equation]:
    """What is computed of the result of a reduction."""
    behind: set[Atom] = set()
    found: set[Equation] = set()
    for eqn in program.equations:
        if isinstance(eqn.op, Reduce) or not behind.isdisjoint(eqn.inputs):
            behind.update(eqn.outputs)
            found.add(eqn)
    return found
