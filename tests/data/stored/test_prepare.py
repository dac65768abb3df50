"""Datasets prepared by another process: what it makes, and every way in which it ends early."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gnnjit.data import DATASETS, Entry, communities, karate, row_normalize
from gnnjit.data.stored.dataset import ARRAYS, DATASET, StoredDataset
from gnnjit.data.stored.prepare import Request, keep, make, prepare
from gnnjit.data.stored.write import contents_of, silent
from gnnjit.errors import DataError, GraphError, StoreError
from gnnjit.store import disk
from gnnjit.store.disk import LOCK, MANIFEST, DiskStore

SMALL = {"num_nodes": 400, "num_features": 6, "avg_degree": 5}
LARGE = {"num_nodes": 200_000}
"""Takes long enough to be stopped while it is made."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> tuple[Path, list]:
    """A folder with SMALL, closed, and what was told while it was made."""
    folder, told = tmp_path_factory.mktemp("prepare") / "new" / "store", []
    prepare(
        "communities", folder, options=SMALL, watch=lambda *what: told.append(what)
    ).store.close()
    return folder, told


@pytest.fixture
def alone(monkeypatch):
    """No other process may be started."""

    def refuse(*_, **__):
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)


@contextlib.contextmanager
def opened(folder: Path):
    stored = StoredDataset.open(folder)
    with stored.store:
        yield stored


def everything(stored: StoredDataset, name: str) -> np.ndarray:
    return stored.store.read(name, 0, stored.store.info(name).rows)


def holder(folder: Path) -> int:
    """The process that has the store open."""
    return int((folder / LOCK).read_text())


def request(folder: Path, name: str = "communities", **fields) -> Request:
    """As `prepare` would make it, with these options alone."""
    if name == "communities" and "options" not in fields:
        fields["options"] = {
            **SMALL, "num_classes": 4, "seed": 0, "homophily": 0.6, "exponent": 2.5,
            "max_degree": None, "separation": 2.0, "train_fraction": 0.1, "val_fraction": 0.1,
        }  # fmt: skip
    return Request(name, str(folder), **fields)


@pytest.mark.usefixtures("alone")
def test_it_is_the_dataset_bit_for_bit(prepared):
    folder, _ = prepared
    dataset = communities(**SMALL)
    found = prepare("Communities", folder, options=SMALL)
    assert found.contents == contents_of(dataset)
    with found.store as store:
        stored = StoredDataset(store, "communities", 400, dataset.num_edges, 6, 8, None, "rcm", {})
        vertex = everything(stored, "vertex")
        assert (np.diff(vertex) < 0).any()
        for name in ("x", "y", "train_mask", "val_mask", "test_mask"):
            np.testing.assert_array_equal(everything(stored, name), getattr(dataset, name)[vertex])
        np.testing.assert_array_equal(vertex[everything(stored, "edge.src")], dataset.graph.src)
        np.testing.assert_array_equal(vertex[everything(stored, "edge.dst")], dataset.graph.dst)


def test_what_it_tells(prepared):
    folder, told = prepared
    assert list(dict.fromkeys(stage for stage, _, _ in told)) == [
        "graph", "order", "edges", "features", "sorting", "sealing",
    ]  # fmt: skip
    last = {stage: (done, total) for stage, done, total in told}
    with opened(folder) as stored:
        edges = stored.num_edges
        assert stored.counts == (40, 40, 320)
        assert stored.method == "rcm"
        assert 0 < stored.prepared_seconds < 60
        assert 50e6 < stored.prepared_peak_bytes < 1e9
    assert last == {
        "graph": (1, 1), "order": (1, 1), "edges": (edges, edges), "features": (400, 400),
        "sorting": (400, 400), "sealing": (1, 1),
    }  # fmt: skip


@pytest.mark.usefixtures("alone")
def test_another_dataset_is_refused(prepared):
    folder, _ = prepared
    before = {path: path.read_bytes() for path in folder.iterdir() if path.name != LOCK}
    options = {**SMALL, "seed": 3, "num_nodes": 500}
    with pytest.raises(StoreError) as error:
        prepare("communities", folder, options=options, order="given")
    assert str(error.value) == (
        f"{folder}: the folder holds communities with num_nodes=400, seed=0, order='auto', "
        "order_parts=16, order_seed=0, and communities with num_nodes=500, seed=3, order='given' "
        "was asked for: ask for what it holds, choose another folder, or delete this one"
    )
    with pytest.raises(StoreError, match="with normalize_features=False, and communities with"):
        prepare("communities", folder, options=SMALL, normalize_features=True)
    with pytest.raises(
        StoreError, match=r"holds communities with num_nodes=400, .*, and karate with"
    ):
        prepare("karate", folder)
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.usefixtures("alone")
def test_a_truncated_array_is_told(prepared, tmp_path):
    folder, _ = prepared
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (x,) = tmp_path.glob("x.*.npy")
    os.truncate(x, 1000)
    with pytest.raises(StoreError, match="1,000 bytes, expected 9,728: the file was truncated"):
        prepare("communities", tmp_path, options=SMALL)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("name", "arguments", "kind", "message"),
    [
        ("comunities", {}, DataError, "open_dataset: got 'comunities', expected one of karate"),
        ("karate", {"options": {"label": 1}}, DataError, "got the option 'label', expected one"),
        ("mutag", {}, DataError, "mutag has labels on graphs, links or types, expected"),
        ("karate", {"order": "best"}, GraphError, "method is 'best', expected one of"),
        (
            "karate",
            {"options": {"labels": {"faction"}}},
            DataError,
            r"a value that JSON cannot hold \(Object of type set is not JSON serializable\)",
        ),
    ],
)
def test_mistakes_are_told_before_anything_is_made(tmp_path, name, arguments, kind, message):
    with pytest.raises(kind, match=message):
        prepare(name, tmp_path / "store", **arguments)
    assert not list(tmp_path.iterdir())


def test_errors_come_as_they_are(tmp_path):
    with pytest.raises(DataError) as error:
        prepare("communities", tmp_path, options={"num_classes": 0})
    assert str(error.value) == "communities: got num_classes=0, expected 1 to num_nodes."


@pytest.mark.once
def test_errors_of_others_are_told(tmp_path):
    with pytest.raises(StoreError, match=r"that prepared communities ended with 1: ValueError: "):
        prepare("communities", tmp_path, options={"num_features": 2**62})


@pytest.mark.long
@pytest.mark.once
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the peak may be the parent's")
def test_memory_does_not_grow_with_the_features(prepared, tmp_path):
    options = {"num_nodes": 64_000, "num_features": 1024, "avg_degree": 1}
    with prepare("communities", tmp_path, options=options).store as store:
        size = store.info("x").bytes
    with opened(prepared[0]) as small, opened(tmp_path) as large:
        assert large.prepared_peak_bytes - small.prepared_peak_bytes < 0.75 * size


@pytest.mark.once
@pytest.mark.parametrize(("stage", "num_nodes"), [("graph", 50_000), ("edges", 200_000)])
def test_killed(tmp_path, stage, num_nodes):
    options = {"num_nodes": num_nodes, "num_features": 64}
    (tmp_path / "x.npy").write_text("mine")

    def kill(now: str, done: int, total: int) -> None:
        if now == stage:
            with contextlib.suppress(ProcessLookupError):
                os.kill(holder(tmp_path), signal.SIGKILL)

    with pytest.raises(StoreError) as error:
        prepare("communities", tmp_path, options=options, order="given", watch=kill)
    assert str(error.value) == (
        f"{tmp_path}: the process that prepared communities was killed (SIGKILL), as the system "
        "does where memory is short: make room, and call again, which begins anew"
    )
    assert (tmp_path / DATASET).exists() == (stage == "edges")
    with pytest.raises(StoreError):
        StoredDataset.open(tmp_path)
    # Nothing is there that another dataset could harm.
    stored = prepare("communities", tmp_path, options=SMALL, order="given")
    with stored.store as store:
        assert set(store.names()) == set(ARRAYS)
        np.testing.assert_array_equal(everything(stored, "x"), communities(**SMALL).x)
    assert len(list(tmp_path.glob("*.npy"))) == len(ARRAYS) + 1
    assert (tmp_path / "x.npy").read_text() == "mine"


def test_an_interrupt_ends_it(tmp_path):
    seen = []

    def interrupt(*_: object) -> None:
        seen.append(holder(tmp_path))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare("communities", tmp_path, options=LARGE, watch=interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(seen[0], 0)
    make(request(tmp_path), silent)
    with opened(tmp_path) as stored:
        assert stored.num_nodes == 400


def test_files_may_not_grow(tmp_path):
    """As on a disk that is full, in the process itself."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with pytest.raises(StoreError, match=r"x\.\w+\.npy: File too large: check the disk"):
            prepare("communities", tmp_path, options={**SMALL, "num_features": 100})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.glob("*.npy"))


def test_a_full_disk(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk, "reserve", fail)
    with pytest.raises(StoreError, match="No space left on device: 9,728 bytes were needed"):
        make(request(tmp_path), silent)
    monkeypatch.undo()
    assert not list(tmp_path.glob("*.npy"))
    with pytest.raises(StoreError, match="the dataset is not complete, what wrote it was stopped"):
        StoredDataset.open(tmp_path)
    make(request(tmp_path, order="given"), silent)  # nothing is there that another one could harm
    with opened(tmp_path) as stored:
        assert stored.method == "given"


def test_a_store_of_others_is_left_alone(tmp_path):
    with DiskStore.create(tmp_path) as store:
        store.add("x", 3, (), "int32")
        store.seal("x")
    with pytest.raises(StoreError) as error:
        make(request(tmp_path), silent)
    assert str(error.value) == (
        f"{tmp_path}: the folder holds a vertex store without a dataset.json, with the arrays x: "
        "choose another folder"
    )
    with DiskStore.open(tmp_path) as store:
        assert store.names() == ("x",)


def test_a_file_of_others_is_left_alone(tmp_path):
    (tmp_path / DATASET).write_text("[]")
    with pytest.raises(StoreError, match="not the description of a stored dataset; choose"):
        prepare("karate", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [DATASET]


def test_a_file_instead_of_the_folder(tmp_path):
    (tmp_path / "store").write_text("mine")
    with pytest.raises(StoreError, match="store: this is a file, expected a folder: choose anot"):
        prepare("communities", tmp_path / "store")
    with pytest.raises(StoreError, match="store: this is a file, expected a folder: choose anot"):
        keep(karate(), tmp_path / "store")


@pytest.mark.skipif(sys.platform != "linux", reason="a folder that takes no files, even of root")
def test_a_folder_that_takes_no_files():
    with pytest.raises(StoreError, match=r"^/proc/gnnjit.*: check the disk, and the rights on"):
        make(request(Path("/proc/gnnjit")), silent)


def test_one_process_at_a_time(tmp_path):
    with (
        DiskStore.create(tmp_path),
        pytest.raises(StoreError, match=f"process {os.getpid()} has this store open"),
    ):
        make(request(tmp_path), silent)


def test_another_process_was_quicker(prepared):
    folder, _ = prepared
    manifest = (folder / MANIFEST).read_bytes()
    made_from = json.loads((folder / DATASET).read_text())["made_from"]
    make(request(folder, options=made_from["options"]), silent)
    assert (folder / MANIFEST).read_bytes() == manifest


def test_values_of_the_wrong_type(tmp_path):
    with pytest.raises(
        DataError, match=r"^communities: got num_nodes='5', expected a whole number\.$"
    ):
        make(request(tmp_path, options={**request(tmp_path).options, "num_nodes": "5"}), silent)


def test_a_dataset_in_memory_with_normal_features(tmp_path, monkeypatch):
    x = np.arange(34 * 34, dtype=np.float32).reshape(34, 34)
    entry = Entry(lambda: dataclasses.replace(karate(), x=x), "vertex", "")
    monkeypatch.setitem(DATASETS, "karate", entry)
    make(request(tmp_path, "karate", normalize_features=True, order="given"), silent)
    with opened(tmp_path) as stored:
        np.testing.assert_array_equal(everything(stored, "x"), row_normalize(x))
        np.testing.assert_array_equal(everything(stored, "y"), karate().y)
        assert stored.made_from["normalize_features"]


def test_negative_features_have_no_sum(tmp_path):
    with pytest.raises(DataError) as error:
        make(request(tmp_path, normalize_features=True), silent)
    assert str(error.value) == (
        "communities has negative features, whose sum may be zero: pass normalize_features=False"
    )
    with DiskStore.open(tmp_path) as store:
        assert store.names() == ()
