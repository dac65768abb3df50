"""Training on sampled batches."""

from __future__ import annotations

import json
import re
from typing import Any

import jax
import numpy as np
import pytest

from gnnjit.cli import main as command_line
from gnnjit.data import Dataset, open_dataset
from gnnjit.nn import recipes
from gnnjit.training import CheckpointError, Sampling, TrainConfig, TrainError, train
from gnnjit.training.checkpoint import named_arrays

CONFIG = TrainConfig(model="sage", hidden=8, dropout=0.2, lr=0.02, epochs=6)
KINDS: dict[str, dict[str, Any]] = {
    "neighbor": {"fanouts": (5, 3), "batch_size": 40},
    "frontier": {"options": {"frontier": 20, "vertices": 150}},
    "walk": {"options": {"walks": 30, "length": 3}},
    "vertex": {"options": {"vertices": 150}},
    "edge": {"options": {"edges": 100}},
    "cluster": {"batch_size": 3, "options": {"clusters": 12}},
}


@pytest.fixture(scope="module")
def data() -> Dataset:
    found = open_dataset("communities", num_nodes=600, seed=1)
    assert isinstance(found, Dataset)
    return found


def weights(result: Any) -> Any:
    return named_arrays(result.runs[0].params)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_numbers_with_any_number_of_threads(kind: str, data: Dataset) -> None:
    one, three = (
        train(data, CONFIG, sampling=Sampling(kind, threads=threads, shapes=1, **KINDS[kind]))
        for threads in (1, 3)
    )
    jax.tree.map(np.testing.assert_array_equal, weights(one), weights(three))
    losses = [record.loss for record in one.runs[0].history]
    assert losses[-1] < losses[0]
    figures = one.performance["sampling"]
    assert one.performance["programs"] == 1
    assert figures["sampler"] == kind
    assert figures["batches_per_shape"][0] >= CONFIG.epochs
    assert 0 <= figures["padding_percent"] < 60


def test_it_learns_in_few_programs(data: Dataset) -> None:
    config = CONFIG.replace(dropout=0.0, epochs=20)
    result = train(data, config, sampling=Sampling("neighbor", (5, 3), 20, shapes=3))
    assert result.accuracy["train"].mean > 0.9
    assert 1 <= result.performance["programs"] <= 3
    assert sum(result.performance["sampling"]["batches_per_shape"]) >= 20 * 3


@pytest.mark.parametrize(
    "model",
    ["gin", "gatedgcn", *(pytest.param(m, marks=pytest.mark.long) for m in ("gcn", "gat"))],
)
def test_models(model: str, data: Dataset) -> None:
    sampling = Sampling("neighbor", (4, 4), batch_size=64, shapes=1)
    result = train(data, CONFIG.replace(model=model, epochs=2), sampling=sampling)
    assert np.isfinite(result.runs[0].history[-1].loss)
    assert result.performance["programs"] == 1


def test_all_neighbours_in_one_batch_train_as_the_whole_graph(data: Dataset) -> None:
    config = CONFIG.replace(dropout=0.0, epochs=3, weight_decay=0.0)
    count = int(data.train_mask.sum())
    sampled = train(data, config, sampling=Sampling("neighbor", (-1, -1), batch_size=count))
    whole = train(data, config)
    for record, other in zip(sampled.runs[0].history, whole.runs[0].history, strict=True):
        assert record.loss == pytest.approx(other.loss, rel=2e-4)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4),
        weights(sampled), weights(whole),
    )  # fmt: skip


def test_normalised_losses_and_means(data: Dataset) -> None:
    sampling = Sampling("walk", normalize=True, options={"walks": 30, "length": 3})
    result = train(data, CONFIG, sampling=sampling)
    assert np.isfinite(result.runs[0].history[-1].loss)
    assert result.performance["sampling"]["normalization_seconds"] > 0


def test_a_run_that_was_ended_goes_on(data: Dataset, tmp_path: Any) -> None:
    sampling = Sampling("neighbor", (5, 3), batch_size=40, shapes=1)
    whole = train(data, CONFIG, sampling=sampling)
    train(data, CONFIG.replace(epochs=3), sampling=sampling, checkpoint=tmp_path / "run")
    resumed = train(data, CONFIG, sampling=sampling, checkpoint=tmp_path / "run", resume=True)
    jax.tree.map(np.testing.assert_array_equal, weights(whole), weights(resumed))
    other = Sampling("neighbor", (5, 3), batch_size=41)
    with pytest.raises(CheckpointError, match="sampling"):
        train(data, CONFIG, sampling=other, checkpoint=tmp_path / "run", resume=True)


def test_within_a_budget_the_whole_graph_is_evaluated_block_by_block(data: Dataset) -> None:
    sampling = Sampling("neighbor", (5, 3), batch_size=40, shapes=1)
    config = CONFIG.replace(epochs=2)
    plain = train(data, config, sampling=sampling)
    streamed = train(data, config, sampling=sampling, memory_budget="300KiB")
    jax.tree.map(np.testing.assert_array_equal, weights(plain), weights(streamed))
    for ours, theirs in zip(streamed.runs[0].history, plain.runs[0].history, strict=True):
        assert ours.loss == theirs.loss
        assert ours.losses == pytest.approx(theirs.losses, rel=1e-4)
        assert ours.accuracy == pytest.approx(theirs.accuracy, abs=1e-6)


def test_a_model_of_ones_own(data: Dataset) -> None:
    """It is called with the graphs of the layers, in order."""
    seen = []

    def build(rngs: Any) -> Any:
        model = recipes.build(
            "sage", in_features=data.num_features, hidden=8, num_classes=data.num_classes,
            layers=2, heads=1, dropout=0.0, rngs=rngs,
        )  # fmt: skip
        seen.append(model)
        return model

    sampling = Sampling("neighbor", (5, 3), 64, shapes=1)
    result = train(data, CONFIG.replace(epochs=1), sampling=sampling, build=build)
    assert type(result.model) is type(seen[0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sampling("nearest"), "sampler is 'nearest', expected one of neighbor, frontier"),
        (lambda: Sampling(batch_size=0), "batch_size is 0, expected at least 1"),
        (lambda: Sampling("walk", shapes=0), "shapes is 0, expected at least 1"),
        (lambda: Sampling(steps=3), "steps is for samplers without seeds"),
        (lambda: Sampling("cluster", normalize=True), "normalize is for samplers without seeds"),
        (
            lambda: Sampling("frontier", options={"roots": 3}),
            "the sampler frontier got the option 'roots', expected some of frontier, vertices",
        ),
    ],
)
def test_samplings_that_do_not_fit(make: Any, message: str) -> None:
    with pytest.raises(TrainError, match=message):
        make()


def test_what_does_not_go_together(data: Dataset) -> None:
    with pytest.raises(TrainError, match="fanouts has 1 numbers and the model 2 layers"):
        train(data, CONFIG, sampling=Sampling("neighbor", (5,)))
    with pytest.raises(TrainError, match="which a store does not go with"):
        train(data, CONFIG, sampling=Sampling(), memory_budget="1GiB", store="anywhere")
    with pytest.raises(TrainError, match="which a comparison with plain segment operations"):
        train(data, CONFIG, sampling=Sampling(), compare=True)


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    command = "train communities --option num_nodes=300 --model sage --epochs 2 --json - --quiet"
    options = "--sampler neighbor --fanouts 4,3 --batch-size 16 --shapes 2 --sample-threads 1"
    assert command_line.main([*command.split(), *options.split()]) == 0
    told = json.loads(capsys.readouterr().out)["performance"]["sampling"]
    assert (told["fanouts"], told["batch_size"], told["shapes"]) == ([4, 3], 16, 2)
    options = "--sampler frontier --sampler-option frontier=10 --sampler-option vertices=60"
    assert command_line.main([*command.split(), *options.split(), "--steps-per-epoch", "2"]) == 0
    told = json.loads(capsys.readouterr().out)["performance"]["sampling"]
    assert told["options"] == {"frontier": 10, "vertices": 60}
    assert sum(told["batches_per_shape"]) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--fanouts 5,5", "--fanouts is for sampled batches: say by which --sampler"),
        ("--sample-threads 2", "--sample-threads is for sampled batches"),
        ("--sampler neighbor --fanouts 5;5", "--fanouts 5;5: expected whole numbers with commas"),
        ("--sampler walk --sampler-option 5", "--sampler-option 5: expected NAME=VALUE"),
        ("--sampler neighbor --fanouts 0,5", r"fanouts\[0\] is 0, expected a whole number >= 1"),
        ("--batch-size 5", "for datasets of many graphs"),
    ],
)
def test_command_line_errors(options: str, message: str, capsys: Any) -> None:
    assert command_line.main(["train", "karate", "--model", "sage", *options.split()]) != 0
    assert re.search(message, capsys.readouterr().err)


def test_many_graphs_have_batches_of_their_own(capsys: Any) -> None:
    assert command_line.main(["train", "mutag", "--sampler", "walk"]) != 0
    assert "is a dataset of many graphs, whose batches" in capsys.readouterr().err
