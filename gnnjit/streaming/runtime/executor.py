"""Run a streamed function block by block, and transfer data meanwhile.

One thread moves data between the store and the device, in order; the main thread dispatches one
operation after the other, and waits for none while there is memory (`in_flight`). The memory plan
says what is loaded, stored and dropped around each. The loads of the next operation begin before
this one does (NeuGraph, section 3.2: double buffering), at the end of a sweep those of the next
one's first edges. Rows that are used where the store has them are not loaded.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.ir.array_program import Array
from gnnjit.lower.partial_results import empty
from gnnjit.streaming.memory.layout import Layout
from gnnjit.streaming.program.steps import Executables, Step, Tensor, cell, upcoming
from gnnjit.streaming.runtime.global_reductions import GlobalReductions
from gnnjit.streaming.runtime.in_flight import InFlight, Write
from gnnjit.streaming.runtime.traffic import Traffic
from gnnjit.streaming.runtime.transfers import Data, LoadedEdges, Loader, Mover, at_once, padded
from gnnjit.system.allocator import trim


@dataclasses.dataclass
class SweepState:
    """How far a sweep has come: sums, and of the block that it is at, results that are no tensors
    and partial results of aggregates."""

    totals: GlobalReductions
    local: dict[Array, Any] = dataclasses.field(default_factory=dict)
    partial: list[Any] = dataclasses.field(default_factory=list)


class Executor:
    """One call of a streamed function."""

    def __init__(
        self,
        executables: Executables,
        layout: Layout,
        data: Data,
        shared: dict[Array, Any],
        overlapped: bool,
    ) -> None:
        self.executables, self.layout, self.data = executables, layout, data
        self.env = shared
        self.overlapped = overlapped
        self.loader = Loader(executables, layout, data)
        self.upcoming = upcoming(executables, layout.steps)
        self.tensors = {name: t for t, name in layout.names.items()}
        self.device: dict[Tensor, Any] = {}
        self.loading: dict[Tensor, concurrent.futures.Future[Any]] = {}
        self.chunks: dict[str, concurrent.futures.Future[Any]] = {}
        self.traffic = Traffic(self.loader.moved, jobs=self.loader.took)
        others = self.loader.let_go()
        # A process has more than is counted; so it gets no more than the plan says.
        room = layout.plan.peak_bytes if layout.process else layout.plan.capacity - others
        self.flights = InFlight(room, overlapped, self.traffic.jobs, self._landed)
        self.watch: Callable[[int, int], None] | None = None
        self.ends = [0.0] * len(executables.sweeps)
        self.headrooms = {
            s.name: room for s, room in zip(layout.steps, layout.headrooms, strict=True)
        }
        self.began = 0.0

    def __call__(self, watch: Callable[[int, int], None] | None = None) -> Traffic:
        """Run all sweeps; shared results are in `env`, others in the store. `watch` is told how
        many operations have ended, of how many."""
        self.watch = watch
        started = time.perf_counter()
        self.mover = Mover(self.overlapped)
        try:
            for number in range(len(self.executables.sweeps)):
                self._shared(number)
                self._sweep(number)
            self._shared(len(self.executables.sweeps))
            self.flights.land()
        finally:
            self.mover.close()
            self.flights.close()
        if self.layout.process:
            trim()
        for end in self.ends:
            self.traffic.sweeps.append(max(0.0, end - started - sum(self.traffic.sweeps)))
        self.traffic.zero_copy = self.loader.zero_copy
        self.traffic.seconds = time.perf_counter() - started
        return self.traffic

    def _landed(self, at: int, ended: float) -> None:
        sweep = self.layout.steps[at].sweep
        self.ends[sweep] = max(ended, self.ends[sweep])
        if self.watch is not None:
            self.watch(at + 1, len(self.layout.steps))

    # ---------------------------------------------------------------------------------- sweeps

    def _shared(self, number: int) -> None:
        executable = self.executables.shared[number]
        if executable.operations:
            values, _ = executable.run([self.env[x] for x in executable.inputs])
            self.env.update(zip(executable.outputs, values, strict=True))

    def _sweep(self, number: int) -> None:
        executables, gathers = (
            self.executables.blocks[number],
            self.executables.sweeps[number].gathers,
        )
        state = SweepState(GlobalReductions(executables, gathers, self.layout.rows))
        for at in (i for i, s in enumerate(self.layout.steps) if s.sweep == number):
            step = self.layout.steps[at]
            if step.kind == "block" and step.stage == 0 and step.part <= 0:
                state.local = {}
            self._bring(at)
            loaded = self._loaded(step) if step.kind == "chunk" else None
            on_edges, ended = self._begin(step, loaded, state)
            room = self.headrooms[step.name]
            self.flights.begin(at, step.name, room.beside, ended, self.began)
            following = self.upcoming[at]
            if self.overlapped and following is not None:
                self._prefetch(following, running=step)
            if on_edges:
                start, stop = self.data.edges.edge_range(*cell(self.executables, step))
                for x, values in on_edges:
                    self._write(x, start, values, stop - start)
            self._settle(at)
        self._complete(number, state.totals)

    def _begin(
        self, step: Step, loaded: LoadedEdges | None, state: SweepState
    ) -> tuple[list[tuple[Array, Any]], jax.Array | None]:
        """Begin an operation: rows of the edges that it makes, and what is there at its end."""
        totals = state.totals
        if step.kind == "edges":
            totals.rows[0], on_edges, ended = self._edges(step, totals.rows[0])
            return on_edges, ended
        chunk = self.executables.chunks[step.sweep][step.stage]
        if loaded is None:
            sums = totals.rows[step.stage]
            sums, ended = self._block(step, state.local, state.partial, sums)
            totals.rows[step.stage] = sums
            if step.last:
                state.partial = [totals.edges.get(g) for g in chunk.gathers] if chunk else []
            return [], ended
        assert chunk is not None
        state.partial, on_edges, ended = self._chunk(step, loaded, state.local, state.partial)
        for g, p in zip(chunk.gathers, state.partial, strict=True):
            if g.totals:
                totals.edges[g] = p
        return on_edges, ended

    def _complete(self, number: int, totals: GlobalReductions) -> None:
        """The end of a sweep: what it stores is there for the other processes, and so are its
        sums."""
        group = self.data.store.group
        if not group.alone:
            self.flights.land()
            began = time.perf_counter()
            totals.merge(group, f"the end of sweep {number}")
            self.ends[number] = time.perf_counter()
            self.traffic.idle += self.ends[number] - began
        totals.finish(self.env)

    def _block(self, step: Step, local: dict[Array, Any], partial: Any, totals: Any) -> Any:
        """The sums so far, and what is there at the operation's end."""
        executable = self.executables.blocks[step.sweep][step.stage]
        if executable.idle:
            return totals, None
        first, stop = self.loader.range(step.block, step.part)
        size = self.loader.slice if step.part >= 0 else self.layout.rows
        index = (
            self.loader.index(first, stop, size)
            if executable.numbered
            else np.zeros(size, np.int32)
        )
        count = None if stop - first == size else np.int32(max(0, stop - first))
        start = np.int32(step.part * size) if step.part >= 0 else None
        rows = [self._row(x, step, local) for x in executable.rows]
        shared = [self.env[x] for x in executable.shared]
        into = []
        if start is not None:
            into = [local.pop(x) if x in local else self._blank(x) for x in executable.filled]
        given = [
            empty(g.op, self.layout.rows) if before is None else before  # a block without edges
            for g, before in zip(
                executable.gathers, partial if executable.gathers else (), strict=True
            )
        ]
        self._make_room(step)
        (sliced, filled, sums), ended = executable.run(
            index, count, start, rows, shared, given, totals, into
        )
        local.update(zip(executable.filled, filled, strict=True))
        local.update(zip(executable.sliced, sliced, strict=True))
        for t in step.outputs:
            self.device[t] = local.pop(t.array)
        return sums, ended

    def _blank(self, x: Array) -> jax.Array:
        """A block to be filled."""
        return jnp.zeros((self.layout.rows, *x.shape), x.dtype)

    def _row(self, x: Array, step: Step, local: Mapping[Array, Any]) -> Any:
        if x in local:
            return local[x]
        part = -1 if x in self.executables.whole else step.part
        return self._tensor(Tensor(x, step.block, part))

    def _tensor(self, t: Tensor) -> Any:
        if t not in self.layout.held:
            return self.device[t]
        key = self.loader.held_key(t)
        if key not in self.data.held:
            loading = self.loading.pop(t, None) or self.mover.submit(
                self.loader.tensor, t, "held", "held"
            )
            self.data.held[key] = loading.result()
        return self.data.held[key]

    def _loaded(self, step: Step) -> LoadedEdges:
        since = time.perf_counter()
        found = self.chunks.pop(step.name).result()
        self.traffic.waited += self.flights.idle(since)
        return found

    def _chunk(
        self, step: Step, loaded: LoadedEdges, local: Mapping[Array, Any], partial: Any
    ) -> tuple[list[Any], list[tuple[Array, Any]], jax.Array]:
        """The partial results, rows of the edges, and what is there at the operation's end."""
        executable = self.executables.chunks[step.sweep][step.stage]
        assert executable is not None
        own = [self._row(x, step, local) for x in executable.own]
        other = loaded.other
        if other is None:
            other = [self._tensor(Tensor(x, step.other)) for x in executable.other]
        shared = [self.env[x] for x in executable.shared]
        self._make_room(step)
        (merged, kept), ended = executable.run(
            loaded.indptr,
            loaded.neighbor,
            loaded.numbers,
            own,
            other,
            loaded.edges,
            shared,
            partial,
        )
        return merged, [*zip(executable.on_edges, kept, strict=True)], ended

    def _edges(self, step: Step, totals: Any) -> tuple[Any, list[tuple[Array, Any]], jax.Array]:
        """Row-wise work on the edges of a chunk, read and written as they are: the sums so far,
        rows of the edges, and what is there at the operation's end."""
        executable = self.executables.blocks[step.sweep][0]
        i, j = step.other, step.block
        start, stop = self.data.edges.edge_range(i, j)
        slots = int(self.data.edges.slots[i, j])
        self.flights.land()
        rows = [self.loader.edge_rows(x, start, stop, slots) for x in executable.rows]
        index = padded(self.data.edges.numbers(i, j), slots)
        shared = [self.env[x] for x in executable.shared]
        count = np.int32(stop - start)
        self._make_room(step)
        (outs, filled, sums), ended = executable.run(
            index, count, None, rows, shared, [], totals, []
        )
        made = zip((*executable.sliced, *executable.filled), (*outs, *filled), strict=True)
        return sums, [*made], ended

    # --------------------------------------------------------------------------------- movement

    def _make_room(self, step: Step) -> None:
        """Wait until an operation may begin, which it does next."""
        self.flights.make_room(self.headrooms[step.name].needed)
        self.began = time.perf_counter()

    def _bring(self, at: int) -> None:
        """Evict, and wait for the loads of a step, and for room where they take any."""
        planned = self.layout.plan.steps[at]
        step = self.layout.steps[at]
        outputs = {self.layout.names[t] for t in step.outputs}
        for name in planned.evictions:
            t = self.tensors[name]
            if name in planned.stores and name not in outputs:
                self._store(t)
            self.device.pop(t, None)
        loads = self._loads(at)
        begun = all(t in self.loading or self.loader.is_zero_copy(t) for t in loads)
        begun = begun and (step.kind != "chunk" or step.name in self.chunks)
        if self.layout.process or not begun:
            self._make_room(step)
        self._prefetch(at)
        since = time.perf_counter()
        for t in loads:
            if t not in self.loading:  # the rows are there
                self.flights.written(t.array, *self.loader.range(t.block, t.part))
                self.device[t] = self.loader.tensor(t, _cause(t, step), step.name)
            else:
                self.device[t] = self.loading.pop(t).result()
        self.traffic.waited += self.flights.idle(since)

    def _loads(self, at: int) -> list[Tensor]:
        """What a step still needs from the store, but for rows that it reads in part."""
        step = self.layout.steps[at]
        found = [self.tensors[name] for name in self.layout.plan.steps[at].loads]
        partial = step.partial if step.name in self.layout.selected else ()
        return [t for t in found if not (t in partial or t in self.device)]

    def _prefetch(self, at: int, running: Step | None = None) -> None:
        """Begin the loads of a step; those of a later sweep than that of the step that is still
        running, only as far as nothing writes there."""
        step = self.layout.steps[at]
        selected = step.name in self.layout.selected
        later = running is not None and step.sweep != running.sweep
        for t in () if later else self._loads(at):
            made = running is not None and t in running.outputs  # not stored yet
            if made or t in self.loading:
                continue
            if not self.loader.is_zero_copy(t):
                self.loading[t] = self.mover.submit(
                    self.loader.tensor, t, _cause(t, step), step.name
                )
            elif running is not None and self.loader.waits(t):
                self.mover.submit(self.loader.expect, t)
        if step.kind != "chunk" or step.name in self.chunks:
            return
        executable = self.executables.chunks[step.sweep][step.stage]
        assert executable is not None
        if not (later and (selected or executable.edge_loads)):
            # To wake the moving thread takes time from the operations that run meanwhile.
            here = self.loader.holds(step, selected)
            submit = at_once if here else self.mover.submit
            self.chunks[step.name] = submit(self.loader.chunk, step, selected)

    def _settle(self, at: int) -> None:
        """Store results, and drop what the plan does not keep."""
        planned, step = self.layout.plan.steps[at], self.layout.steps[at]
        for t in step.outputs:
            if self.layout.names[t] in planned.stores:
                self._store(t)
        kept = {self.tensors[name] for name in planned.cached}
        for t in [t for t in self.device if t not in kept]:
            del self.device[t]

    def _store(self, t: Tensor) -> None:
        start, stop = self.loader.range(t.block, t.part)
        self._write(t.array, start, self.device[t], stop - start)

    def _write(self, x: Array, start: int, rows: jax.Array, count: int) -> None:
        done = self.mover.submit(self.loader.write, x, start, rows, count)
        self.flights.writes(Write(x, start, start + count, rows.nbytes, done))


def _cause(t: Tensor, step: Step) -> str:
    return "own rows" if t.block == step.block else "other rows"
