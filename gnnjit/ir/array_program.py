"""The program of a function of whole arrays: straight-line equations on rows of vertices and edges.

A layer's program (`gnnjit.ir.program`) says what one element does; this one, what all of them do.
Arrays are compared by identity (each is assigned once).
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gnnjit.ir.program import Aggregate


class Rows(enum.Enum):
    """What an array has one row each of, along one of its axes."""

    VERTEX = "vertices"
    EDGE = "edges"


@dataclasses.dataclass(frozen=True, eq=False)
class Array:
    """An array of the function.

    shape: of one row, where `rows` is set; else the whole shape.
    axis: of the user's array, along which the rows lie.
    """

    shape: tuple[int, ...]
    dtype: Any
    rows: Rows | None
    axis: int = 0

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, or of the whole array if it has no rows."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        sizes = [*map(str, self.shape)]
        if self.rows is not None:
            sizes.insert(self.axis, self.rows.value)
        return f"{self.dtype}[{', '.join(sizes)}]"


@dataclasses.dataclass(frozen=True, eq=False)
class Constant:
    """A scalar that stands in the code."""

    value: Any
    dtype: Any
    shape: tuple[int, ...] = ()
    rows: None = None


Operand = Array | Constant


@dataclasses.dataclass(frozen=True, eq=False)
class ArrayEquation:
    """`outputs = primitive(inputs; params)`, written by the user at `where`."""

    primitive: Any
    params: Mapping[str, Any]
    inputs: tuple[Operand, ...]
    outputs: tuple[Array, ...]
    where: str

    @property
    def name(self) -> str:
        return self.primitive.name

    def select(self, read: Sequence[int]) -> ArrayEquation:
        """An aggregate with these outputs alone, the scores that they refer to, and the operands
        that all these read; any other equation as it is."""
        if self.name != "aggregate":
            return self
        whole = Aggregate(self.params["body"], self.params["reductions"])
        op, outputs, slots = whole.select(read)
        first = len(self.inputs) - len(whole.body.inputs)  # those before are the graph's
        return dataclasses.replace(
            self,
            params={**self.params, "body": op.body, "reductions": op.reductions},
            inputs=(*self.inputs[:first], *(self.inputs[first + i] for i in slots)),
            outputs=tuple(self.outputs[k] for k in outputs),
        )


@dataclasses.dataclass(frozen=True, eq=False)
class ArrayProgram:
    """Inputs, equations in order, outputs.

    constants: arrays that the function closed over.
    """

    inputs: tuple[Array, ...]
    constants: tuple[tuple[Array, Any], ...]
    equations: tuple[ArrayEquation, ...]
    outputs: tuple[Operand, ...]

    def without_unread(self) -> ArrayProgram:
        """Without the equations, and the outputs of aggregates, that no result depends on."""
        wanted: set[Operand] = set(self.outputs)
        kept: list[ArrayEquation] = []
        for eqn in reversed(self.equations):
            read = [k for k, x in enumerate(eqn.outputs) if x in wanted]
            if read:
                kept.append(eqn.select(read))
                wanted.update(kept[-1].inputs)
        return dataclasses.replace(self, equations=tuple(reversed(kept)))
