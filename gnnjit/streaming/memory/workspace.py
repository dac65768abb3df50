"""Bytes that an operation needs on the device, from its executable."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from itertools import pairwise
from typing import Any

import jax
import numpy as np

from gnnjit.distributed.process_group import ProcessGroup
from gnnjit.ir.array_program import Array, Rows
from gnnjit.lower.partial_results import partial_shapes
from gnnjit.store.store import VertexStore
from gnnjit.streaming.grid.streamed_graph import StreamedGraph
from gnnjit.streaming.memory.problem import Operation
from gnnjit.streaming.memory.zero_copy import is_zero_copy
from gnnjit.streaming.program.steps import Executables, Step, Tensor, cell, room, steps_of, upcoming

PROBE = 2048
"""Rows of a block for which everything is compiled first, to see what it needs."""
MOST_SLICES = 64


class Workspace:
    """Bytes on the device beside the tensors of a step: temporaries, results that are not stored,
    partial results, and what is loaded ahead.

    rows, slices: of a block. slots: for the edges of a chunk. ragged: whether a block has fewer
    rows. host: whether what the host needs to load a chunk counts too. store: where the rows are.
    """

    def __init__(
        self,
        executables: Executables,
        rows: int,
        slices: int,
        slots: Callable[[Step], int],
        store: VertexStore,
        *,
        ragged: bool = False,
        host: bool = False,
    ) -> None:
        self.executables, self.rows, self.slices, self.slots = executables, rows, slices, slots
        self.store, self.ragged, self.host = store, ragged, host
        # Tensors and chunks of edges that stay on the device from call to call, and count there.
        self.held: Set[Any] = frozenset()
        self._known: dict[Any, int] = {}

    def bytes(self, tensor: Tensor) -> int:
        return self._size(tensor) * tensor.array.row_bytes

    def _size(self, tensor: Tensor) -> int:
        return self.rows if tensor.part < 0 else self.rows // self.slices

    def is_zero_copy(self, tensor: Tensor) -> bool:
        """Whether its rows are used where the store has them."""
        return is_zero_copy(self.store, tensor.array, self._size(tensor))

    def outputs(self, step: Step) -> int:
        """Bytes of the tensors that it makes."""
        return sum(map(self.bytes, step.outputs))

    def following(self, steps: Sequence[Step]) -> dict[str, Step]:
        """For each step, by name, the next one that has something to do, if there is one."""
        return {
            step.name: steps[at]
            for step, at in zip(steps, upcoming(self.executables, steps), strict=True)
            if at is not None
        }

    def of(self, steps: Sequence[Step]) -> Callable[[Step], int]:
        following = self.following(steps)
        before = {b.name: a for a, b in pairwise(steps)}

        def workspace(step: Step) -> int:
            total = self.alone(step)
            if step.name in following:
                total += self.ahead(step, following[step.name])
            if step.name in before:  # its results may still be being written
                total += self.outputs(before[step.name])
            return total

        return workspace

    def most(self, parts: int) -> int:
        """Bytes that the largest operation needs where all chunks are alike."""
        few = range(min(parts, 3))
        some = list(steps_of(self.executables, few, self.slices, lambda *_: range(min(parts, 2))))
        workspace = self.of(some)
        return max(
            (
                sum(map(self.bytes, {*step.inputs, *step.outputs})) + workspace(step)
                for step in some
                if step.kind != "edges"
            ),
            default=0,
        )

    def alone(self, step: Step) -> int:
        held = self.between(step)
        if step.kind == "chunk":
            return held + self.chunk(step) + self.edge_bytes(step)
        return held + self.block(step)

    def ahead(self, step: Step, after: Step) -> int:
        """Bytes that the next step with something to do loads, which may be there already."""
        new = set(after.inputs) - set(step.inputs)
        loads = sum(self.bytes(t) for t in new if not self.is_zero_copy(t))
        return loads + (self.edge_bytes(after) if after.kind == "chunk" else 0)

    def structure_bytes(self, step: Step) -> int:
        """Bytes of a chunk's edges alone."""
        executable = self.executables.chunks[step.sweep][step.stage]
        assert executable is not None
        return self.slots(step) * (4 + 4 * executable.numbered) + 4 * self.rows

    def edge_bytes(self, step: Step) -> int:
        executable = self.executables.chunks[step.sweep][step.stage]
        assert executable is not None
        slots = self.slots(step)
        working = 4 * slots + 16 * self.rows if self.host else 0
        held = (executable.side, *cell(self.executables, step)) in self.held
        if held and not (executable.edge_loads or executable.numbered):
            return 4 * slots * bool(step.partial) + working  # where few rows are read
        loads = slots * sum(x.row_bytes for x in executable.edge_loads)
        return self.structure_bytes(step) + loads + working

    def between(self, step: Step) -> int:
        """Results of earlier stages that are no tensors, what is filled by now, and partial
        results."""
        stores = set(self.executables.sweeps[step.sweep].stores)
        found = self.executables.blocks[step.sweep]
        block = step.kind == "block"
        total = 0
        for executable in found[: step.stage + (not block)]:
            total += sum(self.rows * x.row_bytes for x in executable.outputs if x not in stores)
        if block and self.slices > 1:
            filled = found[step.stage].filled
            total += sum(
                self.rows * x.row_bytes for x in filled if x not in stores or not step.last
            )
        return total + self.partial(step.sweep, step.stage - block)

    def partial(self, sweep: int, stage: int) -> int:
        executable = self.executables.chunks[sweep][stage] if stage >= 0 else None
        if executable is None:
            return 0
        return sum(_bytes(x) for g in executable.gathers for x in partial_shapes(g.op, self.rows))

    def block(self, step: Step) -> int:
        """Results and temporaries of a stage, but for what the plan counts as its outputs."""
        key = step.sweep, step.stage
        if key not in self._known:
            self._known[key] = block_scratch(
                self.executables, *key, self.rows, self.slices, self.ragged
            )
        found = self._known[key]
        return max(0, found - self.outputs(step) * (self.slices == 1))

    def chunk(self, step: Step) -> int:
        key = step.sweep, step.stage, self.slots(step), step.first
        if key not in self._known:
            self._known[key] = chunk_scratch(self.executables, *key[:2], self.rows, *key[2:])
        return self._known[key]


def planned_operations(
    steps: Sequence[Step], names: dict[Tensor, str], workspace: Callable[[Step], int]
) -> list[Operation]:
    """The steps as the memory plan reads them. Fills `names`."""

    def name(t: Tensor) -> str:
        return names.setdefault(t, f"{len(names)}")

    return [
        Operation(
            step.name,
            tuple(map(name, dict.fromkeys(step.inputs))),
            tuple(map(name, step.outputs)),
            workspace(step),
        )
        for step in steps
    ]


def padded(rows: int, slices: int) -> int:
    """Rows of a block as so many slices of one size, each of a multiple of 64 rows."""
    return rows if slices == 1 else slices * (-(-rows // (64 * slices)) * 64)


def block_scratch(
    executables: Executables, sweep: int, stage: int, rows: int, slices: int, ragged: bool
) -> int:
    """Bytes of results (but for those that are filled in slices) and temporaries."""
    executable = executables.blocks[sweep][stage]
    if executable.idle:
        return 0
    size = rows // slices
    number, one = _shape((size,)), _shape(())
    most = 0
    for count in (None, one) if ragged else (None,):
        args = (
            number,
            count,
            one if slices > 1 else None,
            [
                jax.ShapeDtypeStruct((rows if x in executable.whole else size, *x.shape), x.dtype)
                for x in executable.rows
            ],
            shapes_of(executable.shared, None),
            [partial_shapes(g.op, rows) for g in executable.gathers],
            shapes_of([w.outputs[0] for w in executable.totals], None),
            shapes_of(executable.filled, rows) if slices > 1 else [],
        )
        most = max(most, executable.run.scratch(args))
    return most + 4 * size


def chunk_scratch(
    executables: Executables, sweep: int, stage: int, rows: int, slots: int, first: bool
) -> int:
    """Bytes beside the partial results."""
    executable = executables.chunks[sweep][stage]
    assert executable is not None
    number = _shape((slots,))
    args = (
        _shape((rows + 1,)),
        number,
        number if executable.numbered else None,
        shapes_of(executable.own, rows),
        shapes_of(executable.other, rows),
        shapes_of(executable.edge_loads, slots),
        shapes_of(executable.shared, None),
        [
            None if first and not g.totals else partial_shapes(g.op, rows)
            for g in executable.gathers
        ],
    )
    made = [x for g in executable.gathers if not g.totals for x in partial_shapes(g.op, rows)]
    return max(0, executable.run.scratch(args) - first * sum(map(_bytes, made)))


class Probe(Workspace):
    """The workspace for blocks of any size, from executables for small ones."""

    def __init__(self, executables: Executables, store: VertexStore) -> None:
        super().__init__(executables, PROBE, 1, lambda _: PROBE, store)
        every = [(s, k) for s, found in enumerate(executables.blocks) for k in range(len(found))]
        self._blocks: dict[tuple[int, ...], float] = {
            (*at, ragged): block_scratch(executables, *at, PROBE, 1, ragged) / PROBE
            for at in every
            for ragged in (False, True)
            if executables.sweeps[at[0]].rows is Rows.VERTEX
        }
        self._chunks: dict[tuple[int, ...], float] = {
            (s, k): chunk_scratch(executables, s, k, PROBE, PROBE, False) / PROBE
            for s, k in every
            if executables.chunks[s][k] is not None
        }

    def largest(self, group: ProcessGroup) -> None:
        """Take the largest that a process needs, so that all decide alike."""
        for found in (self._blocks, self._chunks):
            named = {str(at): value for at, value in found.items()}
            named = group.largest("workspace", named)
            found.update({at: named[str(at)] for at in found})

    def block(self, step: Step) -> int:
        at = step.sweep, step.stage, self.ragged
        found = self._blocks[at] * self.rows / self.slices
        return math.ceil(max(0, found - self.outputs(step) * (self.slices == 1)))

    def chunk(self, step: Step) -> int:
        return math.ceil(self._chunks[step.sweep, step.stage] * self.rows)


def slices_of(
    probe: Probe, graph: StreamedGraph, given: int | None, parts: int, capacity: int
) -> tuple[int, int]:
    """(the fewest slices of a block that let `parts` blocks fit, what is needed then); where none
    do, the most slices."""
    if given is not None:
        return given, need_of(probe, graph, parts, given)
    slices = 1
    while True:
        need = need_of(probe, graph, parts, slices)
        if need <= capacity or slices >= MOST_SLICES:
            return slices, need
        slices *= 2


def need_of(probe: Probe, graph: StreamedGraph, parts: int, slices: int) -> int:
    """Bytes that the largest operation needs with `parts` blocks, as far as is known from small
    blocks."""
    probe.rows = block_rows(graph, parts, slices)
    probe.slices, probe.slots = slices, even_slots(graph, parts)
    probe.ragged = probe.rows * parts != graph.num_nodes
    return probe.most(parts)


def block_rows(graph: StreamedGraph, parts: int, slices: int) -> int:
    """Rows of a block, with padding."""
    return padded(max(1, -(-graph.num_nodes // parts)), slices)


def even_slots(graph: StreamedGraph, parts: int) -> Callable[[Step], int]:
    """Slots of a chunk before the chunks are known: for twice its share of the edges."""
    slots = room(min(graph.num_edges, 2 * graph.num_edges // parts**2))
    return lambda _: slots


def _shape(shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.int32)


def shapes_of(arrays: Sequence[Array], rows: int | None) -> list[jax.ShapeDtypeStruct]:
    return [
        jax.ShapeDtypeStruct(x.shape if rows is None else (rows, *x.shape), x.dtype) for x in arrays
    ]


def _bytes(x: jax.ShapeDtypeStruct) -> int:
    return math.prod(x.shape) * x.dtype.itemsize
