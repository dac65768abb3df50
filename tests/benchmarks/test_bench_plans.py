"""The benchmarks of the planner run at smoke size, and sum up what they measured."""

from __future__ import annotations

import importlib
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.once

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"


def smoke(name: str, lines: pathlib.Path) -> list[dict]:
    command = [sys.executable, str(FOLDER / f"bench_{name}.py"), "--smoke", "--json", str(lines)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in lines.read_text().splitlines()]


@pytest.mark.long
def test_smoke_of_planning(tmp_path: pathlib.Path) -> None:
    rows = smoke("planning", tmp_path / "lines.jsonl")
    assert {row["direction"] for row in rows} == {"inference", "training"}
    assert all(row["alternatives"] >= 3 for row in rows)  # one for each layer, at least
    assert all(row["most_ms"] >= row["median_ms"] > 0 < row["first_ms"] for row in rows)


@pytest.mark.long
@pytest.mark.parametrize("name", ["cost", "order"])
def test_smoke(name: str, tmp_path: pathlib.Path) -> None:
    *rows, last = smoke(name, tmp_path / "lines.jsonl")
    assert last["benchmark"] == name
    assert len(rows) >= 3
    assert all(value > 0 for row in rows for key, value in row.items() if key.endswith("_ms"))


def test_the_summary_of_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    bench = importlib.import_module("bench_cost")
    rows = [
        bench.Row("a", "gcn", 0, "", predicted=1.1, seconds=1.0),
        bench.Row("a", "gcn", 1, "", predicted=1.2, seconds=0.8),
        bench.Row("b", "gat", 0, "", predicted=0.9, seconds=1.0),
        bench.Row("b", "gat", 1, "", predicted=2.0, seconds=2.0),
        bench.Row("c", "gat", 0, "", predicted=3.0, seconds=2.0),
    ]
    found = bench.summary(rows)
    assert found["mean_error"] == pytest.approx((0.1 + 0.5 + 0.1 + 0.0 + 0.5) / 5)
    assert found["layers_with_a_choice"] == 2
    assert found["within_5_percent"] == 0.5
    assert found["worst"] == pytest.approx(1.25)


def test_when_orders_are_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    bench = importlib.import_module("bench_order")

    def passes(*speeds: float, turns: int = 400) -> list[np.ndarray]:
        """Readings beside an order with so much of the choice's time in each pass."""
        scatter = np.tile([0.9, 1.1, 0.95, 1.05, 1.0], turns // 5)
        return [np.stack([np.ones(len(scatter)), s * scatter], axis=1) for s in speeds]

    def beside(some: np.ndarray, others: np.ndarray) -> np.ndarray:
        return np.concatenate([some, others[:, 1:]], axis=1)

    assert bench.settled(passes(1.5, 1.5, turns=5))  # far slower
    assert bench.settled(passes(0.5, 0.5, turns=5))  # far faster
    # Two passes do not tell how passes scatter, however many turns they have.
    assert not bench.settled(passes(0.91, 0.92))
    assert not bench.settled(passes(1.0, 1.0))
    assert bench.settled(passes(*[1.0] * 6))
    assert not bench.settled(passes(*[0.91, 1.09] * 3))
    assert bench.settled(passes(*[0.91, 1.09] * 20))
    assert bench.settled(passes(*[0.88, 0.92] * 5))
    # Those of short layers scatter more.
    assert bench.settled(passes(0.82, 0.83))
    short = [1e-4 * f for f in passes(0.82, 0.83)]
    assert not bench.settled(short)
    assert bench.settled(short * 5)
    slower, faster, equal = (passes(s, s) for s in (1.5, 0.5, 1.0))
    assert bench.settled(list(map(beside, slower, faster)))  # one that is far faster is enough
    assert not bench.settled(list(map(beside, slower, equal)))


def test_the_summary_of_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    bench = importlib.import_module("bench_order")
    rows = [
        bench.Row("gcn", "inference", "small", 8, 8, "aggregate-first", 1.0, 1.0, 4.0),
        bench.Row("gcn", "inner layer", "small", 8, 8, "combine-first", 2.0, 4.0, 1.0),
    ]
    found = bench.summary(rows)
    assert found["over_worse_order"] == pytest.approx((4.0 * 2.0) ** 0.5)
    assert found["over_aggregate_first"] == pytest.approx(2.0**0.5)
    assert found["over_combine_first"] == pytest.approx(2.0**0.5)
    assert found["least_of_better_order"] == 0.5
    assert {title: len(g) for title, g in bench.groups(rows).items()} == {
        "inference, random": 1, "training, random": 1, "inference, all": 1, "training, all": 1,
    }  # fmt: skip
