"""Datasets in vertex stores: what is written, what is refused, what a failure leaves."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnjit import Graph
from gnnjit.data import Dataset, communities, karate
from gnnjit.data.stored import dataset as stored_dataset
from gnnjit.data.stored import write
from gnnjit.data.stored.dataset import ARRAYS, DATASET, StoredDataset
from gnnjit.errors import GraphError, StoreError
from gnnjit.partition.locality import order_vertices
from gnnjit.store import disk
from gnnjit.store.disk import DiskStore
from gnnjit.store.memory import HostStore

MASKS = ("train_mask", "val_mask", "test_mask")


def everything(stored: StoredDataset, name: str) -> np.ndarray:
    return stored.store.read(name, 0, stored.store.info(name).rows)


def holds(stored: StoredDataset, dataset: Dataset) -> bool:
    """Whether the arrays are the dataset's, under the numbers that `vertex` tells."""
    vertex = everything(stored, "vertex")
    np.testing.assert_array_equal(np.sort(vertex), np.arange(dataset.num_nodes))
    for name in ("x", "y", *MASKS):
        np.testing.assert_array_equal(everything(stored, name), getattr(dataset, name)[vertex])
    np.testing.assert_array_equal(vertex[everything(stored, "edge.src")], dataset.graph.src)
    np.testing.assert_array_equal(vertex[everything(stored, "edge.dst")], dataset.graph.dst)
    return all(stored.store.info(name).sealed for name in ARRAYS)


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return communities(num_nodes=300, num_classes=3, num_features=8, avg_degree=4)


@pytest.fixture
def folder(tmp_path, dataset) -> Path:
    """The folder of a closed store that holds the dataset."""
    with DiskStore.create(tmp_path / "store") as store:
        write.store_dataset(dataset, store, order="rcm")
    return tmp_path / "store"


def change(folder: Path, **fields) -> None:
    path = folder / DATASET
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize("order", ["given", "rcm", "auto"])
@pytest.mark.parametrize("kind", ["host", "disk"])
def test_the_arrays_are_the_datasets(dataset, tmp_path, monkeypatch, kind, order):
    monkeypatch.setattr(write, "PIECE", 7 * 4 * dataset.num_features)
    monkeypatch.setattr(write, "EDGES", 100)
    with HostStore() if kind == "host" else DiskStore.create(tmp_path / "store") as store:
        stored = write.store_dataset(dataset, store, order=order)
        assert holds(stored, dataset)
        ordering = order_vertices(
            dataset.graph.src, dataset.graph.dst, 300, method=order, parts=write.PARTS
        )
        np.testing.assert_array_equal(everything(stored, "vertex"), ordering.vertex)
        assert stored.method == ordering.method
        assert (stored.num_nodes, stored.num_edges) == (300, dataset.num_edges)
        assert (stored.num_features, stored.num_classes) == (8, 3)
        assert stored.counts == (30, 30, 240)
        assert (stored.prepared_seconds, stored.prepared_peak_bytes) == (None, None)


@given(st.data())
def test_rows_find_their_places(data):
    n = data.draw(st.integers(1, 40))
    order = np.array(data.draw(st.permutations(range(n))))
    x = np.arange(3 * n, dtype=np.float32).reshape(n, 3)
    cuts = sorted({0, n, *data.draw(st.lists(st.integers(0, n), max_size=4))})
    none = np.zeros(0, np.int32)
    source = write.Source(
        "some", 3, 1, none, none, np.zeros(n, np.int32), (np.zeros(n, bool),) * 3,
        [(low, x[low:high]) for low, high in itertools.pairwise(cuts)],
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch, HostStore() as store:
        patch.setattr(write, "PIECE", 12 * data.draw(st.integers(1, 15)))
        stored = write.write(source, store, {}, order=order, parts=1, seed=0)
        np.testing.assert_array_equal(everything(stored, "x"), x[order])


def test_a_permutation_of_ones_own(dataset):
    order = np.arange(300)[::-1]
    with HostStore() as store:
        stored = write.store_dataset(dataset, store, order=order)
        assert stored.method == "array"
        assert holds(stored, dataset)
        np.testing.assert_array_equal(everything(stored, "vertex"), order)


def test_edges_come_in_blocks(dataset):
    with HostStore() as store:
        stored = write.store_dataset(dataset, store, order="given")
        blocks = list(stored.edges(100))
        assert [len(src) for src, _ in blocks[:-1]] == [100] * (dataset.num_edges // 100)
        for index, end in enumerate((dataset.graph.src, dataset.graph.dst)):
            together = np.concatenate([block[index] for block in blocks])
            np.testing.assert_array_equal(together, end)
            assert together.dtype == np.int32


def test_padding_edges_are_left_out():
    plain = karate()
    padded = dataclasses.replace(plain, graph=plain.graph.pad(num_edges=200))
    with HostStore() as store:
        assert holds(write.store_dataset(padded, store), plain)


def test_a_graph_without_edges():
    none = np.zeros(0, np.int32)
    dataset = dataclasses.replace(karate(), graph=Graph.from_edges(none, none, 34))
    with HostStore() as store:
        stored = write.store_dataset(dataset, store)
        assert holds(stored, dataset)
        assert list(stored.edges()) == []


def test_what_was_written_is_opened(folder, dataset):
    stored = StoredDataset.open(folder)
    with stored.store:
        assert holds(stored, dataset)
        assert stored.counts == (30, 30, 240)
        assert repr(stored) == (
            f"StoredDataset(communities: 300 vertices, {dataset.num_edges:,} directed edges, "
            "8 features, 3 classes, 30 train / 30 val / 240 test, order 'rcm')"
        )


def test_identity_tells_contents_and_order(dataset, folder):
    def identity(dataset: Dataset, **options) -> str:
        with HostStore() as store:
            return write.store_dataset(dataset, store, **options).identity

    stored = StoredDataset.open(folder)
    with stored.store:
        assert stored.identity == identity(dataset, order="rcm")
    other = communities(num_nodes=300, num_classes=3, num_features=8, avg_degree=4, seed=1)
    different = [
        stored.identity,
        identity(other, order="rcm"),
        identity(dataset, order="given"),
        identity(dataset, order=np.arange(300)),
        identity(dataset, order="auto"),
        identity(dataset, order="auto", parts=2),
    ]
    assert len(set(different)) == len(different)
    assert identity(dataset, order="rcm", parts=2) == stored.identity


def test_arrays_of_others_stay(dataset):
    with HostStore() as store:
        store.add("y", 2, (), "int32")
        store.add("h", 2, (), "int32")
        with pytest.raises(StoreError) as error:
            write.store_dataset(dataset, store)
        assert str(error.value) == (
            "communities: the store has the arrays y already: drop them first, or use another store"
        )
        store.drop("y")
        assert holds(write.store_dataset(dataset, store), dataset)
        assert set(store.names()) == {"h", *ARRAYS}


@pytest.mark.parametrize(
    ("failing", "at"), [("posix_fallocate", 3), ("pwritev", 12), ("fsync", 21)]
)
def test_a_full_disk_leaves_no_arrays(dataset, tmp_path, monkeypatch, failing, at):
    if not hasattr(os, failing):
        pytest.skip(f"no {failing} here")
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "notes").write_text("mine")
    with DiskStore.create(tmp_path / "store") as store:
        calls = []

        def fail(*arguments):
            calls.append(arguments)
            if len(calls) == at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return plain(*arguments)

        plain = getattr(os, failing)
        monkeypatch.setattr(disk.os, failing, fail)
        with pytest.raises(StoreError, match=r"No space left on device: [\d,]+ bytes were needed"):
            write.store_dataset(dataset, store)
        assert store.names() == ()
        monkeypatch.undo()
        assert not list((tmp_path / "store").glob("*.npy"))
        assert (tmp_path / "store" / "notes").read_text() == "mine"
        assert holds(write.store_dataset(dataset, store), dataset)


def test_an_unknown_order_leaves_no_arrays(dataset):
    with HostStore() as store:
        with pytest.raises(GraphError, match="method is 'best', expected one of"):
            write.store_dataset(dataset, store, order="best")
        assert store.names() == ()


def test_a_description_that_cannot_be_written(dataset, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(stored_dataset, "write_atomically", fail)
    with DiskStore.create(tmp_path / "store") as store:
        with pytest.raises(StoreError, match=r"dataset.json: Permission denied: check the disk"):
            write.store_dataset(dataset, store)
        assert store.names() == ()


def test_nothing_to_open(tmp_path):
    with pytest.raises(StoreError) as error:
        StoredDataset.open(tmp_path)
    assert str(error.value) == (
        f"{tmp_path}: no stored dataset, it has no {DATASET}; gnnjit.data.stored.prepare makes one"
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "notes"}, "not the description of a stored dataset; choose another folder"),
        ({"format": 7}, "a stored dataset of the format 7, expected 1: open it with the version"),
        ({"complete": None}, r"the description is damaged \(it lacks complete, or made_from\)"),
        ({"complete": False}, "the dataset is not complete, what wrote it was stopped: prepare"),
        ({"counts": {}}, r"is damaged \(a field is missing, or is none of ours\): delete"),
        (
            {"num_nodes": 301},
            r"the array 'x' is float32\[300, 8\], sealed, expected float32\[301, 8\], sealed by",
        ),
    ],
)
def test_descriptions_that_are_refused(folder, fields, message):
    change(folder, **fields)
    with pytest.raises(StoreError, match=message):
        StoredDataset.open(folder)
    DiskStore.open(folder).close()  # it is not kept open


def test_a_description_that_is_no_json(folder):
    (folder / DATASET).write_text("{")
    with pytest.raises(StoreError, match=r"is damaged \(not JSON, JSONDecodeError\): delete the"):
        StoredDataset.open(folder)


def test_a_truncated_array(folder):
    (x,) = folder.glob("x.*.npy")
    os.truncate(x, 100)
    with pytest.raises(StoreError, match=r"x\.\w+\.npy: 100 bytes, expected 9,728: the file was"):
        StoredDataset.open(folder)


def test_an_array_that_is_not_sealed(folder):
    with DiskStore.open(folder) as store:
        store.unseal("y")
    with pytest.raises(StoreError, match=r"the array 'y' is int32\[300\], not sealed, expected"):
        StoredDataset.open(folder)
