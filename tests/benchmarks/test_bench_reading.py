"""The benchmark of reading runs, and all readers find the same edges."""

from __future__ import annotations

import importlib
import json
import pathlib
from typing import Any

import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("bench_reading")


@pytest.mark.long
def test_smoke(bench: Any, tmp_path: pathlib.Path) -> None:
    lines = tmp_path / "lines.jsonl"
    assert bench.main(["--smoke", "--json", str(lines)]) == 0
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert rows[0]["who"] == "gnnjit"
    assert {row["edges"] for row in rows} == {20_000}
    assert all(row["seconds"] > 0 and row["grew_bytes"] >= 0 for row in rows)


def test_what_is_written_is_what_is_read(bench: Any, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "edges.tsv"
    bench.write_file(path, 500, 30)
    edges, clean = bench.with_gnnjit(path)
    clean()
    lines = path.read_text().splitlines()
    assert edges == len(lines) == 500
    assert all(int(word) % 3 == 0 for line in lines for word in line.split("\t"))
