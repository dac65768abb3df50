"""How the edge function of an edge network is cut into stages, each run over a tile of edges.

    stage 0:  h = relu(a[dst] + b[src])            edge by edge, into the tile's memory
              H @ W                                 one product for the whole tile
    stage 1:  what needs it, up to the next product
    ...
    the end:  what no product needs: reductions into rows, values on edges

A product of one edge would read the whole matrix; that of a tile reads it once for many edges.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gnnjit.ir.large_products import MATRIX
from gnnjit.ir.program import Atom, Equation, Value
from gnnjit.lower.cpu.matvec import Matvec, register_dtype

if TYPE_CHECKING:
    from gnnjit.lower.cpu.spec import Spec

MOST_BYTES = 512 << 10
"""Of a tile's memory: it and the matrices are to stay in the second cache."""

FEWEST = 16
"""Edges of a tile at least."""


@dataclasses.dataclass(frozen=True)
class TileProduct:
    """A product of all edges of a tile with a shared matrix.

    stage: at whose end it is computed. operand, result: where in the tile's memory, in bytes for
        each edge, `[rows, inner]` and `[rows, columns]` lie.
    """

    eqn: Equation
    plan: Matvec
    stage: int
    operand: int
    result: int

    @property
    def dtype(self) -> np.dtype:
        return self.plan.matrix.dtype


@dataclasses.dataclass(frozen=True)
class Tiling:
    """The stages of an edge function.

    size: edges of a tile. bytes: of its memory, for each edge.
    early: the equations of each stage. late: those that run edge by edge at the end.
    stored: values that a stage keeps for later, and where.
    loads: which values each stage takes from there; the last entry is the end.
    """

    size: int
    bytes: int
    products: tuple[TileProduct, ...]
    early: tuple[tuple[Equation, ...], ...]
    late: tuple[Equation, ...]
    stored: dict[Value, int]
    loads: tuple[frozenset[Value], ...]

    @property
    def stages(self) -> int:
        return len(self.early)


def tiling(spec: Spec, size: int, level: int) -> Tiling | None:
    """None where no product on the edges is large enough. `level`: that of edges."""
    equations = list(spec.equations(level))
    plans = {e: spec.matvecs[e] for e in equations if _is_large(spec.matvecs.get(e))}
    if not plans or not size:
        return None
    made = {o: e for e in equations for o in e.outputs}
    needed = _needed(spec, plans, made)
    stage: dict[Atom, int] = {}
    at: dict[Equation, int] = {}
    late = []
    for eqn in equations:
        first = max((stage.get(a, 0) for a in reads(spec, eqn)), default=0)
        if eqn in plans or needed & set(eqn.outputs):
            at[eqn] = first
            stage.update(dict.fromkeys(eqn.outputs, first + (eqn in plans)))
        else:
            late.append(eqn)
    count = 1 + max(at[e] for e in plans)
    uses: list[set[Atom]] = [set() for _ in range(count + 1)]
    for eqn, number in at.items():
        uses[number].update(reads(spec, eqn))
    for eqn in late:
        uses[count].update(reads(spec, eqn))
    uses[count].update(results(spec))
    products_of = {e.outputs[0] for e in plans}
    kept = [
        v for e in at if e not in plans for v in e.outputs
        if any(v in uses[k] for k in range(at[e] + 1, count + 1))
    ]  # fmt: skip
    layout = _Layout()
    stored = {v: layout.take(v.size * register_dtype(v.dtype).itemsize) for v in kept}
    products = []
    for eqn, plan in plans.items():
        item = plan.matrix.dtype.itemsize
        operand = layout.take(plan.places.size * item)
        result = layout.take(plan.places.size // plan.places.shape[2] * plan.columns * item)
        products.append(TileProduct(eqn, plan, at[eqn], operand, result))
    while size > FEWEST and size * layout.bytes > MOST_BYTES:
        size //= 2
    early = tuple(
        tuple(e for e, k in at.items() if k == number and e not in plans) for number in range(count)
    )
    loads = tuple(
        frozenset(
            v for v in (*kept, *products_of)
            if v in uses[k] and (v not in made or made[v] in plans or at[made[v]] < k)
        )
        for k in range(count + 1)
    )  # fmt: skip
    return Tiling(size, layout.bytes, tuple(products), early, tuple(late), stored, loads)


class _Layout:
    """Hands out memory of an edge, in whole vectors."""

    bytes = 0

    def take(self, size: int) -> int:
        at = self.bytes
        self.bytes += -(-size // 64) * 64
        return at


def reads(spec: Spec, eqn: Equation) -> tuple[Atom, ...]:
    """The values that the code of an equation reads on an edge."""
    if eqn in spec.matvecs:
        return spec.matvecs[eqn].reads
    if eqn in spec.reads:
        return tuple(spec.reads[eqn].index)
    return tuple(eqn.inputs)


def _is_large(plan: Matvec | None) -> bool:
    if plan is None or plan.rows is not None or plan.places.shape[0] != 1:
        return False
    return plan.multiplications >= MATRIX


def _needed(spec: Spec, plans: dict[Equation, Matvec], made: dict[Value, Equation]) -> set[Atom]:
    """What the products are made of."""
    found: set[Atom] = set()
    left: list[Atom] = [plan.other for plan in plans.values()]
    while left:
        atom = left.pop()
        if atom in found:
            continue
        found.add(atom)
        if isinstance(atom, Value) and atom in made:
            left += reads(spec, made[atom])
    return found


def results(spec: Spec) -> Iterator[Atom]:
    """The values that are reduced, multiplied or stored at the end."""
    for number, out in enumerate(spec.body.outputs):
        if number in spec.outers:
            yield from (f for pair in spec.outers[number] for f in pair)
        elif number in spec.sums:
            yield from (a for one in spec.sums[number] for a in one.reads)
        else:
            yield out
