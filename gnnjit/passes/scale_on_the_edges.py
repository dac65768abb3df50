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
import functools

from gnnjit.ir.dtypes import is_inexact
from gnnjit.ir.program import Atom, Equation, Lax, Program, Reduce
from gnnjit.ir.space import Space
from gnnjit.passes.analysis.move_to_edges import to_the_edges
from gnnjit.passes.analysis.no_gradient import fixed_values

_BROADCASTS = ("broadcast_in_dim", "reshape")
_MOVABLE = (*_BROADCASTS, "mul")


@dataclasses.dataclass(frozen=True)
class ScaleOnTheEdges:
    """`every`: no derivative will be taken any more, so every number counts as fixed."""

    every: bool = False
    name: str = "scale-on-the-edges"

    def __call__(self, program: Program) -> Program:
        return to_the_edges(program, _moved(program, self.every))


def _moved(program: Program, every: bool) -> set[Equation]:
    """The products, and the broadcasts that only they read."""
    elsewhere: set[Atom] = set(program.outputs)
    read: set[Atom] = set()
    moved: set[Equation] = set()
    products: set[Equation] = set()
    numbers = _Numbers(program, every)
    for eqn in reversed(program.equations):
        if isinstance(eqn.op, Lax) and eqn.space.is_vertex and eqn.op.name in _MOVABLE:
            free = elsewhere.isdisjoint(eqn.outputs) and not read.isdisjoint(eqn.outputs)
            if free and eqn.op.name in _BROADCASTS and eqn.inputs[0] in numbers.scalars:
                moved.add(eqn)
            elif free and _is_scaled(eqn, numbers):
                moved.add(eqn)
                products.add(eqn)
        on_edges = isinstance(eqn.op, Reduce) or eqn.space is Space.EDGE or eqn in moved
        (read if on_edges else elsewhere).update(eqn.inputs)
    return moved if products else set()


class _Numbers:
    """The values that are one number per element; of those, unless `every`, that no gradient
    reaches."""

    def __init__(self, program: Program, every: bool):
        self.program, self.every = program, every

    @functools.cached_property
    def scalars(self) -> set[Atom]:
        values = self.program.values() if self.every else fixed_values(self.program)
        return {v for v in values if v.size == 1}

    @functools.cached_property
    def made(self) -> dict[Atom, Equation]:
        return {o: e for e in self.program.equations for o in e.outputs}

    def __contains__(self, atom: Atom) -> bool:
        """Whether it is one number per vertex, or a broadcast of one."""
        eqn = self.made.get(atom)
        if eqn is not None and eqn.op.name in _BROADCASTS and atom not in self.scalars:
            atom = eqn.inputs[0]
        return atom in self.scalars and atom.space.is_vertex


def _is_scaled(eqn: Equation, numbers: _Numbers) -> bool:
    out = eqn.outputs[0]
    if eqn.op.name != "mul" or out.size < 2 or not is_inexact(out.dtype):
        return False
    return sum(a in numbers for a in eqn.inputs) == 1
