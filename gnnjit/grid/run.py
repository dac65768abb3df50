"""Running a streamed function: block by block, with transfers beside the computation.

One thread moves data between the store and the device, in order; the main thread computes. The
memory plan says what is loaded, stored and dropped around each operation; the loads of the next
operation begin while this one runs (NeuGraph, section 3.2: double buffering).
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from gnnjit.allocator import trim
from gnnjit.frontend.whole import Array, Constant, Rows
from gnnjit.grid.blocks import EdgeBlocks
from gnnjit.grid.fit import Fit, cell
from gnnjit.grid.pieces import empty, finish, finished_total, neutral_totals
from gnnjit.grid.script import Pieces, Step, Tensor, room
from gnnjit.grid.store import VertexStore

ALIGNED = 64
"""Bytes at a multiple of which JAX takes a host buffer on a CPU as it is, without a copy."""

def aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An uninitialised array that JAX need not copy."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.empty(size + ALIGNED, np.uint8)
    start = -raw.ctypes.data % ALIGNED
    return raw[start : start + size].view(dtype).reshape(shape)


@dataclasses.dataclass
class Traffic:
    """What one run moved and how long it took.

    moved: bytes by cause: "own rows", "other rows", "selected rows", "edges", "stored".
    seconds: by sweep; in all.
    jobs: seconds of each operation, by its name ("load NAME": of what is loaded for it).
    waited: seconds in which the computation waited for what was being loaded.
    """

    moved: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    sweeps: list[float] = dataclasses.field(default_factory=list)
    jobs: dict[str, float] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    waited: float = 0.0

    @property
    def bytes(self) -> int:
        """Of all transfers."""
        return sum(self.moved.values())


class Mover:
    """The thread that moves data, in order; or no thread, where nothing is to overlap."""

    def __init__(self, overlapped: bool) -> None:
        self._pool = None
        if overlapped:
            self._pool = concurrent.futures.ThreadPoolExecutor(1, "gnnjit-mover")

    def submit(self, fn: Callable[..., Any], *args: Any) -> concurrent.futures.Future[Any]:
        if self._pool is not None:
            return self._pool.submit(fn, *args)
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        try:
            done.set_result(fn(*args))
        except BaseException as error:
            done.set_exception(error)
        return done

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
class _Loaded:
    """What a chunk needs from the host."""

    indptr: Any
    neighbor: Any
    numbers: Any
    edges: list[Any]
    other: list[Any] | None


class Run:
    """One call of a streamed function."""

    def __init__(
        self, pieces: Pieces, script: Fit, data: Data, shared: dict[Array, Any], overlapped: bool
    ) -> None:
        self.pieces, self.script, self.data = pieces, script, data
        self.env = shared
        self.overlapped = overlapped
        self.bounds = data.edges.bounds
        self.rows, self.slice = script.rows, script.rows // script.slices
        self.tensors = {name: t for t, name in script.names.items()}
        self.device: dict[Tensor, Any] = {}
        self.loading: dict[Tensor, concurrent.futures.Future[Any]] = {}
        self.chunks: dict[str, concurrent.futures.Future[Any]] = {}
        self.writes: list[concurrent.futures.Future[Any]] = []
        self.traffic = Traffic()
        self.took: dict[str, float] = collections.defaultdict(float)
        self._let_go()

    def __call__(self, watch: Callable[[int, int], None] | None = None) -> Traffic:
        """Run all sweeps; shared results are in `env`, others in the store."""
        started = time.perf_counter()
        self.mover = Mover(self.overlapped)
        try:
            for number in range(len(self.pieces.sweeps)):
                self._shared(number)
                begun = time.perf_counter()
                self._sweep(number, watch)
                self.traffic.sweeps.append(time.perf_counter() - begun)
            self._shared(len(self.pieces.sweeps))
            self._written()
        finally:
            self.mover.close()
        if self.script.process:
            trim()
        self.traffic.seconds = time.perf_counter() - started
        self.traffic.jobs = dict(self.took)
        return self.traffic

    # ---------------------------------------------------------------------------------- sweeps

    def _shared(self, number: int) -> None:
        piece = self.pieces.shared[number]
        if piece.works:
            values = piece.run([self.env[x] for x in piece.inputs])
            self.env.update(zip(piece.outputs, values, strict=True))

    def _sweep(self, number: int, watch: Callable[[int, int], None] | None) -> None:
        steps = [i for i, s in enumerate(self.script.steps) if s.sweep == number]
        totals: dict[int, Any] = {}
        sums: dict[Any, Any] = {}
        local: dict[Array, Any] = {}
        partial: list[Any] = []
        for at in steps:
            step = self.script.steps[at]
            if step.kind == "block" and step.stage == 0 and step.part <= 0:
                local = {}
            self._bring(at)
            if self.overlapped:
                self._prefetch(at + 1, steps[-1], ahead=True)
            began = time.perf_counter()
            if step.kind == "block":
                totals[step.stage] = self._block(step, local, partial, totals.get(step.stage))
                chunk = self.pieces.chunks[number][step.stage]
                if chunk is not None and step.last:
                    partial = [sums.get(g) or empty(g, self.rows) for g in chunk.gathers]
            elif step.kind == "chunk":
                partial = self._chunk(step, local, partial)
                chunk = self.pieces.chunks[number][step.stage]
                assert chunk is not None
                for g, p in zip(chunk.gathers, partial, strict=True):
                    if g.totals:
                        sums[g] = p
            else:
                totals[0] = self._edges(step, totals.get(0))
            self._settle(at)
            self.took[step.name] += time.perf_counter() - began
            if watch is not None:
                watch(at + 1, len(self.script.steps))
        self._totals(number, totals, sums)

    def _totals(self, number: int, totals: Mapping[int, Any], sums: Mapping[Any, Any]) -> None:
        """Sums over all blocks, complete now."""
        for stage, piece in enumerate(self.pieces.blocks[number]):
            for work, total in zip(piece.totals, totals.get(stage) or (), strict=False):
                self.env[work.outputs[0]] = finished_total(work, total, self.env)
        for gather, partial in sums.items():
            self.env.update(zip(gather.outputs, finish(gather, partial), strict=True))
        for gather in self.pieces.sweeps[number].gathers:
            if gather.totals and gather not in sums:  # no edges at all
                self.env.update(zip(gather.outputs, finish(gather, empty(gather, 0)), strict=True))

    def _block(self, step: Step, local: dict[Array, Any], partial: Any, totals: Any) -> Any:
        piece = self.pieces.blocks[step.sweep][step.stage]
        first, stop = self._range(step.block, step.part)
        size = self.slice if step.part >= 0 else self.rows
        index = self._index(first, stop, size) if piece.numbered else np.zeros(size, np.int32)
        count = None if stop - first == size else np.int32(max(0, stop - first))
        start = np.int32(step.part * size) if step.part >= 0 else None
        rows = [self._row(x, step, local) for x in piece.rows]
        shared = [self.env[x] for x in piece.shared]
        into = []
        if start is not None:
            into = [local.pop(x) if x in local else self._blank(x) for x in piece.filled]
        totals = neutral_totals(piece) if totals is None else totals
        given = partial if piece.gathers else []
        sliced, filled, sums = piece.run(index, count, start, rows, shared, given, totals, into)
        local.update(zip(piece.filled, filled, strict=True))
        local.update(zip(piece.sliced, sliced, strict=True))
        for t in step.outputs:
            self.device[t] = local.pop(t.array)
        jax.block_until_ready((sliced, filled, sums))
        return sums

    def _blank(self, x: Array) -> np.ndarray:
        """A block to be filled."""
        return np.zeros((self.rows, *x.shape), x.dtype)

    def _range(self, block: int, part: int) -> tuple[int, int]:
        """The first row, and the one after the last, of a block or a slice of it."""
        start, stop = map(int, self.bounds[block : block + 2])
        if part < 0:
            return start, stop
        return min(start + part * self.slice, stop), min(start + (part + 1) * self.slice, stop)

    def _row(self, x: Array, step: Step, local: Mapping[Array, Any]) -> Any:
        if x in local:
            return local[x]
        part = -1 if x in self.pieces.whole else step.part
        return self._tensor(Tensor(x, step.block, part))

    def _tensor(self, t: Tensor) -> Any:
        if t not in self.script.held:
            return self.device[t]
        key = self._held_key(t)
        if key not in self.data.held:
            loading = self.loading.pop(t, None) or self.mover.submit(self._load, t, "held", "held")
            self.data.held[key] = loading.result()
        return self.data.held[key]

    def _index(self, start: int, stop: int, size: int) -> np.ndarray:
        """The user's numbers of some rows."""
        index = np.zeros(size, np.int32)
        if self.data.vertex is None:
            index[: stop - start] = np.arange(start, stop, dtype=np.int32)
        elif stop > start:
            self.data.store.read(self.data.vertex, start, stop, index[: stop - start])
        return index

    def _chunk(self, step: Step, local: Mapping[Array, Any], partial: Any) -> Any:
        piece = self.pieces.chunks[step.sweep][step.stage]
        assert piece is not None
        waited = time.perf_counter()
        loaded: _Loaded = self.chunks.pop(step.name).result()
        self.traffic.waited += time.perf_counter() - waited
        own = [self._row(x, step, local) for x in piece.own]
        other = loaded.other
        if other is None:
            other = [self._tensor(Tensor(x, step.other)) for x in piece.other]
        shared = [self.env[x] for x in piece.shared]
        merged, kept = piece.run(
            loaded.indptr, loaded.neighbor, loaded.numbers, own, other, loaded.edges, shared, partial
        )
        jax.block_until_ready((merged, kept))
        i, j = cell(self.pieces, step)
        start, stop = self.data.edges.edge_range(i, j)
        for x, values in zip(piece.on_edges, kept, strict=True):
            self._write(x, start, np.asarray(values)[: stop - start])
        return merged

    def _edges(self, step: Step, totals: Any) -> Any:
        """Row-wise work on the edges of a chunk, read and written as they are."""
        piece = self.pieces.blocks[step.sweep][0]
        i, j = step.other, step.block
        start, stop = self.data.edges.edge_range(i, j)
        slots = room(stop - start)
        self._written()
        rows = [self._edge_rows(x, start, stop, slots) for x in piece.rows]
        index = _padded(self.data.edges.numbers(i, j), slots)
        shared = [self.env[x] for x in piece.shared]
        totals = neutral_totals(piece) if totals is None else totals
        count = np.int32(stop - start)
        outs, filled, sums = piece.run(index, count, None, rows, shared, [], totals, [])
        for x, values in zip((*piece.sliced, *piece.filled), (*outs, *filled), strict=True):
            self._write(x, start, np.asarray(values)[: stop - start])
        return sums

    # --------------------------------------------------------------------------------- movement

    def _let_go(self) -> None:
        """Drop what other functions of the graph hold, as far as this one needs the room."""
        held = self.data.held
        wanted = {self._held_key(x) for x in self.script.held}
        others = {k: _nbytes(v) for k, v in held.items() if k not in wanted}
        room = self.script.capacity - self.script.peak_bytes
        while others and sum(others.values()) > room:
            key, _ = others.popitem()
            del held[key]

    def _held_key(self, x: Any) -> Any:
        """What tells a tensor or a chunk apart from all others that may be held."""
        parts = self.data.edges.num_parts
        if isinstance(x, Tensor):
            name = self.data.names[x.array]
            version = self.data.versions.get(x.array, 0)
            return parts, self.rows, self.slice, name, version, x.block, x.part
        return parts, self.rows, *x

    def _bring(self, at: int) -> None:
        """Evict, and wait for the loads of a step."""
        planned = self.script.plan.steps[at]
        step = self.script.steps[at]
        outputs = {self.script.names[t] for t in step.outputs}
        for name in planned.evictions:
            t = self.tensors[name]
            if name in planned.stores and name not in outputs:
                self._store(t)
            self.device.pop(t, None)
        self._prefetch(at, at)
        waited = time.perf_counter()
        for name in planned.loads:
            t = self.tensors[name]
            if t in self.loading:
                self.device[t] = self.loading.pop(t).result()
        self.traffic.waited += time.perf_counter() - waited

    def _prefetch(self, at: int, last: int, ahead: bool = False) -> None:
        """Begin the loads of a step; `ahead`: while the one before it still has to run."""
        if at > last:
            return
        step = self.script.steps[at]
        before = self.script.steps[at - 1].outputs if at else ()
        selected = step.name in self.script.selected
        for name in self.script.plan.steps[at].loads:
            t = self.tensors[name]
            partly = selected and t in step.partial
            made = ahead and t in before  # not stored yet
            if not (made or partly or t in self.loading or t in self.device):
                cause = "own rows" if t.block == step.block else "other rows"
                self.loading[t] = self.mover.submit(self._load, t, cause, step.name)
        if step.kind == "chunk" and step.name not in self.chunks:
            self.chunks[step.name] = self.mover.submit(self._load_chunk, step, selected)

    def _settle(self, at: int) -> None:
        """Store results, and drop what the plan does not keep. What is still being written has to
        be there until then: at most the results of one step."""
        self._written()
        planned, step = self.script.plan.steps[at], self.script.steps[at]
        for t in step.outputs:
            if self.script.names[t] in planned.stores:
                self._store(t)
        kept = {self.tensors[name] for name in planned.cached}
        for t in [t for t in self.device if t not in kept]:
            del self.device[t]

    def _store(self, t: Tensor) -> None:
        start, stop = self._range(t.block, t.part)
        self._write(t.array, start, np.asarray(self.device[t])[: stop - start])

    def _write(self, x: Array, start: int, rows: np.ndarray) -> None:
        self.traffic.moved["stored"] += rows.nbytes
        write = self.data.store.write
        self.writes.append(self.mover.submit(write, self.data.names[x], start, rows))

    def _written(self) -> None:
        for write in self.writes:
            write.result()
        self.writes = []

    def _load(self, t: Tensor, cause: str, step: str) -> Any:
        began = time.perf_counter()
        start, stop = self._range(t.block, t.part)
        size = self.rows if t.part < 0 else self.slice
        buffer = aligned((size, *t.array.shape), t.array.dtype)
        self.data.store.read(self.data.names[t.array], start, stop, buffer[: stop - start])
        buffer[stop - start :] = 0
        self.traffic.moved[cause] += buffer.nbytes
        found = _on_device(buffer)
        self.took["load " + step] += time.perf_counter() - began
        return found

    def _load_chunk(self, step: Step, selected: bool) -> _Loaded:
        began = time.perf_counter()
        piece = self.pieces.chunks[step.sweep][step.stage]
        assert piece is not None
        side, (i, j) = piece.side, cell(self.pieces, step)
        edges, key = self.data.edges, self._held_key((side, i, j))
        count = int(edges.counts[i, j])
        slots, other, rows, position = room(count), None, [], None
        held = self.data.held.get(key)
        if held is None or piece.edge_loads or (piece.numbered and held[2] is None):
            wanted = side == "src" and bool(piece.edge_loads or piece.numbered)
            chunk = edges.load(i, j, side, positions=wanted)
            position = chunk.position
            indptr = np.full(self.rows + 1, count, np.int32)
            indptr[: len(chunk.indptr)] = chunk.indptr
            numbers = None
            if piece.numbered:
                numbers = edges.numbers(i, j)
                numbers = _padded(numbers if position is None else numbers[position], slots)
            found = indptr, _padded(chunk.neighbor, slots), numbers
            self.traffic.moved["edges"] += sum(0 if x is None else x.nbytes for x in found)
            held = tuple(None if x is None else _on_device(x) for x in found)
            if (side, i, j) in self.script.held:
                self.data.held[key] = held
        indptr, neighbor, numbers = held
        if selected:
            used, neighbor = _compact(np.asarray(neighbor)[:count], self.rows)
            first = int(self.bounds[step.other])
            other = [self._gathered(x, first, used) for x in piece.other]
            neighbor = _on_device(_padded(neighbor, slots))
        start, stop = edges.edge_range(i, j)
        for x in piece.edge_loads:
            data = self._edge_rows(x, start, stop, stop - start)
            rows.append(_padded(data if position is None else data[position], slots))
            self.traffic.moved["edges"] += rows[-1].nbytes
        self.took["load " + step.name] += time.perf_counter() - began
        return _Loaded(indptr, neighbor, numbers if piece.numbered else None, rows, other)

    def _edge_rows(self, x: Array, start: int, stop: int, slots: int) -> np.ndarray:
        return _padded(self.data.store.read(self.data.names[x], start, stop), slots)

    def _gathered(self, x: Array, first: int, used: np.ndarray) -> Any:
        rows = aligned((room(len(used)), *x.shape), x.dtype)
        rows[: len(used)] = self.data.store.gather(self.data.names[x], first + used)
        rows[len(used) :] = 0
        self.traffic.moved["selected rows"] += rows[: len(used)].nbytes
        return _on_device(rows)


def _nbytes(arrays: Any) -> int:
    return sum(x.nbytes for x in jax.tree.leaves(arrays))


def _on_device(array: np.ndarray) -> Any:
    return jax.device_put(array)


def _padded(rows: np.ndarray, count: int) -> np.ndarray:
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
