"""Handles of the arrays of a streamed graph: what streamed functions take and give."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, ClassVar, Protocol

import numpy as np

from gnnjit.ir.array_program import Rows
from gnnjit.shapes import HostArray
from gnnjit.store.store import VertexStore
from gnnjit.streaming.grid.blocks import EdgeBlocks


class Owner(Protocol):
    """What an array needs of its graph, a `StreamedGraph`."""

    store: VertexStore
    unwanted: list[str]

    def num_rows(self, of: Rows) -> int: ...

    def numbers(self, start: int, stop: int) -> HostArray: ...

    def pieces(self, row_bytes: int, of: Rows) -> Iterator[tuple[int, int]]: ...

    def blocks(self, parts: int) -> EdgeBlocks: ...


class RowArray:
    """Rows in the store of a graph. `numpy.asarray` reads all of them, in the user's order."""

    rows: ClassVar[Rows]

    def __init__(
        self,
        graph: Owner,
        name: str,
        shape: tuple[int, ...],
        dtype: Any,
        *,
        version: int = 0,
        owned: bool = False,
    ) -> None:
        """Made by a graph. `shape`: of a row. `version` tells arrays apart that had one name after
        each other; `owned`: the rows are forgotten with this handle."""
        self.graph, self.name, self.version = graph, name, version
        self.shape = (graph.num_rows(self.rows), *shape)
        self.dtype = np.dtype(dtype)
        if owned:
            weakref.finalize(self, graph.unwanted.append, name)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> HostArray:
        out = np.empty(self.shape, self.dtype)
        for start, stop in self.graph.pieces(out[:1].nbytes, self.rows):
            out[self._numbers(start, stop)] = self.graph.store.read(self.name, start, stop)
        return out if dtype is None else out.astype(dtype, copy=False)

    def _numbers(self, start: int, stop: int) -> HostArray:
        """The user's numbers of some rows of the store."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}: {self.dtype}{list(self.shape)})"


class VertexArray(RowArray):
    """Rows of vertices in the store of a graph, `[N, *shape]`: a value for streamed functions.

    `numpy.asarray` reads all of it, in the user's order of the vertices.
    """

    rows = Rows.VERTEX

    def _numbers(self, start: int, stop: int) -> HostArray:
        return self.graph.numbers(start, stop)


class EdgeArray(RowArray):
    """Rows of edges in the store of a graph, `[E, *shape]`: a value for streamed functions.

    `numpy.asarray` reads all of it, in the user's order of the edges. The rows in the store have
    that order too where `parts` is None. Otherwise a streamed function has left them in the order
    of its grid of `parts` blocks.
    """

    rows = Rows.EDGE

    def __init__(self, *args: Any, parts: int | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.parts = parts

    def _numbers(self, start: int, stop: int) -> HostArray:
        if self.parts is None:
            return np.arange(start, stop, dtype=np.int32)
        return self.graph.blocks(self.parts).numbers_between(start, stop)
