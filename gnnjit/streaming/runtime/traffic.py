"""What a run moved, how long it took, and the order of chunks that would have been fastest."""

from __future__ import annotations

import collections
import dataclasses

from gnnjit.streaming.memory.layout import Fit
from gnnjit.streaming.program.steps import Order, Step
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
