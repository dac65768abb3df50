"""Each file of results is one benchmark's, and prints as tables."""

from __future__ import annotations

import importlib
import json
import pathlib

import pytest

pytestmark = pytest.mark.once

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"
RESULTS = sorted((FOLDER / "results").glob("*.jsonl"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda p: p.stem)
def test_results_print(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert {r["benchmark"] for r in records if "benchmark" in r} == {path.stem.split("-")[0]}
    text = importlib.import_module("common.report").text(records)
    assert any(set(line) == set("| -") for line in text.splitlines())
