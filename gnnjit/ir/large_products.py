"""Products of values on the edges with matrices that all edges share."""

from __future__ import annotations

import math

from gnnjit.ir.program import Atom, Equation, Lax, Program
from gnnjit.ir.space import Space

MATRIX = 16 * 16
"""Scalars of a large matrix, at least: products with it are most of the work of a traversal."""


def is_large_product(eqn: Equation, least: int = MATRIX) -> bool:
    """Whether `eqn` multiplies what is no shared value with a matrix that is one, of so many
    scalars at least."""
    if eqn.op.name != "dot_general" or eqn.outputs[0].space is Space.SHARED:
        return False
    shared = [a for a in eqn.inputs if a.space is Space.SHARED and len(a.shape) == 2]
    return any(math.prod(a.shape) >= least for a in shared)


def large_products(program: Program) -> dict[Atom, frozenset[Equation]]:
    """The large products that a traversal computes for each value on the edges, before it is fused:
    what earlier traversals give is not computed again."""
    found: dict[Atom, frozenset[Equation]] = {}
    for eqn in program.equations:
        if isinstance(eqn.op, Lax) and eqn.space is Space.EDGE:
            own = frozenset([eqn] if is_large_product(eqn) else [])
            every = own.union(*(found.get(a, own) for a in eqn.inputs))
            found.update(dict.fromkeys(eqn.outputs, every))
    return found
