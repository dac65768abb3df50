"""The memory of a GPU, as far as kernels may rely on it.

What is undefined there raises a `Fault`: see `ttir.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


class Fault(Exception):
    """What no kernel may do."""


class Buffer:
    """An array in the device's memory.

    unwritten: `bool[size]`, the elements of an output that no launch has written yet.
    """

    def __init__(self, name: str, data: np.ndarray, output: bool, unwritten: Any = None):
        self.name, self.output, self.dtype, self.size = name, output, data.dtype, data.size
        self.data = data.reshape(-1)
        self.unwritten = np.zeros(self.size if output else 0, bool)
        if unwritten is not None:
            self.unwritten = unwritten.reshape(-1).copy()
        self.writer = np.full(self.size if output else 0, NOBODY, np.int64)
        self.reader = self.writer.copy()

    def load(self, at: np.ndarray, program: np.ndarray) -> np.ndarray:
        self._inside(at, program, "loads")
        if self.output:
            self._deny(self.unwritten[at], at, program, "loads, before anything wrote it,")
            foreign = (self.writer[at] != NOBODY) & (self.writer[at] != program)
            self._deny(foreign, at, program, "loads, while another program writes it,")
            mixed = (self.reader[at] != NOBODY) & (self.reader[at] != program)
            self.reader[at] = np.where(mixed, SEVERAL, program)
        return self.data[at]

    def store(self, at: np.ndarray, program: np.ndarray, value: np.ndarray) -> None:
        self._inside(at, program, "stores")
        self._deny(np.full(at.shape, not self.output), at, program, "stores into an operand:")
        order = np.argsort(at, kind="stable")
        twice = np.zeros(at.shape, bool)
        twice[order[1:]] = at[order[1:]] == at[order[:-1]]
        twice |= self.writer[at] != NOBODY
        self._deny(twice, at, program, "stores, as another program or lane does,")
        foreign = (self.reader[at] != NOBODY) & (self.reader[at] != program)
        self._deny(foreign, at, program, "stores, while another program reads it,")
        self.writer[at] = program
        self.unwritten[at] = False
        self.data[at] = value

    def _inside(self, at: np.ndarray, program: np.ndarray, does: str) -> None:
        self._deny((at < 0) | (at >= self.size), at, program, f"{does} outside its {self.size}:")

    def _deny(self, wrong: np.ndarray, at: np.ndarray, program: np.ndarray, does: str) -> None:
        if wrong.any():
            k = int(np.argmax(wrong))
            raise Fault(f"{self.name}: program {program[k]} {does} element {at[k]}")


NOBODY, SEVERAL = -1, -2


class Virtual(Buffer):
    """An array that is not held: its elements are computed where they are read, and those that are
    written are kept."""

    def __init__(self, name: str, size: int, dtype: Any, content: Callable[..., Any] | None):
        super().__init__(name, np.zeros(0, dtype), False)
        self.size, self.content, self.output = size, content, content is None
        self.stored: dict[int, Any] = {}

    def load(self, at: np.ndarray, program: np.ndarray) -> np.ndarray:
        self._inside(at, program, "loads")
        assert self.content is not None, f"{self.name} is read"
        return np.asarray(self.content(at)).astype(self.dtype)

    def store(self, at: np.ndarray, program: np.ndarray, value: np.ndarray) -> None:
        self._inside(at, program, "stores")
        twice = np.array([k in self.stored for k in at.tolist()], bool)
        twice |= len(np.unique(at)) != at.size
        self._deny(twice, at, program, "stores, as another program or lane does,")
        self.stored.update(zip(at.tolist(), value.tolist(), strict=True))


def poison(dtype: Any) -> Any:
    """What unwritten memory holds: NaN, or a number far from all others."""
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        return np.asarray(np.iinfo(dtype).max // 3, dtype)
    return np.asarray(True, dtype) if dtype.kind == "b" else np.asarray(np.nan, dtype)
