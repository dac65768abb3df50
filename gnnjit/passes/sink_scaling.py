"""`sink-scaling`: features are multiplied by their vertex's number where they are read.

before:  a: f32[src, 8] = s * x; y = sum over (u -> v) of a[u]
after:   a: f32[edge, 8] = s[u] * x[u]; y = sum over (u -> v) of a

The opposite of `place-in-smallest-space`, for the one product that is cheaper on the edges: one
multiplication more per edge, beside a gather, against an array `[N, 8]` that is written and read
once, and that, if it is large, the system clears anew in every call. The product moves, and the
broadcast of its number with it.

Legal: the same numbers are multiplied. Refuses a product that something besides edges and their
reductions reads, one of two arrays, one of single numbers and, unless `every`, numbers that a
gradient may reach: their gradient would become a sum over edges of dot products.
"""

from __future__ import annotations

import dataclasses
import functools

from gnnjit.ir.dtypes import is_inexact
from gnnjit.ir.program import Atom, Equation, Lax, Program
from gnnjit.passes.analysis.move_to_edges import sink, sinkable
from gnnjit.passes.analysis.no_gradient import fixed_values

_BROADCASTS = ("broadcast_in_dim", "reshape")


@dataclasses.dataclass(frozen=True)
class SinkScaling:
    """`every`: no derivative will be taken any more, so every number counts as fixed."""

    every: bool = False
    name: str = "sink-scaling"

    def __call__(self, program: Program) -> Program:
        numbers = _Numbers(program, self.every)

        def wanted(eqn: Equation) -> bool:
            if not isinstance(eqn.op, Lax) or not eqn.space.is_vertex:
                return False
            if eqn.op.name in _BROADCASTS and eqn.inputs[0] in numbers.scalars:
                return True
            return eqn.op.name == "mul" and _is_scaled(eqn, numbers)

        moved = sinkable(program, wanted)
        products = any(eqn.op.name == "mul" for eqn in moved)
        return sink(program, moved) if products else program  # a broadcast alone stays


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
    return out.size > 1 and is_inexact(out.dtype) and sum(a in numbers for a in eqn.inputs) == 1
