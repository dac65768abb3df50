"""The benchmark of typed graphs runs, and its forms compute the same."""

from __future__ import annotations

import importlib
import json
import pathlib
from typing import Any

import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"
pytestmark = pytest.mark.long


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("bench_typed")


def test_smoke(bench: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "has_pyg", lambda: False)
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent))
    lines = tmp_path / "lines.jsonl"
    assert bench.main(["--smoke", "--models", "rgcn", "--json", str(lines)]) == 0
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    forms = [(r["question"], r["form"]) for r in rows]
    assert forms == [(q, f) for q in ("models", "relations") for f in ("typed", "by number")]
    assert all(r["median_seconds"] >= r["seconds"] > 0 for r in rows)
    assert all(r["error"] <= bench.TOLERANCE for r in rows)


def test_an_unknown_model(bench: Any) -> None:
    with pytest.raises(SystemExit, match=r"--models: unknown \['gcn'\]"):
        bench.main(["--models", "gcn"])
