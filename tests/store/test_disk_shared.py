"""A store that several read at once, and nobody writes meanwhile."""

from __future__ import annotations

import numpy as np
import pytest

from gnnjit.errors import StoreError
from gnnjit.store.disk import DiskStore, SharedStore


@pytest.fixture
def folder(tmp_path):
    with DiskStore.create(tmp_path) as store:
        store.add("x", 3, (2,), np.float32)
        store.write("x", 0, np.ones((3, 2), np.float32))
        store.seal("x")
        store.add("unfinished", 3, (), np.int32)
    return tmp_path


def test_two_read_at_once(folder):
    with SharedStore.open(folder) as one, SharedStore.open(folder) as other:
        assert one.names() == other.names() == ("x",)
        assert np.array_equal(one.read("x", 1, 3), np.ones((2, 2)))
        assert np.array_equal(other.gather("x", [2]), np.ones((1, 2)))
    with DiskStore.open(folder) as store:
        assert store.names() == ("unfinished", "x")


def test_nobody_writes_meanwhile(folder):
    with SharedStore.open(folder), pytest.raises(StoreError, match="has this store open"):
        DiskStore.open(folder)
    with DiskStore.open(folder), pytest.raises(StoreError, match="has this store open"):
        SharedStore.open(folder)


def test_readers_do_not_write(folder):
    before = sorted(folder.iterdir())
    with SharedStore.open(folder) as store:
        for change in (
            lambda: store.add("y", 1, (), np.int32),
            lambda: store.drop("x"),
            lambda: store.unseal("x"),
            lambda: store.write("x", 0, np.zeros((1, 2), np.float32)),
        ):
            with pytest.raises(StoreError, match=r"open for reading|sealed array"):
                change()
    assert sorted(folder.iterdir()) == before
    with SharedStore.open(folder) as store:
        assert store.read("x", 0, 1).all()


def test_no_store(tmp_path):
    with pytest.raises(StoreError, match="no vertex store"):
        SharedStore.open(tmp_path)
    assert not list(tmp_path.iterdir())
