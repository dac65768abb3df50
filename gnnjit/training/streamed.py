"""Training within a memory budget: the functions of a run, block by block over a stored dataset."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from gnnjit.data.stored.dataset import StoredDataset
from gnnjit.errors import StoreError
from gnnjit.store.disk import DiskStore
from gnnjit.streaming.grid.streamed_graph import StreamedGraph
from gnnjit.streaming.stream import stream
from gnnjit.training.errors import TrainError
from gnnjit.training.loop import Watcher
from gnnjit.training.metrics import Sums
from gnnjit.training.processes import one_cost_model, processes
from gnnjit.training.steps import ModelFunctions, TrainState
from gnnjit.training.tasks import SPLITS, Batch

WEIGHTS = "weights"
"""The array of `Batch.weights` in the store of a dataset."""
EDGES = 1 << 20
"""Edges that are read at once."""
BUILDING, COMPILING = "grid", "compiled code"
"""Stages before the first epoch."""

Layout = tuple[int, int]
"""Numbers of blocks, and of slices of each."""


def check_store(dataset: Any) -> None:
    """Raises TrainError where other processes do not have the dataset's store open."""
    if isinstance(dataset, StoredDataset) and dataset.store.group.processes < processes():
        raise TrainError(
            f"{dataset.name} is in a store that this process alone has open, and {processes()} are "
            "connected: open it in all of them, with StoredDataset.open(folder, together=True)"
        )


def layout_of(noted: Any, budget: int) -> Layout | None:
    """The layout in a note of `note_of`, for the same budget; None where the note is for another
    budget, or of another version."""
    match noted:
        case {"budget": int(known), "layout": [int(parts), int(slices)]}:
            return (parts, slices) if known == budget and min(parts, slices) > 0 else None
    return None


def note_of(layout: Layout, budget: int) -> dict[str, Any]:
    """What is to be remembered of a run, for `layout_of`."""
    return {"budget": budget, "layout": list(layout)}


class StoredTask:
    """A stored graph whose vertices are labelled: the whole graph is every batch."""

    def __init__(self, stored: StoredDataset) -> None:
        self.graph = StreamedGraph(
            stored.store,
            stored.num_nodes,
            stored.num_edges,
            lambda: stored.edges(EDGES),
            vertex="vertex",
        )
        _write_weights(self.graph)
        x, y, weights = map(self.graph.column, ("x", "y", WEIGHTS))
        self._batch = Batch(self.graph, x, y, weights)

    def train_batches(self, seed: int, epoch: int) -> Iterator[Batch]:
        yield self._batch

    def eval_batches(self) -> list[Batch]:
        return [self._batch]


def _write_weights(graph: StreamedGraph) -> None:
    store = graph.store
    if WEIGHTS in store.names() and store.info(WEIGHTS).sealed:
        return

    def work() -> None:
        store.add(WEIGHTS, graph.num_nodes, (len(SPLITS),), np.float32, replace=True)
        for start, stop in graph.pieces(4 * len(SPLITS)):
            masks = [store.read(f"{split}_mask", start, stop) for split in SPLITS]
            store.write(WEIGHTS, start, np.stack(masks, axis=1).astype(np.float32))
        store.seal(WEIGHTS)

    store.once(work)


class Streamed:
    """The two functions of a run within a budget; what `steps.CompiledSteps` is without one.

    Attributes:
        budget: bytes.
        process: whether it counts the memory of this process, else of the device.
        layout: into how many blocks the vertices are cut, and each into how many slices; None until
            the first update.
        settled: is then called with it.
    """

    def __init__(
        self,
        functions: ModelFunctions,
        task: StoredTask,
        budget: int,
        *,
        process: bool = False,
        layout: Layout | None = None,
        watcher: Watcher,
    ) -> None:
        """`layout`: the one to be taken if it fits."""
        self.budget, self.process = budget, process
        self._graph = task.graph
        self.layout: Layout | None = None
        self.settled: Callable[[Layout], None] | None = None
        if layout is not None:
            task.graph.layouts.insert(0, layout)
        self._watcher = watcher
        task.graph.watch = self._building
        self._update, self._evaluate = (
            stream(function, memory_budget=budget, process=process)
            for function in (functions.update, functions.evaluate)
        )
        self._update.watch = lambda done, total: self._told(done, total, updating=True)
        self._evaluate.watch = lambda done, total: self._told(done, total, updating=False)
        self._steps = [1, 1]

    def update(self, *args: Any) -> tuple[TrainState, jax.Array]:
        """(state, batch, seed, epoch, index) -> (state, loss)."""
        if self.layout is None:
            self._prepare(args)
        return self._update(*args)

    def evaluate(self, *args: Any) -> Sums:
        """(params, buffers, batch) -> `Sums`."""
        return self._evaluate(*args)

    def _prepare(self, args: Any) -> None:
        """Both functions; where the process counts, again with what both take themselves."""
        state, batch = args[:2]
        self._watcher.stage(COMPILING, 0, 1)
        with one_cost_model():
            for _ in range(2 if self.process else 1):
                fits = [
                    self._update.prepare(*args),
                    self._evaluate.prepare(state.params, state.buffers, batch),
                ]
        self._steps = [len(fit.steps) for fit in fits]
        layout = self.layout = fits[0].shape
        self._graph.keep_blocks({fit.shape[0] for fit in fits})
        self._watcher.stage(COMPILING, 1, 1)
        if self.settled is not None:
            self.settled(layout)

    def _building(self, done: int, total: int) -> None:
        self._watcher.stage(BUILDING, done, total)
        if done == total:
            self._watcher.stage(COMPILING, 0, 1)

    def _told(self, done: int, total: int, updating: bool) -> None:
        before = 0 if updating else self._steps[0]
        self._watcher.part((before + done) / sum(self._steps))

    def figures(self) -> dict[str, Any]:
        """What is reported of them: the last epoch's traffic, if there was one."""
        functions = {"update": self._update, "evaluate": self._evaluate}
        traffic = {name: f.traffic for name, f in functions.items() if f.traffic is not None}
        moved = sum((t.moved for t in traffic.values()), Counter())
        parts, slices = self.layout or (None, None)
        return {
            "memory_budget_bytes": self.budget,
            "memory_budget_of": "process" if self.process else "device",
            "parts": parts,
            "slices": slices,
            "processes": self._graph.store.group.processes,
            "moved_bytes": dict(moved) if traffic else None,
            "moving_seconds": {name: t.seconds for name, t in traffic.items()},
        }


@contextlib.contextmanager
def without_leftovers(stored: StoredDataset) -> Iterator[None]:
    """A context that drops what it adds to a store without sealing it: temporary arrays, which may
    be larger than the dataset. Where several processes have the store open and one fails, whoever
    opens it next drops them: the others do not come to help."""
    store, before = stored.store, set(stored.store.names())

    def work() -> None:
        for name in sorted(set(store.names()) - before):
            if not store.info(name).sealed:
                store.drop(name)

    try:
        yield
    except BaseException:
        if store.group.alone:
            with contextlib.suppress(StoreError):  # The first error is the one to be told.
                work()
        raise
    with contextlib.suppress(StoreError):
        store.once(work)


def counts_process(dataset: Any) -> bool:
    """Whether a budget counts the memory of this process: it does where the process does not hold
    the dataset."""
    return isinstance(dataset, StoredDataset) and isinstance(dataset.store, DiskStore)
