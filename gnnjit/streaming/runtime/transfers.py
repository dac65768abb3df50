"""From the store to the device and back: blocks of rows, chunks of edges."""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from gnnjit.ir.array_program import Array, Rows
from gnnjit.store.array_info import aligned
from gnnjit.store.store import VertexStore
from gnnjit.streaming.grid.blocks import EdgeBlocks
from gnnjit.streaming.memory.layout import Layout
from gnnjit.streaming.memory.zero_copy import is_zero_copy, shares_memory
from gnnjit.streaming.program.steps import Executables, Step, Tensor, cell, room


def at_once(fn: Callable[..., Any], *args: Any) -> concurrent.futures.Future[Any]:
    done: concurrent.futures.Future[Any] = concurrent.futures.Future()
    try:
        done.set_result(fn(*args))
    except BaseException as error:
        done.set_exception(error)
    return done


class Mover:
    """The thread that moves data, in order; or no thread, where nothing is to overlap."""

    def __init__(self, overlapped: bool) -> None:
        self._pool = None
        if overlapped:
            self._pool = concurrent.futures.ThreadPoolExecutor(1, "gnnjit-mover")

    def submit(self, fn: Callable[..., Any], *args: Any) -> concurrent.futures.Future[Any]:
        return at_once(fn, *args) if self._pool is None else self._pool.submit(fn, *args)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


@dataclasses.dataclass(frozen=True, eq=False)
class Data:
    """Where a run's arrays are.

    Attributes:
        store: of the graph.
        edges: its chunks.
        names: of arrays of vertices in the store, results and temporary ones too.
        versions: of those that are arguments.
        vertex: the array that tells the user's number of each vertex; None for their own order.
        held: what stays on the device between runs, by what it is.
    """

    store: VertexStore
    edges: EdgeBlocks
    names: Mapping[Array, str]
    versions: Mapping[Array, int]
    vertex: str | None
    held: dict[Any, Any]


@dataclasses.dataclass(frozen=True)
class LoadedEdges:
    """What a chunk needs from the host."""

    indptr: Any
    neighbor: Any
    numbers: Any
    edges: list[Any]
    other: list[Any] | None


class Loader:
    """The host's side of a run. `moved`: bytes by cause; `zero_copy`: those of them that were not
    copied; `took`: seconds by what was loaded for."""

    def __init__(self, executables: Executables, layout: Layout, data: Data) -> None:
        self.executables, self.layout, self.data = executables, layout, data
        self.bounds = data.edges.bounds
        self.rows, self.slice = layout.rows, layout.rows // layout.slices
        self.moved: collections.Counter[str] = collections.Counter()
        self.took: dict[str, float] = collections.defaultdict(float)
        self.zero_copy = 0
        self._counting = threading.Lock()  # two threads load: the mover, and who finds rows there

    def range(self, block: int, part: int) -> tuple[int, int]:
        """The first row, and the one after the last, of a block or a slice of it."""
        start, stop = map(int, self.bounds[block : block + 2])
        if part < 0:
            return start, stop
        return min(start + part * self.slice, stop), min(start + (part + 1) * self.slice, stop)

    def index(self, start: int, stop: int, size: int) -> np.ndarray:
        """The user's numbers of some rows."""
        index = np.zeros(size, np.int32)
        if self.data.vertex is None:
            index[: stop - start] = np.arange(start, stop, dtype=np.int32)
        elif stop > start:
            self.data.store.read(self.data.vertex, start, stop, index[: stop - start])
        return index

    def let_go(self) -> int:
        """Drop what other functions of the graph hold, as far as this one needs the room; the bytes
        of what stays."""
        held = self.data.held
        wanted = {self.held_key(x) for x in self.layout.held}
        others = {k: _nbytes(v) for k, v in held.items() if k not in wanted}
        room = self.layout.capacity - self.layout.peak_bytes
        while others and sum(others.values()) > room:
            key, _ = others.popitem()
            del held[key]
        return sum(others.values())

    def held_key(self, x: Any) -> Any:
        """What tells a tensor or a chunk apart from all others that may be held."""
        parts = self.data.edges.num_parts
        if isinstance(x, Tensor):
            name = self.data.names[x.array]
            version = self.data.versions.get(x.array, 0)
            return parts, self.rows, self.slice, name, version, x.block, x.part
        return parts, self.rows, *x

    def is_zero_copy(self, t: Tensor) -> bool:
        """Whether the rows of a tensor need not be loaded ahead."""
        return is_zero_copy(self.data.store, t.array, self._size(t))

    def waits(self, t: Tensor) -> bool:
        """Whether such rows are better expected than waited for."""
        return self.data.store.waits(*self._place(t))

    def expect(self, t: Tensor) -> None:
        """Say that such rows will be used."""
        self.data.store.expect(*self._place(t))

    def _place(self, t: Tensor) -> tuple[str, int, int]:
        start, _ = self.range(t.block, t.part)
        return self.data.names[t.array], start, start + self._size(t)

    def _size(self, t: Tensor) -> int:
        return self.rows if t.part < 0 else self.slice

    def tensor(self, t: Tensor, cause: str, step: str) -> Any:
        """Rows for an operation: on the device, or where they lie, which is an array of NumPy that
        an executable takes as it is."""
        began = time.perf_counter()
        start, stop = self.range(t.block, t.part)
        size = self._size(t)
        rows = None if cause == "held" else self._zero_copy(t.array, start, stop, size)
        if rows is None:
            rows = aligned((size, *t.array.shape), t.array.dtype)
            self.data.store.read(self.data.names[t.array], start, stop, rows[: stop - start])
            rows[stop - start :] = 0
            rows = _on_device(rows)
        self._count(cause, rows.nbytes, f"load {step}", began)
        return rows

    def _zero_copy(self, x: Array, start: int, stop: int, size: int) -> np.ndarray | None:
        """Rows where they lie in the store, where the device reads the host's memory: nothing
        writes them while an operation of this run reads them. Behind the rows of a block, whatever
        is there stands for its padding."""
        if not shares_memory(x, size):
            return None
        rows = self.data.store.view(self.data.names[x], start, start + size, until=stop)
        with self._counting:
            self.zero_copy += 0 if rows is None else rows.nbytes
        return rows

    def holds(self, step: Step, selected: bool) -> bool:
        """Whether all that a chunk needs from the host stays on the device between calls."""
        return not selected and self._held(step) is not None

    def _held(self, step: Step) -> tuple[Any, Any, Any] | None:
        """The edges of a chunk that stay on the device, if the chunk needs nothing else of them."""
        executable = self.executables.chunks[step.sweep][step.stage]
        assert executable is not None
        held = self.data.held.get(self.held_key((executable.side, *cell(self.executables, step))))
        if held is None or executable.edge_loads or (executable.numbered and held[2] is None):
            return None
        return held

    def chunk(self, step: Step, selected: bool) -> LoadedEdges:
        began = time.perf_counter()
        executable = self.executables.chunks[step.sweep][step.stage]
        assert executable is not None
        side, (i, j) = executable.side, cell(self.executables, step)
        edges, key = self.data.edges, self.held_key((side, i, j))
        count = int(edges.counts[i, j])
        slots, other, rows, position = int(edges.slots[i, j]), None, [], None
        held = self._held(step)
        if held is None:
            wanted = side == "src" and bool(executable.edge_loads or executable.numbered)
            chunk = edges.load(i, j, side, positions=wanted, rows=self.rows, slots=slots)
            position = chunk.position
            numbers = None
            if executable.numbered:
                numbers = edges.numbers(i, j)
                numbers = padded(numbers if position is None else numbers[position], slots)
            found = chunk.indptr, chunk.neighbor, numbers
            self._count("edges", sum(0 if x is None else x.nbytes for x in found))
            indptr, neighbor, numbers = (None if x is None else _on_device(x) for x in found)
            held = indptr, neighbor, numbers
            if (side, i, j) in self.layout.held:
                self.data.held[key] = held
        indptr, neighbor, numbers = held
        if selected:
            used, neighbor = _compact(np.asarray(neighbor)[:count], self.rows)
            first = int(self.bounds[step.other])
            other = [self._gathered(x, first, used) for x in executable.other]
            neighbor = _on_device(padded(neighbor, slots))
        start, stop = edges.edge_range(i, j)
        for x in executable.edge_loads:
            data = self.edge_rows(x, start, stop, stop - start)
            rows.append(padded(data if position is None else data[position], slots))
            self._count("edges", rows[-1].nbytes)
        self._count("edges", 0, f"load {step.name}", began)
        return LoadedEdges(indptr, neighbor, numbers if executable.numbered else None, rows, other)

    def edge_rows(self, x: Array, start: int, stop: int, slots: int) -> np.ndarray:
        return padded(self.data.store.read(self.data.names[x], start, stop), slots)

    def _gathered(self, x: Array, first: int, used: np.ndarray) -> Any:
        rows = aligned((room(len(used)), *x.shape), x.dtype)
        rows[: len(used)] = self.data.store.gather(self.data.names[x], first + used)
        rows[len(used) :] = 0
        self._count("selected rows", rows[: len(used)].nbytes)
        return _on_device(rows)

    def write(self, x: Array, start: int, rows: jax.Array, count: int) -> None:
        """Set so many rows of an array in the store, as soon as they are there: by handing them
        over, where the store takes them and the device's memory is the host's."""
        found, store, name = np.asarray(rows), self.data.store, self.data.names[x]
        own = x.rows is Rows.VERTEX and shares_memory(x, len(found))
        if not (own and store.keep(name, start, found, count)):
            store.write(name, start, found[:count])
        self._count("stored", found[:count].nbytes)

    def _count(self, cause: str, moved: int, job: str = "", began: float = 0.0) -> None:
        with self._counting:
            self.moved[cause] += moved
            if job:
                self.took[job] += time.perf_counter() - began


def _nbytes(arrays: Any) -> int:
    return sum(x.nbytes for x in jax.tree.leaves(arrays))


def _on_device(array: np.ndarray) -> Any:
    return jax.device_put(array)


def padded(rows: np.ndarray, count: int) -> np.ndarray:
    out = aligned((count, *rows.shape[1:]), rows.dtype)
    out[: len(rows)] = rows
    out[len(rows) :] = 0
    return out


def _compact(neighbor: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows in use, and the neighbours as numbers among them."""
    used = np.zeros(rows, bool)
    used[neighbor] = True
    found = np.flatnonzero(used).astype(np.int32)
    number = np.zeros(rows, np.int32)
    number[found] = np.arange(len(found), dtype=np.int32)
    return found, number[neighbor]
