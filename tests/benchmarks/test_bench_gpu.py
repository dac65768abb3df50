"""The GPU benchmark runs anywhere at smoke size: results are compared, lines and tables complete.

PyTorch is not needed: its peers are skipped with a reason.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.once

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"
ROOT = FOLDER.parent


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / "bench_gpu.py"), *arguments]
    variables = os.environ | {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=variables)


def lines_of(path: pathlib.Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.mark.long
def test_smoke(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "gpu.jsonl"
    done = run("--smoke", "--peers", "default,compiled", "--json", str(path))
    assert done.returncode == 0, done.stderr
    records = lines_of(path)
    ok = [r for r in records if r["status"] == "ok"]
    assert len(records) == 12 * 2 * 2
    assert len([r for r in ok if r["peer"] == "default"]) == 12 * 2
    assert all(len(r["seconds"]) == 2 and r["smoke"] and r["bits_identical"] for r in ok)
    assert all(r["reason"] for r in records if r["status"] == "skipped")
    assert "12 of 12 right" in done.stdout
    again = subprocess.run(
        [sys.executable, "-m", "common.report", str(path)],
        capture_output=True, text=True, cwd=FOLDER,
    )  # fmt: skip
    assert again.stdout == done.stdout


def test_what_no_longer_fits_the_time_is_named(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "gpu.jsonl"
    done = run(
        "--layers", "linear,gcn", "--sizes", "small3,small", "--dtypes", "float32", "--peers",
        "default", "--minutes", "0.001", "--json", str(path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = {(r["layer"], r["size"], r["mode"], r["reason"]) for r in lines_of(path)}
    cases = [("gcn", "small3"), ("linear", "small")]
    expected = [(*case, mode) for case in cases for mode in ("forward", "both")]
    expected += [("gcn", "check", "check"), ("linear", "check", "check")]
    assert found == {(*case, "no time left") for case in expected}


@pytest.mark.parametrize(
    "arguments",
    [("--layers", "gcm"), ("--sizes", "large"), ("--dtypes", "int8"), ("--peers", "dgl")],
)
def test_mistakes_are_named(benchmarks: None, arguments: tuple[str, str]) -> None:
    import bench_gpu

    given = bench_gpu.parser().parse_args(["--smoke", *arguments])
    with pytest.raises(SystemExit, match=rf"{arguments[0]}: unknown \['{arguments[1]}'\]"):
        bench_gpu.make_plan(given)


def test_bars_are_measured_first(benchmarks: None) -> None:
    from gpu import plan

    every = plan.groups(plan.CHOSEN, tuple(plan.SIZES), tuple(plan.DTYPES), False)
    assert len(set(every)) == len(every)
    assert [str(g) for g in every[:3]] == [
        "linear arxiv float32", "gat arxiv float32", "gatv2 arxiv float32"
    ]  # fmt: skip
    assert {g.layer for g in every} == set(plan.CHOSEN)
    assert not [g for g in every if g.layer == "gns" and g.size == "reddit"]
    assert plan.waves(["default", "pyg", "csr"], alone=True) == [["default"], ["pyg"], ["csr"]]


@pytest.mark.parametrize(
    ("errors", "dtype", "matmul", "reason"),
    [
        ({"out": (3e-6, 3e-6)}, "float32", "float32", None),
        ({"out": (3e-5, 3e-6)}, "float32", "float32", "out is off by 3e-05 in norm"),
        ({"out": (3e-6, 3e-5)}, "float32", "float32", "out is off by 3e-05 in an entry"),
        ({"out": (1e-3, 1.0)}, "float32", "tf32", None),
        ({"out": (1e-2, 1.0)}, "bfloat16", "tf32", "out is off by 0.01 in norm"),
        ({"out": (float("nan"), 0.0)}, "bfloat16", "tf32", "out is off by nan in norm"),
    ],
)
def test_wrong(benchmarks: None, errors: Any, dtype: str, matmul: str, reason: str | None) -> None:
    from gpu import plan

    found = plan.wrong(errors, {"out": (1e-6, 1e-6)}, "gcn", dtype, matmul)
    assert (found is None) == (reason is None)
    assert reason is None or str(found).startswith(reason)


@pytest.mark.long
def test_reference_of_a_part_is_the_whole_there(tmp_path: pathlib.Path) -> None:
    """Of several layers in one process, which needs double precision."""
    script = f"""
import pathlib, sys
sys.path.insert(0, {str(FOLDER)!r})
from common import workloads
from layers import reference, with_segment
from layers.case import Execution
work = workloads.make(workloads.Sizes(200, 1_600, 8, symmetric=True), 400)
assert 0 < work.focus.sum() < 200
import numpy as np
for layer in ("gcn", "gat", "pna", "gns"):
    path = pathlib.Path({str(tmp_path)!r}) / (layer + ".npz")
    plain = reference.expected(layer, work, Execution(1), path)
    case = with_segment.build(layer, "sorted", work, Execution(1))
    case.prepare("both")
    found = reference.errors(case.values(work.focus), np.load(path))
    assert found.keys() == plain.keys(), layer
    assert all(e < 1e-5 for pair in found.values() for e in pair), (layer, found)
"""
    variables = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=variables
    )
    assert done.returncode == 0, done.stderr


def test_mirrored_edges(benchmarks: None) -> None:
    from common import workloads

    work = workloads.make(workloads.Sizes(300, 2_000, 4, symmetric=True))
    key = work.dst.astype(np.int64) * 300 + work.src
    assert len(key) == 2_000
    assert (np.diff(key) > 0).all()
    assert (work.src != work.dst).all()
    assert set(key) == set(work.src.astype(np.int64) * 300 + work.dst)


def test_self_loops_stand_in_order(benchmarks: None) -> None:
    from common import workloads

    work = workloads.make(workloads.Sizes(300, 2_000, 4, symmetric=True))
    src, dst = workloads.with_self_loops(work)
    key = dst.astype(np.int64) * 300 + src
    assert len(key) == 2_300
    assert (np.diff(key) > 0).all()
    assert (src == dst).sum() == 300
