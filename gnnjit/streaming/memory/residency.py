"""What stays on the device from call to call, and which blocks are read in part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gnnjit.streaming.grid.blocks import EdgeBlocks
from gnnjit.streaming.grid.streamed_graph import StreamedGraph
from gnnjit.streaming.memory.plan import MemoryPlan
from gnnjit.streaming.memory.workspace import Workspace
from gnnjit.streaming.program.steps import Executables, Step, Tensor, cell


def held_between_calls(
    executables: Executables,
    steps: Sequence[Step],
    plan: MemoryPlan,
    names: Mapping[Tensor, str],
    work: Workspace,
    spare: int,
) -> dict[Any, int]:
    """What stays on the device from call to call, and its bytes: arguments and chunks of edges that
    are loaded most often for their size, as far as there is room beside the plan. Not rows that are
    used where they lie."""
    inputs = set(executables.streamed.function.inputs)
    tensors = {name: t for t, name in names.items()}
    loads: dict[Any, int] = {}
    sizes: dict[Any, int] = {}
    for step, planned in zip(steps, plan.steps, strict=True):
        for t in (tensors[name] for name in planned.loads):
            if t.array in inputs and not work.is_zero_copy(t):
                loads[t] = loads.get(t, 0) + 1
                sizes[t] = work.bytes(t)
        if step.kind == "chunk":
            executable = executables.chunks[step.sweep][step.stage]
            assert executable is not None
            key = (executable.side, *cell(executables, step))
            loads[key] = loads.get(key, 0) + 1
            sizes[key] = work.structure_bytes(step)
    found: dict[Any, int] = {}
    for key in sorted(loads, key=lambda k: -loads[k]):  # stable: in the order of use
        if sizes[key] <= spare:
            found[key] = sizes[key]
            spare -= sizes[key]
    return found


def read_in_part(
    executables: Executables,
    graph: StreamedGraph,
    blocks: EdgeBlocks,
    steps: Sequence[Step],
    plan: MemoryPlan,
    names: Mapping[Tensor, str],
) -> Iterator[str]:
    """Chunks for which it is faster to read only the used rows of the other block: few are used,
    and the plan would read all of them for this chunk alone."""
    limit = graph.rates.threshold
    for step, planned in zip(steps, plan.steps, strict=True):
        side = executables.sweeps[step.sweep].side
        if step.kind != "chunk" or side is None:
            continue
        size = np.diff(blocks.bounds)[step.other]
        others = {names[t] for t in step.partial}
        alone = others and others <= {*planned.loads} - {*planned.cached}
        if alone and blocks.used_counts(side)[cell(executables, step)] < limit * size:
            yield step.name
