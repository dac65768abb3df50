"""What stays on the device between operations (ROC, section 5).

Operations read and make whole tensors. The host holds everything that does not fit; the device is
a cache with a capacity. A plan says what leaves the device before each operation of a given order,
so that the fewest bytes cross the bus.

What is counted:

- A tensor that no operation makes starts on the host. Reading it while it is not cached is a load.
- A result is stored once, when it is made. Any other made tensor is stored only when it is evicted
  while it is still needed, and then once: from then on the host has it, and evicting it again is
  free. Nothing is stored that nobody reads again.
- While an operation runs, its inputs, its outputs, its workspace and all that stays cached are on
  the device together: that is the peak, never above the capacity. Evictions come before the loads,
  and a tensor that is needed no more leaves after its last use.

Where we differ from ROC: Algorithm 1 counts loads alone, as if the host got every output for
nothing; we count stores. It works out the tensors cached before an operation from those cached
after it, so that a tensor at its last use always counts as loaded, even one just made; here it may
have been cached until then. It knows no workspace. Its dynamic program also chooses the order, and
has too many states for a grid of chunks, whose order is given besides: a block is done before the
next. It is the oracle of the tests (`tests/streaming/memory/roc.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from gnnjit.streaming.memory.integer_program import fewest_bytes
from gnnjit.streaming.memory.problem import START, MemoryProblem, Operation, bits
from gnnjit.system.memory_budget import human

__all__ = [
    "MAX_OPERATIONS",
    "MemoryPlan",
    "Method",
    "Operation",
    "PlannedStep",
    "lru",
    "plan_memory",
    "streaming",
]

Method = Literal[
    "given order", "integer program", "farthest next use", "least recently used",
    "streaming",
]  # fmt: skip

MAX_OPERATIONS = 512
"""Operations of which the fewest bytes in the given order are looked for, before a simple rule is
followed."""


@dataclasses.dataclass(frozen=True)
class PlannedStep:
    """One operation of a plan.

    First the `evictions` leave, those among the `stores` by way of the host; then the `loads` come;
    the operation runs; its outputs among the `stores` are copied to the host; and what is not
    `cached` is dropped.

    Attributes:
        name: of the operation.
        loads: tensors copied to the device.
        stores: tensors copied to the host.
        evictions: tensors that leave to make room, though they are needed later.
        cached: tensors on the device after it, all of them needed later.
        peak_bytes: on the device while it runs, its workspace included.
    """

    name: str
    loads: tuple[str, ...]
    stores: tuple[str, ...]
    evictions: tuple[str, ...]
    cached: tuple[str, ...]
    peak_bytes: int


@dataclasses.dataclass(frozen=True)
class MemoryPlan:
    """An order of the operations, and what is on the device around each.

    Attributes:
        steps: one an operation, in the order in which they run.
        bytes_moved: bytes of all loads and stores.
        capacity: bytes of the device that it was made for.
        method: "given order": no plan moves fewer bytes in this order; "integer program": hardly
            any does; else the rule by which the evictions were chosen.
    """

    steps: tuple[PlannedStep, ...]
    bytes_moved: int
    capacity: int
    method: Method

    @property
    def peak_bytes(self) -> int:
        """The most that is on the device at any time."""
        return max((s.peak_bytes for s in self.steps), default=0)

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [
            ("operation", "loads", "stores", "evicts", "cached after", "peak")
        ]
        for s in self.steps:
            names = (" ".join(n) or "-" for n in (s.loads, s.stores, s.evictions, s.cached))
            rows.append((s.name, *names, human(s.peak_bytes)))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        how = f"least for the {self.method}" if "order" in self.method else self.method
        lines.append(
            f"{human(self.bytes_moved)} moved ({how}), at most {human(self.peak_bytes)} of "
            f"{human(self.capacity)} on the device"
        )
        return "\n".join(lines)


def plan_memory(
    operations: Sequence[Operation],
    sizes: Mapping[str, int],
    capacity: int,
    results: Iterable[str] = (),
    *,
    max_operations: int = MAX_OPERATIONS,
) -> MemoryPlan:
    """The plan that moves the fewest bytes in the given order.

    An integer program finds it where there are no more than `max_operations`; else it is the better
    of Belady's rule (evict what is read again last) and LRU. `method` of the plan says which.

    Args:
        operations: in any order; where one reads a tensor before it is made, "the given order" is
            the nearest in which none does.
        sizes: bytes of each tensor; further ones are ignored.
        capacity: bytes of the device.
        results: tensors that must be on the host in the end.
        max_operations: of the integer program.

    Raises:
        PlanError: an operation does not fit the device alone; a tensor has no size, or is made
            twice; two operations have one name; they need one another in a cycle; a result is no
            tensor of theirs; a size is no number of bytes.
    """
    problem = MemoryProblem(operations, sizes, capacity, tuple(results))
    plans = [
        _greedy(problem, problem.next_use, "farthest next use"),
        _greedy(problem, problem.last_use, "least recently used"),
    ]
    if len(problem.ops) <= max_operations:
        found = fewest_bytes(problem)
        if found is not None:
            moves, proven = found
            plans.insert(0, _replay(problem, moves, "given order" if proven else "integer program"))
    return min(plans, key=lambda plan: plan.bytes_moved)


def lru(
    operations: Sequence[Operation],
    sizes: Mapping[str, int],
    capacity: int,
    results: Iterable[str] = (),
) -> MemoryPlan:
    """The given order, evicting what was least recently used: ROC 7.7 compares with it. Arguments
    and errors as in `plan_memory`."""
    problem = MemoryProblem(operations, sizes, capacity, results)
    return _greedy(problem, problem.last_use, "least recently used")


def streaming(
    operations: Sequence[Operation],
    sizes: Mapping[str, int],
    capacity: int,
    results: Iterable[str] = (),
) -> MemoryPlan:
    """The given order with nothing cached: every input is loaded, every output that is a result or
    is read later is stored. So does NeuGraph, in the comparison of ROC 7.7. Arguments and errors as
    in `plan_memory`."""
    problem = MemoryProblem(operations, sizes, capacity, results)
    steps, done = [], 0
    for op in problem.order:
        done |= 1 << op
        outs = problem.outs[op]
        stores = outs & problem.results | problem.live(outs, done)
        steps.append(_step(problem, op, (problem.ins[op], stores, 0, 0), problem.alone[op]))
    return _plan(problem, steps, "streaming")


_Moves = Sequence[tuple[int, int]]
"""Operations in the order in which they run, each with the tensors evicted before it."""


def _greedy(problem: MemoryProblem, key: Callable[[int, int], int], method: Method) -> MemoryPlan:
    """The given order; what has the least `key` of tensor and position leaves, until there is
    room."""
    moves: list[tuple[int, int]] = []
    state = START
    for position, op in enumerate(problem.order):
        idle = state[1] & ~problem.ins[op]
        excess = problem.alone[op] + problem.size(idle) - problem.capacity
        evicted = 0
        if excess > 0:
            for _, tensor in sorted((key(t, position), t) for t in bits(idle)):
                if excess > 0:
                    evicted |= 1 << tensor
                    excess -= problem.sizes[tensor]
        moves.append((op, evicted))
        state = problem.run(state, op, evicted)
    return _replay(problem, moves, method)


def _replay(problem: MemoryProblem, moves: _Moves, method: Method) -> MemoryPlan:
    steps, state = [], START
    for op, evicted in moves:
        _, cached, fresh = state
        ins, outs = problem.ins[op], problem.outs[op]
        peak = problem.alone[op] + problem.size(cached & ~evicted & ~ins)
        stores = evicted & fresh | outs & problem.results
        state = problem.run(state, op, evicted)
        steps.append(_step(problem, op, (ins & ~cached, stores, evicted, state[1]), peak))
    return _plan(problem, steps, method)


def _step(
    problem: MemoryProblem, op: int, masks: tuple[int, int, int, int], peak: int
) -> PlannedStep:
    loads, stores, evictions, cached = map(problem.names, masks)
    return PlannedStep(problem.ops[op].name, loads, stores, evictions, cached, peak)


def _plan(problem: MemoryProblem, steps: Sequence[PlannedStep], method: Method) -> MemoryPlan:
    moved = sum(problem.size(problem.mask((*s.loads, *s.stores))) for s in steps)
    return MemoryPlan(tuple(steps), moved, problem.capacity, method)
