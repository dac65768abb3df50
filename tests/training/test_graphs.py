"""Cross-validation over many graphs: batches of one shape, and the epoch that folds share."""

from __future__ import annotations

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gnnjit.data import GraphDataset
from gnnjit.training import TrainConfig, TrainError, train
from gnnjit.training.config import resolve
from gnnjit.training.tasks import FoldTask


class Pooled(nnx.Module):
    """The sum over each graph's edges and vertices, normalised over the batch, then linear."""

    def __init__(self, features: int, classes: int, rngs: nnx.Rngs) -> None:
        self.norm = nnx.BatchNorm(features, rngs=rngs)
        self.linear = nnx.Linear(features, classes, rngs=rngs)

    def __call__(self, graph, x, graph_index, num_graphs, *, key=None):
        weight = jnp.ones(graph.num_edges) if graph.mask is None else graph.mask.astype(x.dtype)
        h = x + jax.ops.segment_sum(weight[:, None] * x[graph.src], graph.dst, graph.num_nodes)
        real = (graph_index < num_graphs)[:, None]
        h = self.norm(h, use_running_average=key is None, mask=real)
        return self.linear(jax.ops.segment_sum(h, graph_index, num_graphs))


@pytest.fixture(scope="module")
def dataset():
    """Rings (class 0) and stars (class 1) of 3 to 12 vertices."""
    rng = np.random.default_rng(0)
    src, dst, sizes, degrees, edges, y = [], [], [], [], [], []
    for i in range(60):
        n, start = int(rng.integers(3, 13)), sum(sizes)
        ring = np.stack([np.arange(n), (np.arange(n) + 1) % n])
        star = np.stack([np.zeros(n - 1, int), np.arange(1, n)])
        pairs = star if i % 2 else ring
        both = np.concatenate([pairs, pairs[::-1]], axis=1)
        src.append(both[0] + start)
        dst.append(both[1] + start)
        sizes.append(n)
        edges.append(both.shape[1])
        degrees.append(np.bincount(both[1], minlength=n))
        y.append(i % 2)
    degree = np.concatenate(degrees)
    return GraphDataset(
        name="shapes",
        node_offsets=np.cumsum([0, *sizes]).astype(np.int64),
        edge_offsets=np.cumsum([0, *edges]).astype(np.int64),
        src=np.concatenate(src).astype(np.int32),
        dst=np.concatenate(dst).astype(np.int32),
        x=np.eye(4, dtype=np.float32)[np.minimum(degree, 4) - 1],
        y=np.array(y, np.int32),
        num_classes=2,
    )


@pytest.fixture(scope="module")
def build():
    return lambda rngs: Pooled(4, 2, rngs)


def shapes(batch):
    return [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(batch)]


@pytest.mark.parametrize("batch_size", [0, 1, 8, 32])
def test_batches_have_one_shape(dataset, batch_size):
    tasks = [FoldTask(dataset, fold, batch_size, 5) for fold in dataset.folds(7)]
    batches = [b for task in tasks for epoch in (0, 1) for b in task.train_batches(0, epoch)]
    assert all(shapes(b) == shapes(batches[0]) for b in batches)
    assert len({jax.tree.structure(b) for b in batches}) == 1


def test_batches_cover_the_training_graphs_alone(dataset):
    fold = dataset.folds(5)[0]
    task = FoldTask(dataset, fold, 8, 6)
    batches = list(task.train_batches(0, 0))
    seen = sum(int(b.weights[:, 0].sum()) for b in batches)
    assert 6 * 6 <= seen <= 6 * 8
    assert not any(b.weights[:, 1:].any() for b in batches)


def test_one_batch_of_everything_is_the_training_set(dataset):
    fold = dataset.folds(5)[0]
    (batch,) = FoldTask(dataset, fold).train_batches(0, 0)
    assert int(batch.weights[:, 0].sum()) == len(fold.train)
    part = dataset.select(fold.train)
    assert int(batch.graph.mask.sum()) == part.num_edges
    assert sorted(map(tuple, np.asarray(batch.x))) == sorted(
        map(tuple, np.pad(part.x, ((0, batch.x.shape[0] - part.num_nodes), (0, 0))))
    )


def test_batches_are_a_function_of_seed_and_epoch(dataset):
    task = FoldTask(dataset, dataset.folds(5)[0], 8, 2)

    def first(seed, epoch):
        return np.asarray(next(iter(task.train_batches(seed, epoch))).x)

    np.testing.assert_array_equal(first(1, 2), first(1, 2))
    assert not np.array_equal(first(1, 2), first(1, 3))
    assert not np.array_equal(first(1, 2), first(2, 2))


def test_padding_changes_nothing(dataset, build):
    fold = dataset.folds(5)[0]
    (padded,) = FoldTask(dataset, fold, 20, 1).train_batches(0, 0)
    real = int(padded.weights[:, 0].sum())
    nodes = int((padded.graph_index < padded.num_graphs).sum())
    model = build(nnx.Rngs(0))
    outside = padded.x.at[nodes:].set(jnp.nan)
    logits = model(padded.graph, padded.x, padded.graph_index, padded.num_graphs)
    spoiled = model(padded.graph, outside, padded.graph_index, padded.num_graphs)
    assert real > 0
    np.testing.assert_array_equal(logits[:real], spoiled[:real])


def test_folds(dataset, build):
    config = TrainConfig(epochs=12, lr=0.1, weight_decay=0.0, batch_size=16, steps_per_epoch=3)
    result = train(dataset, config, folds=4, build=build)
    assert [run.name for run in result.runs] == [f"fold-{i}" for i in range(4)]
    assert result.protocol == "folds"
    curves = np.array([[r.accuracy["val"] for r in run.history] for run in result.runs])
    assert curves.shape == (4, 12)
    assert result.epoch == int(curves.mean(0).argmax()) + 1
    assert result.accuracy["val"].mean == pytest.approx(curves.mean(0).max())
    assert result.accuracy["val"].mean > 0.9
    assert "test" not in result.accuracy


def test_folds_resume(dataset, build, tmp_path):
    config = TrainConfig(epochs=3, batch_size=16)
    first = train(dataset, config, folds=2, build=build, checkpoint=tmp_path)
    again = train(dataset, config, folds=2, build=build, checkpoint=tmp_path, resume=True)
    for run, other in zip(first.runs, again.runs, strict=True):
        assert run.to_dict()["weights_sha256"] == other.to_dict()["weights_sha256"]


def test_running_means_are_trained(dataset, build):
    result = train(dataset, TrainConfig(epochs=2), folds=2, build=build)
    assert not np.allclose(result.model.norm.mean[...], 0)


def test_seeds_and_patience_are_refused(dataset, build):
    with pytest.raises(TrainError, match="judged by cross-validation, got 2 seeds"):
        train(dataset, TrainConfig(), seeds=2, build=build)
    with pytest.raises(TrainError, match=r"patience is 5, expected 0"):
        train(dataset, TrainConfig(patience=5), build=build)


def test_graph_model_of_the_recipes(dataset):
    config = resolve("shapes", "graph", {"epochs": 2, "hidden": 4, "layers": 1})
    result = train(dataset, config.replace(steps_per_epoch=2), folds=2)
    assert config.model == "gin"
    assert all(len(run.history) == 2 for run in result.runs)


def test_recipes_of_graph_datasets_run_all_epochs():
    for name, model in itertools.product(("mutag", "proteins"), ("gin", "gcn")):
        assert resolve(name, "graph", {"model": model}).patience == 0


class Summed(nnx.Module):
    """The sum over each graph's vertices, linear."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, graph, x, graph_index, num_graphs, *, key=None):
        return self.linear(jax.ops.segment_sum(x / 12, graph_index, num_graphs))


def test_numbers_of_graphs(dataset):
    """Two targets a graph, in padded batches: the size of the graph, and that less a half."""
    sizes = np.diff(dataset.node_offsets).astype(np.float32) / 12
    numbers = dataclasses.replace(dataset, y=np.stack([sizes, sizes - 0.5], 1), num_classes=0)
    config = TrainConfig(epochs=8, batch_size=16, steps_per_epoch=16, lr=0.05, weight_decay=0.0)
    result = train(numbers, config, folds=2, build=Summed)
    assert result.metric == "R2"
    assert result.accuracy["val"].mean > 0.5
    assert set(result.scores) == {"RMSE", "MAE"}
    (batch,) = itertools.islice(FoldTask(numbers, numbers.folds(2)[0], 16).train_batches(0, 0), 1)
    assert batch.labels.shape == (16, 2)


def test_graphs_without_targets(dataset):
    none = dataclasses.replace(dataset, y=np.zeros((len(dataset), 0), np.float32), num_classes=0)
    with pytest.raises(TrainError) as error:
        train(none)
    assert str(error.value) == (
        "shapes has no targets, expected a class or numbers for each graph: name them (targets=), "
        "or replace y (dataclasses.replace(dataset, y=...))"
    )
