"""The training loop: determinism, early stopping, what is reported, mistakes."""

from __future__ import annotations

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gnnjit.data import LinkDataset, communities, karate
from gnnjit.training import TrainConfig, TrainError, train
from gnnjit.training.config import resolve
from gnnjit.training.loop import Epoch, Stopping
from gnnjit.training.models import builder
from gnnjit.training.optimizers import decayed
from gnnjit.training.recommendation import RecommendationTask
from gnnjit.training.steps import ModelFunctions


class Tiny(nnx.Module):
    """A classifier that compiles in no time: the vertex beside the mean of its neighbours."""

    def __init__(self, features: int, classes: int, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(features, classes, rngs=rngs)

    def __call__(self, graph, x, *, key=None):
        if key is not None:
            x = jax.numpy.where(jax.random.bernoulli(key, 0.8, x.shape), x / 0.8, 0)
        total = jax.ops.segment_sum(x[graph.src], graph.dst, graph.num_nodes)
        degree = graph.in_structure.degree()[:, None]
        return self.linear(x + total / jax.numpy.maximum(degree, 1))


@pytest.fixture(scope="module")
def dataset():
    return communities(num_nodes=300, num_classes=3, num_features=8, separation=2.5)


@pytest.fixture(scope="module")
def build(dataset):
    return lambda rngs: Tiny(dataset.num_features, dataset.num_classes, rngs)


def without_times(result) -> list[dict]:
    runs = result.to_dict()["runs"]
    for run in runs:
        for record in run["history"]:
            del record["seconds"]
    return runs


def record(epoch: int, accuracy: float | None, loss: float | None) -> Epoch:
    return Epoch(epoch, 1.0, {"val": accuracy}, {"val": loss}, 0.0)


def test_same_seed_same_numbers(dataset, build):
    config = TrainConfig(epochs=8, seed=3)
    first, second = (train(dataset, config, build=build) for _ in range(2))
    assert without_times(first) == without_times(second)


def test_seeds_differ_and_equal_runs_of_their_own(dataset, build):
    both = without_times(train(dataset, TrainConfig(epochs=4, seed=5), seeds=2, build=build))
    alone = without_times(train(dataset, TrainConfig(epochs=4, seed=6), build=build))
    assert [run["name"] for run in both] == ["seed-5", "seed-6"]
    assert both[1] == alone[0]
    assert both[0]["history"] != both[1]["history"]


def test_summary_is_mean_and_deviation_over_runs(dataset, build):
    result = train(dataset, TrainConfig(epochs=3), seeds=3, build=build)
    values = [run.best.accuracy["test"] for run in result.runs]
    assert result.accuracy["test"].mean == pytest.approx(np.mean(values))
    assert result.accuracy["test"].std == pytest.approx(np.std(values))


def test_learns(dataset, build):
    result = train(dataset, TrainConfig(epochs=60, lr=0.05), build=build)
    assert result.accuracy["test"].mean > 0.8


def test_model_holds_the_best_weights(dataset, build):
    result = train(dataset, TrainConfig(epochs=30, lr=0.3), build=build)
    logits = result.model(dataset.graph, jax.numpy.asarray(dataset.x))
    right = np.asarray(logits.argmax(-1) == dataset.y)[dataset.val_mask]
    best = max(r.accuracy["val"] for r in result.runs[0].history)
    assert right.mean() == pytest.approx(best)
    assert result.runs[0].best.accuracy["val"] == best


def test_patience_stops_early(dataset, build):
    result = train(dataset, TrainConfig(epochs=400, lr=0.3, patience=5), build=build)
    run = result.runs[0]
    assert run.stopped_early
    assert len(run.history) < 400
    top = max(r.accuracy["val"] for r in run.history[:-5])
    low = min(r.losses["val"] for r in run.history[:-5])
    assert all(r.accuracy["val"] <= top and r.losses["val"] >= low for r in run.history[-5:])


def test_stopping_takes_the_lower_loss_among_equal_accuracies():
    stopping = Stopping()
    better = [stopping.update(record(*r)) for r in ((1, 0.5, 2.0), (2, 0.5, 1.0), (3, 0.4, 0.5))]
    assert better == [True, True, False]
    assert (stopping.best_epoch, stopping.stale) == (2, 0)  # the loss of epoch 3 is the lowest


def test_stopping_by_loss_is_blind_to_accuracies():
    stopping = Stopping(by_loss=True)
    rows = (1, 0.5, 2.0), (2, 0.4, 1.0), (3, 0.9, 1.5)
    assert [stopping.update(record(*row)) for row in rows] == [True, True, False]
    assert (stopping.best_epoch, stopping.stale) == (2, 1)


def test_stopping_counts_epochs_without_progress():
    stopping = Stopping()
    for epoch in range(1, 5):
        stopping.update(record(epoch, 0.5, 1.0))
    assert (stopping.best_epoch, stopping.stale) == (1, 3)


def test_without_validation_the_last_epoch_is_kept():
    data = karate()
    result = train(
        data,
        TrainConfig(epochs=3, patience=1),
        build=lambda rngs: Tiny(data.num_features, data.num_classes, rngs),
    )
    assert result.runs[0].best_epoch == 3
    assert sorted(result.accuracy) == ["test", "train"]


def test_result_is_json(dataset, build):
    result = train(dataset, TrainConfig(epochs=2), build=build).to_dict()
    result = json.loads(json.dumps(result, allow_nan=False))
    assert result["dataset"]["vertices"] == 300
    assert result["config"]["epochs"] == 2
    assert set(result["versions"]) >= {"python", "jax", "flax", "optax", "gnnjit"}
    assert result["device"]["platform"] == jax.default_backend()
    assert result["performance"]["peak_rss_bytes"] > 0
    assert [r["epoch"] for r in result["runs"][0]["history"]] == [1, 2]


def test_diverged_loss_is_an_error(dataset):
    class Broken(Tiny):
        def __call__(self, graph, x, *, key=None):
            return super().__call__(graph, x, key=key) * jax.numpy.nan

    def broken(rngs):
        return Broken(dataset.num_features, dataset.num_classes, rngs)

    with pytest.raises(TrainError, match=r"loss is nan at epoch 1, .*lower the learning rate"):
        train(dataset, TrainConfig(epochs=2), build=broken)


def test_config_lists_every_mistake():
    with pytest.raises(TrainError) as caught:
        TrainConfig(hidden=0, dropout=1.0, lr=math.nan)
    assert str(caught.value) == (
        "hidden is 0, expected at least 1; dropout is 1.0, expected from 0 to below 1; "
        "lr is nan, expected above 0"
    )


def test_values_of_another_kind():
    with pytest.raises(TrainError) as caught:
        TrainConfig(layers="2", heads=2.0, lr=True, epochs=2**31, normalize_features=1)
    assert str(caught.value) == (
        "layers is '2', expected a whole number below 2**31; heads is 2.0, expected a whole number "
        "below 2**31; lr is True, expected a number; epochs is 2147483648, expected a whole number "
        "below 2**31; normalize_features is 1, expected True or False"
    )


def test_unknown_model_and_field():
    with pytest.raises(TrainError, match=r"unknown model 'gta', .*did you mean 'gat'"):
        resolve("cora", "vertex", {"model": "gta"})
    with pytest.raises(TrainError, match=r"depth: no such hyperparameter, expected some of model"):
        resolve("cora", "vertex", {"depth": 3})


def test_given_values_win_over_the_recipe():
    config = resolve("cora", "vertex", {"model": "gcn", "hidden": 3, "lr": None})
    assert (config.hidden, config.lr, config.decay) == (3, 0.01, "first")
    assert config.normalize_features


def test_default_models():
    assert resolve("communities", "vertex", {}).model == "gat"
    assert resolve("mutag", "graph", {}).model == "gin"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seeds": 0}, r"seeds is 0, expected 1 to 2\*\*31"),
        ({"checkpoint_every": 0}, "checkpoint_every is 0, expected at least 1"),
        ({"config": TrainConfig(normalize_features=True)}, "has negative features"),
    ],
)
def test_mistaken_arguments(dataset, arguments, message):
    with pytest.raises(TrainError, match=message):
        train(dataset, **arguments)


@pytest.mark.parametrize(("decay", "wanted"), [("first", [True, False]), ("all", [True, True])])
def test_decay_spares_biases(decay, wanted):
    class Net(nnx.Module):
        def __init__(self):
            rngs = nnx.Rngs(0)
            self.layers = nnx.List([nnx.Linear(2, 2, rngs=rngs) for _ in range(2)])

    params = nnx.state(Net(), nnx.Param)
    mask = nnx.to_pure_dict(decayed(params, decay=decay))["layers"]
    assert [mask[i]["kernel"] for i in range(2)] == wanted
    assert not any(mask[i]["bias"] for i in range(2))


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_rate_halves_with_epochs(optimizer):
    """However many steps an epoch has: those of a recommendation are not in the configuration."""
    links = np.stack([np.arange(40) % 8, np.zeros(40), 8 + np.arange(40) % 5], axis=1)
    data = LinkDataset("tastes", 13, links.astype(np.int32), links[:0].astype(np.int32),
                       links[:0].astype(np.int32), num_users=8)  # fmt: skip
    config = TrainConfig(model="lightgcn", layers=1, hidden=4, optimizer=optimizer, lr=0.1,
                         weight_decay=0.0, decay="batch" if optimizer == "adam" else "all",
                         batch_size=10, halve_every=2)  # fmt: skip
    task = RecommendationTask(data, config)
    build = builder(data, config, "recommendation")
    functions = [ModelFunctions(build, c) for c in (config, config.replace(halve_every=0))]
    start = functions[0].initial(0)
    for epoch, share in ((0, 1), (1, 1), (2, 0.5), (3, 0.5), (4, 0.25)):
        for index, batch in enumerate(task.train_batches(0, epoch)):
            counts = np.int32(0), np.int32(epoch), np.int32(index)
            moved = [
                jax.tree.map(jnp.subtract, f.update(start, batch, *counts)[0].params, start.params)
                for f in functions
            ]
            for ours, whole in zip(*map(jax.tree.leaves, moved), strict=True):
                np.testing.assert_allclose(ours, share * whole, rtol=1e-4, atol=1e-7)
        assert index == 3
