"""The benchmark of pairs within a radius runs."""

from __future__ import annotations

import importlib
import json
import pathlib
from typing import Any

import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"


@pytest.mark.long
def test_smoke(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    bench: Any = importlib.import_module("bench_radius")
    lines = tmp_path / "lines.jsonl"
    assert bench.main(["--smoke", "--json", str(lines)]) == 0
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [(r["who"], r["what"]) for r in rows[:1]] == [("gnnjit", "pairs")]
    assert all(r["particles"] == 216 and r["edges"] > 216 and r["seconds"] > 0 for r in rows)
