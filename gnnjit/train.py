"""Training as a function: `train(dataset, config)` for vertices, and for graphs with their folds.

    from gnnjit.data import open_dataset
    from gnnjit.train import TrainConfig, train

    result = train(open_dataset("karate"), TrainConfig(model="gcn", epochs=50))
    print(result.accuracy["test"].mean, result.model)

A graph that exceeds the memory is trained on within a budget, block by block, to the same numbers:

    from gnnjit.prepare import prepare

    stored = prepare("communities", "folder", options={"num_nodes": 5_000_000})
    result = train(stored, memory_budget="2GiB")

The same dataset, configuration and machine give the same numbers bit for bit, also where a run
was killed and continued from its checkpoints.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from flax import nnx

from gnnjit.budget import parse_size
from gnnjit.data import Dataset, GraphDataset, row_normalize
from gnnjit.grid.host import HostStore
from gnnjit.prepare import keep
from gnnjit.store_dataset import store_dataset
from gnnjit.stored_dataset import StoredDataset
from gnnjit.training import measure
from gnnjit.training.checkpoint import Checkpoints, digest, named_arrays
from gnnjit.training.config import TrainConfig, resolve
from gnnjit.training.devices import ShardedTask, Spread, check_spread
from gnnjit.training.errors import CheckpointError, TrainError
from gnnjit.training.identity import describe_dataset, identity_of
from gnnjit.training.loop import Epoch, Run, Runner, Steps, Watcher
from gnnjit.training.progress import Silent
from gnnjit.training.steps import Build, Program
from gnnjit.training.stored_shards import shard_stored
from gnnjit.training.streamed import (
    StoredTask,
    Streamed,
    check_budget,
    check_store,
    counts_process,
    layout_of,
    note_of,
    without_leftovers,
)
from gnnjit.training.tasks import SPLITS, FoldTask, Task, VertexTask
from gnnjit.training.together import (
    check_same,
    is_main,
    known_to_main,
    open_checkpoints,
    open_in_all,
    processes,
    shared,
)

__all__ = [
    "CheckpointError",
    "Epoch",
    "Result",
    "Run",
    "Summary",
    "TrainConfig",
    "TrainError",
    "describe_dataset",
    "resolve",
    "train",
]


@dataclasses.dataclass(frozen=True)
class Summary:
    """Accuracy over several runs.

    Attributes:
        mean: from 0 to 1.
        std: the population standard deviation.
    """

    mean: float
    std: float


@dataclasses.dataclass(frozen=True, eq=False)
class Result:
    """What `train` gives.

    Attributes:
        config: the hyperparameters of the first run.
        dataset: name and sizes of the dataset.
        protocol: "split" (each run's best epoch by validation) or "folds" (see `train`).
        runs: one per seed or fold.
        accuracy: by split, over the runs; splits without labels are left out.
        epoch: the one epoch that all folds are judged at; None for "split".
        performance: costs in seconds and bytes, and those of the reference if it was timed.
        sharding: over how many devices and processes, how the graph was dealt out to them, and how
            evenly; None for one device.
        model: the model of the first run, with its best weights, set to evaluate.
    """

    config: TrainConfig
    dataset: dict[str, Any]
    protocol: str
    runs: list[Run]
    accuracy: dict[str, Summary]
    epoch: int | None
    performance: dict[str, Any]
    sharding: dict[str, Any] | None
    model: nnx.Module

    def to_dict(self) -> dict[str, Any]:
        """All but the weights, for JSON."""
        return {
            "config": self.config.to_dict(),
            "dataset": self.dataset,
            "protocol": self.protocol,
            "accuracy": {split: dataclasses.asdict(s) for split, s in self.accuracy.items()},
            "epoch": self.epoch,
            "performance": self.performance,
            "sharding": self.sharding,
            "runs": [run.to_dict() for run in self.runs],
            "versions": measure.versions(),
            "device": measure.device(),
        }


def train(
    dataset: Dataset | GraphDataset | StoredDataset,
    config: TrainConfig | None = None,
    *,
    seeds: int = 1,
    folds: int = 10,
    build: Build | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    checkpoint_every: int = 10,
    compare: bool = False,
    memory_budget: int | str | None = None,
    store: str | os.PathLike[str] | None = None,
    devices: int | None = None,
    partition: str = "auto",
    exchange: str = "auto",
    watcher: Watcher | None = None,
) -> Result:
    """Train a classifier of vertices (`Dataset`, `StoredDataset`) or of graphs (`GraphDataset`).

    Vertices: each run keeps the weights of its best validation epoch. Graphs: one run per fold,
    each for all epochs, and the accuracy is that of the one epoch whose mean over the held-out
    folds is highest, as in Xu et al. 2019, section 7; it is reported as validation accuracy,
    since the folds choose the epoch that they are judged at.

    Args:
        dataset: what `gnnjit.data.open_dataset` or `gnnjit.prepare.prepare` gives.
        config: hyperparameters; by default those of the dataset's recipe.
        seeds: runs with the seeds `config.seed`, `config.seed + 1`, ... (vertices only).
        folds: of cross-validation (graphs only).
        build: makes the model, called as `model(graph, x, *, key)` (for graphs
            `model(graph, x, graph_index, num_graphs, *, key)`), instead of `config.model`.
        checkpoint: directory for checkpoints; must be new or empty unless `resume`.
        resume: continue the run that is in `checkpoint`.
        checkpoint_every: epochs between checkpoints; the result does not depend on it.
        compare: also time a few epochs with every layer run on plain segment operations.
        memory_budget: train block by block, to the same numbers, with at most so many bytes
            ("256MiB") of device memory; with a `StoredDataset` on a disk, of the resident memory
            of this process, Python and JAX included. For one graph; needed with a `StoredDataset`
            on one device.
        store: folder where a `Dataset` that is trained on within a budget is written to, or found;
            by default it is in memory.
        devices: train over so many devices, to the same numbers up to rounding. For one graph.
        partition, exchange: which vertices go together, and how rows of others come to a device, as
            of `gnnjit.shard`.
        watcher: is told of every epoch.

    Returns:
        Accuracies, histories, costs, and the trained model.

    Raises:
        TrainError: if the arguments do not fit each other, or the loss is no longer finite.
        CheckpointError: if a checkpoint is missing, damaged, in the way, or of another run.
        StoreError: if the store is damaged or of another dataset, or its disk is full.
        StreamError: if the model cannot be run block by block, or not within the budget.
    """
    task = "graph" if isinstance(dataset, GraphDataset) else "vertex"
    config = config or resolve(dataset.name.lower(), task, {})
    in_store = store is not None or isinstance(dataset, StoredDataset)
    spread = check_spread(
        *(dataset.name, task, devices, partition, exchange), budget=memory_budget, compare=compare
    )
    check_budget(dataset.name, task, memory_budget, in_store and spread is None, compare)
    if store is not None and isinstance(dataset, StoredDataset):
        raise TrainError(f"{dataset.name} is in a store of its own: leave out store")
    if store is not None and spread is not None:
        raise TrainError(
            f"{dataset.name} is in memory, and store is {os.fspath(store)!r}: to have each process "
            "read its part, pass what gnnjit.prepare.prepare gives"
        )
    budget = None if memory_budget is None else parse_size(memory_budget)
    if budget is not None:
        check_store(dataset)
    _check(dataset, config, seeds, checkpoint_every, checkpoint, resume)
    dataset = _prepared(dataset, config)
    saved = None
    if checkpoint is not None or processes() > 1:
        identity = identity_of(dataset, config, folds)
        given = {"seeds": seeds, "resume": resume, "checkpoint_every": checkpoint_every}
        check_same({**identity, **given, "epochs": config.epochs, "spread": spread})
        check_same(measure.versions())
        saved = None if checkpoint is None else open_checkpoints(checkpoint, identity, resume)
    watcher = watcher or Silent()
    build = build or _builder(dataset, config, task)
    with contextlib.nullcontext(dataset) if budget is None else _stored(dataset, store) as data:
        plan = list(_plan(data, config, seeds, folds, spread))
        first = plan[0][2]
        sharded = first if isinstance(first, ShardedTask) else None
        program = Program(build, config, sharded and sharded.everywhere)
        steps: Steps = (
            program.compile(first)
            if budget is None
            else _streamed(program, first, budget, counts_process(dataset), saved, watcher)
        )
        runner = Runner(program, steps, config, watcher, checkpoint_every)
        check_same({"the untrained model": digest(named_arrays(program.initial(config.seed)))})
        runs = [
            runner.run(t, name, seed, saved and shared(saved.run(name))) for name, seed, t in plan
        ]
    epoch = _best_common_epoch(runs) if task == "graph" else None
    performance = measure.cost(steps, [run.history for run in runs])
    if isinstance(data, StoredDataset):
        performance.update(measure.preparation(data))
    performance["reference"] = measure.reference_cost(program, first) if compare else None
    return Result(
        config=config,
        dataset=describe_dataset(data),
        protocol="folds" if task == "graph" else "split",
        runs=runs,
        accuracy=_summaries(runs, epoch),
        epoch=epoch,
        performance=performance,
        sharding=sharded and sharded.figures(),
        model=program.model(runs[0].params, runs[0].buffers),
    )


def _check(
    dataset: Any,
    config: TrainConfig,
    seeds: int,
    checkpoint_every: int,
    checkpoint: Any,
    resume: bool,
) -> None:
    if not 1 <= seeds <= 2**31 - config.seed:
        most = f"2**31 - {config.seed}" if config.seed else "2**31"
        raise TrainError(f"seeds is {seeds}, expected 1 to {most}")
    if checkpoint_every < 1:
        raise TrainError(f"checkpoint_every is {checkpoint_every}, expected at least 1")
    if resume and checkpoint is None:
        raise CheckpointError(
            "there is nothing to resume without a checkpoint directory: pass --checkpoint DIR"
        )
    if isinstance(dataset, GraphDataset):
        if seeds != 1:
            raise TrainError(
                f"{dataset.name} is judged by cross-validation, got {seeds} seeds: choose the "
                f"number of runs by --folds"
            )
        if config.patience:
            raise TrainError(
                f"patience is {config.patience}, expected 0: every fold of {dataset.name} runs all "
                f"epochs, since one epoch is chosen for all"
            )
    elif not _num_train(dataset):
        raise TrainError(f"{dataset.name}: train_mask is empty, expected vertices to train on")


def _num_train(dataset: Dataset | StoredDataset) -> int:
    if isinstance(dataset, StoredDataset):
        return dataset.counts.train
    return int(np.count_nonzero(dataset.train_mask))


def _prepared(dataset: Any, config: TrainConfig) -> Any:
    if isinstance(dataset, StoredDataset):
        return _same_features(dataset, config)
    if not config.normalize_features:
        return dataset
    if (np.asarray(dataset.x) < 0).any():
        raise TrainError(
            f"{dataset.name} has negative features, whose sum may be zero: pass "
            f"--no-normalize-features"
        )
    return dataclasses.replace(dataset, x=row_normalize(np.asarray(dataset.x)))


def _same_features(stored: StoredDataset, config: TrainConfig) -> StoredDataset:
    normalized = bool(stored.made_from.get("normalize_features", False))
    if normalized != config.normalize_features:
        raise TrainError(
            f"{stored.name} is stored with normalize_features={normalized}, and the configuration "
            f"has normalize_features={config.normalize_features}: prepare it anew, or change the "
            "configuration"
        )
    return stored


@contextlib.contextmanager
def _stored(dataset: Any, folder: str | os.PathLike[str] | None) -> Iterator[StoredDataset]:
    """The dataset in a store: its own, that of a folder, or one in memory."""
    if isinstance(dataset, StoredDataset):
        with without_leftovers(dataset):
            yield dataset
    elif folder is None:
        with HostStore() as store:
            yield store_dataset(dataset, store)
    else:
        stored = open_in_all(lambda: keep(dataset, folder), folder, to_read=False)
        with stored.store, without_leftovers(stored):
            yield stored


def _streamed(
    program: Program,
    task: Any,
    budget: int,
    process: bool,
    saved: Checkpoints | None,
    watcher: Watcher,
) -> Streamed:
    """With the layout that the checkpoints tell for this budget: another one gives other last bits,
    and what fits a process may change with all that it holds."""
    streamed = Streamed(
        program,
        task,
        budget,
        process=process,
        layout=None if saved is None else layout_of(known_to_main(saved), budget),
        watcher=watcher,
    )
    if saved is not None and is_main():
        streamed.settled = lambda layout: saved.remember(note_of(layout, budget))
    return streamed


def _builder(dataset: Any, config: TrainConfig, task: str) -> Build:
    recipe = config.recipe(task)
    return lambda rngs: recipe.build(dataset.num_features, dataset.num_classes, rngs)


def _plan(
    dataset: Any, config: TrainConfig, seeds: int, folds: int, spread: Spread | None
) -> Iterator[tuple[str, int, Task]]:
    """(name, seed, task) of every run."""
    if isinstance(dataset, GraphDataset):
        for i, fold in enumerate(dataset.folds(folds, config.seed)):
            task = FoldTask(dataset, fold, config.batch_size, config.steps_per_epoch)
            yield f"fold-{i}", config.seed, task
        return
    if spread is not None:
        stored = isinstance(dataset, StoredDataset)
        task = shard_stored(dataset, spread) if stored else ShardedTask.of(dataset, spread)
    else:
        task = StoredTask(dataset) if isinstance(dataset, StoredDataset) else VertexTask(dataset)
    for seed in range(config.seed, config.seed + seeds):
        yield f"seed-{seed}", seed, task


def _best_common_epoch(runs: Sequence[Run]) -> int:
    """The epoch, counted from 1, of the highest mean validation accuracy over the runs."""
    curves = [[record.accuracy["val"] or 0.0 for record in run.history] for run in runs]
    return int(np.argmax(np.mean(curves, axis=0))) + 1


def _summaries(runs: Sequence[Run], epoch: int | None) -> dict[str, Summary]:
    records = [run.best if epoch is None else run.history[epoch - 1] for run in runs]
    found = {}
    for split in SPLITS:
        present = [record.accuracy[split] for record in records]
        values = [value for value in present if value is not None]
        if len(values) == len(records):
            found[split] = Summary(float(np.mean(values)), float(np.std(values)))
    return found
