"""A function of whole arrays as sweeps over the grid.

A sweep goes once over the blocks of vertices. In each it does row-wise work, and the aggregates
whose rows are the block's: over its column of the grid (rows are destinations) or its row of it
(rows are sources), reading the other endpoint chunk by chunk. What an aggregate reads of the other
endpoint must be complete before its sweep; what it reads of its own need not be. Sums over all
vertices are complete after a sweep. NeuGraph (section 3.2) has one such sweep for each layer,
forward by columns and backward by rows; here they are found for any function.

What a later sweep reads is stored, or computed again from what is: the fewest bytes by a minimum
cut, where work counts too.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph

from gnnjit.errors import StreamError
from gnnjit.frontend.whole import Array, Constant, Equation, Function, Operand, Rows
from gnnjit.grid.rowwise import Rule, rule_of
from gnnjit.ir.program import Aggregate, Program, Reduce
from gnnjit.ir.space import Space
from gnnjit.passes.drop_dead import DropDead

Side = Literal["dst", "src"]

FLOPS_PER_BYTE = 16
"""Arithmetic that takes as long as moving a byte to a store and back, when work is done again."""


@dataclasses.dataclass(frozen=True, eq=False)
class Gather:
    """An aggregate with the outputs of one side: `body` on each edge, reduced into the rows of
    `side` (or over all edges; or left on them).

    inputs: what `body` reads, in its order.
    """

    op: Aggregate
    side: Side
    inputs: tuple[Operand, ...]
    outputs: tuple[Array, ...]
    limit: int | None
    where: str

    def operands(self, space: Space) -> list[tuple[int, Operand]]:
        """What is read in a space, and its position."""
        return [
            (i, x)
            for i, (v, x) in enumerate(zip(self.op.body.inputs, self.inputs, strict=True))
            if v.space is space
        ]

    @property
    def own(self) -> Space:
        """The space whose elements own the rows."""
        return Space.DST if self.side == "dst" else Space.SRC

    @property
    def other(self) -> Space:
        return Space.SRC if self.side == "dst" else Space.DST

    @property
    def totals(self) -> bool:
        """Whether its results are sums over all edges."""
        return all(x.rows is None for x in self.outputs)


@dataclasses.dataclass(frozen=True, eq=False)
class RowWise:
    """An equation with rows: row-wise, or a reduction over all of them."""

    eqn: Equation
    rule: Rule
    rows: Rows

    @property
    def inputs(self) -> tuple[Operand, ...]:
        return self.eqn.inputs

    @property
    def outputs(self) -> tuple[Array, ...]:
        return self.eqn.outputs

    @property
    def reduces(self) -> bool:
        return self.rule.merge is not None


@dataclasses.dataclass(frozen=True, eq=False)
class Shared:
    """An equation without rows, done once, between sweeps."""

    eqn: Equation

    @property
    def inputs(self) -> tuple[Operand, ...]:
        return self.eqn.inputs

    @property
    def outputs(self) -> tuple[Array, ...]:
        return self.eqn.outputs


Work = Gather | RowWise | Shared


@dataclasses.dataclass(frozen=True, eq=False)
class Sweep:
    """What is done in one pass over the blocks.

    Attributes:
        side: whose rows the blocks are, where there are aggregates: "dst" goes by columns of the
            grid, "src" by rows. None: no edges are looked at.
        rows: of what the blocks are: vertices, or edges.
        loads: arrays of which each block reads its own rows.
        stages: for each, the row-wise work and then the aggregates that follow it; the last has
            none.
        stores: arrays whose rows are kept for later sweeps, or are results.
        edge_loads: arrays of edges of which each chunk reads its own rows.
        edge_work: row-wise work on the edges of a chunk, before its aggregates.
    """

    side: Side | None
    rows: Rows
    loads: tuple[Array, ...]
    stages: tuple[tuple[tuple[RowWise, ...], tuple[Gather, ...]], ...]
    stores: tuple[Array, ...]
    edge_loads: tuple[Array, ...] = ()
    edge_work: tuple[RowWise, ...] = ()

    @property
    def gathers(self) -> list[Gather]:
        return [g for _, gathers in self.stages for g in gathers]


@dataclasses.dataclass(frozen=True, eq=False)
class Streamed:
    """A function as sweeps, with shared work before each and after the last."""

    function: Function
    shared: tuple[tuple[Shared, ...], ...]
    sweeps: tuple[Sweep, ...]


def works(function: Function) -> list[Work]:
    """The equations by what kind of work they are.

    Raises:
        StreamError: one is neither row-wise, nor a reduction, nor an aggregate.
    """
    found: list[Work] = []
    for eqn in function.equations:
        rows = {x.rows for x in (*eqn.inputs, *eqn.outputs)} - {None}
        if eqn.name == "aggregate":
            found.extend(_gathers(eqn))
        elif not rows:
            found.append(Shared(eqn))
        elif len(rows) > 1:
            raise StreamError(
                f"{eqn.where}: {eqn.name} has rows of vertices and of edges, expected one of them: "
                "only a layer brings them together"
            )
        else:
            (which,) = rows
            assert which is not None
            found.append(RowWise(eqn, rule_of(eqn), which))
    return found


def _gathers(eqn: Equation) -> list[Gather]:
    """An aggregate, once for each space that it reduces into; what it leaves on the edges comes
    with the destinations."""
    body, reductions = eqn.params["body"], eqn.params["reductions"]
    leaves = len(eqn.inputs) - len(body.inputs)
    operands = eqn.inputs[leaves:]
    homes: dict[Space, list[int]] = {}
    for k, r in enumerate(reductions):
        homes.setdefault(Space.DST if r is None else r.into, []).append(k)
    return [
        _only(eqn, body, reductions, operands, "src" if space is Space.SRC else "dst", picked)
        for space, picked in homes.items()
    ]


def _only(
    eqn: Equation,
    body: Program,
    reductions: Sequence[Reduce | None],
    operands: Sequence[Operand],
    side: Any,
    picked: list[int],
) -> Gather:
    new = dataclasses.replace(body, outputs=tuple(body.outputs[k] for k in picked))
    new = DropDead()(new)
    read = {a for e in new.equations for a in e.inputs} | set(new.outputs)
    slots = [i for i, v in enumerate(new.inputs) if v in read]
    new = dataclasses.replace(new, inputs=tuple(new.inputs[i] for i in slots))
    place = {k: n for n, k in enumerate(picked)}
    kept = tuple(
        r if r is None or r.score is None else dataclasses.replace(r, score=place[r.score])
        for r in (reductions[k] for k in picked)
    )
    return Gather(
        Aggregate(new, kept),
        side,
        tuple(operands[i] for i in slots),
        tuple(eqn.outputs[k] for k in picked),
        eqn.params["limit"],
        eqn.where,
    )


def plan_sweeps(function: Function) -> Streamed:
    """The sweeps of a function.

    Raises:
        StreamError: as `works`.
    """
    shared, rounds = _rounds(function, works(function))
    before: list[tuple[Shared, ...]] = []
    sweeps: list[Sweep] = []
    waiting: tuple[Shared, ...] = ()
    for work, sweep in zip(shared, _fill(function, rounds), strict=False):
        waiting += work
        if sweep.stages:
            before.append(waiting)
            sweeps.append(sweep)
            waiting = ()
    return Streamed(function, (*before, waiting + shared[-1]), tuple(sweeps))


@dataclasses.dataclass(frozen=True, eq=False)
class _Round:
    """All that could be done in one sweep."""

    side: Side | None
    rows: Rows
    done: tuple[Gather | RowWise, ...]

    @property
    def anchors(self) -> list[Gather | RowWise]:
        """What a sweep is made for: what cannot be done again later at no cost."""
        return [w for w in self.done if isinstance(w, Gather) or w.reduces]


def _rounds(
    function: Function, left: list[Work]
) -> tuple[tuple[tuple[Shared, ...], ...], list[_Round]]:
    """Which sweep each work can be done in at the earliest; aggregates first come first served."""
    complete: set[Operand] = {*function.inputs, *(a for a, _ in function.constants)}
    shared: list[tuple[Shared, ...]] = []
    rounds: list[_Round] = []
    while True:
        ready: list[Shared] = []
        for work in left:
            if isinstance(work, Shared) and _known(work.inputs, complete):
                ready.append(work)
                complete.update(work.outputs)
        shared.append(tuple(ready))
        left = [w for w in left if w not in set(ready)]
        if not left:
            return tuple(shared), rounds
        round_ = _next_round(left, complete)
        rounds.append(round_)
        complete.update(x for w in round_.done for x in w.outputs)
        gone = set(round_.done)
        left = [w for w in left if w not in gone]


def _known(inputs: Iterable[Operand], complete: set[Operand]) -> bool:
    return all(isinstance(x, Constant) or x in complete for x in inputs)


def _next_round(left: Sequence[Work], complete: set[Operand]) -> _Round:
    """By columns or by rows: whichever the first aggregate in order can be done with."""
    choices: list[tuple[Side | None, Rows]] = [
        ("dst", Rows.VERTEX),
        ("src", Rows.VERTEX),
        (None, Rows.EDGE),
    ]
    tried = [_Round(side, rows, _closure(left, complete, side, rows)) for side, rows in choices]
    position = {w: i for i, w in enumerate(left)}

    def first(r: _Round) -> tuple[float, float]:
        gathers = [position[w] for w in r.done if isinstance(w, Gather)]
        some = [position[w] for w in r.done]
        return min(gathers, default=math.inf), min(some, default=math.inf)

    best = min(tried, key=first)
    if not best.done:
        where = getattr(left[0], "where", None) or left[0].eqn.where  # type: ignore[union-attr]
        raise AssertionError(f"{where}: no sweep can go on")
    if best.rows is Rows.VERTEX and not any(isinstance(w, Gather) for w in best.done):
        best = dataclasses.replace(best, side=None)
    return best


def _closure(
    left: Sequence[Work], complete: set[Operand], side: Side | None, rows: Rows
) -> tuple[Gather | RowWise, ...]:
    """All that a sweep could do."""
    here: set[Operand] = set()
    done: list[Gather | RowWise] = []
    for work in left:
        if isinstance(work, RowWise):
            fits = work.rows is rows and _known(work.inputs, complete | here)
        elif isinstance(work, Gather):
            own = {x for _, x in work.operands(work.own)}
            rest = [x for x in work.inputs if x not in own or _read_elsewhere(work, x)]
            fits = work.side == side and _known(rest, complete)
            fits = fits and _known(own, complete | here)
        else:
            fits = False
        if fits:
            assert not isinstance(work, Shared)
            done.append(work)
            if isinstance(work, Gather) or not work.reduces:
                here.update(x for x in work.outputs if x.rows is rows)
    return tuple(done)


def _read_elsewhere(gather: Gather, operand: Operand) -> bool:
    return any(
        x is operand
        for space in (gather.other, Space.EDGE, Space.SHARED)
        for _, x in gather.operands(space)
    )


def _fill(function: Function, rounds: Sequence[_Round]) -> tuple[Sweep, ...]:
    """What each sweep loads, computes and stores, from the last to the first."""
    birth: dict[Array, int] = dict.fromkeys(function.inputs, -1)
    birth.update(dict.fromkeys((a for a, _ in function.constants), -1))
    makes: dict[Array, Gather | RowWise] = {}
    for number, round_ in enumerate(rounds):
        for work in round_.done:
            birth.update(dict.fromkeys(work.outputs, number))
            makes.update(dict.fromkeys(work.outputs, work))
    stored: list[dict[Array, None]] = [{} for _ in rounds]

    def store(arrays: Iterable[Operand]) -> None:
        for x in arrays:
            if isinstance(x, Array) and x.rows is not None and birth[x] >= 0:
                stored[birth[x]][x] = None

    store(function.outputs)
    for gather in (w for r in rounds for w in r.done if isinstance(w, Gather)):
        store(x for _, x in gather.operands(gather.other))
    sweeps: list[Sweep] = []
    for number in reversed(range(len(rounds))):
        round_ = rounds[number]
        before = [w for r in rounds[: number + 1] for w in r.done]
        cut = _Cut(number, birth, makes, stored)
        loads, here = cut.least(_targets(round_, stored[number]))
        edge_loads, on_edges = cut.least(_read_on_edges(round_))
        store((*loads, *edge_loads))
        sweep = _sweep(round_, before, loads, here, tuple(stored[number]))
        work = tuple(w for w in before if isinstance(w, RowWise) and on_edges & {*w.outputs})
        sweeps.append(dataclasses.replace(sweep, edge_loads=edge_loads, edge_work=work))
    return tuple(reversed(sweeps))


def _targets(round_: _Round, stored: Iterable[Array]) -> list[Array]:
    """What a sweep must have of its own rows: what it stores, and what its anchors read."""
    targets = dict.fromkeys(x for x in stored if x.rows is round_.rows)
    for anchor in round_.anchors:
        own = anchor.inputs
        if isinstance(anchor, Gather):
            own = tuple(x for _, x in anchor.operands(anchor.own))
        targets.update({x: None for x in own if isinstance(x, Array) and x.rows is not None})
    return list(targets)


def _read_on_edges(round_: _Round) -> list[Array]:
    gathers = [w for w in round_.anchors if isinstance(w, Gather)]
    found = (x for g in gathers for _, x in g.operands(Space.EDGE) if isinstance(x, Array))
    return list(dict.fromkeys(found))


class _Cut:
    """What a sweep loads and what it computes (again), at the least cost."""

    def __init__(
        self,
        number: int,
        birth: dict[Array, int],
        makes: dict[Array, Gather | RowWise],
        stored: Sequence[dict[Array, None]],
    ) -> None:
        self.number, self.birth, self.makes = number, birth, makes
        self.stored = {x for each in stored for x in each}

    def load_cost(self, x: Array) -> float:
        if self.birth[x] >= self.number:
            return math.inf
        kept = self.birth[x] < 0 or x in self.stored
        return max(1, x.row_bytes) * (1 if kept else 2)

    def work_cost(self, x: Array) -> float:
        """Of computing it here, without its operands."""
        work = self.makes.get(x)
        if work is None:
            return math.inf
        if isinstance(work, Gather):
            return 0 if self.birth[x] == self.number else math.inf
        if self.birth[x] == self.number:
            return 0
        return _flops(work.eqn) / FLOPS_PER_BYTE

    def needs(self, x: Array) -> list[Array]:
        work = self.makes[x]
        if isinstance(work, Gather):  # its own operands are targets anyway
            return []
        return [y for y in work.inputs if isinstance(y, Array) and y.rows is not None]

    def least(self, targets: list[Array]) -> tuple[tuple[Array, ...], set[Array]]:
        """(loaded, computed) for the targets to be there.

        A minimum cut: each array has two vertices, "is there" and "is computed". To be there
        without being computed costs its load; to be computed costs its work, and its operands have
        to be there.
        """
        if not targets:
            return (), set()
        reach = self.reachable(targets)
        number = {x: 2 + 2 * i for i, x in enumerate(reach)}
        edges: list[tuple[int, int, float]] = [(0, number[x], math.inf) for x in targets]
        for x in reach:
            there = number[x]
            edges.append((there, there + 1, self.load_cost(x)))
            cost = self.work_cost(x)
            edges.append((there + 1, 1, cost))
            if cost < math.inf:
                edges += [(there + 1, number[y], math.inf) for y in self.needs(x)]
        kept = _source_side(edges, 2 + 2 * len(reach))
        loads = [x for x in reach if kept[number[x]] and not kept[number[x] + 1]]
        return tuple(loads), {x for x in reach if kept[number[x] + 1]}

    def reachable(self, targets: list[Array]) -> list[Array]:
        found = dict.fromkeys(targets)
        queue = collections.deque(targets)
        while queue:
            x = queue.popleft()
            if self.work_cost(x) < math.inf:
                for y in self.needs(x):
                    if y not in found:
                        found[y] = None
                        queue.append(y)
        return list(found)


def _flops(eqn: Equation) -> float:
    """Of one row: products count in full, all else once for each number."""
    out = sum(math.prod(x.shape) for x in eqn.outputs)
    if eqn.name == "rows_matmul":
        return 2.0 * math.prod(eqn.inputs[0].shape) * out
    if eqn.name == "dot_general":
        return 2.0 * out * max(math.prod(x.shape) for x in eqn.inputs) ** 0.5
    return out


def _source_side(edges: Sequence[tuple[int, int, float]], size: int) -> np.ndarray:
    """`bool[size]`: the vertices on the side of vertex 0 in a minimum cut from 0 to 1."""
    finite = sum(c for _, _, c in edges if c < math.inf)
    scale = (1 << 30) / max(4 * finite, 1)  # SciPy has capacities of 32 bits
    scale = min(scale, 16.0)
    infinite = int(finite * scale) + len(edges) + 1
    total: dict[tuple[int, int], int] = collections.defaultdict(int)
    for a, b, c in edges:
        amount = infinite if c == math.inf else max(1 if c else 0, round(c * scale))
        total[a, b] = min(total[a, b] + amount, infinite)
    rows, columns = zip(*total, strict=True)
    capacity = scipy.sparse.csr_array(
        (np.fromiter(total.values(), np.int32, len(total)), (rows, columns)), shape=(size, size)
    )
    flow = scipy.sparse.csgraph.maximum_flow(capacity, 0, 1).flow
    rest = (capacity - flow).tocsr()
    rest.data[rest.data < 0] = 0
    rest.eliminate_zeros()
    order = scipy.sparse.csgraph.breadth_first_order(rest, 0, return_predecessors=False)
    kept = np.zeros(size, bool)
    kept[order] = True
    return kept


def _sweep(
    round_: _Round,
    before: Sequence[Gather | RowWise],
    loads: tuple[Array, ...],
    here: set[Array],
    stores: tuple[Array, ...],
) -> Sweep:
    """The work of a sweep in stages: what needs an aggregate of the sweep comes after it."""
    anchors = set(round_.anchors)
    wanted = [w for w in before if w in anchors or not here.isdisjoint(w.outputs)]
    level: dict[Operand, int] = {}
    earliest: dict[Gather | RowWise, int] = {}
    for work in wanted:
        own = [x for _, x in work.operands(work.own)] if isinstance(work, Gather) else work.inputs
        earliest[work] = max((level.get(x, 0) for x in own), default=0)
        level.update(dict.fromkeys(work.outputs, earliest[work] + isinstance(work, Gather)))
    # Row-wise work waits until somebody reads it, so that nothing is held meanwhile.
    needed: dict[Operand, int] = {x: level[x] for x in stores if x in level}
    at: dict[Gather | RowWise, int] = {}
    for work in reversed(wanted):
        at[work] = earliest[work]
        own = [x for _, x in work.operands(work.own)] if isinstance(work, Gather) else work.inputs
        if isinstance(work, RowWise) and not work.reduces:
            at[work] = min(needed.get(x, at[work]) for x in work.outputs if x in needed)
        for x in own:
            needed[x] = min(needed.get(x, at[work]), at[work])
    stages: list[tuple[list[RowWise], list[Gather]]] = []
    for _ in range(1 + max(at.values(), default=-1)):
        stages.append(([], []))
    for work in wanted:
        if isinstance(work, Gather):
            stages[at[work]][1].append(work)
        else:
            stages[at[work]][0].append(work)
    if stages and stages[-1][1]:
        stages.append(([], []))
    if stores and not stages:
        stages.append(([], []))
    done = tuple((tuple(rows), tuple(gathers)) for rows, gathers in stages)
    return Sweep(round_.side, round_.rows, loads, done, stores)
