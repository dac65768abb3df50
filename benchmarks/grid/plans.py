"""Bytes that plans move, counted without running them: of memory plans, and of the two orders in
which a grid can be gone through."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gnnjit.frontend.trace_arrays import Array
from gnnjit.lower.partial_results import partial_shapes
from gnnjit.streaming.compile import StreamedArguments
from gnnjit.streaming.memory.plan import lru, plan_memory, streaming
from gnnjit.streaming.memory.problem import Operation
from gnnjit.streaming.memory.workspace import Workspace, planned_operations
from gnnjit.streaming.program.steps import Executables, Step, Tensor, cell
from gnnjit.streaming.stream import stream
from grid.training import Task, model

AMPLE = 1 << 50
"""Bytes that are enough for everything."""


@dataclasses.dataclass(frozen=True)
class PlanRow:
    """MiB that a step of training moves with each plan, for the same operations and capacity.

    lru: least recently used, of what is still to be read. plain_lru: the same, with blocks always
    visited from the first to the last. cache: as a cache does, see `as_a_cache`.
    """

    model: str
    parts: int
    operations: int
    capacity_mib: float
    share: float
    method: str
    planned_mib: float
    lru_mib: float
    plain_lru_mib: float
    cache_mib: float
    streaming_mib: float
    over_lru: float
    over_plain_lru: float
    over_cache: float
    over_streaming: float


@dataclasses.dataclass(frozen=True)
class OrderRow:
    """MiB of a forward pass where nothing is cached, by columns and by rows."""

    model: str
    parts: int
    columns_mib: float
    rows_mib: float
    ratio: float


def executables_of(task: Task, name: str, what: str) -> tuple[Any, tuple[Any, ...], Executables]:
    """The streamed `step` or `predict` of a model with any budget, its arguments, its pieces."""
    built = model(name, task.x.shape[1])
    graph, x, y = task.streamed()
    args = (graph, built.state, x, y) if what == "step" else (graph, built.state[0], x)
    function = stream(getattr(built, what), memory_budget=AMPLE)
    return function, args, function.trace(StreamedArguments((args, {}))).executables


def plan_rows(task: Task, name: str, parts: int, points: int) -> list[PlanRow]:
    """Over capacities from the least that works to where everything fits, spread evenly."""
    built = model(name, task.x.shape[1])
    graph, x, y = task.streamed()
    args = graph, built.state, x, y
    function = stream(built.step, memory_budget=AMPLE, parts=parts, cached=False, selective=False)
    fit = function.prepare(*args)
    executables = function.trace(StreamedArguments((args, {}))).executables
    blocks = fit.blocks
    work = Workspace(
        executables, fit.rows, fit.slices, lambda step: int(blocks.slots[cell(executables, step)]),
        graph.store,
        ragged=bool((np.diff(blocks.bounds) != fit.rows).any()),
    )  # fmt: skip
    names: dict[Tensor, str] = {}
    ops = planned_operations(fit.steps, names, work.of(fit.steps))
    plain = planned_operations(sorted(fit.steps, key=_from_the_first), names, work.of(fit.steps))
    sizes = {n: work.bytes(t) for t, n in names.items()}
    least = max(op.workspace + sum(sizes[n] for n in {*op.inputs, *op.outputs}) for op in ops)
    most = plan_memory(ops, sizes, AMPLE).peak_bytes
    rows = []
    for capacity in np.linspace(least, most, points).astype(int).tolist():
        plan = plan_memory(ops, sizes, capacity)
        recent = lru(ops, sizes, capacity).bytes_moved
        without = lru(plain, sizes, capacity).bytes_moved
        cached = as_a_cache(ops, sizes, capacity)
        nothing = streaming(ops, sizes, capacity).bytes_moved
        rows.append(
            PlanRow(
                name, parts, len(ops), capacity / 2**20, capacity / most, plan.method,
                *(b / 2**20 for b in (plan.bytes_moved, recent, without, cached, nothing)),
                over_lru=recent / plan.bytes_moved, over_plain_lru=without / plan.bytes_moved,
                over_cache=cached / plan.bytes_moved, over_streaming=nothing / plan.bytes_moved,
            )
        )  # fmt: skip
    return rows


def as_a_cache(ops: Sequence[Operation], sizes: Mapping[str, int], capacity: int) -> int:
    """Bytes moved by a cache that writes back, such as unified memory: what was least recently used
    leaves, and is stored if it was written since it came. It does not know what is read again."""
    written: dict[str, bool] = {}  # what is there, least recently used first
    moved = 0
    for op in ops:
        used = dict.fromkeys((*op.inputs, *op.outputs))
        idle = [t for t in written if t not in used]
        excess = sum(sizes[t] for t in (*used, *idle)) + op.workspace - capacity
        for t in idle:
            if excess <= 0:
                break
            excess -= sizes[t]
            moved += sizes[t] * written.pop(t)
        moved += sum(sizes[t] for t in {*op.inputs} - written.keys())
        for t in used:
            written[t] = written.pop(t, False) or t in op.outputs
    return moved


def _from_the_first(step: Step) -> tuple[Any, ...]:
    return step.sweep, step.block, step.stage, step.kind != "block", step.part, step.other


def order_rows(task: Task, name: str, every: Sequence[int]) -> list[OrderRow]:
    _, _, executables = executables_of(task, name, "predict")
    rows = []
    for parts in every:
        columns, by_rows = (b / 2**20 for b in both_orders(executables, task, parts))
        rows.append(OrderRow(name, parts, columns, by_rows, by_rows / columns))
    return rows


def both_orders(executables: Executables, task: Task, parts: int) -> tuple[int, int]:
    """Bytes of a pass, (by columns, by rows), of blocks of equal size whose chunks all have edges.

    By columns, what is summed up stays on the device and the sources of each chunk are loaded; by
    rows, the sources stay, and with each chunk travel the rows of its destinations and what is
    summed up for them: it is loaded but for the first time and stored but for the last.
    """
    n = task.num_nodes
    columns = by_rows = 0
    for number, sweep in enumerate(executables.sweeps):
        kept = {*sweep.loads, *sweep.stores}
        both = n * sum(x.row_bytes for x in kept)
        columns, by_rows = columns + both, by_rows + both
        for executable in executables.chunks[number]:
            if executable is None:
                continue
            edges = 4 * task.num_edges + 4 * parts * n
            other, own = n * _row_bytes(executable.other), n * _row_bytes(executable.own)
            shapes = [s for g in executable.gathers for s in partial_shapes(g.op, n)]
            partial = sum(math.prod(s.shape) * s.dtype.itemsize for s in shapes)
            columns += edges + parts * other
            # A block's own rows have come once, as they do by columns.
            by_rows += edges + other + (parts - 1) * (own + 2 * partial)
    return columns, by_rows


def _row_bytes(arrays: Sequence[Array]) -> int:
    return sum(x.row_bytes for x in arrays)
