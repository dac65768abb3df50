"""The operations that a memory plan is made for, checked, as sets of bits."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gnnjit.errors import PlanError


@dataclasses.dataclass(frozen=True)
class Operation:
    """One step of a program.

    Attributes:
        name: its own among the operations.
        inputs, outputs: names of tensors; all of them are on the device while it runs.
        workspace: bytes that it needs on the device beside them.
    """

    name: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    workspace: int = 0

    def __post_init__(self) -> None:
        for field in ("inputs", "outputs"):
            names = getattr(self, field)
            if isinstance(names, str):
                raise PlanError(
                    f"operation {self.name!r}: {field} is the text {names!r}, expected a sequence "
                    f"of names: write ({names!r},)"
                )
            object.__setattr__(self, field, tuple(dict.fromkeys(names)))


CacheState = tuple[int, int, int]
"""Operations done, tensors cached, and those among them of which the host has no copy."""

START: CacheState = (0, 0, 0)


class MemoryProblem:
    """Checked operations; sets of operations and of tensors are bits of integers.

    Attributes:
        ops: as given.
        tensors: names, in the order in which the operations name them.
        sizes: bytes of each.
        ins, outs: tensors that each operation reads and makes.
        alone: bytes on the device that each operation needs with nothing else cached.
        results: tensors that must be on the host in the end.
        order: the given order, or the nearest one in which nothing is read before it is made.

    Raises:
        PlanError: as `plan_memory` says.
    """

    def __init__(
        self,
        operations: Sequence[Operation],
        sizes: Mapping[str, int],
        capacity: int,
        results: Iterable[str],
    ) -> None:
        self.ops = list(operations)
        makers = _makers(self.ops)
        needs = [{makers[t] for t in o.inputs if t in makers} for o in self.ops]
        self.order = _topological(self.ops, needs)
        self.tensors = list(dict.fromkeys(t for o in self.ops for t in (*o.inputs, *o.outputs)))
        self.sizes = _checked_sizes(self.ops, sizes)
        self._index = {t: i for i, t in enumerate(self.tensors)}
        self.ins = [self.mask(o.inputs) for o in self.ops]
        self.outs = [self.mask(o.outputs) for o in self.ops]
        self.results = self.mask(_checked_results(results, self._index))
        self._readers = [0] * len(self.tensors)
        for op, mask in enumerate(self.ins):
            for tensor in bits(mask):
                self._readers[tensor] |= 1 << op
        self.capacity = whole("the capacity", capacity)
        self.alone = self._alone()

    def _alone(self) -> list[int]:
        found = [
            self.size(i | o) + whole(f"the workspace of operation {op.name!r}", op.workspace)
            for op, i, o in zip(self.ops, self.ins, self.outs, strict=True)
        ]
        for op, needed in zip(self.ops, found, strict=True):
            if needed > self.capacity:
                raise PlanError(
                    f"operation {op.name!r} needs {needed} bytes on the device (inputs, outputs "
                    f"and workspace), the capacity is {self.capacity}. The smallest capacity that "
                    f"does is {max(found)}: make the chunks smaller or the capacity larger"
                )
        return found

    def mask(self, names: Iterable[str]) -> int:
        return sum(1 << self._index[t] for t in names)

    def names(self, mask: int) -> tuple[str, ...]:
        return tuple(self.tensors[i] for i in bits(mask))

    def size(self, mask: int) -> int:
        return sum(self.sizes[i] for i in bits(mask))

    def live(self, mask: int, done: int) -> int:
        """The tensors of `mask` that operations still to be done read."""
        return sum(1 << t for t in bits(mask) if self._readers[t] & ~done)

    def run(self, state: CacheState, op: int, evicted: int) -> CacheState:
        done, cached, fresh = state
        done |= 1 << op
        # Only what `op` reads or makes can have had its last use.
        touched = self.ins[op] | self.outs[op]
        cached = cached & ~evicted & ~touched | self.live(touched, done)
        return done, cached, (fresh | self.outs[op] & ~self.results) & cached

    def next_use(self, tensor: int, position: int) -> int:
        """Where in the given order it is read next, sorting first what is read last."""
        uses = self._reads[tensor]
        return -uses[bisect.bisect_left(uses, position)]

    def last_use(self, tensor: int, position: int) -> int:
        """Where in the given order it was last read or made."""
        touched = self._touches[tensor]
        return touched[bisect.bisect_left(touched, position) - 1]

    @functools.cached_property
    def _reads(self) -> list[list[int]]:
        """For each tensor, where in the given order it is read: ascending."""
        return self._positions(self.ins)

    @functools.cached_property
    def _touches(self) -> list[list[int]]:
        """For each tensor, where in the given order it is read or made: ascending."""
        return self._positions([i | o for i, o in zip(self.ins, self.outs, strict=True)])

    def _positions(self, masks: Sequence[int]) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in self.tensors]
        for position, op in enumerate(self.order):
            for tensor in bits(masks[op]):
                found[tensor].append(position)
        return found


def bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def whole(what: str, value: Any) -> int:
    """Raises PlanError if `value` is no number of bytes."""
    if not hasattr(value, "__index__") or isinstance(value, bool) or operator.index(value) < 0:
        raise PlanError(f"{what} is {value!r}, expected bytes: a whole number >= 0")
    return operator.index(value)


def _makers(operations: Sequence[Operation]) -> dict[str, int]:
    """Which operation makes a tensor."""
    names: set[str] = set()
    makers: dict[str, int] = {}
    for i, op in enumerate(operations):
        if op.name in names:
            raise PlanError(f"two operations are named {op.name!r}, expected a name of each's own")
        names.add(op.name)
        for tensor in op.outputs:
            if tensor in makers:
                raise PlanError(
                    f"tensor {tensor!r} is made by operation {operations[makers[tensor]].name!r} "
                    f"and again by {op.name!r}: give what each of them makes a name of its own"
                )
            makers[tensor] = i
    return makers


def _topological(operations: Sequence[Operation], needs: Sequence[set[int]]) -> list[int]:
    """The given order, where each operation that comes too early waits for what it needs."""
    order: list[int] = []
    done: set[int] = set()
    rest = list(range(len(operations)))
    while rest:
        op = next((i for i in rest if needs[i] <= done), None)
        if op is None:
            names = (repr(operations[i].name) for i in _cycle(rest, needs))
            raise PlanError(
                f"the operations need one another in a cycle: {' needs '.join(names)}. Expected "
                "none to need its own output: give a tensor that is updated a new name"
            )
        rest.remove(op)
        done.add(op)
        order.append(op)
    return order


def _cycle(rest: Sequence[int], needs: Sequence[set[int]]) -> list[int]:
    """Each needs the next; the first is the last. All of `rest` need one of `rest`."""
    path = [rest[0]]
    while path[-1] not in path[:-1]:
        path.append(min(needs[path[-1]].intersection(rest)))
    return path[path.index(path[-1]) :]


def _checked_sizes(operations: Sequence[Operation], sizes: Mapping[str, int]) -> list[int]:
    """In the order in which the operations name the tensors."""
    found: dict[str, int] = {}
    for op in operations:
        for tensor in (*op.inputs, *op.outputs):
            if tensor not in sizes:
                raise PlanError(
                    f"tensor {tensor!r} of operation {op.name!r} has no size: give its bytes as "
                    f"sizes[{tensor!r}]"
                )
            found[tensor] = whole(f"the size of tensor {tensor!r}", sizes[tensor])
    return list(found.values())


def _checked_results(results: Iterable[str], tensors: Mapping[str, int]) -> list[str]:
    found = list(dict.fromkeys(results))
    for result in found:
        if result not in tensors:
            raise PlanError(
                f"the result {result!r} is no tensor of the operations, expected one of "
                f"{', '.join(map(repr, tensors))}"
            )
    return found
