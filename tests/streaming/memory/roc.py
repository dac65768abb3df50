"""ROC's dynamic program (section 5, Algorithm 1) over all orders of the operations, and a replay of
plans: what the memory plans of `gnnjit.streaming` are tested against."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gnnjit.errors import PlanError
from gnnjit.streaming.memory.plan import (
    MAX_OPERATIONS,
    MemoryPlan,
    Operation,
    PlannedStep,
    _Moves,
    _replay,
    plan_memory,
)
from gnnjit.streaming.memory.problem import START, CacheState, MemoryProblem, bits, whole

MAX_STATES = 50_000
"""Ways into a state of the dynamic program that are looked at; then the order is taken as given."""


def plan_in_any_order(
    operations: Sequence[Operation],
    sizes: Mapping[str, int],
    capacity: int,
    results: Iterable[str] = (),
    max_states: int = MAX_STATES,
    *,
    max_operations: int = MAX_OPERATIONS,
) -> MemoryPlan:
    """The plan that moves the fewest bytes in any order, where no more than `max_states` ways into
    states are looked at; else as `plan_memory`. Its method says which."""
    results = tuple(results)
    problem = MemoryProblem(operations, sizes, capacity, results)
    moves = _search(problem, max_states)
    if moves is None:
        return plan_memory(operations, sizes, capacity, results, max_operations=max_operations)
    method: Any = "any order"
    return dataclasses.replace(_replay(problem, moves, method))


def _search(problem: MemoryProblem, limit: int) -> _Moves | None:
    """The moves with the cheapest evictions; None where more than `limit` states are looked at.

    ROC's program, whose memo is filled from the start, the cheapest state first (Dijkstra): dear
    states are never looked at, and where all fits it goes straight through.
    """
    found: dict[CacheState, tuple[int, CacheState, int, int]] = {START: (0, START, -1, 0)}
    # Of equally cheap states the one with the most done comes first; then the older.
    heap: list[tuple[int, int, int, CacheState]] = [(0, len(problem.ops), 0, START)]
    looked = 0
    while heap:
        price, rest, _, state = heapq.heappop(heap)
        if not rest:
            return _path(found, state)
        if price > found[state][0]:
            continue
        for op in ready(problem, state[0]):
            for evicted in evictions(problem, state, op):
                looked += 1
                if looked > limit:
                    return None
                after = problem.run(state, op, evicted)
                total = price + price_of(problem, state, evicted)
                if after not in found or total < found[after][0]:
                    found[after] = (total, state, op, evicted)
                    heapq.heappush(heap, (total, rest - 1, looked, after))
    raise AssertionError("every operation fits alone, so there is a plan")


def _path(
    found: Mapping[CacheState, tuple[int, CacheState, int, int]], state: CacheState
) -> _Moves:
    moves = []
    while state != START:
        _, state, op, evicted = found[state]
        moves.append((op, evicted))
    return moves[::-1]


def ready(problem: MemoryProblem, done: int) -> Iterator[int]:
    """Operations that may be done next, in the given order."""
    makers = {t: i for i, o in enumerate(problem.ops) for t in o.outputs}
    needs = [sum(1 << i for i in {makers[t] for t in o.inputs if t in makers}) for o in problem.ops]
    for op in problem.order:
        if not done >> op & 1 and not needs[op] & ~done:
            yield op


def price_of(problem: MemoryProblem, state: CacheState, evicted: int) -> int:
    """Bytes that evictions cost beside what every plan moves: what is evicted is loaded again,
    and stored first where the host has no copy."""
    return problem.size(evicted) + problem.size(evicted & state[2])


def evictions(problem: MemoryProblem, state: CacheState, op: int) -> Iterator[int]:
    """What may leave before `op`: no more than it must, as evicting later costs the same."""
    idle = state[1] & ~problem.ins[op]
    room = problem.capacity - problem.alone[op]
    for kept in _maximal(list(bits(idle)), problem.sizes, room):
        yield idle & ~kept


def _maximal(items: Sequence[int], sizes: Sequence[int], room: int) -> Iterator[int]:
    """Sets of `items` that fit `room` and to which no other item can be added.

    Every branch that is not cut ends in such a set: either the rest fits whole, and the cut has
    compared what was left out, or the last item that does not fit is the smallest one left out.
    """
    items = sorted(items, key=lambda i: -sizes[i])
    rest = [0]
    for item in reversed(items):
        rest.append(rest[-1] + sizes[item])
    stack: list[tuple[int, int, float, int]] = [(0, room, float("inf"), 0)]
    while stack:
        at, left, least, kept = stack.pop()
        if left - rest[len(items) - at] >= least:
            continue
        if at == len(items):
            yield kept
            continue
        size = sizes[items[at]]
        stack.append((at + 1, left, size, kept))
        if size <= left:
            stack.append((at + 1, left - size, least, kept | 1 << items[at]))


def valid_states(operations: Sequence[Operation]) -> dict[frozenset[str], frozenset[str]]:
    """ROC's valid states and their active tensors (Table 3, and the empty state before it).

    A state is a set of operations that holds what its members need: there may be 2^operations.
    Active are the tensors that its members read or made and others are still to read. (The text of
    the paper has only those that they made; its Table 3 has the inputs g, w_1 and w_2 too.)
    """
    named = {t: 0 for o in operations for t in (*o.inputs, *o.outputs)}
    problem = MemoryProblem(operations, named, sum(o.workspace for o in operations), ())
    touched = {0: 0}
    queue = [0]
    for done in queue:
        for op in ready(problem, done):
            after = done | 1 << op
            if after not in touched:
                touched[after] = touched[done] | problem.ins[op] | problem.outs[op]
                queue.append(after)
    return {
        frozenset(problem.ops[i].name for i in bits(done)): frozenset(
            problem.names(problem.live(tensors, done))
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


def _simulate_step(step: PlannedStep, op: Operation, host: set[str], device: set[str]) -> None:
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


def _wrong(step: PlannedStep, what: str) -> None:
    raise PlanError(f"step {step.name!r} of the plan {what}: plan these operations anew")
