"""The operations of a streamed function in order, block by block and chunk by chunk, with what each
reads and makes: what the memory plan is made for, and what the executor follows."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from gnnjit.ir.array_program import Array, Rows
from gnnjit.streaming.program.executables import (
    BlockExecutable,
    ChunkExecutable,
    SharedExecutable,
    block_executables,
)
from gnnjit.streaming.program.sweeps import Gather, Sweep, SweepProgram

FIRST_ROOM = 256

Kind = Literal["block", "chunk", "edges"]


@dataclasses.dataclass(frozen=True)
class Tensor:
    """The rows of one block of an array, or of a slice of it (`part`; -1: all of it): what moves
    between the store and the device."""

    array: Array
    block: int
    part: int = -1


@dataclasses.dataclass(frozen=True)
class Step:
    """One operation: a stage of a block, a chunk of edges, or row-wise work on the edges of a chunk
    ("edges").

    Attributes:
        sweep, stage, block: where it stands; of a chunk, `other` is the block at the other end.
        part: the slice of the block; `last`: whether it is the last one.
        first: whether the chunk is the first of its block.
        inputs, outputs: tensors that it reads and makes; `partial`: those of which a chunk may
            read only the used rows.
    """

    kind: Kind
    sweep: int
    stage: int
    block: int
    other: int = -1
    part: int = -1
    last: bool = True
    first: bool = False
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    partial: tuple[Tensor, ...] = ()

    @functools.cached_property
    def name(self) -> str:
        end = f".{self.other}" if self.other >= 0 else f"/{self.part}" if self.part >= 0 else ""
        return f"{self.sweep}.{self.stage}.{self.block}{end}"


def room(count: int) -> int:
    """Places for `count` rows: powers of two and the middles between them, so that many sizes share
    few executables."""
    size = FIRST_ROOM
    while size < count:
        if size * 3 // 2 >= count:
            return size * 3 // 2
        size *= 2
    return size


class Executables:
    """The executables of a function: shared work, and for each sweep its stages and chunks.

    whole: the arrays that aggregates read, or that one stage of a block leaves to another, a block
        at a time.
    """

    def __init__(self, streamed: SweepProgram) -> None:
        self.streamed = streamed
        self.sweeps = streamed.sweeps
        self.chunks: list[list[ChunkExecutable | None]] = [
            [
                ChunkExecutable(s.side, gathers, s.edge_loads, s.edge_work)
                if gathers and s.side
                else None
                for _, gathers in s.stages
            ]
            for s in self.sweeps
        ]
        chunks = [c for found in self.chunks for c in found if c is not None]
        self.whole = frozenset(x for c in chunks for x in (*c.own, *c.other)).union(
            *(_crossing(s) for s in self.sweeps)
        )
        self.blocks: list[list[BlockExecutable]] = [
            block_executables(s, self.whole) for s in self.sweeps
        ]

    @functools.cached_property
    def read_by_others(self) -> frozenset[Array]:
        """The arrays of vertices of which a block reads the rows of other blocks."""
        chunks = [c for found in self.chunks for c in found if c is not None]
        return frozenset(x for c in chunks for x in c.other)

    def forget(self) -> None:
        """Drop all that was compiled."""
        for sweep, chunks in zip(self.blocks, self.chunks, strict=True):
            for executable in (*sweep, *(c for c in chunks if c is not None)):
                executable.run.forget()

    @functools.cached_property
    def shared(self) -> list[SharedExecutable]:
        """The work before each sweep, and after the last."""
        found = []
        for number, operations in enumerate(self.streamed.shared):
            made = dict.fromkeys(x for w in operations for x in w.outputs)
            later = self._read_after(number)
            found.append(SharedExecutable(operations, tuple(x for x in made if x in later)))
        return found

    def _read_after(self, number: int) -> set[Any]:
        """What is read by sweeps from this one on, or by later shared work, or is a result."""
        found: set[Any] = set(self.streamed.function.outputs)
        for operations in self.streamed.shared[number + 1 :]:
            found.update(x for w in operations for x in w.inputs)
        for blocks, chunks in zip(self.blocks[number:], self.chunks[number:], strict=True):
            for executable in blocks:
                found.update(executable.shared)
                found.update(x for w in executable.totals for x in w.inputs)
            for chunk in chunks:
                found.update(chunk.shared if chunk else ())
        return found


def _crossing(sweep: Sweep) -> set[Array]:
    """What one stage makes and a later one reads, without being stored."""
    made: set[Array] = set()
    found: set[Array] = set()
    before: Sequence[Gather] = ()
    for operations, gathers in sweep.stages:
        found |= {x for w in operations for x in w.inputs if isinstance(x, Array) and x in made}
        made |= {x for w in (*operations, *before) for x in w.outputs} - {*sweep.stores}
        before = gathers
    return found


Order = Callable[[int, int], Sequence[int]]
"""The order of the other blocks in a block of a sweep: those that share edges with it."""


def steps_of(executables: Executables, blocks: range, slices: int, order: Order) -> Iterator[Step]:
    """All operations of these blocks in order, with blocks in so many slices. Each sweep begins
    with the block with which the one before it ended: what that has left there may still be on the
    device."""
    for s, sweep in enumerate(executables.sweeps):
        for block in blocks[:: -1 if s % 2 else 1]:
            if sweep.rows is Rows.EDGE:
                yield from (Step("edges", s, 0, block, other) for other in order(s, block))
                continue
            for k in range(len(sweep.stages)):
                yield from _stage(executables, s, k, block, slices)
                yield from _chunks(executables, s, k, block, order(s, block))


def _stage(
    executables: Executables, sweep: int, stage: int, block: int, slices: int
) -> Iterator[Step]:
    executable = executables.blocks[sweep][stage]
    stores = set(executables.sweeps[sweep].stores)
    kept = stores | set(executables.sweeps[sweep].loads)
    slices = 1 if executable.idle else slices
    for part in range(slices):
        at, last = part if slices > 1 else -1, part == slices - 1

        def tensor(x: Array, at: int = at) -> Tensor:
            return Tensor(x, block, -1 if x in executables.whole else at)

        inputs = tuple(tensor(x) for x in executable.rows if x in kept)
        made = [
            x for x in executable.outputs if x in stores and (last or x not in executables.whole)
        ]
        outputs = tuple(map(tensor, made))
        yield Step("block", sweep, stage, block, part=at, last=last, inputs=inputs, outputs=outputs)


def _chunks(
    executables: Executables, sweep: int, stage: int, block: int, others: Sequence[int]
) -> Iterator[Step]:
    executable = executables.chunks[sweep][stage]
    if executable is None:
        return
    kept = {*executables.sweeps[sweep].loads, *executables.sweeps[sweep].stores}
    mine = tuple(Tensor(x, block) for x in executable.own if x in kept)
    for at, other in enumerate(others):
        theirs = tuple(Tensor(x, other) for x in executable.other)
        partial = theirs if set(mine).isdisjoint(theirs) else ()
        yield Step(
            "chunk", sweep, stage, block, other, first=at == 0, inputs=(*mine, *theirs),
            partial=partial,
        )  # fmt: skip


def serpentine(counts: np.ndarray, sides: Sequence[Sweep]) -> Order:
    """Blocks that share edges, forth and back by turns, so that what was read last is read next; in
    a sweep that goes back through the blocks, back at first."""
    last = len(counts) - 1

    def order(sweep: int, block: int) -> Sequence[int]:
        by_column = sides[sweep].side != "src"
        edges = counts[:, block] if by_column else counts[block]
        some = np.flatnonzero(edges).tolist()
        back = (1 + last - block) % 2 if sweep % 2 else block % 2
        return some[::-1] if back else some

    return order


def upcoming(executables: Executables, steps: Sequence[Step]) -> list[int | None]:
    """For each step the next one that has something to do: its loads begin meanwhile."""
    found: list[int | None] = []
    after = None
    for at in reversed(range(len(steps))):
        found.append(after)
        step = steps[at]
        if step.kind != "block" or not executables.blocks[step.sweep][step.stage].idle:
            after = at
    return found[::-1]


def cell(executables: Executables, step: Step) -> tuple[int, int]:
    """Row and column of a chunk in the grid."""
    by_column = executables.sweeps[step.sweep].side != "src"
    return (step.other, step.block) if by_column else (step.block, step.other)
