"""`scale-on-the-edges`: features are multiplied by their vertex's number where they are read.

before:  a: f32[src, 8] = s * x; y = sum over (u -> v) of a[u]
after:   a: f32[edge, 8] = s[u] * x[u]; y = sum over (u -> v) of a

The opposite of `place-in-smallest-space`, for the one product that is cheaper on the edges: one
multiplication more per edge, beside a gather, against an array `[N, 8]` that is written, read once
and (large ones) asked of the system anew in every call. Moves the product and the broadcast of
its number.

Legal: the same numbers are multiplied. Refuses a product that something besides edges and their
reductions reads, one of two arrays, one of single numbers and, unless `every`, numbers that a
gradient may reach: their gradient would become a sum over edges of dot products.
"""

from __future__ import annotations

import dataclasses

from gnnjit.ir.dtypes import is_inexact
from gnnjit.ir.program import Atom, Equation, Lax, Program, Reduce, Value
from gnnjit.ir.space import Space
from gnnjit.passes.fixed import fixed_values
from gnnjit.passes.to_the_edges import to_the_edges

_VERTICES = (Space.SRC, Space.DST)
_BROADCASTS = ("broadcast_in_dim", "reshape")


@dataclasses.dataclass(frozen=True)
class ScaleOnTheEdges:
    """`every`: no derivative will be taken any more, so every number counts as fixed."""

    every: bool = False
    name: str = "scale-on-the-edges"

    def __call__(self, program: Program) -> Program:
        return to_the_edges(program, _moved(program, None if self.every else fixed_values(program)))


def _moved(program: Program, fixed: set[Value] | None) -> set[Equation]:
    """The products, and the broadcasts that only they read."""
    made = {o: e for e in program.equations for o in e.outputs}
    scalars = {v for v in program.values() if v.size == 1 and (fixed is None or v in fixed)}
    elsewhere: set[Atom] = set(program.outputs)
    read: set[Atom] = set()
    moved: set[Equation] = set()
    products: set[Equation] = set()
    for eqn in reversed(program.equations):
        free = not elsewhere.intersection(eqn.outputs) and bool(read.intersection(eqn.outputs))
        if free and isinstance(eqn.op, Lax) and eqn.space in _VERTICES:
            if eqn.op.name in _BROADCASTS and eqn.inputs[0] in scalars:
                moved.add(eqn)
            elif _is_scaled(eqn, made, scalars):
                moved.add(eqn)
                products.add(eqn)
        on_edges = isinstance(eqn.op, Reduce) or eqn.space is Space.EDGE or eqn in moved
        (read if on_edges else elsewhere).update(eqn.inputs)
    return moved if products else set()


def _is_scaled(eqn: Equation, made: dict[Value, Equation], scalars: set[Value]) -> bool:
    out = eqn.outputs[0]
    if eqn.op.name != "mul" or out.size < 2 or not is_inexact(out.dtype):
        return False
    return sum(_is_number(a, made, scalars) for a in eqn.inputs) == 1


def _is_number(atom: Atom, made: dict[Value, Equation], scalars: set[Value]) -> bool:
    """Whether it is one number per vertex, or a broadcast of one."""
    eqn = made.get(atom) if isinstance(atom, Value) else None
    if eqn is not None and eqn.op.name in _BROADCASTS and atom not in scalars:
        atom = eqn.inputs[0]
    return atom in scalars and atom.space in _VERTICES
