"""Pieces of edges, collected in memory or on the way to a store."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np

from gnnjit.data.reading.edge_list import EdgeList
from gnnjit.data.reading.numbering import MOST, Numbering
from gnnjit.data.reading.streams import Watch
from gnnjit.errors import DataError
from gnnjit.shapes import HostArray
from gnnjit.store.disk import DiskStore
from gnnjit.store.store import VertexStore

PIECE = 1 << 20
"""Edges that are moved to a store at once."""
DTYPES = {"weight": np.dtype(np.float32)}
"""Of columns whose numbers are narrower than as they are read."""


class Collector:
    """Takes the pieces of a source, and makes an `EdgeList` of them.

    With `num_nodes`, ids are numbers from `first` on, and `ids` what the vertices are called.
    With `bipartite` sources and destinations are numbered apart, sources first.
    With `both` each edge goes both ways, a self loop once. With a store, pieces are kept in
    temporary files until the edges are counted and the vertices numbered; memory holds a piece, and
    what `Numbering` does.
    """

    def __init__(
        self,
        where: str,
        *,
        text: bool,
        first: int = 0,
        num_nodes: int | None = None,
        ids: HostArray | None = None,
        both: bool = False,
        bipartite: bool = False,
        store: VertexStore | None = None,
    ) -> None:
        self._where, self._first, self._num_nodes = where, first, num_nodes
        self._ids, self._both = ids, both
        if bipartite and (both or num_nodes is not None):
            raise DataError(
                f"{where}: bipartite=True numbers sources and destinations apart, expected it "
                "without undirected and num_nodes."
            )
        self._destinations = Numbering(where, text=text) if bipartite else None
        self._numbering = None if num_nodes is not None else Numbering(where, text=text)
        self._store = store
        self._columns: dict[str, Any] = {}
        self._files = ExitStack()
        self.rows = self.given = 0

    def add(self, ends: HostArray, columns: Mapping[str, HostArray]) -> None:
        """`ends` [rows, 2]: ids, int64 or bytes. Columns: [rows] each, the same in every piece.

        Raises DataError for an id that is out of range, where the vertices are counted before.
        """
        if self._numbering is None:
            numbers = self._as_they_are(ends)
        elif self._destinations is not None:
            sides = self._numbering, self._destinations
            each = [side.number(ends[:, i : i + 1]) for i, side in enumerate(sides)]
            numbers = np.concatenate(each, axis=1)
        else:
            numbers = self._numbering.number(ends)
        if self._both:
            other = np.flatnonzero(numbers[:, 0] != numbers[:, 1])
            numbers = np.concatenate([numbers, numbers[other, ::-1]])
            columns = {k: np.concatenate([c, c[other]]) for k, c in columns.items()}
        self._keep("src", numbers[:, 0])
        self._keep("dst", numbers[:, 1])
        for name, column in columns.items():
            self._keep(name, column.astype(DTYPES.get(name, column.dtype)))
        self.rows += len(numbers)
        self.given += len(ends)

    def _as_they_are(self, ends: HostArray) -> HostArray:
        assert self._num_nodes is not None
        last = self._first + self._num_nodes - 1
        bad = (ends < self._first) | (ends > last)
        if bad.any():
            row, side = (int(i) for i in np.argwhere(bad)[0])
            raise DataError(
                f"{self._where}: edge {self.rows + row} has the vertex {ends[row, side]}, expected "
                f"{self._first} to {last}, by the {self._num_nodes} vertices that there are."
            )
        return (ends - self._first).astype(np.int32)

    def _keep(self, name: str, column: HostArray) -> None:
        column = np.ascontiguousarray(column)
        if self._store is None:
            self._columns.setdefault(name, []).append(column)
            return
        if name not in self._columns:
            folder = self._store.folder if isinstance(self._store, DiskStore) else None
            file = self._files.enter_context(tempfile.TemporaryFile(dir=folder))
            self._columns[name] = (file, column.dtype)
        self._columns[name][0].write(column.data)

    def finish(
        self, name: str, report: tuple[str, ...], watch: Watch, nodes: Mapping[str, Any]
    ) -> EdgeList:
        """The edges of all pieces, in a store as `edge.src`, `edge.dst` and `edge.NAME`; what has
        eight bytes there is int32 [E, 2].

        Raises DataError where there are too many, StoreError for what the store refuses.
        """
        if self.rows > MOST:
            raise DataError(f"{self._where}: has {self.rows:,} edges, expected at most {MOST:,}.")
        tables: dict[str, HostArray | None] = {}
        ids, count, sources = self._ids, self._num_nodes or 0, None
        if self._numbering is not None:
            tables["src"], ids, count = self._numbering.finish()
            tables["dst"] = tables["src"]
        if self._destinations is not None:
            table, others, more = self._destinations.finish()
            sources, count = count, count + more
            tables["dst"] = sources + (np.arange(more, dtype=np.int32) if table is None else table)
            ids = _joined(ids, sources, others, more)
        if ids is not None and self._ids is None:
            report = (*report, f"vertices renumbered from 0 to {count - 1}")
        with self._files:
            columns = {key: self._whole(key, tables.get(key), watch) for key in self._columns}
        empty = np.zeros(0, np.int32)
        src, dst = (columns.pop(side, empty) for side in ("src", "dst"))
        return EdgeList(name, src, dst, count, ids, columns, nodes, report, sources)

    def _whole(self, name: str, table: HostArray | None, watch: Watch) -> HostArray:
        if self._store is None:
            column = np.concatenate(self._columns[name])
            self._columns[name] = []  # one column is in memory twice, and not all of them
            return column if table is None else table[column]
        file, dtype = self._columns[name]
        key, store = f"edge.{name}", self._store
        wide = dtype.itemsize // 4  # a store has numbers of four bytes
        narrow = np.dtype(np.int32) if wide > 1 else dtype
        store.add(key, self.rows, (wide,) if wide > 1 else (), narrow)
        file.seek(0)
        for start in range(0, self.rows, PIECE):
            stop = min(start + PIECE, self.rows)
            rows = np.frombuffer(file.read((stop - start) * dtype.itemsize), dtype)
            rows = rows if table is None else table[rows.astype(np.int64)]
            store.write(key, start, rows.view(narrow).reshape(-1, wide) if wide > 1 else rows)
            watch(f"storing {name}", stop, self.rows)
        store.seal(key)
        found = store.map(key) if isinstance(store, DiskStore) else store.read(key, 0, self.rows)
        return found.view(dtype)[:, 0] if wide > 1 else found


def _joined(
    ids: HostArray | None, sources: int, others: HostArray | None, destinations: int
) -> HostArray:
    """The ids of sources, then those of destinations."""
    first = np.arange(sources) if ids is None else ids
    return np.concatenate([first, np.arange(destinations) if others is None else others])
