"""Each notebook runs at smoke size, and its script and its executed form agree."""

from __future__ import annotations

import importlib.util
import pathlib
from typing import Any

import jupytext
import nbformat
import pytest

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("shared_compilation")]

FOLDER = pathlib.Path(__file__).parents[2] / "notebooks"
SCRIPTS = sorted(FOLDER.glob("[0-9]*.py"))
scripts = pytest.mark.parametrize("script", SCRIPTS, ids=[s.stem for s in SCRIPTS])


@pytest.fixture(scope="module")
def execute() -> Any:
    spec = importlib.util.spec_from_file_location("execute_notebooks", FOLDER / "execute.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.execute


def read(script: pathlib.Path) -> Any:
    return nbformat.read(script.with_suffix(".ipynb"), as_version=4)


def test_there_are_four() -> None:
    assert [s.stem for s in SCRIPTS] == [
        "01_first_layer", "02_watch_a_layer_compile", "03_plans", "04_streaming",
    ]  # fmt: skip


@pytest.mark.long
@scripts
def test_runs(
    script: pathlib.Path, execute: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv("GNNJIT_SMOKE", "1")
    notebook = execute(script, tmp_path)
    assert all(c.execution_count for c in notebook.cells if c.cell_type == "code")


@scripts
def test_is_in_sync(script: pathlib.Path) -> None:
    executed = [(c.cell_type, c.source) for c in read(script).cells]
    written = [(c.cell_type, c.source) for c in jupytext.read(script).cells]
    assert executed == written, f"run: python notebooks/execute.py {script.name}"


@scripts
def test_is_executed_and_has_figures(script: pathlib.Path) -> None:
    code = [c for c in read(script).cells if c.cell_type == "code"]
    assert all(c.execution_count for c in code)
    outputs = [o for c in code for o in c.outputs]
    assert "error" not in {o.output_type for o in outputs}
    assert any("image/png" in o.get("data", {}) for o in outputs)
