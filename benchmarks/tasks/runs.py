"""Training runs of `gnnjit train`, and a line for each evaluation and for the mean of all runs."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gnnjit.data import LinkDataset, open_dataset
from gnnjit.data.registry import entry_of
from gnnjit.nn.recipes import data_options
from gnnjit.training import TrainConfig, train
from gnnjit.training.config import resolve
from gnnjit.training.loop import Epoch, Watcher
from gnnjit.training.sampled import usual_sampling

RUNS = (
    "gowalla/lightgcn", "gowalla/ngcf", "lastfm/lightgcn", "fb15k-237/rgcn", "imdb/han",
    "blogcatalog/gcn", "ppi/sage", "cora/jknet", "citeseer/jknet", "imdb/magnn", "caveman/pgnn",
    "lastfm/pinsage", "gowalla/pinsage",
)  # fmt: skip
"""Datasets and models, with the settings of their recipes."""


def tiny() -> LinkDataset:
    """Ten users of two tastes, and twelve items."""
    rng = np.random.default_rng(1)
    rows = [(u, 0, 10 + 2 * int(i) + u % 2) for u in range(10) for i in rng.permutation(6)[:5]]
    links = np.array(rows, np.int32)[rng.permutation(len(rows))]
    return LinkDataset("tiny", 22, links[:38], links[:0], links[38:], num_users=10)


class Told(Watcher):
    """Hands on every evaluated epoch, as it ends."""

    def __init__(self, told: Any) -> None:
        self._told, self._run = told, ""

    def start(self, name: str, done: int, epochs: int) -> None:
        self._run = name

    def epoch(self, record: Epoch) -> None:
        if record.evaluated:
            self._told(line(self._run, record.to_dict()))


def line(run: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """What a line says of an epoch, from its dictionary."""
    accuracy = {split: value for split, value in record["accuracy"].items() if value is not None}
    scores = {
        f"{split} {name}": value
        for name, by_split in record["scores"].items()
        for split, value in by_split.items()
        if value is not None
    }
    seconds = record["seconds"]
    return {"run": run, "epoch": record["epoch"], "loss": record["loss"], "epoch_seconds": seconds,
            **accuracy, **scores}  # fmt: skip


def summary(result: Mapping[str, Any]) -> dict[str, Any]:
    """The mean and deviation over the runs, of the dictionary of a `Result`."""
    found: dict[str, Any] = {"run": "mean", "runs": len(result["runs"]), "metric": result["metric"]}
    named = {result["metric"]: result["accuracy"]} | result["scores"]
    for name, by_split in named.items():
        for split, values in by_split.items():
            found[f"{split} {name}"] = values["mean"]
            found[f"{split} {name} std"] = values["std"]
    return found


def trained(
    name: str, folder: pathlib.Path | None, seeds: int, changes: Mapping[str, Any], told: Any
) -> Iterator[dict[str, Any]]:
    """Train one of `RUNS`, or "tiny/lightgcn"; `told` is called with a line for each evaluation."""
    data, model = name.split("/")
    dataset: Any = (
        tiny() if folder is None else open_dataset(data, folder, **data_options(data, model))
    )
    task = "recommendation" if folder is None else entry_of(data).task
    config: TrainConfig = resolve(data, task, {"model": model, **changes})
    yield {"run": "config", **config.to_dict()}
    sampling = usual_sampling(data, model)
    result = train(dataset, config, sampling=sampling, seeds=seeds, watcher=Told(told))
    yield summary(result.to_dict())
