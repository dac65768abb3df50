"""The benchmark of sampled batches runs at smoke size."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("shared_compilation")]

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"


@pytest.mark.long
def test_smoke(tmp_path: pathlib.Path) -> None:
    lines = tmp_path / "lines.jsonl"
    command = [sys.executable, str(FOLDER / "bench_sampling.py"), "--smoke", "--json", str(lines)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    questions = ["rate", "cost", "scaling", "pipeline", "epoch", "shapes"]
    assert list(dict.fromkeys(row["question"] for row in rows)) == questions
    of = {name: [row for row in rows if row["question"] == name] for name in questions}
    assert all(row["edges_per_s"] > 0 for row in of["rate"])
    assert all(1 <= row["programs"] <= row["shapes"] for row in of["shapes"])
    assert all(0 < row["loss"] < 5 for row in of["epoch"])
    assert [row["batches"] for row in of["pipeline"]] == ["serial", "pipelined", "batches alone"]
