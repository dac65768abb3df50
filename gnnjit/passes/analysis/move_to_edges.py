"""Sinking, the opposite of hoisting: work of a vertex done by the edges that read its result."""

from __future__ import annotations

from collections.abc import Callable, Collection

from gnnjit.ir.program import Atom, Builder, Equation, Program, Reduce, Value, rewrite
from gnnjit.ir.space import Space


def sinkable(program: Program, wanted: Callable[[Equation], bool]) -> set[Equation]:
    """The equations that may sink and are `wanted`: only edges, their reductions and what sinks
    itself read their results."""
    read_elsewhere: set[Atom] = set(program.outputs)
    read_by_edges: set[Atom] = set()
    found: set[Equation] = set()
    for eqn in reversed(program.equations):
        outs = eqn.outputs
        may = read_elsewhere.isdisjoint(outs) and not read_by_edges.isdisjoint(outs)
        if may and wanted(eqn):
            found.add(eqn)
        by_edges = isinstance(eqn.op, Reduce) or eqn.space is Space.EDGE or eqn in found
        (read_by_edges if by_edges else read_elsewhere).update(eqn.inputs)
    return found


def sink(program: Program, moved: Collection[Equation]) -> Program:
    """`program` with the equations `moved` on the edges, where all that reads them is too."""

    def rule(builder: Builder, eqn: Equation) -> bool:
        if eqn not in moved:
            return False
        outs = [Value(v.shape, v.dtype, Space.EDGE, v.name) for v in eqn.outputs]
        builder.emit(eqn.op, map(builder.__getitem__, eqn.inputs), outs, eqn.location)
        builder.env.update(zip(eqn.outputs, outs, strict=True))
        return True

    return rewrite(program, rule) if moved else program
