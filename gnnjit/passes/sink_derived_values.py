"""`sink-derived-values`: edges do what little arithmetic there is on values that they read anyway.

before:  f: bool[dst, 4] = is_finite(m)            after:  f: bool[edge, 4] = is_finite(m[v])
         z: f32[4] = broadcast_in_dim(0.0)                 z: f32[edge, 4] = broadcast_in_dim(0.0)
         t: f32[dst, 4] = select_n(f, z, m)                t: f32[edge, 4] = select_n(f, z, m[v])
         y = sum over (u -> v) of exp(s - t[v]) * m[v]     y = sum ... of exp(s - t) * m[v]

A kernel has `m[v]` in registers. Reading `t[v]` beside it, of whichever endpoint, costs more than
the two instructions that make it, and the array of all `t` would be one more to write. Constants
go with it: an array that repeats one number is a register to a kernel. Where others read it too,
the edges have one of their own.

Legal: the same operations run on the same values. Refuses other values that something besides edges
and their reductions reads, operations of more than one instruction, those of a value that no edge
reads, and constants of more than `MOST` numbers.
"""

from __future__ import annotations

import dataclasses

from gnnjit.ir.program import (
    Atom,
    Builder,
    Equation,
    Lax,
    Literal,
    Program,
    Reduce,
    Value,
    rewrite,
)
from gnnjit.ir.space import Space
from gnnjit.passes.analysis.move_to_edges import sink, sinkable

_INSTRUCTIONS = frozenset(
    """
    abs add add_any and eq ge gt is_finite le lt max min mul ne neg not or select_n stop_gradient
    sub
    """.split()
)


MOST = 1 << 14
"""Scalars of the largest constant that edges repeat."""


@dataclasses.dataclass(frozen=True)
class SinkDerivedValues:
    name: str = "sink-derived-values"

    def __call__(self, program: Program) -> Program:
        program = _with_own_constants(program)
        found = sinkable(program, _is_cheap)
        while some := _of_unread_values(program, found):
            # What read the results of those is left without them.
            found = {e for e in sinkable(program, (found - some).__contains__)}
        return sink(program, found)


def _with_own_constants(program: Program) -> Program:
    """The program with a second copy, on the edges, of each constant that edges and others read."""
    by_edges: set[Atom] = set()
    by_others: set[Atom] = set(program.outputs)
    for eqn in program.equations:
        (by_edges if _is_of_edges(eqn) else by_others).update(eqn.inputs)
    both = by_edges & by_others
    own: dict[Atom, Atom] = {}

    def rule(builder: Builder, eqn: Equation) -> bool:
        if _is_constant(eqn) and eqn.space is not Space.EDGE and eqn.outputs[0] in both:
            (out,) = builder.copy(eqn)
            like = Value(out.shape, out.dtype, Space.EDGE, out.name)
            (own[out],) = builder.emit(eqn.op, eqn.inputs, [like], eqn.location)
            return True
        if not _is_of_edges(eqn) or own.keys().isdisjoint(eqn.inputs):
            return False
        inputs = [own.get(a) or builder[a] for a in eqn.inputs]
        builder.emit(eqn.op, inputs, eqn.outputs, eqn.location)
        return True

    return rewrite(program, rule) if any(map(_is_constant, program.equations)) else program


def _is_of_edges(eqn: Equation) -> bool:
    return eqn.space is Space.EDGE or isinstance(eqn.op, Reduce)


def _of_unread_values(program: Program, moved: set[Equation]) -> set[Equation]:
    """Those of `moved` with an operand that no edge would have without them."""
    known: set[Atom] = {o for e in moved for o in e.outputs}
    for eqn in program.equations:
        if eqn not in moved and _is_of_edges(eqn):
            known.update(eqn.inputs)
    return {e for e in moved if not all(isinstance(a, Literal) or a in known for a in e.inputs)}


def _is_cheap(eqn: Equation) -> bool:
    if not isinstance(eqn.op, Lax) or eqn.space is Space.EDGE:
        return False
    return eqn.op.name in _INSTRUCTIONS or _is_constant(eqn)


def _is_constant(eqn: Equation) -> bool:
    """Whether it repeats one number, not too often."""
    repeats = eqn.op.name == "broadcast_in_dim" and all(isinstance(a, Literal) for a in eqn.inputs)
    return repeats and eqn.outputs[0].size <= MOST
