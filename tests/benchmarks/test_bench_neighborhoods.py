"""The benchmark of neighbourhoods runs, and its sides compute the same."""

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
    return importlib.import_module("bench_neighborhoods")


@pytest.mark.long
def test_smoke(bench: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "has_pyg", lambda: False)
    lines = tmp_path / "lines.jsonl"
    assert bench.main(["--smoke", "--json", str(lines)]) == 0
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [(r["graph"], r["model"]) for r in rows] == [("made-30", m) for m in bench.MODELS]
    for row in rows:
        parts = ["selection", "aggregation, hybrid", "update, hybrid", "aggregation, sparse"]
        assert list(row["seconds"]) == parts
        assert row["list_bytes"] > 0


def test_sides_must_agree(bench: Any) -> None:
    def side(value: float) -> Any:
        return (lambda: (np.ones(2), [np.array([1, value])]), None)

    bench.check({"hybrid": side(1.0), "sparse": side(1.0001)})
    with pytest.raises(RuntimeError, match=r"^sparse differs from hybrid by 0\.1$"):
        bench.check({"hybrid": side(1.0), "sparse": side(1.1)})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--models", "gcn"], r"--models: unknown \['gcn'\], expected some of \['pinsage', 'magnn"),
        (["--graphs", "x"], r"--graphs: unknown \['x'\], expected some of \['notredame', 'ego-twi"),
        ([], "--folder: missing, expected the folder that holds the data sets"),
    ],
)
def test_options(bench: Any, options: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        bench.main(options)
