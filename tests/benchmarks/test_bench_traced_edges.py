"""The benchmark of edges made inside a compiled function: it runs, its lists are the same edges,
its summary takes the best of each."""

from __future__ import annotations

import importlib
import json
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("bench_traced_edges")


@pytest.mark.long
@pytest.mark.once
def test_smoke(tmp_path: pathlib.Path) -> None:
    lines = tmp_path / "lines.jsonl"
    command = [sys.executable, str(FOLDER / "bench_traced_edges.py"), "--smoke", "--json", lines]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    *rows, last = [json.loads(line) for line in lines.read_text().splitlines()]
    assert {row["benchmark"] for row in [*rows, last]} == {"traced_edges"}
    assert {row["who"] for row in rows} == {"jax", "gnnjit"}
    assert all(row["median_ms"] >= row["least_ms"] > 0 for row in rows)
    assert set(last["ratios"]) == {"any order", "sorted"}


def test_the_lists_hold_the_same_edges(bench: Any) -> None:
    fluid = bench.fluid(3)
    n = len(fluid.position)
    real = {}
    for name in ("sorted", "shuffled", "half"):
        edges = getattr(fluid, name)
        real[name] = [tuple(pair) for pair in edges.T.tolist() if pair[0] < n]
        assert len(real[name]) < edges.shape[1]
    half = real["half"]
    assert sorted(real["shuffled"]) == sorted(half + [pair[::-1] for pair in half])
    assert real["sorted"] == sorted(real["shuffled"], key=lambda pair: pair[::-1])
    dense = {(u, v) for v, row in enumerate(fluid.dense.tolist()) for u in row if u < n}
    assert dense == set(real["sorted"])
    assert np.isfinite(fluid.position).all()


def test_the_ratios(bench: Any) -> None:
    def row(who: str, kind: str, median: float, built: bool = False) -> Any:
        return bench.Row(who, "", kind, built, 8, 9, median, median, median, 0.0)

    rows = [
        row("jax", "shuffled", 6.0), row("jax", "half", 4.0), row("jax", "sorted", 5.0),
        row("jax", "dense", 3.0), row("gnnjit", "shuffled", 2.0), row("gnnjit", "half", 1.5),
        row("gnnjit", "sorted", 1.0), row("gnnjit", "sorted", 0.1, built=True),
    ]  # fmt: skip
    assert bench.ratios(rows) == {
        "any order": {"all": 2.0, "same list": 4 / 1.5, "edge lists": 4 / 1.5},
        "sorted": {"all": 3.0, "same list": 3.0, "edge lists": 4.0},
    }


def test_forces_that_differ_are_an_error(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = bench.Form("gnnjit", "wrong", "sorted", lambda x, edges: x)
    monkeypatch.setattr(bench, "FORMS", (bench.FORMS[0], wrong))
    with pytest.raises(RuntimeError, match="wrong, sorted: the forces differ by"):
        bench.measure_all(bench.fluid(3), 1, 1)
