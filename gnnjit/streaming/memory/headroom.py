"""What an operation must find free on the device before it begins, while others still run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence, Set

from gnnjit.streaming.memory.plan import MemoryPlan
from gnnjit.streaming.memory.workspace import Workspace
from gnnjit.streaming.program.steps import Step, Tensor


@dataclasses.dataclass(frozen=True)
class Headroom:
    """Bytes on the device for an operation.

    Attributes:
        needed: while it runs, with all that stays there meanwhile.
        beside: those of them that the next operation does not count, nor the writing of results.
    """

    needed: int
    beside: int


def headrooms(
    work: Workspace,
    steps: Sequence[Step],
    plan: MemoryPlan,
    names: Mapping[Tensor, str],
    selected: Set[str],
    shown: Callable[[Tensor], bool],
) -> tuple[Headroom, ...]:
    """The headroom of each operation. Several at once need what the last one needs, and of each of
    those before it what is beside the next.

    selected: names of steps that read only some rows of what may be read in part. shown: whether
    rows that are loaded take no memory, since the store shows them; the plan counts them.
    """
    sizes = {name: work.bytes(t) for t, name in names.items()}
    tensors = {name: t for t, name in names.items()}
    following = work.following(steps)
    found: list[Headroom] = []
    free: set[str] = set()  # of what is there, what takes no memory
    for at, (step, planned) in enumerate(zip(steps, plan.steps, strict=True)):
        copied = {names[t] for t in step.partial} if step.name in selected else set()
        free.difference_update(planned.evictions)
        free.update(n for n in planned.loads if n not in copied and shown(tensors[n]))
        # What is still being written of the operation before is counted when it is written.
        needed = planned.peak_bytes - (work.outputs(steps[at - 1]) if at else 0)
        needed -= sum(sizes[name] for name in free)
        gone = {names[t] for t in step.outputs}.intersection(planned.stores)
        stays = 0
        if step.name in following:
            stays += work.ahead(step, following[step.name])
        if at + 1 < len(steps):
            kept = set(planned.cached).difference(plan.steps[at + 1].evictions)
            stays += sum(sizes[name] for name in kept - free)
            gone -= kept
            if _goes_on(step, steps[at + 1]):
                stays += work.between(step)
        stays += sum(sizes[name] for name in gone)
        found.append(Headroom(needed, max(0, needed - stays)))
        free.intersection_update(planned.cached)
    return tuple(found)


def _goes_on(step: Step, after: Step) -> bool:
    """Whether the next operation goes on with a block's results that are no tensors."""
    if (step.sweep, step.block) != (after.sweep, after.block):
        return False
    return step.kind == "chunk" or (after.kind == "block" and step.stage == after.stage)
