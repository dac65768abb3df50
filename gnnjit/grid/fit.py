"""How a streamed function fits a memory budget: into how many blocks the vertices are cut, what stays
on the device, and which rows are read in part."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from gnnjit.allocator import resident, trim
from gnnjit.budget import human
from gnnjit.errors import PlanError, StreamError
from gnnjit.frontend.whole import Array, Rows
from gnnjit.grid.blocks import EdgeBlocks
from gnnjit.grid.memory_plan import MAX_STATES, MemoryPlan, Operation, plan_memory, streaming
from gnnjit.grid.pieces import partial_shapes
from gnnjit.grid.script import Pieces, Step, Tensor, operations, room, serpentine, steps
from gnnjit.grid.streamed import StreamedGraph

MOST_PARTS = 1 << 14
PROBE = 2048
"""Rows of a block for which the pieces are compiled to see what they need."""
MOST_SLICES = 64
MOST_EXACT = 32
"""Operations of which the plan that moves the fewest bytes is looked for."""
RESERVE = 128 << 20
"""Bytes of a process that are kept free for what is not counted."""


@dataclasses.dataclass(frozen=True)
class Options:
    """How a function is streamed. Each can be switched off, to see what it is worth.

    Attributes:
        budget: bytes of device memory; with `process`, of this process's resident memory.
        parts: P; None for the smallest that fits.
        slices: in which row-wise work is done, of each block (the second level of NeuGraph's
            partition); None for the fewest that let P fit.
        selective: read only the used rows of a block where that is faster (NeuGraph, section 3.2).
        overlapped: move data beside the computation.
        cached: keep on the device what the memory plan says; else nothing stays between operations.
    """

    budget: int
    process: bool = False
    parts: int | None = None
    slices: int | None = None
    selective: bool = True
    overlapped: bool = True
    cached: bool = True


@dataclasses.dataclass(frozen=True, eq=False)
class Fit:
    """Everything that is decided before a run.

    Attributes:
        blocks: the edges in P x P chunks.
        rows, slices: rows of a block with padding, a multiple of its slices.
        steps: the operations in order.
        plan: what is loaded, stored and dropped around each, by the names of `names`.
        names: of tensors.
        selected: names of chunks' steps that read only the used rows of the other block.
        held: tensors of arguments, and chunks of edges (side, i, j), that stay on the device from
            one call to the next.
        capacity: bytes that it was made for.
        held_bytes: of what is held.
        process: whether the capacity is part of a budget for the process.
    """

    blocks: EdgeBlocks
    rows: int
    slices: int
    steps: tuple[Step, ...]
    plan: MemoryPlan
    names: Mapping[Tensor, str]
    selected: frozenset[str]
    held: frozenset[Any]
    capacity: int
    held_bytes: int
    process: bool

    @property
    def layout(self) -> tuple[int, int]:
        """The numbers of blocks and of slices of each."""
        return self.blocks.num_parts, self.slices

    @property
    def peak_bytes(self) -> int:
        """The most that is on the device, as far as is known before a run."""
        return self.plan.peak_bytes + self.held_bytes


def fit(pieces: Pieces, graph: StreamedGraph, options: Options) -> Fit:
    """A layout that another function of the graph has, if it fits the budget; else the smallest P,
    in the fewest slices.

    Raises:
        StreamError: none fits; the message tells about how much is needed.
    """
    if options.parts is None:
        for parts, slices in graph.layouts:
            with contextlib.suppress(PlanError):
                return _fitted(pieces, graph, options, parts, slices)
            pieces.forget()
    before = _capacity(graph, options)
    probe = Probe(pieces)
    compiled = max(0, before - _capacity(graph, options))  # about as much as for real blocks
    pieces.forget()
    if options.parts is not None:
        slices, _ = slices_of(probe, graph, options, options.parts, before - compiled)
        return _fitted(pieces, graph, options, options.parts, slices)
    parts, least = 1, math.inf
    while parts <= min(MOST_PARTS, max(1, graph.num_nodes)):
        capacity = _capacity(graph, options) - compiled
        slices, need = slices_of(probe, graph, options, parts, capacity)
        if need <= capacity:
            try:
                return _fitted(pieces, graph, options, parts, slices)
            except PlanError:  # chunks are larger than on average, or pieces than their probes
                pieces.forget()
                need = math.ceil(1.05 * capacity)
        least = min(least, need - capacity + options.budget)
        lacking = need / capacity - 1 if capacity > 0 else 1.0
        parts += max(1, int(parts * min(1.0, lacking) / 2))
    raise StreamError(
        f"no grid fits the memory budget of {human(options.budget)}: about {human(least)} are "
        "needed" + (" by this process" if options.process else "") + "; give more"
    )


def _capacity(graph: StreamedGraph, options: Options) -> int:
    """Bytes for what is streamed."""
    if not options.process:
        return options.budget
    trim()
    used = resident()
    if used is None:
        return options.budget
    held = sum(x.nbytes for x in jax.tree.leaves([*graph.held.values()]))
    return options.budget - (used - held) - RESERVE


def _fitted(
    pieces: Pieces, graph: StreamedGraph, options: Options, parts: int, slices: int
) -> Fit:
    """With `parts` blocks in so many slices. Raises PlanError where they do not fit."""
    capacity = _capacity(graph, options)
    memory = max(16 << 20, min(256 << 20, capacity // 2))
    blocks = graph.blocks(parts, memory=memory)
    rows = padded(int(np.diff(blocks.bounds).max(initial=1)), slices)
    script = tuple(steps(pieces, parts, slices, serpentine(blocks.counts, pieces.sweeps)))
    work = Workspace(
        pieces,
        rows,
        slices,
        lambda step: int(blocks.counts[cell(pieces, step)]),
        ragged=bool((np.diff(blocks.bounds) != rows).any()),
        host=options.process,
    )
    names: dict[Tensor, str] = {}
    ops = operations(script, names, work.of(script))
    for shared in pieces.shared:
        shared.run.at((shapes_of(shared.inputs, None),))
    capacity = _capacity(graph, options)  # now that all is compiled
    sizes = {name: work.bytes(t) for t, name in names.items()}
    outputs = {x for x in pieces.streamed.function.outputs if isinstance(x, Array)}
    made = {name for op in ops for name in op.outputs}
    results = [name for t, name in names.items() if t.array in outputs and name in made]
    held: dict[Any, int] = {}
    if not options.cached:
        plan = streaming(ops, sizes, capacity, results)
    else:
        plan = _planned(ops, sizes, capacity, results)
        held = _held(pieces, script, plan, names, work, capacity - plan.peak_bytes)
        here = {names[t] for t in held if isinstance(t, Tensor)}
        rest = [
            dataclasses.replace(op, inputs=[n for n in op.inputs if n not in here]) for op in ops
        ]
        plan = _planned(rest, sizes, capacity - sum(held.values()), results)
    selected = _selected(pieces, graph, blocks, script, plan, names) if options.selective else ()
    if (parts, slices) not in graph.layouts:
        graph.layouts.insert(0, (parts, slices))
    return Fit(
        blocks,
        rows,
        slices,
        script,
        plan,
        names,
        frozenset(selected),
        frozenset(held),
        capacity,
        sum(held.values()),
        options.process,
    )


def _planned(
    ops: Sequence[Operation], sizes: Mapping[str, int], capacity: int, results: Sequence[str]
) -> MemoryPlan:
    """The least traffic in this order; of a long script, by the rule that comes near to it."""
    states = MAX_STATES if len(ops) <= MOST_EXACT else 0
    return plan_memory(ops, sizes, capacity, results, states, keep_order=True)


def _held(
    pieces: Pieces,
    script: Sequence[Step],
    plan: MemoryPlan,
    names: Mapping[Tensor, str],
    work: Workspace,
    spare: int,
) -> dict[Any, int]:
    """What stays on the device from call to call, and its bytes: arguments and chunks of edges that
    are loaded most often for their size, as far as there is room beside the plan."""
    inputs = set(pieces.streamed.function.inputs)
    tensors = {name: t for t, name in names.items()}
    loads: dict[Any, int] = {}
    sizes: dict[Any, int] = {}
    for step, planned in zip(script, plan.steps, strict=True):
        for t in (tensors[name] for name in planned.loads):
            if t.array in inputs:
                loads[t] = loads.get(t, 0) + 1
                sizes[t] = work.bytes(t)
        if step.kind == "chunk":
            piece = pieces.chunks[step.sweep][step.stage]
            assert piece is not None
            key = (piece.side, *cell(pieces, step))
            loads[key] = loads.get(key, 0) + 1
            sizes[key] = work.structure_bytes(step)
    found: dict[Any, int] = {}
    for key in sorted(loads, key=lambda k: -loads[k]):  # stable: in the order of use
        if sizes[key] <= spare:
            found[key] = sizes[key]
            spare -= sizes[key]
    return found


def _selected(
    pieces: Pieces,
    graph: StreamedGraph,
    blocks: EdgeBlocks,
    script: Sequence[Step],
    plan: MemoryPlan,
    names: Mapping[Tensor, str],
) -> Iterator[str]:
    """Chunks for which it is faster to read only the used rows of the other block: few are used,
    and the plan would read all of them for this chunk alone."""
    limit = graph.rates.threshold
    for step, planned in zip(script, plan.steps, strict=True):
        side = pieces.sweeps[step.sweep].side
        if step.kind != "chunk" or side is None:
            continue
        size = np.diff(blocks.bounds)[step.other]
        others = {names[t] for t in step.partial}
        alone = others and others <= {*planned.loads} - {*planned.cached}
        if alone and blocks.used_counts(side)[cell(pieces, step)] < limit * size:
            yield step.name


def cell(pieces: Pieces, step: Step) -> tuple[int, int]:
    """Row and column of a chunk in the grid."""
    by_column = pieces.sweeps[step.sweep].side != "src"
    return (step.other, step.block) if by_column else (step.block, step.other)


class Workspace:
    """Bytes on the device beside the tensors of a step: temporaries, results that are not stored,
    partial results, and what is loaded ahead.

    rows, slices: of a block. edges: of a chunk. ragged: whether a block has fewer rows. host:
    whether what the host needs to load a chunk counts too.
    """

    def __init__(
        self,
        pieces: Pieces,
        rows: int,
        slices: int,
        edges: Callable[[Step], int],
        *,
        ragged: bool = False,
        host: bool = False,
    ) -> None:
        self.pieces, self.rows, self.slices, self.edges = pieces, rows, slices, edges
        self.ragged, self.host = ragged, host
        self._known: dict[Any, int] = {}

    def bytes(self, tensor: Tensor) -> int:
        rows = self.rows if tensor.part < 0 else self.rows // self.slices
        return rows * tensor.array.row_bytes

    def of(self, script: Sequence[Step]) -> Callable[[Step], int]:
        following = {a.name: b for a, b in zip(script, script[1:], strict=False)}
        before = {b.name: a for a, b in zip(script, script[1:], strict=False)}

        def workspace(step: Step) -> int:
            total = self.alone(step)
            if step.name in following:
                total += self.ahead(step, following[step.name])
            if step.name in before:  # its results may still be being written
                total += sum(map(self.bytes, before[step.name].outputs))
            return total

        return workspace

    def alone(self, step: Step) -> int:
        held = self.between(step)
        if step.kind == "chunk":
            return held + self.chunk(step) + self.edge_bytes(step)
        return held + self.block(step)

    def ahead(self, step: Step, after: Step) -> int:
        """Of the next step's loads, which may be there already."""
        loads = sum(map(self.bytes, set(after.inputs) - set(step.inputs)))
        return loads + (self.edge_bytes(after) if after.kind == "chunk" else 0)

    def structure_bytes(self, step: Step) -> int:
        """Of a chunk's edges alone."""
        piece = self.pieces.chunks[step.sweep][step.stage]
        assert piece is not None
        return room(self.edges(step)) * (4 + 4 * piece.numbered) + 4 * self.rows

    def edge_bytes(self, step: Step) -> int:
        piece = self.pieces.chunks[step.sweep][step.stage]
        assert piece is not None
        slots = room(self.edges(step))
        loads = slots * sum(x.row_bytes for x in piece.edge_loads)
        working = 4 * slots + 16 * self.rows if self.host else 0
        return self.structure_bytes(step) + loads + working

    def between(self, step: Step) -> int:
        """Results of earlier stages that are no tensors, what is filled by now, and partial
        results."""
        stores = set(self.pieces.sweeps[step.sweep].stores)
        found = self.pieces.blocks[step.sweep]
        block = step.kind == "block"
        total = 0
        for piece in found[: step.stage + (not block)]:
            total += sum(self.rows * x.row_bytes for x in piece.outputs if x not in stores)
        if block and self.slices > 1:
            filled = found[step.stage].filled
            total += sum(self.rows * x.row_bytes for x in filled if x not in stores or not step.last)
        return total + self.partial(step.sweep, step.stage - block)

    def partial(self, sweep: int, stage: int) -> int:
        piece = self.pieces.chunks[sweep][stage] if stage >= 0 else None
        if piece is None:
            return 0
        return sum(_bytes(x) for g in piece.gathers for x in partial_shapes(g, self.rows))

    def block(self, step: Step) -> int:
        """Results and temporaries of a stage, but for what the plan counts as its outputs."""
        key = step.sweep, step.stage
        if key not in self._known:
            self._known[key] = block_scratch(
                self.pieces, *key, self.rows, self.slices, self.ragged
            )
        found = self._known[key]
        return max(0, found - sum(map(self.bytes, step.outputs)) * (self.slices == 1))

    def chunk(self, step: Step) -> int:
        key = step.sweep, step.stage, room(self.edges(step))
        if key not in self._known:
            sweep, stage, slots = key
            self._known[key] = chunk_scratch(self.pieces, sweep, stage, self.rows, slots)
        return self._known[key]


def padded(rows: int, slices: int) -> int:
    """Rows of a block as so many slices of one size, each of a multiple of 64 rows."""
    return rows if slices == 1 else slices * (-(-rows // (64 * slices)) * 64)


def block_scratch(
    pieces: Pieces, sweep: int, stage: int, rows: int, slices: int, ragged: bool
) -> int:
    """Bytes of results (but for those that are filled in slices) and temporaries."""
    piece = pieces.blocks[sweep][stage]
    size = rows // slices
    number, one = _shape((size,)), _shape(())
    most = 0
    for count in (None, one) if ragged else (None,):
        args = (
            number,
            count,
            one if slices > 1 else None,
            [
                jax.ShapeDtypeStruct((rows if x in piece.whole else size, *x.shape), x.dtype)
                for x in piece.rows
            ],
            shapes_of(piece.shared, None),
            [partial_shapes(g, rows) for g in piece.gathers],
            shapes_of([w.outputs[0] for w in piece.totals], None),
            shapes_of(piece.filled, rows) if slices > 1 else [],
        )
        most = max(most, piece.run.scratch(args))
    return most + 4 * size


def chunk_scratch(pieces: Pieces, sweep: int, stage: int, rows: int, slots: int) -> int:
    piece = pieces.chunks[sweep][stage]
    assert piece is not None
    number = _shape((slots,))
    args = (
        _shape((rows + 1,)),
        number,
        number if piece.numbered else None,
        shapes_of(piece.own, rows),
        shapes_of(piece.other, rows),
        shapes_of(piece.edge_loads, slots),
        shapes_of(piece.shared, None),
        [partial_shapes(g, rows) for g in piece.gathers],
    )
    return piece.run.scratch(args)


class Probe(Workspace):
    """The workspace for blocks of any size, from pieces compiled for small ones."""

    def __init__(self, pieces: Pieces) -> None:
        super().__init__(pieces, PROBE, 1, lambda _: PROBE, ragged=True)
        every = [(s, k) for s, found in enumerate(pieces.blocks) for k in range(len(found))]
        self._blocks = {
            at: block_scratch(pieces, *at, PROBE, 1, True) / PROBE
            for at in every
            if pieces.sweeps[at[0]].rows is Rows.VERTEX
        }
        self._chunks = {
            (s, k): chunk_scratch(pieces, s, k, PROBE, room(PROBE)) / PROBE
            for s, k in every
            if pieces.chunks[s][k] is not None
        }

    def block(self, step: Step) -> int:
        found = self._blocks[step.sweep, step.stage] * self.rows / self.slices
        return math.ceil(max(0, found - sum(map(self.bytes, step.outputs)) * (self.slices == 1)))

    def chunk(self, step: Step) -> int:
        return math.ceil(self._chunks[step.sweep, step.stage] * self.rows)


def slices_of(
    probe: Probe, graph: StreamedGraph, options: Options, parts: int, capacity: int
) -> tuple[int, int]:
    """(the fewest slices of a block that let `parts` blocks fit, what is needed then); where none
    do, the most slices."""
    if options.slices is not None:
        return options.slices, need_of(probe, graph, parts, options.slices)
    slices = 1
    while True:
        need = need_of(probe, graph, parts, slices)
        if need <= capacity or slices >= MOST_SLICES:
            return slices, need
        slices *= 2


def need_of(probe: Probe, graph: StreamedGraph, parts: int, slices: int) -> int:
    """Bytes that the largest operation needs with `parts` blocks, as far as is known without the
    chunks and from small blocks: of edges twice as many as if they were spread evenly."""
    edges = min(graph.num_edges, 2 * graph.num_edges // parts**2 + 1)
    probe.rows = padded(max(1, -(-graph.num_nodes // parts)), slices)
    probe.slices, probe.edges = slices, lambda _: edges
    some = list(steps(probe.pieces, min(parts, 3), slices, lambda s, b: range(min(parts, 2))))
    workspace = probe.of(some)
    return max(
        (
            sum(map(probe.bytes, {*step.inputs, *step.outputs})) + workspace(step)
            for step in some
            if step.kind != "edges"
        ),
        default=0,
    )


def _shape(shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.int32)


def shapes_of(arrays: Sequence[Array], rows: int | None) -> list[jax.ShapeDtypeStruct]:
    return [
        jax.ShapeDtypeStruct(x.shape if rows is None else (rows, *x.shape), x.dtype)
        for x in arrays
    ]


def _bytes(x: jax.ShapeDtypeStruct) -> int:
    return math.prod(x.shape) * x.dtype.itemsize
