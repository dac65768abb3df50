"""Vertices of typed graphs, vertices without features, and numbers to predict."""

from __future__ import annotations

import numpy as np
import pytest

from gnnjit import Graph, TypedGraph
from gnnjit.data import Dataset
from gnnjit.data.stored.write import store_dataset
from gnnjit.errors import DataError
from gnnjit.store import HostStore
from gnnjit.training import TrainConfig, TrainError, train

N = 48


def masks() -> list[np.ndarray]:
    part = np.arange(N) % 4
    return [part < 2, part == 2, part == 3]


def papers(**changes) -> Dataset:
    """The class of a paper is that of its authors, which their features tell."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, N).astype(np.int32)
    author = np.repeat(np.arange(N), 2), rng.permutation(np.repeat(np.arange(N), 2))
    x = {"paper": rng.normal(size=(N, 2)), "author": np.eye(3)[y[author[1][::2]]]}
    graph = TypedGraph.from_edges(
        {
            ("author", "writes", "paper"): (np.arange(N), author[1][::2]),
            ("paper", "by", "author"): (author[1][::2], np.arange(N)),
        },
        {"paper": N, "author": N},
    )
    parts = {
        "name": "papers",
        "graph": graph,
        "x": {t: rows.astype(np.float32) for t, rows in x.items()},
        "y": y,
        **dict(zip(("train_mask", "val_mask", "test_mask"), masks(), strict=True)),
        "num_classes": 3,
        "target": "paper",
    }
    return Dataset(**parts | changes)


@pytest.mark.parametrize(
    "model", ["rgcn", *(pytest.param(m, marks=pytest.mark.long) for m in ("han", "hgt"))]
)
def test_classes_of_a_type(model: str) -> None:
    config = TrainConfig(model=model, layers=1, heads=2, hidden=8, dropout=0.1, lr=0.05, epochs=30)
    result = train(papers(), config)
    history = result.runs[0].history
    assert history[-1].loss < 0.8 * history[0].loss
    assert result.metric == "accuracy"
    assert set(result.scores) == {"micro-F1", "macro-F1"}
    # One label each: as much is said as true, so that the micro-F1 is the accuracy.
    assert result.scores["micro-F1"]["test"].mean == pytest.approx(result.accuracy["test"].mean)


def test_typed_checkpoints_know_their_dataset(tmp_path) -> None:
    config = TrainConfig(model="rgcn", layers=1, hidden=4, epochs=1)
    train(papers(), config, checkpoint=tmp_path / "run")
    other = papers()
    other.x["paper"][0, 0] += 1
    with pytest.raises(ValueError, match="differs in contents"):
        train(other, config, checkpoint=tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": "venue"}, "target is 'venue', expected one of paper, author, the type whose"),
        ({"target": None}, "target is None, expected one of paper, author"),
        (
            {"x": {"paper": np.zeros((N, 2), np.float32)}},
            "x has paper, expected a dictionary of an",
        ),
        ({"x": np.zeros((N, 2), np.float32)}, "x has ndarray, expected a dictionary of an array"),
        (
            {"x": {t: np.zeros((N - 1, 2), np.float32) for t in ("paper", "author")}},
            r"x\['paper'\] is float32\[47, 2\], expected float32\[48, any\]",
        ),
    ],
)
def test_features_of_types_must_fit(changes, message) -> None:
    with pytest.raises(DataError, match=f"papers: {message}"):
        papers(**changes)


def numbers(target: str | None = None) -> Dataset:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(N, 4)).astype(np.float32)
    graph = Graph.from_edges(*rng.integers(0, N, (2, 2 * N)), N)
    y = (x[:, :2] * np.array([1, 2], np.float32)).astype(np.float32)
    return Dataset("numbers", graph, x, y, *masks(), 0, target=target)


def test_regression() -> None:
    data = numbers()
    assert "2 numbers" in repr(data)
    config = TrainConfig(model="sage", hidden=16, dropout=0.0, lr=0.05, weight_decay=0, epochs=60)
    result = train(data, config)
    said = np.asarray(result.model(data.graph, data.x))
    error, spread = ((said - data.y)[data.test_mask] ** 2), data.y[data.test_mask].var(axis=0)
    assert result.metric == "R2"
    assert result.scores["RMSE"]["test"].mean == pytest.approx(np.sqrt(error.mean()), rel=1e-4)
    assert result.accuracy["test"].mean == pytest.approx(1 - error.mean() / spread.mean(), rel=1e-3)
    assert result.accuracy["train"].mean > 0.8


def test_numbers_and_types_stay_out_of_stores() -> None:
    for data in (numbers(), papers()):
        with (
            HostStore() as store,
            pytest.raises(DataError, match="vertices have types, or numbers"),
        ):
            store_dataset(data, store)
    with pytest.raises(DataError, match="target is 'a', and the graph has no types"):
        numbers("a")


def test_vertices_without_features_have_embeddings() -> None:
    """Two cliques, whose vertices nothing else tells apart."""
    v = np.arange(N)
    src, dst = (a.ravel() for a in np.meshgrid(v, v))
    same = (src % 2 == dst % 2) & (src != dst)
    x = np.zeros((N, 0), np.float32)
    data = Dataset("cliques", Graph.from_edges(src[same], dst[same], N), x,
                   (v % 2).astype(np.int32), *masks(), 2)  # fmt: skip
    config = TrainConfig(model="gcn", hidden=8, layers=1, dropout=0.2, lr=0.1, epochs=20)
    assert train(data, config).accuracy["test"].mean == 1
    with pytest.raises(TrainError, match="cliques has no features, and an embedding"):
        train(data, config, memory_budget="1GiB")


@pytest.mark.long
@pytest.mark.parametrize("model", ["rgcn", "han"])
def test_typed_graphs_over_devices_give_the_numbers_of_one(model: str) -> None:
    config = TrainConfig(model=model, layers=1, heads=2, hidden=8, dropout=0.1, lr=0.05, epochs=4)
    alone, spread = train(papers(), config), train(papers(), config, devices=2, exchange="halo")
    ours, theirs = ([e.loss for e in result.runs[0].history] for result in (spread, alone))
    assert ours == pytest.approx(theirs, rel=1e-4)
    assert spread.accuracy["test"].mean == pytest.approx(alone.accuracy["test"].mean, abs=0.05)
    told = spread.sharding
    assert told is not None
    assert (told["devices"], told["exchange"], told["partition"]) == (2, "halo", "learned")
    assert (sum(told["rows_per_shard"]), sum(told["edges_per_shard"])) == (2 * N, 2 * N)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"memory_budget": "1GiB"}, "a memory budget"),
        ({"store": "folder"}, "a store"),
        ({"devices": 2, "compare": True}, None),
    ],
)
def test_what_types_are_not_trained_with(options, what) -> None:
    message = "a comparison with plain segment operations is of one device"
    if what is not None:
        message = f"vertices of several types and is trained in memory, and {what} is for graphs "
        message += r"without types: .* take several devices \(--devices 8, devices=\)"
    with pytest.raises(TrainError, match=message):
        train(papers(), TrainConfig(model="rgcn", layers=1, hidden=4, epochs=1), **options)
