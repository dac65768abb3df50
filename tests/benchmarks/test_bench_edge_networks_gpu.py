"""The forms of each network are compiled side by side, and wrong values are reported."""

from __future__ import annotations

import importlib
import json
import pathlib
from typing import Any

import pytest

pytestmark = pytest.mark.once

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("bench_edge_networks_gpu")


@pytest.mark.long
def test_smoke(bench, tmp_path, capsys):
    file = tmp_path / "lines.jsonl"
    assert bench.main(["--smoke", "--models", "egnn", "--json", str(file)]) == 0
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [r["form"] for r in rows] == ["layer", "plain", "split"]
    assert all(r["error"] < r["tolerance"] for r in rows)
    assert "WRONG" not in capsys.readouterr().out


@pytest.mark.long
def test_other_values_are_wrong(bench, monkeypatch, capsys):
    monkeypatch.setattr(bench, "difference", lambda found, expected: 1.0)
    assert bench.main(["--smoke", "--models", "nnconv"]) == 1
    assert "WRONG" in capsys.readouterr().out


def test_unknown_networks_are_named(bench):
    with pytest.raises(SystemExit, match="--models: unknown \\['gnn'\\]"):
        bench.main(["--models", "gnn"])
