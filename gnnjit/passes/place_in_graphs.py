"""`place-in-graphs`: work of vertices on values of their graph alone, once a graph.

before:  a: f32[dst, 2] = u[graph of v]        after:  b: f32[graph, 8] = u @ w
         h: f32[dst, 8] = a @ w                        h: f32[dst, 8] = b[graph of v]

What the user computes from values of graphs is computed once a graph from the start. This is what
other passes leave: `concat(e.src, v, e.globals) @ W` is split into three products, and the last one
belongs to the graphs. Always legal. Refuses what only repeats its operand, of which vertices would
read more than before.
"""

from __future__ import annotations

import dataclasses

from gnnjit.ir.program import Atom, Builder, Equation, Lax, OfGraph, Program, Value, rewrite
from gnnjit.ir.space import Space


@dataclasses.dataclass(frozen=True)
class PlaceInGraphs:
    name: str = "place-in-graphs"

    def __call__(self, program: Program) -> Program:
        if not any(isinstance(e.op, OfGraph) for e in program.equations):
            return program
        of_graphs: dict[Atom, Atom] = {}

        def rule(builder: Builder, eqn: Equation) -> bool:
            return _place(builder, eqn, of_graphs)

        return rewrite(program, rule)


def _place(builder: Builder, eqn: Equation, of_graphs: dict[Atom, Atom]) -> bool:
    """`of_graphs`: the value of a graph that each value of the new program is read from."""
    inputs = [builder[a] for a in eqn.inputs]
    if isinstance(eqn.op, OfGraph):
        of_graphs[eqn.outputs[0]] = inputs[0]
        return False
    own = [a for a in inputs if a.space is not Space.SHARED]
    if not isinstance(eqn.op, Lax) or not own or any(a not in of_graphs for a in own):
        return False
    if eqn.op.name == "broadcast_in_dim":
        return False
    outs = [Value(v.shape, v.dtype, Space.GRAPH, v.name) for v in eqn.outputs]
    builder.emit(eqn.op, [of_graphs.get(a, a) for a in inputs], outs, eqn.location)
    space = eqn.space if eqn.space.is_vertex else Space.DST
    for old, out in zip(eqn.outputs, outs, strict=True):
        read = Value(old.shape, old.dtype, space, old.name)
        builder.emit(OfGraph(), [out], [read], eqn.location)
        builder.env[old], of_graphs[read] = read, out
    return True
