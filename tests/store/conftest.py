"""Stores to be tested."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnnjit.store.disk import DiskStore
from gnnjit.store.memory import HostStore

from .stores import ROWS, put


@pytest.fixture(params=["host", "disk"])
def store(request, tmp_path):
    with HostStore() if request.param == "host" else DiskStore.create(tmp_path / "store") as made:
        yield made


@pytest.fixture
def folder(tmp_path) -> Path:
    """The folder of a closed store with the sealed array x, ROWS."""
    with DiskStore.create(tmp_path / "store") as made:
        put(made, "x", ROWS)
    return tmp_path / "store"
