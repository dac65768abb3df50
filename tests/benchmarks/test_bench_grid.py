"""The benchmark of the edge grid runs at smoke size, and counts what it says it counts."""

from __future__ import annotations

import importlib
import json
import math
import pathlib
import subprocess
import sys
from typing import Any

import pytest

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("shared_compilation")]

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"
ROWS = {"growth": 3, "ablation": 6, "plans": 2, "order": 4, "budget": 1}


@pytest.mark.long
def test_smoke(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "lines.jsonl"
    command = [sys.executable, str(FOLDER / "bench_grid.py"), "--smoke", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert [s for s in said if s.startswith("--- ")] == [f"--- {q}" for q in ROWS]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [x for x in lines if "notes" not in x]
    assert {q: sum(r["question"] == q for r in rows) for q in ROWS} == ROWS
    assert all(row.get("seconds", 1.0) > 0 for row in rows)
    ends = [x for x in lines if "notes" in x]
    assert [x["question"] for x in ends] == [*ROWS]
    assert all("versions" in x for x in ends)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("grid.plans")


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("grid.training")


def test_bytes_of_both_orders(plans: Any, training: Any) -> None:
    """GCN with 8 features, 32 hidden, 8 classes: by columns each block reads all sources, by rows
    the sums travel. The degrees, the scale of each vertex (stored twice) and the rows come once."""
    n, parts = 300, 4
    task = training.power_law_task(n, 1200, features=8)
    _, _, executables = plans.executables_of(task, "gcn", "predict")
    columns, by_rows = plans.both_orders(executables, task, parts)
    kept = sum(x.row_bytes for s in executables.sweeps for x in {*s.loads, *s.stores})
    edges = 4 * 1200 + 4 * parts * n
    scale, width = 4, 4 * 8  # both layers sum up 8 numbers: features, then classes
    source, own = scale + width, scale
    assert columns == n * kept + 2 * (edges + n * parts * source)
    assert by_rows == n * kept + 2 * (edges + n * source + n * (parts - 1) * (own + 2 * width))


@pytest.mark.long
def test_plans_over_capacities(plans: Any, training: Any) -> None:
    task = training.power_law_task(300, 1200, features=8)
    least, most = plans.plan_rows(task, "gcn", parts=2, points=2)
    assert least.share < most.share == 1
    assert least.planned_mib <= least.lru_mib <= least.streaming_mib
    assert most.planned_mib <= least.planned_mib
    assert most.streaming_mib == least.streaming_mib


def test_a_cache_that_writes_back(plans: Any) -> None:
    """The cache holds two tensors: x comes; y is written back though nobody reads it again; x has
    left when it is wanted; z stays."""
    from gnnjit.streaming.memory.problem import Operation

    ops = [Operation("a", ["x"], ["y"]), Operation("b", ["y"], ["z"]), Operation("c", ["x"], ["z"])]
    sizes = {"x": 5, "y": 7, "z": 3}
    assert plans.as_a_cache(ops, sizes, 12) == 5 + 5 + 7
    assert plans.as_a_cache(ops, sizes, 15) == 5


def test_an_order_of_vertices(training: Any) -> None:
    task = training.by_class(training.community_task(50, 4, features=3))
    assert (task.y[1:] >= task.y[:-1]).all()
    again = training.community_task(50, 4, features=3)
    same = (again.y[again.src] == again.y[again.dst]).sum()
    assert (task.y[task.src] == task.y[task.dst]).sum() == same


def test_without_the_web(training: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GNNJIT_DATA_DIR", raising=False)
    with pytest.raises(training.SkippedError, match="GNNJIT_DATA_DIR has no snap-web-NotreDame"):
        training.web_task(8)


def test_a_table_and_its_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    bench = importlib.import_module("bench_grid")

    def row(edges: int, seconds: float, ratio: float, hideable: bool) -> Any:
        return bench.GrowthRow(
            "gcn",
            10,
            edges,
            "host",
            seconds,
            ratio,
            math.nan,
            1.0,
            "2",
            1.0,
            1.0,
            1.0,
            0.5,
            0.0,
            hideable,
        )

    rows = [row(100, 1.0, 1.1, True), row(1000, 100.0, 1.2, True), row(1000, 100.0, 3.0, False)]
    head, first, *_ = bench.table(rows).splitlines()
    assert head.split()[:4] == ["model", "vertices", "edges", "where"]
    assert first.split()[4:8] == ["1", "1.1", "-", "1"]
    slope, bar = bench.growth_notes(rows)
    assert slope == "gcn, host: time grows with edges to the power of 2.00"
    assert bar == (
        "1 of 2 points are within 1.13 x of in memory, of those where to copy all that moves lasts "
        "at most 13% of an epoch there"
    )
