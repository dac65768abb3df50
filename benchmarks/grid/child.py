"""One process that trains from a disk within a budget, and says how much memory it took:

    python -m grid.child FOLDER MODEL BUDGET EPOCHS      # in benchmarks/

FOLDER is what `save` wrote. A JSON line is printed: bytes resident before, and at the
most while preparing and while running.
"""

from __future__ import annotations

import json
import pathlib
import sys
import time
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from common import measure

from gnnjit.store import DiskStore
from gnnjit.streaming import StreamedGraph
from gnnjit.streaming.stream import stream
from grid.training import Task, model

PIECE = 1 << 20
"""Edges that are read at a time."""


def save(task: Task, folder: pathlib.Path) -> None:
    """The edges as plain files, the rows in a store."""
    folder.mkdir(parents=True)
    for name, ends in (("src", task.src), ("dst", task.dst)):
        ends.astype(np.int32).tofile(folder / name)
    with DiskStore.create(folder / "store") as store:
        task.streamed(store)
    sizes = [task.num_nodes, task.num_edges, task.x.shape[1]]
    (folder / "sizes.json").write_text(json.dumps(sizes))


def load(folder: pathlib.Path, store: DiskStore) -> tuple[StreamedGraph, int]:
    """The graph, its edges read from their files piece by piece; the number of features."""
    num_nodes, num_edges, features = json.loads((folder / "sizes.json").read_text())

    def edges() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, num_edges, PIECE):
            src, dst = (
                np.fromfile(folder / name, np.int32, PIECE, offset=4 * start)
                for name in ("src", "dst")
            )
            yield src, dst

    return StreamedGraph(store, num_nodes, num_edges, edges), features


def main(argv: Sequence[str]) -> int:
    folder, name, budget, epochs = pathlib.Path(argv[0]), argv[1], int(argv[2]), int(argv[3])
    with DiskStore.open(folder / "store") as store:
        graph, features = load(folder, store)
        built = model(name, features)
        before = measure.trim_and_reset()
        step = stream(built.step, memory_budget=budget, process=True)
        args = graph.array("x"), graph.array("y")
        fit = step.prepare(graph, built.state, *args)
        prepared = measure.status("VmHWM")
        measure.trim_and_reset()
        state, seconds, loss = built.state, [], 0.0
        for _ in range(epochs):
            started = time.perf_counter()
            state, loss = jax.block_until_ready(step(graph, state, *args))
            seconds.append(time.perf_counter() - started)
        parts, slices = fit.shape
        running = measure.status("VmHWM")
        found = {"before": before, "preparing": prepared, "running": running, "parts": parts}
        found |= {"slices": slices, "seconds": min(seconds, default=0.0), "loss": float(loss)}
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
