"""Training within a memory budget: the same numbers, mistakes, and what a crash leaves."""

from __future__ import annotations

import dataclasses
import io
import json
import resource
from pathlib import Path

import numpy as np
import pytest
from flax import nnx
from rich.console import Console

import gnnjit
from gnnjit.data import GraphDataset, communities
from gnnjit.errors import PlanError, StoreError, StreamError
from gnnjit.grid.disk import DiskStore
from gnnjit.grid.store import HostStore
from gnnjit.prepare import keep, prepare
from gnnjit.store_dataset import contents_of, store_dataset
from gnnjit.stored_dataset import StoredDataset
from gnnjit.train import CheckpointError, TrainConfig, TrainError, train
from gnnjit.training.checkpoint import named_arrays
from gnnjit.training.progress import Bar, Lines, Silent

SMALL = {"num_nodes": 400, "num_classes": 3, "num_features": 6, "avg_degree": 6}
CONFIG = TrainConfig(model="gcn", epochs=5, lr=0.05, seed=1)
BUDGET = 40_000
ROOMY = "8GiB"
"""For this process, which the other tests have made large."""


class Mean(nnx.Module):
    """A classifier that compiles fast: linear, of the vertex and the mean of its neighbours."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(6, 3, rngs=rngs)

    @gnnjit.layer
    def layer(self, v, e, key):
        v = v if key is None else gnnjit.dropout(v, 0.3, key)
        return self.linear(v + gnnjit.mean(e.src))

    def __call__(self, graph, x, *, key=None):
        return self.layer(graph, x, key)


@pytest.fixture(scope="module")
def dataset():
    return communities(**SMALL)


@pytest.fixture
def folder(dataset, tmp_path) -> Path:
    """Of a closed store with the dataset."""
    with DiskStore.create(tmp_path / "store") as store:
        store_dataset(dataset, store)
    return tmp_path / "store"


def go(dataset, config=CONFIG, **arguments):
    return train(dataset, config, build=Mean, **arguments)


@pytest.fixture(scope="module")
def plain(dataset):
    """Without a budget."""
    return go(dataset)


class Parts(Silent):
    """Notes how much of an epoch is done, and None at its end."""

    def __init__(self) -> None:
        self.seen = []

    def part(self, done):
        self.seen.append(done)

    def epoch(self, record):
        self.seen.append(None)


@pytest.fixture(scope="module")
def watched():
    """What a watcher of `streamed` was told."""
    return []


@pytest.fixture(scope="module")
def streamed(dataset, watched):
    watcher = Parts()
    result = go(dataset, memory_budget=BUDGET, watcher=watcher)
    watched += watcher.seen
    return result


def weights(result, run: int = 0) -> dict[str, np.ndarray]:
    return named_arrays((result.runs[run].params, result.runs[run].buffers))


def same(result, wanted, tolerance: float = 2e-6, free: str = "nothing") -> None:
    """Equal up to rounding, all but the weights whose names have `free` in them."""
    for run, other in zip(result.runs, wanted.runs, strict=True):
        assert (run.best_epoch, run.stopped_early) == (other.best_epoch, other.stopped_early)
        for record, expected in zip(run.history, other.history, strict=True):
            assert record.loss == pytest.approx(expected.loss, abs=2e-6)
            for split in ("train", "val", "test"):
                assert record.losses[split] == pytest.approx(expected.losses[split], abs=tolerance)
                assert record.accuracy[split] == pytest.approx(
                    expected.accuracy[split], abs=10 * tolerance
                )
    expected = weights(wanted)
    for name, found in weights(result).items():
        if free not in name:
            np.testing.assert_allclose(found, expected[name], atol=tolerance, err_msg=name)


def exactly(result) -> list[dict]:
    """All but the times."""
    runs = result.to_dict()["runs"]
    for run in runs:
        for record in run["history"]:
            del record["seconds"]
    return runs


@pytest.mark.once
@pytest.mark.parametrize("model", ["gcn", "gat", "gatedgcn", "gin"])
def test_models_train_as_without_a_budget(dataset, model):
    config = TrainConfig(
        model=model, layers=1, hidden=2, heads=2, out_heads=2, dropout=0.3, epochs=4
    )
    found = train(dataset, config, memory_budget=BUDGET)
    assert found.performance["parts"] > 1
    if model == "gin":
        # The biases before a normalisation have no gradient but rounding, which Adam scales up.
        same(found, train(dataset, config), tolerance=5e-3, free="hidden.bias")
    else:
        same(found, train(dataset, config))


@pytest.mark.once
def test_seeds_early_stopping_and_normalized_features(dataset):
    positive = dataclasses.replace(dataset, x=np.abs(dataset.x))
    config = CONFIG.replace(epochs=60, lr=0.3, patience=3, normalize_features=True)
    found = go(positive, config, seeds=2, memory_budget=ROOMY)
    assert all(run.stopped_early for run in found.runs)
    same(found, go(positive, config, seeds=2), tolerance=1e-4)


def test_what_is_reported(streamed, plain):
    same(streamed, plain)
    performance = json.loads(json.dumps(streamed.to_dict()))["performance"]
    assert performance["memory_budget_bytes"] == BUDGET
    assert performance["memory_budget_of"] == "device"
    assert performance["parts"] > 1
    assert sum(performance["moved_bytes"].values()) > 0
    assert set(performance["moving_seconds"]) == {"update", "evaluate"}
    assert performance["peak_rss_bytes"] > 0
    assert performance["reference"] is None
    assert not {"compile_seconds", "temp_bytes"} & set(performance)
    assert streamed.dataset == plain.dataset


def test_a_store_on_the_disk_gives_the_same(dataset, plain, folder):
    with StoredDataset.open(folder) as stored:
        before = set(stored.store.names())
        found = go(stored, memory_budget=ROOMY)
        added = set(stored.store.names()) - before
    same(found, plain)
    assert found.performance["memory_budget_of"] == "process"
    assert {name.partition(".")[0] for name in added} == {"grid", "weights"}


def test_a_dataset_is_written_to_a_folder_once(dataset, streamed, tmp_path):
    keep(dataset, tmp_path).store.close()
    files = {path: path.stat().st_mtime_ns for path in tmp_path.glob("x.*.npy")}
    assert exactly(go(dataset, memory_budget=BUDGET, store=tmp_path)) == exactly(streamed)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("x.*.npy")} == files
    with pytest.raises(StoreError, match="the folder holds another dataset, StoredDataset"):
        keep(communities(**SMALL, seed=1), tmp_path)
    keep(dataset, tmp_path).store.close()


def test_what_an_unfinished_write_left_is_written_anew(dataset, folder):
    path = folder / "dataset.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "complete": False}))
    with keep(dataset, folder) as stored:
        assert stored.contents == contents_of(dataset)


def test_unfinished_arrays_are_dropped(folder):
    with DiskStore.open(folder) as store:
        for name in ("temporary.0", "result.7", "grid.3.in.row"):
            store.add(name, 10, (), "float32")
        store.add("mine", 10, (), "float32")
        store.seal("mine")
    with StoredDataset.open(folder) as stored:
        assert {"mine", "x"} < set(stored.store.names())
        assert not {"temporary.0", "result.7", "grid.3.in.row"} & set(stored.store.names())


def test_contents_do_not_depend_on_where_they_are(dataset, folder):
    with StoredDataset.open(folder) as stored:
        assert stored.contents == contents_of(dataset)
    other = folder.parent / "other"
    with prepare("communities", other, options=SMALL, order="given") as stored:
        assert stored.contents == contents_of(dataset)


@pytest.mark.parametrize("budget", [(None, ROOMY), (ROOMY, None)])
def test_resume_with_or_without_a_budget(dataset, plain, tmp_path, budget):
    first, second = budget
    go(dataset, CONFIG.replace(epochs=3), checkpoint=tmp_path, memory_budget=first)
    same(go(dataset, checkpoint=tmp_path, resume=True, memory_budget=second), plain)


@pytest.mark.once
@pytest.mark.parametrize("parts", [1, 3])
def test_resume_keeps_the_blocks_of_the_same_budget(dataset, tmp_path, parts):
    """Unless they do not fit any more: here one block does not."""
    go(dataset, CONFIG.replace(epochs=1), checkpoint=tmp_path)
    (tmp_path / "streamed.json").write_text(json.dumps({"budget": BUDGET, "layout": [parts, 1]}))
    config = CONFIG.replace(epochs=2)
    found = go(dataset, config, checkpoint=tmp_path, resume=True, memory_budget=BUDGET)
    assert found.performance["parts"] == (3 if parts == 3 else 2)
    told = json.loads((tmp_path / "streamed.json").read_text())
    assert told == {"budget": BUDGET, "layout": [found.performance["parts"], 1]}


def test_a_finished_run_has_no_figures_of_traffic(dataset, tmp_path):
    go(dataset, CONFIG.replace(epochs=1), checkpoint=tmp_path)
    config = CONFIG.replace(epochs=1)
    found = go(dataset, config, checkpoint=tmp_path, resume=True, memory_budget=BUDGET)
    assert (found.performance["parts"], found.performance["moved_bytes"]) == (None, None)


def test_damaged_note_of_the_blocks(dataset, tmp_path):
    go(dataset, CONFIG.replace(epochs=1), checkpoint=tmp_path)
    (tmp_path / "streamed.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"streamed\.json cannot be read .*: delete it"):
        go(dataset, checkpoint=tmp_path, resume=True, memory_budget=BUDGET)


def test_progress_within_an_epoch(streamed, watched):
    assert watched.count(None) == len(streamed.runs[0].history)
    first, second = [at for at, done in enumerate(watched) if done is None][:2]
    parts = watched[first + 1 : second]
    assert len(parts) > 4
    assert parts == sorted(parts)
    assert parts[-1] == pytest.approx(1)


def test_bar_moves_within_an_epoch():
    bar = Bar(Console(file=io.StringIO(), force_terminal=True))
    bar.stage("edges", 3, 10)
    bar.start("seed-0", 2, 10)
    bar.part(0.5)
    assert bar._progress is not None
    assert bar._progress.tasks[0].completed == 2.5
    bar.finish()


def test_lines_name_each_stage_once():
    text = io.StringIO()
    lines = Lines(Console(file=text))
    for done in range(3):
        lines.stage("edges", done, 2)
    assert text.getvalue() == "preparing  edges\n"


GRAPHS = GraphDataset(
    name="pair",
    node_offsets=np.array([0, 1, 2]),
    edge_offsets=np.array([0, 0, 0]),
    src=np.zeros(0, np.int32),
    dst=np.zeros(0, np.int32),
    x=np.ones((2, 1), np.float32),
    y=np.array([0, 1], np.int32),
    num_classes=2,
)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"memory_budget": "1 apple"}, PlanError, "1 apple"),
        ({"memory_budget": 1000}, StreamError, "no grid fits the memory budget of 1000 B"),
        ({"store": "folder"}, TrainError, "communities is in a store, .* pass one too"),
        ({"memory_budget": "1GiB", "compare": True}, TrainError, "leave out either --compare"),
    ],
)
def test_mistaken_arguments(dataset, arguments, kind, message):
    with pytest.raises(kind, match=message):
        go(dataset, **arguments)


def test_many_graphs_are_refused():
    with pytest.raises(TrainError, match=r"pair is many graphs, .*: leave it out; .*--batch-size"):
        train(GRAPHS, TrainConfig(), memory_budget="1GiB")


def test_a_stored_dataset(dataset):
    with HostStore() as store:
        stored = store_dataset(dataset, store)
        with pytest.raises(TrainError, match=r"is in a store, .* pass one too"):
            go(stored)
        with pytest.raises(TrainError, match="is in a store of its own: leave out store"):
            go(stored, memory_budget=BUDGET, store="folder")
        with pytest.raises(TrainError, match="stored with normalize_features=False, and the conf"):
            go(stored, CONFIG.replace(normalize_features=True), memory_budget=BUDGET)
        empty = dataclasses.replace(stored, counts=stored.counts._replace(train=0))
        with pytest.raises(TrainError, match="train_mask is empty"):
            go(empty, memory_budget=BUDGET)


def test_a_full_disk_of_the_checkpoints(dataset, tmp_path):
    go(dataset, CONFIG.replace(epochs=3), checkpoint=tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(CheckpointError, match=r"cannot be written .*: check the disk, and"):
            go(dataset, CONFIG, checkpoint=tmp_path, resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    config = CONFIG.replace(epochs=3)
    assert len(go(dataset, config, checkpoint=tmp_path, resume=True).runs[0].history) == 3
