"""Sampled batches over devices and processes: a step is that of the union of their batches."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gnnjit.data import communities, karate
from gnnjit.training import Sampling, TrainConfig, TrainError, train
from gnnjit.training.config import resolve
from training.test_processes import launch
from training.test_sharded import SIZES, curve

ALL = Sampling("neighbor", (-1, -1), batch_size=4)


def config(**more: Any) -> TrainConfig:
    given = {"model": "sage", "epochs": 4, "hidden": 4, "lr": 0.05, **more}
    return resolve("communities", "vertex", given)


@pytest.fixture(scope="module")
def spread() -> list[dict[str, Any]]:
    """Three devices that have 4 vertices in each batch, two that have 6, and again with dropout."""
    data, plain = communities(**SIZES), config(dropout=0.0)
    six = Sampling("neighbor", (-1, -1), batch_size=6)
    drops = Sampling("neighbor", (3, 2), batch_size=4)
    return [
        train(data, plain, sampling=ALL, devices=3).to_dict(),
        train(data, plain, sampling=six, devices=2).to_dict(),
        *(train(data, config(dropout=0.3), sampling=drops, devices=2).to_dict() for _ in range(2)),
    ]


def test_a_step_is_that_of_the_union_of_the_batches(spread: list[dict[str, Any]]) -> None:
    """All neighbours: a batch of 12 is the union of 3 of 4. The last ones do not go round."""
    union = Sampling("neighbor", (-1, -1), batch_size=12)
    alone = train(communities(**SIZES), config(dropout=0.0), sampling=union).to_dict()
    for result in spread[:2]:
        assert curve(result) == pytest.approx(curve(alone), rel=1e-4)
        ours, theirs = (r["runs"][0]["history"][-1]["losses"] for r in (result, alone))
        assert ours == pytest.approx(theirs, rel=1e-3)
    assert [result["performance"]["programs"] for result in spread] == [1] * 4


def test_the_same_bits_again(spread: list[dict[str, Any]]) -> None:
    first, second = (result["runs"][0]["weights_sha256"] for result in spread[2:])
    assert first == second


@pytest.mark.long
def test_processes_give_the_numbers_of_devices(spread: list[dict[str, Any]], tmp_path: Any) -> None:
    path = tmp_path / "out.json"
    options = [f"--option {name}={value}" for name, value in SIZES.items()]
    command = (
        f"train communities {' '.join(options)} --model sage --epochs 4 --hidden 4 --lr 0.05 "
        f"--dropout 0.3 --sampler neighbor --fanouts 3,2 --batch-size 4 --json {path}"
    )
    done = launch(*command.split())
    assert done.returncode == 0, done.stderr
    assert curve(json.loads(path.read_text())) == curve(spread[2])


def test_a_partition_is_of_the_whole_graph() -> None:
    with pytest.raises(TrainError, match="which a partition does not go with: leave out either"):
        train(karate(), config(), sampling=ALL, devices=1, partition="edges")
