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

import dataclasses
import math
from collections.abc import Iterable, Sequence

from gnnjit.frontend.trace_arrays import Array, Constant, Function, Operand, Rows
from gnnjit.ir.space import Space
from gnnjit.streaming.program.min_cut import SweepCut
from gnnjit.streaming.program.operations import (
    Gather,
    GridOperation,
    RowWise,
    Shared,
    Side,
    Sweep,
    SweepProgram,
    operations,
)

__all__ = [
    "Gather",
    "RowWise",
    "Shared",
    "Side",
    "Sweep",
    "SweepProgram",
    "described",
    "plan_sweeps",
]


def plan_sweeps(function: Function) -> SweepProgram:
    """The sweeps of a function.

    Raises:
        StreamError: as `operations`.
    """
    shared, rounds = _rounds(function, operations(function))
    before: list[tuple[Shared, ...]] = []
    sweeps: list[Sweep] = []
    waiting: tuple[Shared, ...] = ()
    for work, sweep in zip(shared, _fill(function, rounds), strict=False):
        waiting += work
        if sweep.stages:
            before.append(waiting)
            sweeps.append(sweep)
            waiting = ()
    return SweepProgram(function, (*before, waiting + shared[-1]), tuple(sweeps))


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
    function: Function, left: list[GridOperation]
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


def _next_round(left: Sequence[GridOperation], complete: set[Operand]) -> _Round:
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
    left: Sequence[GridOperation], complete: set[Operand], side: Side | None, rows: Rows
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
        cut = SweepCut(number, birth, makes, stored)
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


def described(streamed: SweepProgram) -> str:
    """A text that is the same, in any process, for functions that are cut into the same sweeps."""
    number: dict[Operand, int] = {}

    def of(arrays: Iterable[Operand]) -> str:
        shown = (
            x.value if isinstance(x, Constant) else f"{number.setdefault(x, len(number))}:{x}"
            for x in arrays
        )
        return " ".join(map(str, shown))

    function = streamed.function
    lines = [of([*function.inputs, *(a for a, _ in function.constants)])]
    lines += [f"{e.name} {of(e.inputs)} -> {of(e.outputs)}" for e in function.equations]
    lines.append(of(function.outputs))
    for before, sweep in zip(streamed.shared, streamed.sweeps, strict=False):
        lines.append(f"{sweep.side} {sweep.rows} " + of(x for w in before for x in w.outputs))
        lines += [of(sweep.loads), of(sweep.stores), of(sweep.edge_loads)]
        lines += [
            of(x for w in done for x in w.outputs)
            for done in (sweep.edge_work, *((*rows, *gathers) for rows, gathers in sweep.stages))
        ]
    return "\n".join(lines)
