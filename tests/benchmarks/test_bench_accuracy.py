"""The benchmark of accuracies runs at smoke size."""

from __future__ import annotations

import importlib
import json
import pathlib
import re
from typing import Any

import pytest

pytestmark = pytest.mark.once

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("bench_accuracy")


@pytest.mark.long
def test_smoke(bench: Any, tmp_path: pathlib.Path) -> None:
    lines = tmp_path / "lines.jsonl"
    assert bench.main(["--smoke", "--json", str(lines)]) == 0
    points = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [(p["kind"], p["steps"]) for p in points] == [
        (kind, steps) for kind in ("frontier", "neighbor", "full") for steps in (2, 4)
    ]
    assert all(0 <= p[split] <= 1 for p in points for split in ("train", "val", "test"))


@pytest.mark.long
def test_smoke_of_tasks(bench: Any, tmp_path: pathlib.Path) -> None:
    lines = tmp_path / "lines.jsonl"
    assert bench.main(["--smoke", "--tasks", "gowalla/lightgcn", "--json", str(lines)]) == 0
    points = [json.loads(line) for line in lines.read_text().splitlines()]
    runs = [(p["run"], p.get("epoch")) for p in points]
    assert runs[1:-1] == [(f"seed-{seed}", epoch) for seed in (0, 1) for epoch in (1, 2)]
    assert points[0]["model"] == "lightgcn"
    means = [p["test"] for p in points if p.get("epoch") == 2]
    assert points[-1]["test recall@20"] == pytest.approx(sum(means) / 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--folder: missing"),
        (["--tasks", "cora/gcn"], "--tasks: unknown ['cora/gcn']"),
        (["--kinds", "whole"], "--kinds: unknown ['whole']"),
    ],
)
def test_what_is_missing_is_named(bench: Any, arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match=re.escape(message)):
        bench.main(arguments)
