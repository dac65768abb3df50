"""The bytes that a run moves, planned and measured; its times; the fastest order of its chunks."""

from __future__ import annotations

import collections
import dataclasses

from gnnjit.streaming.memory.layout import Layout
from gnnjit.streaming.program.steps import Executables, Order, Step, Tensor, cell
from gnnjit.streaming.runtime.timeline import Job, refine


@dataclasses.dataclass
class Traffic:
    """What one run moved and how long it took.

    moved: bytes by cause: "own rows", "other rows", "selected rows", "edges", "stored".
    seconds: by sweep; in all.
    jobs: seconds of each operation, from its beginning, or the end of the one before it if that
        was later, by its name ("load NAME": of what is loaded for it).
    waited: seconds in which nothing was computed until something was loaded.
    idle: seconds in which this process waited for the others at the ends of sweeps.
    in_place: of what moved, bytes that were not copied: a CPU reads rows where the store has them.
    """

    moved: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    sweeps: list[float] = dataclasses.field(default_factory=list)
    jobs: dict[str, float] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    waited: float = 0.0
    idle: float = 0.0
    zero_copy: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of all transfers."""
        return sum(self.moved.values())

    def job(self, step: Step) -> Job:
        """The measured times of an operation."""
        return Job(
            step.name, self.jobs.get(f"load {step.name}", 0.0), self.jobs.get(step.name, 0.0)
        )


def refined_order(layout: Layout, traffic: Traffic) -> Order:
    """The chunks of each block in the order in which their measured transfers and computations
    overlap best (NeuGraph, section 3.2)."""
    groups: dict[tuple[int, int], dict[int, list[Step]]] = {}
    for step in layout.steps:
        if step.kind != "block":
            found = groups.setdefault((step.sweep, step.block), {})
            found.setdefault(step.other, []).append(step)
    orders: dict[tuple[int, int], list[int]] = {}
    for at, chunks in groups.items():
        others = list(chunks)
        jobs = [
            Job(str(k), sum(j.transfer for j in times), sum(j.compute for j in times))
            for k, times in ((k, [traffic.job(s) for s in chunks[k]]) for k in others)
        ]
        orders[at] = [others[i] for i in refine(jobs)]
    return lambda sweep, block: orders.get((sweep, block), [])


def planned_traffic(layout: Layout, executables: Executables) -> list[collections.Counter[str]]:
    """Bytes that an epoch moves by cause, for each sweep: what `Traffic.moved` will have in every
    run but the first, which loads what is held."""
    tensors = {name: t for t, name in layout.names.items()}
    found = [collections.Counter() for _ in executables.sweeps]
    for step, planned in zip(layout.steps, layout.plan.steps, strict=True):
        moved = found[step.sweep]
        partly = set(step.partial) if step.name in layout.selected else set()
        for t in (tensors[name] for name in planned.loads):
            if t not in partly:
                cause = "own rows" if t.block == step.block else "other rows"
                moved[cause] += loaded_rows(layout, t) * t.array.row_bytes
        for t in (tensors[name] for name in planned.stores):
            moved["stored"] += _real_rows(layout, t) * t.array.row_bytes
        if step.kind == "edges":
            outputs = executables.blocks[step.sweep][0].outputs
            moved["stored"] += _edges(layout, executables, step) * sum(x.row_bytes for x in outputs)
        elif step.kind == "chunk":
            moved.update(_of_chunk(layout, executables, step))
    return [+moved for moved in found]


def _of_chunk(layout: Layout, executables: Executables, step: Step) -> dict[str, int]:
    """Bytes of a chunk's edges, of its results on them, and of rows that are collected for it."""
    executable = executables.chunks[step.sweep][step.stage]
    assert executable is not None
    edges, at = _edges(layout, executables, step), cell(executables, step)
    slots = int(layout.blocks.slots[at])
    moved = {"edges": slots * sum(x.row_bytes for x in executable.edge_loads)}
    if (executable.side, *at) not in layout.held or executable.edge_loads:
        moved["edges"] += 4 * slots * (1 + executable.numbered) + 4 * (layout.rows + 1)
    moved["stored"] = edges * sum(x.row_bytes for x in executable.on_edges)
    if step.name in layout.selected:
        used = int(layout.blocks.used_counts(executable.side)[at])
        moved["selected rows"] = used * sum(x.row_bytes for x in executable.other)
    return moved


def _edges(layout: Layout, executables: Executables, step: Step) -> int:
    at = cell(executables, step) if step.kind == "chunk" else (step.other, step.block)
    return int(layout.blocks.counts[at])


def loaded_rows(layout: Layout, t: Tensor) -> int:
    """Rows that are loaded, with padding."""
    return layout.rows if t.part < 0 else layout.rows // layout.slices


def _real_rows(layout: Layout, t: Tensor) -> int:
    start, stop = map(int, layout.blocks.bounds[t.block : t.block + 2])
    if t.part < 0:
        return stop - start
    first = start + t.part * loaded_rows(layout, t)
    return max(0, min(first + loaded_rows(layout, t), stop) - first)
