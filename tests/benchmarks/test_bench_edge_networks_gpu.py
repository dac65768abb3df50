"""The forms of each network are compiled side by side, and wrong values are reported."""

from __future__ import annotations

import json

import bench_edge_networks_gpu as bench
import pytest


@pytest.mark.long
@pytest.mark.once
def test_smoke(tmp_path, capsys):
    file = tmp_path / "lines.jsonl"
    assert bench.main(["--smoke", "--models", "egnn", "--json", str(file)]) == 0
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [r["form"] for r in rows] == ["layer", "plain", "split"]
    assert all(r["error"] < r["tolerance"] for r in rows)
    assert "WRONG" not in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.once
def test_other_values_are_wrong(monkeypatch, capsys):
    right = bench.NETWORKS["egnn"]
    monkeypatch.setitem(
        bench.NETWORKS, "egnn", bench.network.dataclasses.replace(right, split=right.layer)
    )
    monkeypatch.setattr(bench, "difference", lambda found, expected: 1.0)
    assert bench.main(["--smoke", "--models", "egnn"]) == 1
    assert "WRONG" in capsys.readouterr().out


def test_unknown_networks_are_named():
    with pytest.raises(SystemExit, match="--models: unknown \\['gnn'\\]"):
        bench.main(["--models", "gnn"])
