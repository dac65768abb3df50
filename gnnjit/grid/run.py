"""Running a streamed function: block by block, with transfers beside the computation.

One thread moves data between the store and the device, in order; the main thread computes. The
memory plan says what is loaded, stored and dropped around each operation; the loads of the next
operation begin while this one runs (NeuGraph, section 3.2: double buffering), at the end of a sweep
those of the next one's first edges. Rows that are used where the store has them are no load.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.allocator import trim
from gnnjit.frontend.whole import Array
from gnnjit.grid.fit import Fit
from gnnjit.grid.loading import Data, LoadedEdges, Loader, Mover, padded
from gnnjit.grid.script import Pieces, Step, Tensor, cell, upcoming
from gnnjit.grid.totals import Totals
from gnnjit.grid.traffic import Traffic
from gnnjit.lower.merging import empty


class Run:
    """One call of a streamed function."""

    def __init__(
        self, pieces: Pieces, script: Fit, data: Data, shared: dict[Array, Any], overlapped: bool
    ) -> None:
        self.pieces, self.script, self.data = pieces, script, data
        self.env = shared
        self.overlapped = overlapped
        self.loader = Loader(pieces, script, data)
        self.upcoming = upcoming(pieces, script.steps)
        self.tensors = {name: t for t, name in script.names.items()}
        self.device: dict[Tensor, Any] = {}
        self.loading: dict[Tensor, concurrent.futures.Future[Any]] = {}
        self.chunks: dict[str, concurrent.futures.Future[Any]] = {}
        self.writes: list[tuple[Array, concurrent.futures.Future[Any]]] = []
        self.traffic = Traffic(self.loader.moved, jobs=self.loader.took)
        self.loader.let_go()

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
        self.traffic.in_place = self.loader.in_place
        self.traffic.seconds = time.perf_counter() - started
        return self.traffic

    # ---------------------------------------------------------------------------------- sweeps

    def _shared(self, number: int) -> None:
        piece = self.pieces.shared[number]
        if piece.works:
            values = piece.run([self.env[x] for x in piece.inputs])
            self.env.update(zip(piece.outputs, values, strict=True))

    def _sweep(self, number: int, watch: Callable[[int, int], None] | None) -> None:
        steps = [i for i, s in enumerate(self.script.steps) if s.sweep == number]
        pieces, gathers = self.pieces.blocks[number], self.pieces.sweeps[number].gathers
        totals = Totals(pieces, gathers, self.script.rows)
        local: dict[Array, Any] = {}
        partial: list[Any] = []
        for at in steps:
            step = self.script.steps[at]
            if step.kind == "block" and step.stage == 0 and step.part <= 0:
                local = {}
            self._bring(at)
            following = self.upcoming[at]
            if self.overlapped and following is not None:
                self._prefetch(following, running=step)
            began, waited = time.perf_counter(), self.traffic.waited
            if step.kind == "block":
                sums = totals.rows[step.stage]
                totals.rows[step.stage] = self._block(step, local, partial, sums)
                chunk = self.pieces.chunks[number][step.stage]
                if chunk is not None and step.last:
                    partial = [totals.edges.get(g) for g in chunk.gathers]
            elif step.kind == "chunk":
                partial = self._chunk(step, local, partial)
                chunk = self.pieces.chunks[number][step.stage]
                assert chunk is not None
                for g, p in zip(chunk.gathers, partial, strict=True):
                    if g.totals:
                        totals.edges[g] = p
            else:
                totals.rows[0] = self._edges(step, totals.rows[0])
            waited = self.traffic.waited - waited
            self.traffic.jobs[step.name] += time.perf_counter() - began - waited
            self._settle(at)
            if watch is not None:
                watch(at + 1, len(self.script.steps))
        self._complete(number, totals)

    def _complete(self, number: int, totals: Totals) -> None:
        """The end of a sweep: what it stores is there for the other processes, and so are its
        sums."""
        crew = self.data.store.crew
        if not crew.alone:
            self._written()
        began = time.perf_counter()
        totals.merge(crew, f"the end of sweep {number}")
        self.traffic.idle += time.perf_counter() - began
        totals.finish(self.env)

    def _block(self, step: Step, local: dict[Array, Any], partial: Any, totals: Any) -> Any:
        piece = self.pieces.blocks[step.sweep][step.stage]
        if piece.idle:
            return totals
        first, stop = self.loader.range(step.block, step.part)
        size = self.loader.slice if step.part >= 0 else self.script.rows
        index = self.loader.index(first, stop, size) if piece.numbered else np.zeros(size, np.int32)
        count = None if stop - first == size else np.int32(max(0, stop - first))
        start = np.int32(step.part * size) if step.part >= 0 else None
        rows = [self._row(x, step, local) for x in piece.rows]
        shared = [self.env[x] for x in piece.shared]
        into = []
        if start is not None:
            into = [local.pop(x) if x in local else self._blank(x) for x in piece.filled]
        given = [
            empty(g.op, self.script.rows) if before is None else before  # a block without edges
            for g, before in zip(piece.gathers, partial if piece.gathers else (), strict=True)
        ]
        sliced, filled, sums = piece.run(index, count, start, rows, shared, given, totals, into)
        local.update(zip(piece.filled, filled, strict=True))
        local.update(zip(piece.sliced, sliced, strict=True))
        for t in step.outputs:
            self.device[t] = local.pop(t.array)
        jax.block_until_ready((sliced, filled, sums))
        return sums

    def _blank(self, x: Array) -> jax.Array:
        """A block to be filled."""
        return jnp.zeros((self.script.rows, *x.shape), x.dtype)

    def _row(self, x: Array, step: Step, local: Mapping[Array, Any]) -> Any:
        if x in local:
            return local[x]
        part = -1 if x in self.pieces.whole else step.part
        return self._tensor(Tensor(x, step.block, part))

    def _tensor(self, t: Tensor) -> Any:
        if t not in self.script.held:
            return self.device[t]
        key = self.loader.held_key(t)
        if key not in self.data.held:
            loading = self.loading.pop(t, None) or self.mover.submit(
                self.loader.tensor, t, "held", "held"
            )
            self.data.held[key] = loading.result()
        return self.data.held[key]

    def _chunk(self, step: Step, local: Mapping[Array, Any], partial: Any) -> Any:
        piece = self.pieces.chunks[step.sweep][step.stage]
        assert piece is not None
        waited = time.perf_counter()
        loaded: LoadedEdges = self.chunks.pop(step.name).result()
        self.traffic.waited += time.perf_counter() - waited
        own = [self._row(x, step, local) for x in piece.own]
        other = loaded.other
        if other is None:
            other = [self._tensor(Tensor(x, step.other)) for x in piece.other]
        shared = [self.env[x] for x in piece.shared]
        merged, kept = piece.run(
            loaded.indptr,
            loaded.neighbor,
            loaded.numbers,
            own,
            other,
            loaded.edges,
            shared,
            partial,
        )
        jax.block_until_ready((merged, kept))
        i, j = cell(self.pieces, step)
        start, stop = self.data.edges.edge_range(i, j)
        for x, values in zip(piece.on_edges, kept, strict=True):
            self._write(x, start, values, stop - start)
        return merged

    def _edges(self, step: Step, totals: Any) -> Any:
        """Row-wise work on the edges of a chunk, read and written as they are."""
        piece = self.pieces.blocks[step.sweep][0]
        i, j = step.other, step.block
        start, stop = self.data.edges.edge_range(i, j)
        slots = int(self.data.edges.slots[i, j])
        self._written()
        rows = [self.loader.edge_rows(x, start, stop, slots) for x in piece.rows]
        index = padded(self.data.edges.numbers(i, j), slots)
        shared = [self.env[x] for x in piece.shared]
        count = np.int32(stop - start)
        outs, filled, sums = piece.run(index, count, None, rows, shared, [], totals, [])
        for x, values in zip((*piece.sliced, *piece.filled), (*outs, *filled), strict=True):
            self._write(x, start, values, stop - start)
        return sums

    # --------------------------------------------------------------------------------- movement

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
        self._prefetch(at)
        waited = time.perf_counter()
        for t in self._loads(at):
            if t not in self.loading:  # the rows are there
                if any(x is t.array for x, _ in self.writes):
                    self._written()
                self.device[t] = self.loader.tensor(t, _cause(t, step), step.name)
            else:
                self.device[t] = self.loading.pop(t).result()
        self.traffic.waited += time.perf_counter() - waited

    def _loads(self, at: int) -> list[Tensor]:
        """What a step still needs from the store, but for rows that it reads in part."""
        step = self.script.steps[at]
        found = [self.tensors[name] for name in self.script.plan.steps[at].loads]
        partial = step.partial if step.name in self.script.selected else ()
        return [t for t in found if not (t in partial or t in self.device)]

    def _prefetch(self, at: int, running: Step | None = None) -> None:
        """Begin the loads of a step; those of a later sweep than that of the step that is still
        running, only as far as nothing writes there."""
        step = self.script.steps[at]
        selected = step.name in self.script.selected
        later = running is not None and step.sweep != running.sweep
        for t in () if later else self._loads(at):
            made = running is not None and t in running.outputs  # not stored yet
            if made or t in self.loading:
                continue
            if not self.loader.lies(t):
                self.loading[t] = self.mover.submit(
                    self.loader.tensor, t, _cause(t, step), step.name
                )
            elif running is not None:
                self.mover.submit(self.loader.expect, t)
        if step.kind != "chunk" or step.name in self.chunks:
            return
        piece = self.pieces.chunks[step.sweep][step.stage]
        assert piece is not None
        if not (later and (selected or piece.edge_loads)):
            self.chunks[step.name] = self.mover.submit(self.loader.chunk, step, selected)

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
        start, stop = self.loader.range(t.block, t.part)
        self._write(t.array, start, self.device[t], stop - start)

    def _write(self, x: Array, start: int, rows: Any, count: int) -> None:
        rows = np.asarray(rows)[:count]
        self.writes.append((x, self.mover.submit(self.loader.write, x, start, rows)))

    def _written(self) -> None:
        for _, write in self.writes:
            write.result()
        self.writes = []


def _cause(t: Tensor, step: Step) -> str:
    return "own rows" if t.block == step.block else "other rows"
