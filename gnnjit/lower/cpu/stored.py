"""Values of one edge in memory: those with too many scalars to be written out."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from llvmlite import ir

from gnnjit.ir.program import Atom, Value
from gnnjit.lower.cpu.control_flow import Block, Emitter
from gnnjit.lower.cpu.math_rules import ELEMENTWISE
from gnnjit.lower.cpu.matvec import register_dtype
from gnnjit.lower.cpu.simd import I64, Vec

WRITTEN_OUT = 4
"""Vectors of a value that is written out at most."""


@dataclasses.dataclass(frozen=True)
class Stored:
    """A value in memory, its scalars one after the other, each of the dtype `kind`. `block`: the
    memory that it, or what it is a part of, has taken (`scratch`)."""

    pointer: ir.Value
    dtype: np.dtype
    kind: np.dtype
    size: int
    block: Block | None = None

    def load(self, m: Emitter, at: ir.Value, width: int) -> Vec:
        """The scalars `at .. at + width`."""
        pointer = m.offset(self.pointer, at, self.kind.itemsize)
        found = m.load(pointer, self.kind, np.arange(width))
        return Vec(self.dtype, width, found.chunks)

    def store(self, m: Emitter, vec: Vec, at: ir.Value, *, past_caches: bool = False) -> None:
        pointer = m.offset(self.pointer, at, self.kind.itemsize)
        vec = Vec(self.kind, vec.size, vec.chunks)
        m.store(vec, pointer, np.arange(vec.size), past_caches=past_caches)

    def part(self, m: Emitter, start: int, size: int | None = None) -> Stored:
        """The scalars from a place on."""
        pointer = m.offset(self.pointer, start * self.kind.itemsize, 1)
        return dataclasses.replace(self, pointer=pointer, size=size or self.size - start)

    def whole(self, m: Emitter) -> Vec:
        return self.load(m, I64(0), self.size)


Env = dict[Value, Vec | Stored]


def is_looped(lanes: int, size: int) -> bool:
    """Whether values of so many scalars are computed in loops. `lanes`: of a vector."""
    return size > WRITTEN_OUT * lanes


_LOOPS = ELEMENTWISE | frozenset(
    "broadcast_in_dim concatenate dot_general expand_dims reduce_max reduce_min reduce_sum reshape "
    "slice split squeeze".split()
)
"""Operations that are loops where they make many scalars (`vector_loops`)."""


def has_loop(name: str, lanes: int, size: int) -> bool:
    """Whether an operation that makes so many scalars is a loop."""
    return name in _LOOPS and is_looped(lanes, size)


def scratch(m: Emitter, value: Atom) -> Stored:
    """Memory on the stack for a value as it is in registers."""
    kind, size = register_dtype(value.dtype), math.prod(value.shape)
    return on_stack(m, value.dtype, kind, size)


def on_stack(m: Emitter, dtype: np.dtype, kind: np.dtype, size: int) -> Stored:
    """Memory on the stack for so many scalars of `dtype`, each held as `kind`."""
    block = m.take_block(-(-size * kind.itemsize // 8))
    return Stored(block.pointer, dtype, kind, size, block)
