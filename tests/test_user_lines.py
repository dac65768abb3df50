"""Messages and programs name the user's line, wherever the user's files lie, and ours."""

from __future__ import annotations

import contextlib
import importlib.util
import pathlib
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit import _compat
from gnnjit.errors import LayerError

PACKAGE = pathlib.Path(gnnjit.__file__).parent
MODEL = """import gnnjit
import jax.numpy as jnp

@gnnjit.layer
def doubled(v, e):
    return gnnjit.sum(2 * e.src)

@gnnjit.layer
def compared(v, e):
    if e.src[0] > 0:
        return gnnjit.sum(e.src)
    return v
"""
GRAPH = gnnjit.Graph.from_edges([0, 1], [1, 0], num_nodes=2)
X = jnp.ones((2, 3))


def test_ours_are_not_the_users_but_for_layers() -> None:
    rooms = {path: path.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*.py")}
    users = {path for path in rooms if _compat.is_users(str(path))}
    assert users == {path for path, room in rooms.items() if room in ("nn", "training")} != set()


@pytest.mark.parametrize("module", [jax, jnp, np, contextlib])
def test_libraries_are_not_the_users(module: types.ModuleType) -> None:
    assert not _compat.is_users(str(module.__file__))


@pytest.mark.parametrize("file", [pytest.__file__, "<stdin>", "/home/jax/model.py", __file__])
def test_all_else_is_the_users(file: str) -> None:
    assert _compat.is_users(file)


@pytest.mark.parametrize("folder", ["mine", "jax", "flax", "numpy", "gnnjit/ir", "gnnjit/frontend"])
def test_folders_of_the_user_may_be_called_anything(tmp_path: pathlib.Path, folder: str) -> None:
    file = tmp_path / folder / "model.py"
    file.parent.mkdir(parents=True)
    file.write_text(MODEL)
    spec = importlib.util.spec_from_file_location("model", file)
    assert spec is not None
    assert spec.loader is not None
    model = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(model)
    assert "# model.py:6" in str(model.doubled.explain(GRAPH, X, backward=False))
    with pytest.raises(LayerError, match=r"^model\.py:10: "):
        model.compared(GRAPH, X)
