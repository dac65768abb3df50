"""Products of values on the edges with matrices that all edges share."""

from __future__ import annotations

import math

from gnnjit.ir.program import Atom, Equation, Lax, Program
from gnnjit.ir.space import Space

MATRIX = 16 * 16
"""Scalars of a large matrix, at least: products with it are most of the work of a traversal."""

STORED = 64 * 64
"""Multiplications on an edge from which a product is written rather than computed again, where
memory is not limited. At widths of 16 to 48, a GNS block that computes it again took 0.9 of the
time, and half the memory."""

STORED_EACH = 32
"""Multiplications for each of its numbers from which it is: fewer take less time than writing and
reading the number. (SchNet's forces, 256 wide, computing 20 x 256 again: 471 to 452 ms, 635 to
459 MiB.)"""


def is_large_product(eqn: Equation, least: int = MATRIX) -> bool:
    """Whether `eqn` multiplies what is no shared value with a matrix that is one, of so many
    scalars at least."""
    if eqn.op.name != "dot_general" or eqn.outputs[0].space is Space.SHARED:
        return False
    shared = [a for a in eqn.inputs if a.space is Space.SHARED and len(a.shape) == 2]
    return any(math.prod(a.shape) >= least for a in shared)


def contracted(eqn: Equation) -> int:
    """Products that are summed for each scalar of a `dot_general`'s result."""
    assert isinstance(eqn.op, Lax)
    (axes, _), _ = eqn.op["dimension_numbers"]
    return math.prod(eqn.inputs[0].shape[axis] for axis in axes)


def is_worth_storing(size: int, multiplications: int) -> bool:
    """Whether a product of so many scalars is written, and not computed again."""
    return multiplications >= max(STORED, STORED_EACH * size)


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
