"""The benchmark of accuracies runs at smoke size."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.once

SCRIPT = pathlib.Path(__file__).parents[2] / "benchmarks" / "bench_accuracy.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.mark.long
def test_smoke(tmp_path: pathlib.Path) -> None:
    lines = tmp_path / "lines.jsonl"
    done = run("--smoke", "--json", str(lines))
    assert done.returncode == 0, done.stderr
    points = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [(p["kind"], p["steps"]) for p in points] == [
        (kind, steps) for kind in ("frontier", "neighbor", "full") for steps in (2, 4)
    ]
    assert all(0 <= p[split] <= 1 for p in points for split in ("train", "val", "test"))


@pytest.mark.long
def test_smoke_of_tasks(tmp_path: pathlib.Path) -> None:
    lines = tmp_path / "lines.jsonl"
    done = run("--smoke", "--tasks", "gowalla/lightgcn", "--json", str(lines))
    assert done.returncode == 0, done.stderr
    points = [json.loads(line) for line in lines.read_text().splitlines()]
    runs = [(p["run"], p.get("epoch")) for p in points]
    assert runs[1:-1] == [(f"seed-{seed}", epoch) for seed in (0, 1) for epoch in (1, 2)]
    assert points[0]["model"] == "lightgcn"
    means = [p["test"] for p in points if p.get("epoch") == 2]
    assert points[-1]["test recall@20"] == pytest.approx(sum(means) / 2)


def test_what_is_missing_is_named() -> None:
    assert "--folder: missing" in run().stderr
    assert "--tasks: unknown ['cora/gcn']" in run("--tasks", "cora/gcn").stderr
    assert "--kinds: unknown ['whole']" in run("--kinds", "whole").stderr
