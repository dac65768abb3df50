"""One traversal over the rows of a compressed structure; each row is written by its owner alone.

NeuGraph's fused scatter-apply-gather (section 3.4), destination-centric as GraphTensor's kernels
(section IV): no edge value is stored and nothing is added atomically, so results are bitwise
reproducible. A *task* is a row, or a piece of a row with very many edges (a hub). A program takes
one long task, with one edge a lane, or several short ones, with one task a lane. The pieces of a
hub leave their states in a buffer of their own, and a second launch merges them in order.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_kernels import traversal, triton
from pallas_kernels.traversal import Refs, TileOperand, TileProgram, Tiles


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["row", "start", "length", "piece"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True, eq=False)
class Tasks:
    """`int[T]` each: the row that a task works for, its first slot, its number of slots.

    piece: `int[T]`, which piece of a hub the task is, -1 for a whole row; None where all are.
    """

    row: Any
    start: Any
    length: Any
    piece: Any = None

    @property
    def count(self) -> int:
        return self.row.shape[0]


_NO_TASKS = Tasks(*(np.empty(0, np.int32) for _ in range(3)))


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["long", "short", "hubs"], meta_fields=["pieces"]
)
@dataclasses.dataclass(frozen=True, eq=False)
class TaskPlan:
    """Every row of a structure exactly once.

    Attributes:
        long: tasks that take a program each, pieces of hubs among them.
        short: tasks that share a program, one a lane.
        hubs: the rows that were cut; their "slots" are the pieces.
        pieces: how many pieces there are.
    """

    long: Tasks
    short: Tasks
    hubs: Tasks
    pieces: int

    @property
    def count(self) -> int:
        return self.long.count + self.short.count

    def only_long(self) -> TaskPlan:
        """Without the short rows."""
        return dataclasses.replace(self, short=_NO_TASKS)

    def only_short(self) -> TaskPlan:
        """The short rows alone."""
        return TaskPlan(_NO_TASKS, self.short, _NO_TASKS, 0)


@dataclasses.dataclass(frozen=True)
class TileConfig:
    """Choices that change the code, and the result by rounding alone.

    lanes: edges that a program holds at a time; warps: of 32 threads; stages: of the loop over
    edges that are in flight.
    """

    lanes: int = 32
    warps: int = 4
    stages: int = 2


@dataclasses.dataclass(frozen=True)
class RowTiles:
    """The tiles of the two launches: long rows (one edge a lane), short rows (one row a lane)."""

    long: TileConfig = TileConfig()
    short: TileConfig = TileConfig()

    @classmethod
    def alike(cls, config: TileConfig) -> RowTiles:
        return cls(config, config)


def run(
    t: TileProgram,
    plan: TaskPlan,
    neighbor: jax.Array,
    edge: jax.Array,
    operands: Sequence[jax.Array],
    num_rows: int,
    tiles: RowTiles,
    *,
    interpret: bool = False,
    clear_edges: bool = False,
) -> list[jax.Array]:
    """The outputs: `[num_rows, *shape]`, 0 on rows without edges, or `[num_edges, *shape]`.

    neighbor, edge: `int[num_edges]`, by slot: the other endpoint and the number of the edge.
    clear_edges: whether some slots belong to no row; what edges write is 0 there.
    """
    num_edges = edge.shape[0]
    shapes = [
        jax.ShapeDtypeStruct((num_edges if o.reduction is None else num_rows, *o.shape), o.dtype)
        for o in t.outputs
    ]
    if num_rows == 0 or num_edges == 0:
        return [jnp.zeros(s.shape, s.dtype) for s in shapes]
    launcher = functools.partial(_launch, tiles=tiles, interpret=interpret)
    outs: list[Any] = [
        jnp.zeros(s.shape, s.dtype) if o.reduction is None and clear_edges else None
        for o, s in zip(t.outputs, shapes, strict=True)
    ]
    if plan.pieces:
        parts = [
            jax.ShapeDtypeStruct((plan.pieces, *o.shape), traversal.accumulator_dtype(o.dtype))
            for o in t.reduced
        ]
        shapes, outs = [*shapes, *parts], [*outs, *(None for _ in parts)]
    arrays = [neighbor, edge, *operands]
    for tasks, shared in ((plan.long, False), (plan.short, True)):
        if tasks.count:
            outs = launcher(t, tasks, arrays, outs, shapes, share_programs=shared)
    if not plan.pieces:
        return outs
    return _merge_pieces(t, plan, outs, shapes, launcher)


def _merge_pieces(
    t: TileProgram, plan: TaskPlan, outs: list[Any], shapes: list[Any], launcher: Any
) -> list[jax.Array]:
    """The rows of hubs, from the states of their pieces: a traversal of its own."""
    n = len(t.outputs)
    outs, parts = outs[:n], outs[n:]
    at = [i for i, o in enumerate(t.outputs) if o.reduction is not None]
    pieces = TileProgram(
        enumerate,
        tuple(
            TileOperand("neighbor", o.shape, p.dtype) for o, p in zip(t.reduced, parts, strict=True)
        ),
        t.reduced,
    )
    number = np.arange(plan.pieces, dtype=plan.hubs.row.dtype)  # a constant: no launch
    merged = launcher(
        pieces,
        plan.hubs,
        [number, number, *parts],
        [outs[i] for i in at],
        [shapes[i] for i in at],
        share_programs=False,
    )
    for i, x in zip(at, merged, strict=True):
        outs[i] = x
    return outs


def _launch(
    t: TileProgram,
    tasks: Tasks,
    arrays: Sequence[jax.Array],
    outs: Sequence[Any],
    shapes: Sequence[jax.ShapeDtypeStruct],
    *,
    share_programs: bool,
    tiles: RowTiles,
    interpret: bool,
) -> list[jax.Array]:
    """One launch. It writes into those of `outs` that exist already."""
    config = tiles.short if share_programs else tiles.long
    columns = [tasks.row, tasks.start, tasks.length]
    columns += [] if tasks.piece is None else [tasks.piece]
    inputs = [*columns, *arrays]
    present = [i for i, x in enumerate(outs) if x is not None]
    per_program = config.lanes if share_programs else 1

    def kernel(*refs: Any) -> None:
        ins, written = refs[: len(inputs)], refs[len(inputs) + len(present) :]
        task_refs, (neighbor, edge, *operands) = ins[: len(columns)], ins[len(columns) :]
        every = Refs(task_refs, neighbor, edge, operands, written)
        _RowsProgram(t, every, tasks.count, config.lanes, per_program).run()

    return triton.launch(
        kernel,
        -(-tasks.count // per_program),
        [*inputs, *(outs[i] for i in present)],
        shapes,
        name="gnnjit_short_rows" if share_programs else "gnnjit_long_rows",
        warps=config.warps,
        stages=config.stages,
        interpret=interpret,
        aliases={len(inputs) + k: i for k, i in enumerate(present)},
    )


class Ends(NamedTuple):
    """`[lanes]` each: whether a lane has an edge, the other endpoint and the number of the edge,
    None where nobody reads them."""

    keep: Any
    neighbor: Any
    edge: Any


class _RowsProgram:
    """One program: its tasks (one, or one a lane), edge by edge."""

    def __init__(self, t: TileProgram, refs: Refs, num_tasks: int, lanes: int, per_program: int):
        self.t, self.refs, self.lanes = t, refs, lanes
        self.edges_a_step = lanes // per_program
        index = refs.tasks[0].dtype
        number = triton.program_number().astype(index) * per_program
        number = number + jnp.arange(per_program, dtype=index)
        self.here = number < num_tasks
        first = [triton.load(ref, (number,), self.here, 0) for ref in refs.tasks]
        self.row, self.start, self.length = first[:3]
        self.piece = first[3] if len(first) > 3 else None
        self.lane = jnp.arange(lanes, dtype=index) % self.edges_a_step
        self.fixed = {
            i: traversal.read(ref, self.row, o.shape, self.here)
            if o.place == "row"
            else traversal.read(ref, None, o.shape, None)
            for i, (o, ref) in enumerate(zip(t.operands, refs.operands, strict=True))
            if o.place in ("row", "shared")
        }

    def run(self) -> None:
        reduced = self.t.reduced
        steps = (jnp.max(self.length) + (self.edges_a_step - 1)) // self.edges_a_step
        state = traversal.start(reduced, self.lanes)
        state, _ = lax.fori_loop(0, steps, self.step, (state, self.ends(0)))
        if self.edges_a_step > 1:
            state = traversal.merge_lanes(reduced, state)
        self.finish(state)

    def step(self, k: Any, carried: tuple[Tiles, Ends]) -> tuple[Tiles, Ends]:
        """One edge a lane. What the next step reads first is asked for before this one's rows
        arrive: a row of few steps is as long as its chain of reads."""
        state, ends = carried
        ahead = self.ends(k + 1)
        kept: dict[int, Any] = {}
        for i, x in self.t.body(self.read(ends)):
            o = self.t.outputs[i]
            if o.reduction is None:
                traversal.write(self.refs.outs[i], ends.edge, o.shape, ends.keep, x)
            else:
                kept[i] = x
        reduced = self.t.reduced
        new = traversal.states(reduced, [kept[i] for i in sorted(kept)], ends.keep)
        return traversal.merge(reduced, state, new), ahead

    def ends(self, k: Any) -> Ends:
        """What the lanes work on in step `k`."""
        at = k * self.edges_a_step + self.lane
        keep = at < self.length
        slot = self.start + at
        neighbor = edge = None
        if any(o.place == "neighbor" for o in self.t.operands):
            neighbor = triton.load(self.refs.neighbor, (slot,), keep, 0)
        if self.t.needs_edge:
            edge = triton.load(self.refs.edge, (slot,), keep, 0)
        return Ends(keep, neighbor, edge)

    def read(self, ends: Ends) -> Tiles:
        """A tile of each operand."""
        index = {"neighbor": ends.neighbor, "edge": ends.edge}
        return [
            self.fixed[i]
            if i in self.fixed
            else traversal.read(ref, index[o.place], o.shape, ends.keep)
            for i, (o, ref) in enumerate(zip(self.t.operands, self.refs.operands, strict=True))
        ]

    def finish(self, state: Tiles) -> None:
        """Write whole rows, 0 where there are no edges, and the states of pieces."""
        rows, parts = self.refs.outs[: len(self.t.outputs)], self.refs.outs[len(self.t.outputs) :]
        rows = [ref for o, ref in zip(self.t.outputs, rows, strict=True) if o.reduction is not None]
        whole = self.here if self.piece is None else self.here & (self.piece < 0)
        for o, x, ref in zip(self.t.reduced, state, rows, strict=True):
            some = jnp.broadcast_to(traversal.lift(self.length > 0, x.ndim), x.shape)
            done = jnp.where(some, x, jnp.zeros_like(x))
            traversal.write(ref, self.row, o.shape, whole, done)
        if self.piece is None:
            return
        for o, x, ref in zip(self.t.reduced, state, parts, strict=True):
            traversal.write(ref, self.piece, o.shape, self.here & (self.piece >= 0), x)
