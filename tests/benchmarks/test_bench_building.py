"""The benchmark of building graphs runs, and compares the same structures."""

from __future__ import annotations

import importlib
import json
import pathlib
from typing import Any

import numpy as np
import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("bench_building")


def test_smoke(bench: Any, tmp_path: pathlib.Path) -> None:
    lines = tmp_path / "lines.jsonl"
    assert bench.main(["--smoke", "--json", str(lines)]) == 0
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert {(r["who"], r["destinations"]) for r in rows} == {
        (who, kind) for who in ("SciPy", "gnnjit") for kind in bench.ENDPOINTS
    }
    assert all(r["median_ns"] >= r["least_ns"] > 0 for r in rows)


def test_both_build_the_same(bench: Any) -> None:
    src, dst = np.random.default_rng(0).integers(0, 50, (2, 300)).astype(np.int32)
    graph = bench.gnnjit_graph(src, dst, 50)
    out, into = bench.scipy_alone(dst, src, 50)
    for ours, theirs in ((graph.in_structure, into), (graph.out_structure, out)):
        np.testing.assert_array_equal(ours.indptr, theirs.indptr)
        np.testing.assert_array_equal(ours.neighbor, theirs.data)
        np.testing.assert_array_equal(ours.edge, theirs.indices)
