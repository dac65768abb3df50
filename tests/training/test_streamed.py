"""Training within a memory budget: the same numbers, mistakes, and what a crash leaves."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
from flax import nnx
from rich.console import Console

import gnnjit
from gnnjit.data import GraphDataset, communities
from gnnjit.data.stored.dataset import StoredDataset
from gnnjit.data.stored.prepare import keep
from gnnjit.data.stored.write import contents_of, store_dataset
from gnnjit.errors import PlanError, StoreError, StreamError
from gnnjit.store.disk import DiskStore
from gnnjit.store.memory import HostStore
from gnnjit.training import CheckpointError, TrainConfig, TrainError, train
from gnnjit.training.checkpoint import Checkpoints, named_arrays
from gnnjit.training.loop import Watcher
from gnnjit.training.progress import Bar, Lines
from gnnjit.training.streamed import layout_of, note_of

pytestmark = pytest.mark.usefixtures("little_to_collect")

SMALL = {"num_nodes": 400, "num_classes": 3, "num_features": 6, "avg_degree": 6}
CONFIG = TrainConfig(model="gcn", epochs=5, lr=0.05, seed=1)
BUDGET = 36_000
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
    """The folder of a closed store that holds the dataset."""
    with DiskStore.create(tmp_path / "store") as store:
        store_dataset(dataset, store)
    return tmp_path / "store"


def go(dataset, config=CONFIG, **arguments):
    return train(dataset, config, build=Mean, **arguments)


@pytest.fixture(scope="module")
def plain(dataset):
    """Without a budget."""
    return go(dataset)


@pytest.fixture(scope="module")
def begun(dataset, tmp_path_factory) -> Path:
    """Checkpoints of two epochs without a budget."""
    path = tmp_path_factory.mktemp("begun") / "run"
    go(dataset, CONFIG.replace(epochs=2), checkpoint=path)
    return path


@pytest.fixture
def run(begun, tmp_path) -> Path:
    """Those, for a test of its own."""
    return shutil.copytree(begun, tmp_path / "run")


class Parts(Watcher):
    """Notes how much of an epoch is done, and None at its end."""

    def __init__(self) -> None:
        self.seen, self.stages = [], []

    def stage(self, name, done, total):
        self.stages.append(name)

    def part(self, done):
        self.seen.append(done)

    def epoch(self, record):
        self.seen.append(None)


@pytest.fixture(scope="module")
def watched():
    """What a watcher of `streamed` was told."""
    return []


@pytest.fixture(scope="module")
def staged():
    """The stages that the watcher was told of."""
    return []


@pytest.fixture(scope="module")
def streamed(dataset, watched, staged):
    watcher = Parts()
    result = go(dataset, memory_budget=BUDGET, watcher=watcher)
    watched += watcher.seen
    staged += watcher.stages
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


@pytest.mark.long
@pytest.mark.once
def test_a_model_with_running_means(dataset):
    """`tests/streaming/test_stream_models.py` has the others."""
    config = TrainConfig(model="gin", layers=1, hidden=2, dropout=0.3, epochs=2)
    found = train(dataset, config, memory_budget=BUDGET)
    assert found.performance["parts"] > 1
    # The biases before a normalisation have no gradient but rounding, which Adam scales up.
    same(found, train(dataset, config), tolerance=5e-3, free="hidden.bias")


@pytest.mark.long
@pytest.mark.once
def test_seeds_early_stopping_and_normalized_features(dataset):
    positive = dataclasses.replace(dataset, x=np.abs(dataset.x))
    config = CONFIG.replace(epochs=40, lr=0.3, patience=2, normalize_features=True)
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


@pytest.mark.long
@pytest.mark.once
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
    with StoredDataset.open(folder) as stored, HostStore() as store:
        assert stored.contents == contents_of(dataset)
        assert store_dataset(dataset, store, order="given").contents == stored.contents


@pytest.mark.long
@pytest.mark.once
def test_other_budgets_on_resume(dataset, plain, run):
    """With one from the third epoch on, a smaller one in the fourth, and none in the fifth: other
    blocks add in another order, so that the last bits differ."""
    parts = []
    for epochs, budget in ((3, BUDGET), (4, BUDGET // 2), (5, None)):
        config = CONFIG.replace(epochs=epochs)
        found = go(dataset, config, checkpoint=run, resume=True, memory_budget=budget)
        parts.append(found.performance.get("parts"))
    assert 1 < parts[0] < parts[1]
    same(found, plain)


@pytest.mark.once
def test_resume_keeps_the_blocks_of_the_same_budget(dataset, run):
    Checkpoints(run, {}).remember(note_of((3, 1), BUDGET))
    config = CONFIG.replace(epochs=3)
    found = go(dataset, config, checkpoint=run, resume=True, memory_budget=BUDGET)
    assert found.performance["parts"] == 3
    assert Checkpoints(run, {}).recall() == {"budget": BUDGET, "layout": [3, 1]}


def test_blocks_that_do_not_fit_any_more(dataset, run):
    Checkpoints(run, {}).remember(note_of((1, 1), BUDGET))
    config = CONFIG.replace(epochs=3)
    found = go(dataset, config, checkpoint=run, resume=True, memory_budget=BUDGET)
    assert found.performance["parts"] == 2
    assert layout_of(Checkpoints(run, {}).recall(), BUDGET) == (2, 1)


@pytest.mark.parametrize(
    ("noted", "layout"),
    [
        ({}, None),
        ({"budget": 5, "layout": [3, 2]}, (3, 2)),
        ({"budget": 6, "layout": [3, 2]}, None),
        ({"budget": 5, "parts": 3}, None),  # as an earlier version wrote it
        ({"budget": 5, "layout": 3}, None),
        ({"budget": 5, "layout": [0, 1]}, None),
        ([5], None),
    ],
)
def test_notes_of_layouts(noted, layout):
    assert layout_of(noted, 5) == layout


def test_a_finished_run_has_no_figures_of_traffic(dataset, run):
    config = CONFIG.replace(epochs=2)
    # The note is of an earlier version.
    Checkpoints(run, {}).remember({"budget": BUDGET, "parts": 2})
    found = go(dataset, config, checkpoint=run, resume=True, memory_budget=BUDGET)
    assert (found.performance["parts"], found.performance["moved_bytes"]) == (None, None)


def test_damaged_note_of_the_blocks(dataset, run):
    (run / "streamed.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"streamed\.json cannot be read .*: delete it"):
        go(dataset, checkpoint=run, resume=True, memory_budget=BUDGET)


def test_progress_before_the_first_epoch(streamed, staged):
    names = [name for name, _ in itertools.groupby(staged)]
    assert names[:3] == ["compiled code", "grid", "compiled code"]
    assert names[-1] == "compiled code"


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
    assert shown(bar) == ("seed-0", 2.5, 10)
    bar.finish()


def test_bar_of_what_comes_before_an_epoch():
    text = io.StringIO()
    bar = Bar(Console(file=text, force_terminal=True, width=60))
    bar.start("seed-0", 2, 10)
    bar.stage("compiled code", 0, 1)
    assert shown(bar) == ("preparing  compiled code", 0, None)
    bar.stage("grid", 3, 12)
    assert shown(bar) == ("preparing  grid", 3, 12)
    bar.stage("compiled code", 1, 1)
    bar.part(0.25)
    assert shown(bar) == ("seed-0", 2.25, 10)
    bar.finish()
    left = text.getvalue().rpartition("grid")[2]
    assert "100%" in left


def shown(bar: Bar) -> tuple:
    assert bar._progress is not None
    (task,) = bar._progress.tasks
    return task.description, task.completed, task.total


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
        (
            {"memory_budget": 1000},
            StreamError,
            "no grid of a reasonable size fits the memory budget of 1000 B",
        ),
        ({"store": "folder"}, TrainError, "communities is in a store, .* pass one too"),
        ({"memory_budget": "1GiB", "compare": True}, TrainError, "leave out either --compare"),
    ],
)
def test_mistaken_arguments(dataset, arguments, kind, message):
    with pytest.raises(kind, match=message):
        go(dataset, **arguments)


def test_many_graphs_are_refused():
    with pytest.raises(
        TrainError, match=r"pair is a dataset of many .*: leave it out; .*--batch-size"
    ):
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


def test_a_full_disk_of_the_checkpoints(dataset, run):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(CheckpointError, match=r"cannot be written .*: check the disk, and"):
            go(dataset, CONFIG, checkpoint=run, resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    config = CONFIG.replace(epochs=2)
    assert len(go(dataset, config, checkpoint=run, resume=True).runs[0].history) == 2
