"""How the edge function of an edge network is cut into stages, each run over a tile of edges.

    stage 0:  h = relu(a[dst] + b[src])            edge by edge, into the tile's memory
              H @ W                                 one product for the whole tile
    stage 1:  what needs it, up to the next product
    ...
    the end:  what no product needs: reductions into rows, values on edges

A product of one edge would read the whole matrix; that of a tile reads it once for many edges.

Where each edge picks its matrix from a table, `H @ W[r]`, a tile has many more edges: they are
sorted by the matrix, and each is read once for the edges of the tile that want it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Container, Hashable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from gnnjit.ir.large_products import MATRIX
from gnnjit.ir.program import Atom, Equation, Value
from gnnjit.ir.space import Space
from gnnjit.ir.tables import TableRows
from gnnjit.lower.cpu.matvec import Matvec, register_dtype
from gnnjit.lower.cpu.simd import LINE, is_half

if TYPE_CHECKING:
    from gnnjit.lower.cpu.spec import Spec

MOST_BYTES = 512 << 10
"""Of a tile's memory: it and the matrices are to stay in the second cache."""

FEWEST = 16
"""Edges of a tile at least."""

ALIKE = 32
"""Edges of a tile for each matrix of a table, where there is room."""

MOST_SORTED, MOST_SORTED_BYTES = 4096, 24 << 20
"""Edges of a tile whose edges pick their matrices, and bytes of its memory."""

MOST_ROWS = 2 * MOST_SORTED
"""Rows of a table that edges are sorted by at most: each tile looks at all of them."""

COLLIDING = 512
"""Bytes of a distance that edges in a tile must not have a multiple of: lines so far apart share
few places of the first cache, and products read a line of each edge."""


@dataclasses.dataclass(frozen=True)
class TileArray:
    """An array of the edges of a tile: where it begins in the tile's memory, in bytes for each
    edge, and bytes from one edge to the next."""

    at: int
    step: int


@dataclasses.dataclass(frozen=True)
class Grouping:
    """The edges of a tile sorted by the row of a table that they pick.

    stage: at whose end they are sorted.
    key, order: where in the tile's memory, in bytes for each edge, the numbers of rows and then the
        edges by row lie, `int32`.
    starts: where, after the arrays of edges, the first place of each row lies, `int64[count + 2]`;
        row `count` stands for those beyond the table.
    """

    rows: TableRows
    stage: int
    key: int
    order: int
    starts: int

    @property
    def count(self) -> int:
        return math.prod(self.rows.lengths)

    @property
    def bytes(self) -> int:
        return 8 * (self.count + 2)


@dataclasses.dataclass(frozen=True)
class TileProduct:
    """A product of all edges of a tile with a shared matrix, or with those that they pick.

    stage: at whose end it is computed. operand, result: of `[batch, rows, inner]` and
        `[batch, rows, columns]`. output: of the traversal, that the product writes as well.
    """

    eqn: Equation
    plan: Matvec
    stage: int
    operand: TileArray
    result: TileArray
    grouping: Grouping | None = None
    output: int | None = None

    @property
    def dtype(self) -> np.dtype:
        return self.plan.matrix.dtype

    @property
    def as_it_lies(self) -> bool:
        """Whether it takes the scalars of a value in their order."""
        return _is_in_order(self.plan)


@dataclasses.dataclass(frozen=True)
class TileFactor:
    """A factor of outer products that are summed over all edges, as numbers of `dtype`.

    late: it is written into the array at the end; otherwise a stage or a product has.
    """

    value: Atom
    dtype: np.dtype
    array: TileArray
    late: bool


@dataclasses.dataclass(frozen=True)
class Tiling:
    """The stages of an edge function.

    size: edges of a tile. bytes: of its memory, for each edge.
    early: the equations of each stage. late: those that run edge by edge at the end.
    stored: values that a stage keeps for later, and where.
    loads: which values each stage takes from there; the last entry is the end.
    groupings: the orders in which products take the edges.
    factors: of outer products that are summed over all edges, by the output and the factor.
    written: the outputs on the edges that a stage or a product writes, and which stage; the end
        writes the others.
    """

    size: int
    bytes: int
    products: tuple[TileProduct, ...]
    early: tuple[tuple[Equation, ...], ...]
    late: tuple[Equation, ...]
    stored: dict[Value, TileArray]
    loads: tuple[frozenset[Value], ...]
    groupings: tuple[Grouping, ...] = ()
    factors: dict[tuple[int, Atom], TileFactor] = dataclasses.field(default_factory=dict)
    written: dict[int, int] = dataclasses.field(default_factory=dict)

    @property
    def stages(self) -> int:
        return len(self.early)

    def is_stored(self, array: TileArray) -> bool:
        """Whether a stage writes the array because others read it."""
        return array in self.stored.values()

    @property
    def more_bytes(self) -> int:
        """Of its memory, beside what there is for each edge."""
        return sum(g.bytes for g in self.groupings)


def tiling(spec: Spec, size: int, level: int) -> Tiling | None:
    """None where no product on the edges is large enough. `level`: that of edges."""
    equations = list(spec.equations(level))
    plans = {e: spec.matvecs[e] for e in equations if _is_large(spec.matvecs.get(e))}
    if not plans or not size:
        return None
    made = {o: e for e in equations for o in e.outputs}
    needed = _needed(spec, plans, made)
    elsewhere: set[Atom] = {*made, *(v for _, v in spec.inputs(level))}
    others = [e for e in equations if e not in plans]
    needed |= _early_factors(spec, others, needed, elsewhere - needed)
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
    written = _written(spec, plans, made, at)
    uses[count].update(results(spec, written))
    products_of = {e.outputs[0] for e in plans}
    kept = [
        v for e in at if e not in plans for v in e.outputs
        if any(v in uses[k] for k in range(at[e] + 1, count + 1))
    ]  # fmt: skip
    layout = _Layout()
    stored = {v: layout.take(v.size * register_dtype(v.dtype).itemsize) for v in kept}
    groupings = _groupings(plans, at, layout)
    products = _products(plans, at, stored, groupings, layout)
    products = [_writing(p, spec, written) for p in products]
    free = [p.result for p in products if p.eqn.outputs[0] not in uses[count]]
    factors = _factors(spec, stored, products, layout, free)
    size = _size(size, layout.bytes, [g.count for g in groupings.values()])
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
    orders = tuple(groupings.values())
    return Tiling(
        size, layout.bytes, tuple(products), early, tuple(late), stored, loads, orders, factors,
        written,
    )  # fmt: skip


def _written(
    spec: Spec, plans: dict[Equation, Matvec], made: dict[Value, Equation], at: dict[Equation, int]
) -> dict[int, int]:
    """The outputs on the edges that are there before the end, and at which stage: then they are
    written while products run, and not all at once."""
    found: dict[int, int] = {}
    by_products: set[Equation] = set()
    for number, (op, out) in enumerate(zip(spec.reductions, spec.body.outputs, strict=True)):
        eqn = made.get(out) if op is None else None  # type: ignore[arg-type]
        if eqn not in at or eqn in by_products:
            continue
        if eqn in plans:
            if not _is_written_by(plans[eqn], out):
                continue
            by_products.add(eqn)
        found[number] = at[eqn]
    return found


def _is_written_by(plan: Matvec, out: Atom) -> bool:
    """Whether a product may write the output itself: what it gives are rows of it, as they are."""
    batch, rows, _ = plan.places.shape
    exact = out.dtype == plan.matrix.dtype == register_dtype(out.dtype)
    return plan.rows is None and batch == rows == 1 and exact


def _writing(product: TileProduct, spec: Spec, written: dict[int, int]) -> TileProduct:
    """The product, with the output that it writes."""
    (value,) = product.eqn.outputs
    numbers = [n for n in written if spec.body.outputs[n] == value]
    return dataclasses.replace(product, output=numbers[0]) if numbers else product


def _products(
    plans: dict[Equation, Matvec],
    at: dict[Equation, int],
    stored: dict[Value, TileArray],
    groupings: dict[Hashable, Grouping],
    layout: _Layout,
) -> list[TileProduct]:
    """Those of all stages. What a stage stores and one multiplies lies in memory once."""
    found = []
    for eqn, plan in plans.items():
        item = plan.matrix.dtype.itemsize
        _, rows, inner = plan.places.shape
        if plan.other in stored and rows == 1 and _is_read_as_stored(plan):
            operand = stored[plan.other]
        else:
            operand = layout.take(plan.places.size * item, apart=rows == 1)
        results_size = plan.places.size // inner * plan.columns
        result = layout.take(results_size * item, apart=rows == 1)
        grouping = None if plan.rows is None else groupings[plan.rows.key]
        found.append(TileProduct(eqn, plan, at[eqn], operand, result, grouping))
    return found


def _factors(
    spec: Spec,
    stored: dict[Value, TileArray],
    products: list[TileProduct],
    layout: _Layout,
    free: list[TileArray],
) -> dict[tuple[int, Atom], TileFactor]:
    """Those that are in the tile's memory already stay where they are.

    free: arrays that nobody reads at the end, when factors are written.
    """
    there: dict[Atom, TileArray] = {
        p.plan.other: p.operand for p in products if _is_read_as_stored(p.plan)
    }
    there |= {**stored, **{p.eqn.outputs[0]: p.result for p in products}}
    found: dict[tuple[int, Atom], TileFactor] = {}
    copies: dict[tuple[Atom, np.dtype], TileArray] = {}
    for number, factors in _factors_of_all(spec):
        dtype = spec.body.outputs[number].dtype
        for factor in factors:
            if factor in there and factor.dtype == dtype and not is_half(dtype):
                found[number, factor] = TileFactor(factor, dtype, there[factor], late=False)
                continue
            first = (factor, dtype) not in copies
            if first:
                size = factor.size * register_dtype(dtype).itemsize
                array = next((a for a in free if a.step == _apart(size)), None)
                if array is not None:
                    free.remove(array)
                copies[factor, dtype] = array or layout.take(size)
            found[number, factor] = TileFactor(factor, dtype, copies[factor, dtype], first)
    return found


def _groupings(
    plans: dict[Equation, Matvec], at: dict[Equation, int], layout: _Layout
) -> dict[Hashable, Grouping]:
    """One for each index by which edges pick."""
    found: dict[Hashable, Grouping] = {}
    starts = 0
    for eqn, plan in plans.items():
        if plan.rows is None:
            continue
        old = found.get(plan.rows.key)
        if old is None:
            key, order = layout.take(4, 4).at, layout.take(4, 4).at
            found[plan.rows.key] = Grouping(plan.rows, at[eqn], key, order, starts)
            starts += found[plan.rows.key].bytes
        elif at[eqn] < old.stage:
            found[plan.rows.key] = dataclasses.replace(old, stage=at[eqn])
    return found


def _size(size: int, bytes_each: int, counts: list[int]) -> int:
    """Edges of a tile, where `size` is a good number for edges that all multiply with one matrix;
    `counts`: of the matrices that they pick from."""
    while size >= 2 * FEWEST and size * bytes_each > MOST_BYTES:
        size //= 2
    wanted = min(MOST_SORTED, ALIKE * max(counts, default=0))
    while size < wanted and 2 * size * bytes_each <= MOST_SORTED_BYTES:
        size *= 2
    return size


def _apart(size: int) -> int:
    """Bytes from one edge to the next, of an array of so many each: lines do not collide."""
    return size + LINE if size % COLLIDING == 0 else size


class _Layout:
    """Hands out memory of an edge, in whole vectors."""

    bytes = 0

    def take(self, size: int, unit: int = LINE, *, apart: bool = True) -> TileArray:
        """apart: lines of two edges may not collide."""
        step = _apart(size) if apart else size
        found = TileArray(self.bytes, step)
        self.bytes += -(-step // unit) * unit
        return found


def reads(spec: Spec, eqn: Equation) -> tuple[Atom, ...]:
    """The values that the code of an equation reads on an edge."""
    if eqn in spec.matvecs:
        return spec.matvecs[eqn].reads
    if eqn in spec.reads:
        return tuple(spec.reads[eqn].index)
    return tuple(eqn.inputs)


def _is_in_order(plan: Matvec) -> bool:
    """Whether a product takes the scalars of a value in their order."""
    places = plan.places.ravel()
    every = places.size == math.prod(plan.other.shape)
    return every and bool((np.diff(places) == 1).all())


def _is_read_as_stored(plan: Matvec) -> bool:
    """Whether it takes them in their order, and in the dtype in which a tile keeps them."""
    dtype = plan.other.dtype
    return _is_in_order(plan) and dtype == register_dtype(dtype) == plan.matrix.dtype


def _is_large(plan: Matvec | None) -> bool:
    if plan is None or plan.multiplications < MATRIX:
        return False
    batch, rows, _ = plan.places.shape
    if plan.rows is None:
        return batch == 1
    return rows == 1 and math.prod(plan.rows.lengths) <= MOST_ROWS


def _needed(spec: Spec, plans: dict[Equation, Matvec], made: dict[Value, Equation]) -> set[Atom]:
    """What the products are made of."""
    found: set[Atom] = set()
    left: list[Atom] = [a for plan in plans.values() for a in plan.reads]
    while left:
        atom = left.pop()
        if atom in found:
            continue
        found.add(atom)
        if isinstance(atom, Value) and atom in made:
            left += reads(spec, made[atom])
    return found


def _early_factors(
    spec: Spec, equations: list[Equation], needed: set[Atom], elsewhere: set[Atom]
) -> set[Atom]:
    """Factors of outer products that are made of what a stage has at hand, and what leads to them:
    at the end, this would be read again.

    equations: on the edges, but for products. needed: what products are made of. elsewhere: other
        values of edges.
    """
    made = {o: e for e in equations for o in e.outputs}
    for eqn in equations:
        if elsewhere.isdisjoint(reads(spec, eqn)):
            elsewhere = elsewhere.difference(eqn.outputs)
    found: set[Atom] = set()
    every = (f for _, factors in _factors_of_all(spec) for f in factors)
    left: list[Atom] = [f for f in every if f not in elsewhere]
    while left:
        atom = left.pop()
        if atom in made and atom not in needed | found:
            found.add(atom)
            left += reads(spec, made[atom])
    return found


def _factors_of_all(spec: Spec) -> Iterator[tuple[int, list[Value]]]:
    """The outputs that are sums of outer products over all edges, by number; their factors."""
    for number, pairs in spec.outers.items():
        op = spec.reductions[number]
        if op is not None and op.into is Space.SHARED:
            yield number, list(dict.fromkeys(f for pair in pairs for f in pair.values))


def results(spec: Spec, written: Container[int]) -> Iterator[Atom]:
    """The values that are reduced, multiplied or stored at the end; `written`: outputs that are
    stored before."""
    for number, out in enumerate(spec.body.outputs):
        if number in written:
            continue
        if number in spec.outers:
            yield from (f for pair in spec.outers[number] for f in pair.values)
        elif number in spec.sums:
            yield from (a for one in spec.sums[number] for a in one.reads)
        else:
            yield out
