"""The benchmark runs at smoke size: implementations agree, and the lines and table are complete."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.once

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / "bench_layers.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.fixture
def workloads(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    from common import workloads

    return workloads


@pytest.mark.long
def test_smoke(tmp_path: pathlib.Path) -> None:
    lines = tmp_path / "layers.jsonl"
    done = run("--smoke", "--no-pyg", "--json", str(lines))
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in lines.read_text().splitlines()]
    assert len(records) == 2 * 2 * 9
    assert {r["status"] for r in records} == {"ok"}
    assert all(r["largest_difference"] < 1e-5 for r in records)
    assert all(len(r["seconds"]) == 2 and r["smoke"] for r in records)
    table = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    assert len(table) == 2 + 2 * 9


@pytest.mark.parametrize("arguments", [("--layers", "gcm"), ("--features", "6"), ("--edges", "0")])
def test_mistakes_are_named(arguments: tuple[str, str]) -> None:
    done = run("--smoke", *arguments)
    assert done.returncode != 0
    assert arguments[0] in done.stderr or "positive" in done.stderr


def test_graph_depends_on_the_seed_alone(workloads) -> None:
    sizes = workloads.Sizes(vertices=200, edges=1000, features=8, seed=3)
    a, b = workloads.make(sizes), workloads.make(sizes)
    other = workloads.make(workloads.Sizes(200, 1000, 8, seed=4))
    np.testing.assert_array_equal(a.src, b.src)
    np.testing.assert_array_equal(a.x, b.x)
    assert (a.src != other.src).any()


def test_graph_is_simple_and_sorted(workloads) -> None:
    work = workloads.make(workloads.Sizes(vertices=200, edges=1000, features=8))
    key = work.dst.astype(np.int64) * 200 + work.src
    assert len(key) == 1000
    assert (np.diff(key) > 0).all()
    assert (work.src != work.dst).all()


def test_degrees_follow_a_power_law(workloads) -> None:
    work = workloads.make(workloads.Sizes(vertices=20_000, edges=400_000, features=4))
    degree = np.sort(np.bincount(work.dst, minlength=20_000))[::-1]
    ranks = np.arange(20, 2_000)
    slope = np.polyfit(np.log(ranks), np.log(degree[ranks]), 1)[0]
    assert slope == pytest.approx(-1 / (workloads.EXPONENT - 1), abs=0.05)


def test_differences_reports_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    from common import measure

    want = {"out": np.ones(3), "x": np.array([1.0, 2.0])}
    assert measure.differences(want, want) == (0.0, None)
    assert measure.differences({"out": np.ones(3)}, want) == (float("inf"), "x")
    assert measure.differences({**want, "out": np.full(3, np.nan)}, want)[0] == float("inf")
    error, where = measure.differences({**want, "x": np.array([1.0, 2.1])}, want)
    assert where == "x"
    assert error == pytest.approx(0.05)
    error, _ = measure.differences({**want, "x": np.array([1.0, 2.1])}, want, kinked={"x"})
    assert error == pytest.approx(0.05 / 2**0.5)
