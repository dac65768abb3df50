"""The bytes that a run moves, planned and measured; its times; the fastest order of its chunks."""

from __future__ import annotations

import collections
import dataclasses

from gnnjit.streaming.memory.layout import Fit
from gnnjit.streaming.program.steps import Order, Pieces, Step, Tensor, cell
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
    in_place: int = 0

    @property
    def bytes(self) -> int:
        """Of all transfers."""
        return sum(self.moved.values())

    def job(self, step: Step) -> Job:
        """The measured times of an operation."""
        return Job(
            step.name, self.jobs.get(f"load {step.name}", 0.0), self.jobs.get(step.name, 0.0)
        )


def refined_order(fit: Fit, traffic: Traffic) -> Order:
    """The chunks of each block in the order in which their measured transfers and computations
    overlap best (NeuGraph, section 3.2)."""
    groups: dict[tuple[int, int], dict[int, list[Step]]] = {}
    for step in fit.steps:
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


def planned_traffic(fit: Fit, pieces: Pieces) -> list[collections.Counter[str]]:
    """Bytes that an epoch moves by cause, for each sweep: what `Traffic.moved` will have in every
    run but the first, which loads what is held."""
    tensors = {name: t for t, name in fit.names.items()}
    found = [collections.Counter() for _ in pieces.sweeps]
    for step, planned in zip(fit.steps, fit.plan.steps, strict=True):
        moved = found[step.sweep]
        partly = set(step.partial) if step.name in fit.selected else set()
        for t in (tensors[name] for name in planned.loads):
            if t not in partly:
                cause = "own rows" if t.block == step.block else "other rows"
                moved[cause] += loaded_rows(fit, t) * t.array.row_bytes
        for t in (tensors[name] for name in planned.stores):
            moved["stored"] += _real_rows(fit, t) * t.array.row_bytes
        if step.kind == "edges":
            outputs = pieces.blocks[step.sweep][0].outputs
            moved["stored"] += _edges(fit, pieces, step) * sum(x.row_bytes for x in outputs)
        elif step.kind == "chunk":
            moved.update(_of_chunk(fit, pieces, step))
    return [+moved for moved in found]


def _of_chunk(fit: Fit, pieces: Pieces, step: Step) -> dict[str, int]:
    """Bytes of a chunk's edges, of its results on them, and of rows that are collected for it."""
    piece = pieces.chunks[step.sweep][step.stage]
    assert piece is not None
    edges, at = _edges(fit, pieces, step), cell(pieces, step)
    slots = int(fit.blocks.slots[at])
    moved = {"edges": slots * sum(x.row_bytes for x in piece.edge_loads)}
    if (piece.side, *at) not in fit.held or piece.edge_loads:
        moved["edges"] += 4 * slots * (1 + piece.numbered) + 4 * (fit.rows + 1)
    moved["stored"] = edges * sum(x.row_bytes for x in piece.on_edges)
    if step.name in fit.selected:
        used = int(fit.blocks.used_counts(piece.side)[at])
        moved["selected rows"] = used * sum(x.row_bytes for x in piece.other)
    return moved


def _edges(fit: Fit, pieces: Pieces, step: Step) -> int:
    at = cell(pieces, step) if step.kind == "chunk" else (step.other, step.block)
    return int(fit.blocks.counts[at])


def loaded_rows(fit: Fit, t: Tensor) -> int:
    """Rows that are loaded, with padding."""
    return fit.rows if t.part < 0 else fit.rows // fit.slices


def _real_rows(fit: Fit, t: Tensor) -> int:
    start, stop = map(int, fit.blocks.bounds[t.block : t.block + 2])
    if t.part < 0:
        return stop - start
    first = start + t.part * loaded_rows(fit, t)
    return max(0, min(first + loaded_rows(fit, t), stop) - first)
