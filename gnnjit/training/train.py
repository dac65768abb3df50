"""Training as a function: `train(dataset, config)` for vertices, and for graphs with their folds.

    from gnnjit.data import open_dataset
    from gnnjit.training import TrainConfig, train

    result = train(open_dataset("karate"), TrainConfig(model="gcn", epochs=50))
    print(result.accuracy["test"].mean, result.model)

A graph that exceeds the memory is trained on within a budget, block by block, to the same numbers:

    from gnnjit.data.stored.prepare import prepare

    stored = prepare("communities", "folder", options={"num_nodes": 5_000_000})
    result = train(stored, memory_budget="2GiB")

The same dataset, configuration and machine give the same numbers bit for bit, also where a run
was killed and continued from its checkpoints.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from gnnjit.data import Dataset, EdgeList, GraphDataset, ParticleDataset, row_normalize
from gnnjit.data.links import LinkDataset
from gnnjit.data.pairs import PairDataset
from gnnjit.data.stored.dataset import StoredDataset
from gnnjit.data.stored.prepare import keep
from gnnjit.data.stored.write import store_dataset
from gnnjit.distributed.process_group import check_same, is_main
from gnnjit.store.memory import HostStore
from gnnjit.training import performance
from gnnjit.training.checkpoint import Checkpoints, digest, named_arrays
from gnnjit.training.config import TrainConfig, resolve
from gnnjit.training.errors import TrainError
from gnnjit.training.identity import describe_dataset, identity_of
from gnnjit.training.loop import Run, Steps, Trainer, Watcher
from gnnjit.training.models import builder, metric_of, task_of, trainable, usual_model
from gnnjit.training.neighborhoods import select
from gnnjit.training.pairs import PairTask
from gnnjit.training.probe import MISSING, can_probe, svm_scores
from gnnjit.training.processes import (
    known_to_main,
    open_checkpoints,
    open_in_all,
    processes,
    shared,
)
from gnnjit.training.recommendation import RecommendationTask
from gnnjit.training.sampled import SampledSteps, SampledTask, Sampling, usual_sampling
from gnnjit.training.sampled_links import SampledLinkTask, link_task
from gnnjit.training.sharded import AXIS, ShardedTask
from gnnjit.training.sharded_stored import shard_stored
from gnnjit.training.specification import Specification
from gnnjit.training.steps import Build, ModelFunctions
from gnnjit.training.streamed import (
    StoredTask,
    Streamed,
    check_store,
    counts_process,
    layout_of,
    note_of,
    without_leftovers,
)
from gnnjit.training.tasks import SPLITS, FoldTask, Task, VertexTask, drawn_split


@dataclasses.dataclass(frozen=True)
class Summary:
    """A score over several runs.

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
        accuracy: by split, over the runs; splits without labels are left out. The score that
            epochs are compared by: `metric` tells which.
        metric: "accuracy"; "micro-F1" of all labels, where a vertex may have several; "MRR" (among
            the facts that are not known), "recall@20"; "R2", the explained share of the variance.
        scores: other scores over the runs, by name and split.
        epoch: the one epoch that all folds are judged at; None for "split".
        performance: costs in seconds and bytes, and those of the reference if it was timed.
        sharding: over how many devices and processes, how the graph was dealt out to them, and how
            evenly; None for one device.
        model: the model of the first run, with its best weights, set to evaluate.
        notes: what could not be computed, and what that takes.
    """

    config: TrainConfig
    dataset: dict[str, Any]
    protocol: str
    runs: list[Run]
    accuracy: dict[str, Summary]
    metric: str
    scores: dict[str, dict[str, Summary]]
    epoch: int | None
    performance: dict[str, Any]
    sharding: dict[str, Any] | None
    model: nnx.Module
    notes: list[str] = dataclasses.field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """All but the weights, for JSON."""
        return {
            "config": self.config.to_dict(),
            "dataset": self.dataset,
            "protocol": self.protocol,
            "accuracy": {split: dataclasses.asdict(s) for split, s in self.accuracy.items()},
            "metric": self.metric,
            "scores": {
                name: {split: dataclasses.asdict(s) for split, s in of_split.items()}
                for name, of_split in self.scores.items()
            },
            "epoch": self.epoch,
            "performance": self.performance,
            "sharding": self.sharding,
            "notes": self.notes,
            "runs": [run.to_dict() for run in self.runs],
            "versions": performance.versions(),
            "device": performance.device(),
        }


def train(
    dataset: Dataset
    | GraphDataset
    | LinkDataset
    | PairDataset
    | StoredDataset
    | ParticleDataset
    | EdgeList,
    config: TrainConfig | None = None,
    *,
    sampling: Sampling | None = None,
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
    """Train a classifier of vertices (`Dataset`, `StoredDataset`) or of graphs (`GraphDataset`),
    or a model that predicts links (`LinkDataset`).

    Vertices: each run keeps the weights of its best validation epoch. Graphs: one run per fold,
    each for all epochs, and the accuracy is that of the one epoch whose mean over the held-out
    folds is highest, as in Xu et al. 2019, section 7; it is reported as validation accuracy,
    since the folds choose the epoch that they are judged at.

    Links: as for vertices; where there is no validation split, the weights are those of the last
    epoch. Facts of a knowledge graph are ranked among all others of the same head and relation,
    and of the same relation and tail, links of a graph without self loops among those to other
    vertices; items among all that a user did not take in training.

    Pairs (`PairDataset`): as for vertices; pairs of one class are told from as many drawn of two.

    Models of `gnnjit.neighborhood` select their neighbours before the first epoch, by the seed of
    the first run.

    Args:
        dataset: what `gnnjit.data.open_dataset` or `gnnjit.data.stored.prepare.prepare` gives; or
            `gnnjit.data.read_edges`, whose links are predicted (`split_links`).
        config: hyperparameters; by default those of the dataset's recipe, and its sampling.
        sampling: train on sampled batches instead of the whole graph; it is still evaluated on the
            whole one, within a budget block by block. For one graph in memory; over several devices
            each has batches of its own. Of a knowledge graph, on facts of sampled parts.
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
    data = trainable(dataset)
    task, name = task_of(data), data.name.lower()
    if config is None:
        config = resolve(name, task, usual_model(data))
        sampling = sampling or usual_sampling(name, config.model)
    spec = Specification(
        data.name,
        task,
        config,
        isinstance(data, StoredDataset),
        sampling,
        seeds=seeds,
        folds=folds,
        checkpoint=checkpoint,
        resume=resume,
        checkpoint_every=checkpoint_every,
        compare=compare,
        memory_budget=memory_budget,
        store=store,
        devices=devices,
        partition=partition,
        exchange=exchange,
    )
    return run_training(spec, data, build=build, watcher=watcher)


def run_training(
    spec: Specification,
    dataset: Dataset | GraphDataset | LinkDataset | PairDataset | StoredDataset,
    *,
    build: Build | None = None,
    watcher: Watcher | None = None,
) -> Result:
    """Train on the dataset that `spec` names; the rest as `train`, which raises the same."""
    config, watcher = spec.config, watcher or Watcher()
    dataset = _prepared(spec, dataset)
    saved = _checkpoints(spec, dataset)
    with _where_it_is_read(spec, dataset) as data:
        hdg = select(data, config, functools.partial(watcher.stage, "neighbourhoods"))
        tasks = list(_tasks(spec, data, dataset, hdg))
        first = tasks[0][2]
        sharded = first if isinstance(first, ShardedTask) else None
        build = build or builder(dataset, config, spec.task, hdg)
        everywhere = getattr(first, "everywhere", None)
        several = isinstance(first, SampledTask) and first.mesh is not None
        functions = ModelFunctions(build, config, everywhere, AXIS if several else None)
        steps: Steps
        if isinstance(first, SampledTask):
            steps = SampledSteps(functions, first, spec.budget)
        elif spec.budget is None:
            steps = functions.compile(first)
        else:
            process = counts_process(dataset)
            steps = _streamed(functions, first, spec.budget, process, saved, watcher)
        trainer = Trainer(functions, steps, config, watcher, spec.checkpoint_every)
        check_same({"the untrained model": digest(named_arrays(functions.initial(config.seed)))})
        runs = [
            trainer.run(task, name, seed, saved and shared(saved.run(name)))
            for name, seed, task in tasks
        ]
        probed = None
        if hasattr(functions.model(runs[0].params, runs[0].buffers), "embed"):
            probed = _probed(functions, runs, tasks)
    epoch = _best_common_epoch(runs) if spec.task == "graph" else None
    costs = performance.cost(steps, [run.history for run in runs])
    if isinstance(data, StoredDataset):
        costs.update(performance.preparation(data))
    if isinstance(first, SampledLinkTask):
        costs["sampling"] = first.figures()
    costs["reference"] = performance.reference_cost(functions, first) if spec.compare else None
    return Result(
        config=config,
        dataset=describe_dataset(data),
        protocol="folds" if spec.task == "graph" else "split",
        runs=runs,
        accuracy=_summaries(runs, epoch),
        metric=metric_of(dataset, spec.task),
        scores=_other_scores(runs, epoch) | (probed or {}),
        epoch=epoch,
        performance=costs,
        sharding=sharded and sharded.figures(),
        model=functions.model(runs[0].params, runs[0].buffers),
        notes=[MISSING] if probed == {} else [],
    )


def _probed(
    functions: ModelFunctions, runs: Sequence[Run], tasks: Sequence[Any]
) -> dict[str, dict[str, Summary]]:
    """What a linear SVM makes of each run's embeddings; nothing where scikit-learn is missing."""
    if not can_probe():
        return {}
    found = []
    for run, (_, _, task) in zip(runs, tasks, strict=True):
        (batch,) = task.eval_batches()
        model: Any = functions.model(run.params, run.buffers)
        test = np.asarray(batch.weights)[:, SPLITS.index("test")] > 0
        embedding = np.asarray(jax.jit(model.embed)(batch.graph, batch.x))
        found.append(svm_scores(embedding[test], np.asarray(batch.labels)[test]))
    return {name: {"test": _summary([scores[name] for scores in found])} for name in found[0]}


def _prepared(spec: Specification, dataset: Any) -> Any:
    """The dataset with its features as the configuration says. Raises TrainError where it cannot
    be trained on so."""
    _check_featureless(spec, dataset)
    if spec.budget is not None:
        check_store(dataset)
    if spec.task in ("vertex", "typed") and not _num_train(dataset):
        raise TrainError(f"{dataset.name}: train_mask is empty, expected vertices to train on")
    if isinstance(dataset, StoredDataset):
        return _same_features(dataset, spec.config)
    if not spec.config.normalize_features or isinstance(dataset, LinkDataset | PairDataset):
        return dataset
    if (np.asarray(dataset.x) < 0).any():
        raise TrainError(
            f"{dataset.name} has negative features, whose sum may be zero: pass "
            f"--no-normalize-features"
        )
    return dataclasses.replace(dataset, x=row_normalize(np.asarray(dataset.x)))


def _check_featureless(spec: Specification, dataset: Any) -> None:
    """Raises TrainError for vertices without features where they are not all in one place."""
    apart = spec.budget is not None or spec.spread is not None or spec.sampling is not None
    if apart and spec.task == "vertex" and not dataset.num_features:
        raise TrainError(
            f"{dataset.name} has no features, and an embedding of each vertex is learned, which is "
            "for training in memory on one device: leave out the budget, devices and sampler, or "
            "give the vertices features"
        )


def _checkpoints(spec: Specification, dataset: Any) -> Checkpoints | None:
    """Those of this training, if it keeps any. Raises DistributedError where processes disagree
    about what is to be trained."""
    if spec.checkpoint is None and processes() == 1:
        return None
    identity = identity_of(dataset, spec.config, spec.folds)
    if spec.sampling is not None:
        identity["sampling"] = spec.sampling.to_dict()
    rest = ("seeds", "resume", "checkpoint_every", "spread")
    same = {name: getattr(spec, name) for name in rest} | {"epochs": spec.config.epochs}
    check_same({**identity, **same})
    check_same(performance.versions())
    if spec.checkpoint is None:
        return None
    return open_checkpoints(spec.checkpoint, identity, spec.resume)


def _num_train(dataset: Dataset | StoredDataset) -> int:
    if isinstance(dataset, StoredDataset):
        return dataset.counts.train
    return int(np.count_nonzero(dataset.train_mask))


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
def _where_it_is_read(spec: Specification, dataset: Any) -> Iterator[Any]:
    """The dataset as it is; within a budget, in a store: its own, that of a folder, or one in
    memory."""
    folder = spec.store
    if spec.budget is None:
        yield dataset
    elif isinstance(dataset, StoredDataset):
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
    functions: ModelFunctions,
    task: Any,
    budget: int,
    process: bool,
    saved: Checkpoints | None,
    watcher: Watcher,
) -> Streamed:
    """With the layout that the checkpoints tell for this budget: another one gives other last bits,
    and what fits a process may change with all that it holds."""
    streamed = Streamed(
        functions,
        task,
        budget,
        process=process,
        layout=None if saved is None else layout_of(known_to_main(saved), budget),
        watcher=watcher,
    )
    if saved is not None and is_main():
        streamed.settled = lambda layout: saved.remember(note_of(layout, budget))
    return streamed


def _tasks(
    spec: Specification, dataset: Any, in_memory: Any, hdg: Any
) -> Iterator[tuple[str, int, Task]]:
    """(name, seed, task) of every run. `dataset` is where it is read, of what is `in_memory`;
    `hdg` has the neighbourhoods of a model whose neighbours are no edges."""
    config = spec.config
    if isinstance(dataset, GraphDataset):
        for i, fold in enumerate(dataset.folds(spec.folds, config.seed)):
            task = FoldTask(dataset, fold, config.batch_size, config.steps_per_epoch)
            yield f"fold-{i}", config.seed, task
        return
    stored = isinstance(dataset, StoredDataset)
    task: Task
    if isinstance(dataset, PairDataset):
        task = PairTask(dataset, config, hdg)
    elif isinstance(dataset, LinkDataset) and dataset.task == "recommendation":
        task = RecommendationTask(dataset, config, hdg)
    elif isinstance(dataset, LinkDataset):
        task = link_task(dataset, config, spec.sampling)
    elif spec.sampling is not None:
        mesh = None if spec.spread is None else spec.spread.mesh()
        whole = StoredTask(dataset) if stored else VertexTask(dataset)
        task = SampledTask(in_memory, spec.sampling, config.layers, config.seed, whole, mesh)
    elif spec.spread is not None:
        of_shards = shard_stored if stored else ShardedTask.of
        task = of_shards(dataset, spec.spread)
    else:
        task = StoredTask(dataset) if stored else VertexTask(dataset, hdg)
    for seed in range(config.seed, config.seed + spec.seeds):
        own = task
        if config.split == "random" and isinstance(task, VertexTask):
            own = task.resplit(drawn_split(in_memory, seed))
        yield f"seed-{seed}", seed, own


def _best_common_epoch(runs: Sequence[Run]) -> int:
    """The epoch, counted from 1, of the highest mean validation accuracy over the runs."""
    curves = [[record.accuracy["val"] or 0.0 for record in run.history] for run in runs]
    return int(np.argmax(np.mean(curves, axis=0))) + 1


def _records(runs: Sequence[Run], epoch: int | None) -> list[Any]:
    return [run.best if epoch is None else run.history[epoch - 1] for run in runs]


def _summaries(runs: Sequence[Run], epoch: int | None) -> dict[str, Summary]:
    return _summarized([record.accuracy for record in _records(runs, epoch)])


def _other_scores(runs: Sequence[Run], epoch: int | None) -> dict[str, dict[str, Summary]]:
    records = _records(runs, epoch)
    return {name: _summarized([r.scores[name] for r in records]) for name in records[0].scores}


def _summarized(of_runs: Sequence[dict[str, float | None]]) -> dict[str, Summary]:
    found = {}
    for split in SPLITS:
        values = [value for by_split in of_runs if (value := by_split[split]) is not None]
        if len(values) == len(of_runs):
            found[split] = _summary(values)
    return found


def _summary(values: Sequence[float]) -> Summary:
    return Summary(float(np.mean(values)), float(np.std(values)))
