"""`train(devices=...)` and `gnnjit train --devices`: the numbers of one device, and mistakes.

How many devices JAX has is fixed when it first uses them: what needs several runs in a process
which is started for that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from gnnjit.cli import main
from gnnjit.data import communities, karate
from gnnjit.data.stored.prepare import keep
from gnnjit.data.stored.write import store_dataset
from gnnjit.store.memory import HostStore
from gnnjit.training import TrainConfig, TrainError, train
from gnnjit.training.specification import Specification
from training.test_train import without_times

SIZES = {"num_nodes": 150, "num_classes": 3, "num_features": 8, "separation": 2.5}
RUNS = {
    "gcn": [{"devices": 4}, {"devices": 4}, {"devices": 2, "partition": "vertices"}],
    "gin": [{"devices": 3, "exchange": "ring"}],
    "gat": [{"devices": 8, "exchange": "all_gather", "partition": "edges"}],
}
"""By model, what is trained with."""


def config(model: str, **more) -> TrainConfig:
    return TrainConfig(model=model, epochs=6, hidden=4, heads=2, lr=0.05, dropout=0.3, **more)


TESTS = Path(__file__).parents[1]


def child(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Python code in a process of its own, which can import the tests."""
    paths = [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
    cpu = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **cpu, **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def sharded() -> dict[str, Any]:
    """What `RUNS` give; where the logits of a result's model are."""
    dataset, found, result = communities(**SIZES), {}, None
    for model, runs in RUNS.items():
        results = [train(dataset, config(model), **more) for more in runs]
        found[model] = [result.to_dict() for result in results]
        result = results[0]
    assert result is not None
    logits = result.model(dataset.graph, jnp.asarray(dataset.x))
    with HostStore() as store:
        stored = train(store_dataset(dataset, store), config("gcn"), devices=3)
    found |= {"logits": str(logits.sharding), "stored": stored.to_dict()}
    return json.loads(json.dumps(found))


def curve(result: dict) -> list[float]:
    return [epoch["loss"] for epoch in result["runs"][0]["history"]]


@pytest.mark.parametrize("model", RUNS)
def test_the_numbers_of_one_device(sharded, model):
    # The gradient of a bias before a batch normalisation is rounding alone, which Adam scales up;
    # what is evaluated sees it, by the running means.
    close = 1e-2 if model == "gin" else 1e-4
    alone = train(communities(**SIZES), config(model)).to_dict()
    assert alone["sharding"] is None
    for result in sharded[model]:
        assert curve(result) == pytest.approx(curve(alone), rel=1e-4)
        ours, theirs = (r["runs"][0]["history"][-1]["losses"] for r in (result, alone))
        assert ours == pytest.approx(theirs, rel=close)
        assert result["accuracy"]["test"]["mean"] == pytest.approx(
            alone["accuracy"]["test"]["mean"], abs=0.02
        )


def test_a_stored_dataset_gives_the_numbers_of_one_in_memory(sharded):
    assert curve(sharded["stored"]) == pytest.approx(curve(sharded["gcn"][0]), rel=1e-4)
    assert sharded["stored"]["sharding"]["partition"] == "learned"


def test_the_same_bits_again(sharded):
    def bits(result: dict) -> list:
        runs = result["runs"]
        return [[{**e, "seconds": 0} for e in r.pop("history")] + [r] for r in runs]

    first, second, other = map(bits, json.loads(json.dumps(sharded["gcn"])))
    assert first == second
    assert first != other


def test_what_is_reported(sharded):
    reported = [result["sharding"] for model in RUNS for result in sharded[model]]
    assert [r["devices"] for r in reported] == [4, 4, 2, 3, 8]
    assert [r["exchange"] for r in reported][3:] == ["ring", "all_gather"]
    assert [r["partition"] for r in reported][2:] == ["vertices", "learned", "edges"]
    edges = communities(**SIZES).num_edges
    for r in reported:
        assert r["processes"] == 1
        assert len(r["rows_per_shard"]) == len(r["edges_per_shard"]) == r["devices"]
        assert (sum(r["rows_per_shard"]), sum(r["edges_per_shard"])) == (150, edges)
        assert r["imbalance"] == pytest.approx(max(r["edges_per_shard"]) * r["devices"] / edges)
    assert reported[2]["rows_per_shard"] == [75, 75]


def command(path: Path, *more: str) -> list[str]:
    given = ["train", "communities", "--model", "gcn", "--epochs", "4", "--no-compare"]
    for name, value in SIZES.items():
        given += ["--option", f"{name}={value}"]
    return [*given, "--json", str(path), *more]


@pytest.mark.long
def test_the_command_takes_the_cpu_for_several_devices(tmp_path):
    arguments = command(tmp_path / "many.json", "--devices", "4")
    found = child(f"from gnnjit.cli import main as cli; raise SystemExit(cli.main({arguments!r}))")
    assert found.returncode == 0, found.stderr
    for row in ("devices", "exchange of rows", "most edges of one, over the mean"):
        assert row in found.stdout
    assert main.main(command(tmp_path / "one.json", "--quiet")) == 0
    many, one = (json.loads((tmp_path / f"{n}.json").read_text()) for n in ("many", "one"))
    assert many["sharding"]["devices"] == 4
    assert curve(many) == pytest.approx(curve(one), rel=1e-4)


def test_the_model_of_the_result_is_on_one_device(sharded):
    assert "SingleDeviceSharding" in sharded["logits"]


def test_one_device_may_be_asked_for():
    some = config("gcn")
    assert without_times(train(karate(), some, devices=1)) != []


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"devices": 0}, "devices is 0, expected at least 1"),
        ({"devices": 99}, r"devices is 99, and JAX has \d+ CPU devices?: ask for at most \d+, or "),
        ({"partition": "edges"}, "partition is 'edges', which is for training over many devices"),
        ({"devices": 1, "partition": "cut"}, "partition is 'cut', expected one of auto, "),
        ({"devices": 1, "exchange": "all"}, "exchange is 'all', expected one of auto, "),
        ({"devices": 1, "memory_budget": "1GiB"}, "a memory budget and --devices cannot be"),
        ({"devices": 1, "compare": True}, "leave out --compare, or leave out --devices"),
    ],
)
def test_what_is_refused(more, message):
    with pytest.raises(TrainError, match=message):
        train(karate(), config("gcn"), **more)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({}, "for training within a memory budget or over many devices"),
        (
            {"devices": 1, "partition": "metis"},
            "'metis' needs them all: choose partition='learned'",
        ),
        ({"devices": 1, "exchange": "cover"}, "'cover' needs them all: choose exchange='halo'"),
    ],
)
def test_what_is_refused_of_a_store(tmp_path, more, message):
    with keep(karate(), tmp_path) as stored, pytest.raises(TrainError, match=message):
        train(stored, config("gcn"), **more)


def test_a_store_for_what_is_in_memory(tmp_path):
    with pytest.raises(TrainError, match=r"pass what gnnjit\.data\.stored\.prepare\.prepare gives"):
        train(karate(), config("gcn"), devices=1, store=tmp_path)


def test_many_graphs_are_refused(capsys):
    with pytest.raises(TrainError, match="mutag is a dataset of many graphs, and only"):
        Specification("mutag", "graph", config("gin"), devices=2)
    assert main.main(["train", "mutag", "--devices", "2"]) == 2
    assert "mutag is a dataset of many graphs" in capsys.readouterr().err


def test_too_few_devices_are_told_before_anything_is_opened(capsys):
    assert main.main(["train", "karate", "--devices", "999"]) == 2
    assert "devices is 999, and JAX has" in capsys.readouterr().err
