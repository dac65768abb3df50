"""How a streamed function fits a memory budget: into how many blocks the vertices are cut, what
stays on the device, and which rows are read in part."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from gnnjit.errors import PlanError, StreamError
from gnnjit.ir.array_program import Array
from gnnjit.streaming.grid.blocks import EdgeBlocks, own_blocks
from gnnjit.streaming.grid.streamed_graph import StreamedGraph
from gnnjit.streaming.memory.headroom import Headroom, headrooms
from gnnjit.streaming.memory.plan import MemoryPlan, Operation, plan_memory, streaming
from gnnjit.streaming.memory.residency import held_between_calls, read_in_part
from gnnjit.streaming.memory.workspace import (
    MOST_SLICES,
    Probe,
    Workspace,
    block_rows,
    even_slots,
    planned_operations,
    shapes_of,
    slices_of,
)
from gnnjit.streaming.program.steps import (
    Executables,
    Order,
    Step,
    Tensor,
    cell,
    serpentine,
    steps_of,
)
from gnnjit.system.allocator import resident, trim
from gnnjit.system.memory_budget import human

MOST_STEPS = 200_000
"""Chunks in all sweeps, up to which grids are tried."""
LEAST_ROWS = 16
"""Rows of a block, down to which grids are tried."""
MOST_FAILURES = 6
"""Grids that were expected to fit, and did not, after which no other is tried."""
RESERVE = 176 << 20
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
        refined: after a first run, take the chunks of each block in the order that is fastest for
            the measured times (NeuGraph, section 3.2). The order, and with it the last bits of
            sums, may then differ from process to process.
    """

    budget: int
    process: bool = False
    parts: int | None = None
    slices: int | None = None
    selective: bool = True
    overlapped: bool = True
    cached: bool = True
    refined: bool = False

    def __post_init__(self) -> None:
        """Raises StreamError for sizes that are none."""
        for name, most, free in (
            ("parts", math.isqrt(MOST_STEPS), "the smallest that fits"),
            ("slices", MOST_SLICES, "the fewest"),
        ):
            value = getattr(self, name)
            if value is None:
                continue
            whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
            if not (whole and 1 <= value <= most):
                raise StreamError(
                    f"{name} is {value!r}, expected a whole number from 1 to {most}, or None for "
                    f"{free}"
                )
            object.__setattr__(self, name, int(value))


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
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
        own: the blocks that this process does, where several stream together: `steps` and `plan`
            are of these alone.
        rooms: what each operation needs, to begin before those before it have ended.
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
    own: range
    headrooms: tuple[Headroom, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of blocks and of slices of each."""
        return self.blocks.num_parts, self.slices

    @property
    def peak_bytes(self) -> int:
        """The most that is on the device, as far as is known before a run."""
        return self.plan.peak_bytes + self.held_bytes


def reordered(
    old: Layout, executables: Executables, graph: StreamedGraph, options: Options, order: Order
) -> Layout:
    """The same layout with the chunks in another order; the old one where it does not fit then."""
    try:
        return _fitted(executables, graph, options, *old.shape, order)
    except PlanError:
        return old


def find_layout(executables: Executables, graph: StreamedGraph, options: Options) -> Layout:
    """A layout that another function of the graph has, if it fits the budget; else the smallest P,
    in the fewest slices. Processes that stream together all take the layout that fits each of them,
    with a block for each, where there are vertices for that.

    Candidates come from `_search`; what each takes is known for sure once its executables are
    compiled and its chunks made (`_build`), which the memory plan is for (`_planned`).

    Raises:
        StreamError: none fits; the message tells about how much is needed.
        PlanError: `options.parts` does not fit.
    """
    if options.parts is not None:
        return _fitted(
            executables, graph, options, options.parts, _given_slices(executables, graph, options)
        )
    for parts, slices in itertools.chain(
        _known(graph, options), _search(executables, graph, options)
    ):
        with contextlib.suppress(PlanError):
            return _fitted(executables, graph, options, parts, slices)
        executables.forget()
    raise AssertionError("the search ends with an error")


# ---------------------------------------------------------------------------------------- search


def _known(graph: StreamedGraph, options: Options) -> list[tuple[int, int]]:
    """Layouts that other functions of the graph have."""
    return [
        (parts, slices)
        for parts, slices in graph.layouts
        if options.slices in (None, slices) and parts >= _fewest(graph)
    ]


def _given_slices(executables: Executables, graph: StreamedGraph, options: Options) -> int:
    """The fewest slices for a number of blocks that was asked for."""
    assert options.parts is not None
    before = _least_capacity(graph, options)
    probe, compiled = _probed(executables, graph, options)
    return slices_of(probe, graph, options.slices, options.parts, before - compiled)[0]


def _search(
    executables: Executables, graph: StreamedGraph, options: Options
) -> Iterator[tuple[int, int]]:
    """Numbers of blocks and slices that should fit, the fewest first. To ask for the next one says
    that the last did not: its chunks are larger than on average, or its executables need more than
    their probes. Raises StreamError where no further is of a reasonable size."""
    probe, compiled = _probed(executables, graph, options)
    parts, failed, least = _fewest(graph), 0, math.inf
    capacity = _least_capacity(graph, options) - compiled
    while (
        failed <= MOST_FAILURES
        and (parts - 1) * LEAST_ROWS <= graph.num_nodes
        and (len(executables.sweeps) * parts**2 <= MOST_STEPS)
    ):
        slices, need = slices_of(probe, graph, options.slices, parts, capacity)
        tried = need <= capacity
        if tried:
            yield parts, slices
            failed += 1
            need = math.ceil((1 + failed / 4) * capacity)
        least = min(least, need - capacity + options.budget)
        lacking = need / capacity - 1 if capacity > 0 else 1.0
        parts += max(1, int(parts * min(1.0, lacking) / 2))
        if tried:  # it left something behind
            capacity = _least_capacity(graph, options) - compiled
    raise StreamError(
        f"no grid of a reasonable size fits the memory budget of {human(options.budget)}: about "
        f"{human(least)} are needed{' by this process' if options.process else ''}; give more"
    )


def _probed(executables: Executables, graph: StreamedGraph, options: Options) -> tuple[Probe, int]:
    """What small blocks need, and bytes that the compiled code takes: about as many as for real
    blocks."""
    before = _least_capacity(graph, options)
    probe = Probe(executables, graph.store)
    probe.largest(graph.store.group)
    compiled = max(0, before - _least_capacity(graph, options))
    executables.forget()
    return probe, compiled


def _fewest(graph: StreamedGraph) -> int:
    """Blocks of which each process has one, unless they are too small."""
    return min(graph.store.group.processes, 1 + graph.num_nodes // LEAST_ROWS)


def _least_capacity(graph: StreamedGraph, options: Options) -> int:
    """The capacity of the process that has the least."""
    return graph.store.group.least("capacity", _capacity(graph, options))


def _capacity(graph: StreamedGraph, options: Options) -> int:
    """Bytes for what is streamed."""
    if not options.process:
        return options.budget
    gc.collect()  # compiled code is in cycles
    trim()
    used = resident()
    if used is None:
        return options.budget
    held = sum(x.nbytes for x in jax.tree.leaves([*graph.held.values()]))
    return options.budget - (used - held) - RESERVE


# ------------------------------------------------------------------------------- build, and plan


def _fitted(
    executables: Executables,
    graph: StreamedGraph,
    options: Options,
    parts: int,
    slices: int,
    order: Order | None = None,
) -> Layout:
    """With `parts` blocks in so many slices. Raises PlanError where they do not fit, in all
    processes that stream together."""
    found = graph.store.group.agree(
        f"{parts} blocks in {slices} slices",
        lambda: _planned(
            _build(executables, graph, options, (parts, slices), order), graph, options
        ),
        PlanError,
    )
    if (parts, slices) not in graph.layouts:
        graph.layouts.insert(0, (parts, slices))
    return found


@dataclasses.dataclass(frozen=True, eq=False)
class _Built:
    """A layout whose executables are compiled and whose chunks are made: `steps` of the blocks that
    this process does (`own`), what they need (`work`), and the bytes that the code leaves."""

    blocks: EdgeBlocks
    own: range
    steps: tuple[Step, ...]
    work: Workspace
    capacity: int
    names: dict[Tensor, str]
    operations: list[Operation]

    @property
    def executables(self) -> Executables:
        return self.work.executables


def _build(
    executables: Executables,
    graph: StreamedGraph,
    options: Options,
    shape: tuple[int, int],
    order: Order | None,
) -> _Built:
    """Compile, and then make the chunks, which takes long. Raises PlanError where not even chunks
    that are all alike would fit."""
    parts, slices = shape
    rows = block_rows(graph, parts, slices)
    capacity = _compiled(executables, graph, options, parts, slices)
    memory = max(16 << 20, min(256 << 20, capacity // 2))
    blocks = graph.blocks(parts, memory=memory)
    group, sizes = graph.store.group, np.diff(blocks.bounds)
    own = own_blocks(blocks.counts, sizes, group.processes)[group.process]
    order = order or serpentine(blocks.counts, executables.sweeps)
    steps = tuple(steps_of(executables, own, slices, order))
    work = Workspace(
        executables,
        rows,
        slices,
        lambda step: int(blocks.slots[cell(executables, step)]),
        graph.store,
        ragged=bool((sizes != rows).any()),
        host=options.process,
    )
    names: dict[Tensor, str] = {}
    ops = planned_operations(steps, names, work.of(steps))  # which compiles the rest
    return _Built(blocks, own, steps, work, _capacity(graph, options), names, ops)


def _planned(built: _Built, graph: StreamedGraph, options: Options) -> Layout:
    """What stays on the device. Raises PlanError where an operation does not fit it alone."""
    work, names, capacity = built.work, built.names, built.capacity
    plan, held = _resident(built, graph, options)
    selected: frozenset[str] = frozenset()
    if options.selective:
        found = read_in_part(built.executables, graph, built.blocks, built.steps, plan, names)
        selected = frozenset(found)
    parts = built.blocks.num_parts
    padding = parts * work.rows - graph.num_nodes

    def shown(t: Tensor) -> bool:
        """Whether loaded rows take no memory of the budget: maps of files are the process's."""
        behind = graph.store.rows_behind(graph.num_nodes, t.array.row_bytes)
        reached = t.block < parts - 1 or padding <= behind
        return work.is_zero_copy(t) and reached and not options.process

    return Layout(
        built.blocks,
        work.rows,
        work.slices,
        built.steps,
        plan,
        names,
        selected,
        frozenset(held),
        capacity,
        sum(held.values()),
        options.process,
        built.own,
        headrooms(work, built.steps, plan, names, selected, shown),
    )


def _resident(
    built: _Built, graph: StreamedGraph, options: Options
) -> tuple[MemoryPlan, dict[Any, int]]:
    """The memory plan, and the bytes of what is held between calls beside it."""
    work, names, capacity, ops = built.work, built.names, built.capacity, built.operations
    sizes = {name: work.bytes(t) for t, name in names.items()}
    results = _results(built.executables, names, ops, alone=graph.store.group.alone)
    if not options.cached:
        return streaming(ops, sizes, capacity, results), {}
    # Where rows are used as they lie, what they leave free is worth more to the edges.
    any_zero_copy = any(map(work.is_zero_copy, names))
    plan = (
        streaming(ops, sizes, capacity, results)
        if any_zero_copy
        else plan_memory(ops, sizes, capacity, results)
    )
    spare = capacity - plan.peak_bytes
    held = held_between_calls(built.executables, built.steps, plan, names, work, spare)
    here = {names[t] for t in held if isinstance(t, Tensor)}
    work.held = held.keys()
    rest = [
        dataclasses.replace(op, inputs=[n for n in op.inputs if n not in here])
        for op in planned_operations(built.steps, names, work.of(built.steps))
    ]
    left = capacity - sum(held.values())
    return plan_memory(rest, sizes, left, results), held


def _results(
    executables: Executables, names: Mapping[Tensor, str], ops: Sequence[Operation], *, alone: bool
) -> list[str]:
    """What has to be in the store: results, and what other processes read."""
    wanted = {x for x in executables.streamed.function.outputs if isinstance(x, Array)}
    if not alone:
        wanted |= executables.read_by_others
    made = {name for op in ops for name in op.outputs}
    return [name for t, name in names.items() if t.array in wanted and name in made]


def _compiled(
    executables: Executables, graph: StreamedGraph, options: Options, parts: int, slices: int
) -> int:
    """Compile for chunks that are alike; the capacity then. Raises PlanError where even these do
    not fit: making the chunks takes long."""
    rows = block_rows(graph, parts, slices)
    work = Workspace(
        executables,
        rows,
        slices,
        even_slots(graph, parts),
        graph.store,
        ragged=rows * parts != graph.num_nodes,
        host=options.process,
    )
    need = graph.store.group.largest("need", {"bytes": work.most(parts)})["bytes"]
    for shared in executables.shared:
        shared.run.at((shapes_of(shared.inputs, None),))
    capacity = _least_capacity(graph, options)
    if need > capacity and parts not in graph.parts:
        raise PlanError(
            f"{parts} x {parts} chunks need about {human(int(need))}, the budget leaves "
            f"{human(capacity)}: give more memory, or cut into more parts"
        )
    return capacity
