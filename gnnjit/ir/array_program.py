"""The program of a function of whole arrays: straight-line equations on rows of vertices and edges.

A layer's program (`gnnjit.ir.program`) says what one element does; this one, what all of them do.
Arrays are compared by identity (each is assigned once).
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping
from typing import Any

import numpy as np


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
        """The program with the equations that an output depends on alone."""
        wanted: set[Operand] = set(self.outputs)
        kept: list[ArrayEquation] = []
        for eqn in reversed(self.equations):
            if not wanted.isdisjoint(eqn.outputs):
                wanted.update(eqn.inputs)
                kept.append(eqn)
        return dataclasses.replace(self, equations=tuple(reversed(kept)))
