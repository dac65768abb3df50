"""Stores to be tested."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

from gnnjit.grid.disk import DiskStore
from gnnjit.grid.host import HostStore

from .stores import ROWS, put


@pytest.fixture(params=["host", "disk"])
def store(request, tmp_path):
    with HostStore() if request.param == "host" else DiskStore.create(tmp_path / "store") as made:
        yield made


@pytest.fixture
def folder(tmp_path) -> Path:
    """Of a closed store with the sealed array x, ROWS."""
    with DiskStore.create(tmp_path / "store") as made:
        put(made, "x", ROWS)
    return tmp_path / "store"


@pytest.fixture(scope="module", autouse=True)
def same_programs_once() -> Iterator[None]:
    """Streamed functions compile their pieces ahead, in many tests of a module the same ones: for
    one device, and without callbacks, so that their text says all."""
    made: dict[Any, jax.stages.Compiled] = {}
    compile = jax.stages.Lowered.compile

    def once(self: jax.stages.Lowered) -> jax.stages.Compiled:
        key = self.as_text(), self.in_tree, self.out_tree
        if key not in made:
            made[key] = compile(self)
        return made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.stages.Lowered, "compile", once)
        yield
