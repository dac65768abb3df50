"""What stays on the device between operations: ROC's dynamic program (ROC, section 5, Algorithm 1).

Operations read and make whole tensors. The host holds everything that does not fit; the device is
a cache with a capacity. A plan says in which order the operations run and what leaves the device
before each, so that the fewest bytes cross the bus.

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
have been cached until then. It knows no workspace.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from gnnjit.errors import PlanError
from gnnjit.streaming.memory.integer_program import fewest_bytes
from gnnjit.streaming.memory.problem import START, Operation, Program, State, bits, whole
from gnnjit.system.memory_budget import human

__all__ = [
    "MAX_OPERATIONS",
    "MAX_STATES",
    "MemoryPlan",
    "Method",
    "Operation",
    "Step",
    "lru",
    "plan_memory",
    "simulate",
    "streaming",
    "valid_states",
]

Method = Literal[
    "any order", "given order", "integer program", "farthest next use", "least recently used",
    "streaming",
]  # fmt: skip

MAX_STATES = 50_000
"""Ways into a state of the dynamic program that are looked at; then the order is taken as given."""
MAX_OPERATIONS = 512
"""Operations of which the fewest bytes in the given order are looked for, before a simple rule is
followed."""


@dataclasses.dataclass(frozen=True)
class Step:
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
        method: "any order": no plan moves fewer bytes; "given order": none does in this order;
            "integer program": hardly any does in this order; else the rule by which the evictions
            were chosen.
    """

    steps: tuple[Step, ...]
    bytes_moved: int
    capacity: int
    method: Method

    @property
    def exact(self) -> bool:
        """Whether no plan in any order moves fewer bytes, for sure."""
        return self.method == "any order"

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
        how = f"least for {self.method}" if "order" in self.method else self.method
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
    max_states: int = MAX_STATES,
    *,
    keep_order: bool = False,
    max_operations: int = MAX_OPERATIONS,
) -> MemoryPlan:
    """The plan that moves the fewest bytes.

    It is exact over all orders where the dynamic program looks at no more than `max_states` ways
    into its states; else that of an integer program for the given order (`memory_integer`), where
    there are no more than `max_operations`; else the better of Belady's rule (evict what is read
    again last) and LRU. `method` of the plan says which.

    Args:
        operations: in any order; where one reads a tensor before it is made, "the given order" is
            the nearest in which none does.
        sizes: bytes of each tensor; further ones are ignored.
        capacity: bytes of the device.
        results: tensors that must be on the host in the end.
        max_states: how many ways are looked at.
        keep_order: only plans in the given order.
        max_operations: of the integer program.

    Raises:
        PlanError: an operation does not fit the device alone; a tensor has no size, or is made
            twice; two operations have one name; they need one another in a cycle; a result is no
            tensor of theirs; a size is no number of bytes.
    """
    program = Program(operations, sizes, capacity, tuple(results))
    moves = None if keep_order else _search(program, max_states)
    if moves is not None:
        return _replay(program, moves, "any order")
    plans = [
        _greedy(program, program.next_use, "farthest next use"),
        _greedy(program, program.last_use, "least recently used"),
    ]
    if len(program.ops) <= max_operations:
        found = fewest_bytes(program)
        if found is not None:
            moves, proven = found
            plans.insert(0, _replay(program, moves, "given order" if proven else "integer program"))
    return min(plans, key=lambda plan: plan.bytes_moved)


def lru(
    operations: Sequence[Operation],
    sizes: Mapping[str, int],
    capacity: int,
    results: Iterable[str] = (),
) -> MemoryPlan:
    """The given order, evicting what was least recently used: ROC 7.7 compares with it. Arguments
    and errors as in `plan_memory`."""
    program = Program(operations, sizes, capacity, results)
    return _greedy(program, program.last_use, "least recently used")


def streaming(
    operations: Sequence[Operation],
    sizes: Mapping[str, int],
    capacity: int,
    results: Iterable[str] = (),
) -> MemoryPlan:
    """The given order with nothing cached: every input is loaded, every output that is a result or
    is read later is stored. So does NeuGraph, in the comparison of ROC 7.7. Arguments and errors as
    in `plan_memory`."""
    program = Program(operations, sizes, capacity, results)
    steps, done = [], 0
    for op in program.order:
        done |= 1 << op
        outs = program.outs[op]
        stores = outs & program.results | program.live(outs, done)
        steps.append(_step(program, op, (program.ins[op], stores, 0, 0), program.alone[op]))
    return _plan(program, steps, "streaming")


def valid_states(operations: Sequence[Operation]) -> dict[frozenset[str], frozenset[str]]:
    """ROC's valid states and their active tensors (Table 3, and the empty state before it).

    A state is a set of operations that holds what its members need: there may be 2^operations.
    Active are the tensors that its members read or made and others are still to read. (The text of
    the paper has only those that they made; its Table 3 has the inputs g, w_1 and w_2 too.)
    """
    named = {t: 0 for o in operations for t in (*o.inputs, *o.outputs)}
    program = Program(operations, named, sum(o.workspace for o in operations), ())
    touched = {0: 0}
    queue = [0]
    for done in queue:
        for op in program.ready(done):
            after = done | 1 << op
            if after not in touched:
                touched[after] = touched[done] | program.ins[op] | program.outs[op]
                queue.append(after)
    return {
        frozenset(program.ops[i].name for i in bits(done)): frozenset(
            program.names(program.live(tensors, done))
        )
        for done, tensors in touched.items()
    }


def simulate(
    plan: MemoryPlan,
    operations: Sequence[Operation],
    sizes: Mapping[str, int],
    capacity: int,
    results: Iterable[str] = (),
) -> int:
    """The bytes that a plan moves, by running it tensor by tensor, without the planner.

    Raises:
        PlanError: the plan does not run every operation once; reads what is not on the device, or
            loads what is not on the host; holds more than `capacity`; or leaves a result off the
            host.
    """
    by_name = {o.name: o for o in operations}
    if sorted(s.name for s in plan.steps) != sorted(by_name):
        raise PlanError("the plan does not run every operation once: plan these operations anew")
    host = {t for o in operations for t in o.inputs} - {t for o in operations for t in o.outputs}
    device: set[str] = set()
    moved = 0
    for step in plan.steps:
        _simulate_step(step, by_name[step.name], host, device)
        held = sum(sizes[t] for t in device) + by_name[step.name].workspace
        if held > whole("the capacity", capacity):
            _wrong(step, f"holds {held} bytes on the device, the capacity is {capacity}")
        device.intersection_update(step.cached)
        if device != set(step.cached):
            _wrong(step, f"keeps {sorted(set(step.cached) - device)}, not on the device")
        moved += sum(sizes[t] for t in (*step.loads, *step.stores))
    absent = set(results) - host
    if absent:
        raise PlanError(f"the plan leaves the results {sorted(absent)} off the host: plan anew")
    return moved


def _simulate_step(step: Step, op: Operation, host: set[str], device: set[str]) -> None:
    """Up to the moment at which `op` has run and all that it needs is on the device."""
    evicted, loads = set(step.evictions), set(step.loads)
    made_before = set(step.stores) - set(op.outputs)
    if not made_before <= evicted <= device:
        _wrong(step, f"evicts {step.evictions} and stores {step.stores} beyond what is there")
    host |= made_before
    device -= evicted
    if not loads <= host:
        _wrong(step, f"loads {sorted(loads - host)}, not on the host")
    device |= loads
    if not set(op.inputs) <= device:
        _wrong(step, f"reads {sorted(set(op.inputs) - device)}, not on the device")
    device |= set(op.outputs)
    host |= set(step.stores)


def _wrong(step: Step, what: str) -> None:
    raise PlanError(f"step {step.name!r} of the plan {what}: plan these operations anew")


_Moves = Sequence[tuple[int, int]]
"""Operations in the order in which they run, each with the tensors evicted before it."""


def _search(program: Program, limit: int) -> _Moves | None:
    """The moves with the cheapest evictions; None where more than `limit` states are looked at.

    ROC's program, whose memo is filled from the start, the cheapest state first (Dijkstra): dear
    states are never looked at, and where all fits it goes straight through.
    """
    found: dict[State, tuple[int, State, int, int]] = {START: (0, START, -1, 0)}
    # Of equally cheap states the one with the most done comes first; then the older.
    heap: list[tuple[int, int, int, State]] = [(0, len(program.ops), 0, START)]
    looked = 0
    while heap:
        price, rest, _, state = heapq.heappop(heap)
        if not rest:
            return _path(found, state)
        if price > found[state][0]:
            continue
        for op in program.ready(state[0]):
            for evicted in program.evictions(state, op):
                looked += 1
                if looked > limit:
                    return None
                after = program.run(state, op, evicted)
                total = price + program.price(state, evicted)
                if after not in found or total < found[after][0]:
                    found[after] = (total, state, op, evicted)
                    heapq.heappush(heap, (total, rest - 1, looked, after))
    raise AssertionError("every operation fits alone, so there is a plan")


def _path(found: Mapping[State, tuple[int, State, int, int]], state: State) -> _Moves:
    moves = []
    while state != START:
        _, state, op, evicted = found[state]
        moves.append((op, evicted))
    return moves[::-1]


def _greedy(program: Program, key: Callable[[int, int], int], method: Method) -> MemoryPlan:
    """The given order; what has the least `key` of tensor and position leaves, until there is
    room."""
    moves: list[tuple[int, int]] = []
    state = START
    for position, op in enumerate(program.order):
        idle = state[1] & ~program.ins[op]
        excess = program.alone[op] + program.size(idle) - program.capacity
        evicted = 0
        if excess > 0:
            for _, tensor in sorted((key(t, position), t) for t in bits(idle)):
                if excess > 0:
                    evicted |= 1 << tensor
                    excess -= program.sizes[tensor]
        moves.append((op, evicted))
        state = program.run(state, op, evicted)
    return _replay(program, moves, method)


def _replay(program: Program, moves: _Moves, method: Method) -> MemoryPlan:
    steps, state = [], START
    for op, evicted in moves:
        _, cached, fresh = state
        ins, outs = program.ins[op], program.outs[op]
        peak = program.alone[op] + program.size(cached & ~evicted & ~ins)
        stores = evicted & fresh | outs & program.results
        state = program.run(state, op, evicted)
        steps.append(_step(program, op, (ins & ~cached, stores, evicted, state[1]), peak))
    return _plan(program, steps, method)


def _step(program: Program, op: int, masks: tuple[int, int, int, int], peak: int) -> Step:
    loads, stores, evictions, cached = map(program.names, masks)
    return Step(program.ops[op].name, loads, stores, evictions, cached, peak)


def _plan(program: Program, steps: Sequence[Step], method: Method) -> MemoryPlan:
    moved = sum(program.size(program.mask((*s.loads, *s.stores))) for s in steps)
    return MemoryPlan(tuple(steps), moved, program.capacity, method)
