"""The benchmark of partitions runs at smoke size, and its local graphs are the graph."""

from __future__ import annotations

import gzip
import importlib
import json
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from gnnjit.partition.partition import Partition

pytestmark = pytest.mark.once

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"


@pytest.mark.long
def test_smoke(tmp_path: pathlib.Path) -> None:
    lines = tmp_path / "lines.jsonl"
    command = [sys.executable, str(FOLDER / "bench_partition.py"), "--smoke"]
    done = subprocess.run(
        [*command, "--json", str(lines)], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    *rows, last = [json.loads(line) for line in lines.read_text().splitlines()]
    cuts = ["vertices", "edges", "hash", "seen", "unseen", "adapted", "rebalanced"]
    assert [(r["graph"], r["cut"]) for r in rows] == [("crawled", c) for c in cuts]
    assert all(row["step_ms"] > 0 and 1 <= row["imbalance"] <= 2 for row in rows)
    assert all(row["over_vertices"] == 1 for row in rows if row["cut"] == "vertices")
    assert len(last["notes"]) == 16
    assert "versions" in last


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("shard.partition_graphs")


def test_local_graphs_hold_all_edges(graphs: Any) -> None:
    network = graphs.crawled(60, 200)
    cut = Partition.of_assignment(np.random.default_rng(0).integers(0, 3, 60), 3)
    found = []
    for p in range(3):
        graph = graphs.local_graph(network, cut, p)
        own = cut.order[cut.bounds[p] : cut.bounds[p + 1]]
        src, dst = np.asarray(graph.src), own[np.asarray(graph.dst)]
        inside = src < len(own)
        found += zip(own[src[inside]].tolist(), dst[inside].tolist(), strict=True)
        crossing = network.src[(cut.assignment()[network.dst] == p)]
        halo = np.setdiff1d(crossing, own)
        assert graph.num_src == len(own) + len(halo)
        found += zip(halo[src[~inside] - len(own)].tolist(), dst[~inside].tolist(), strict=True)
    assert sorted(found) == sorted(zip(network.src.tolist(), network.dst.tolist(), strict=True))


def test_hubs_come_first(graphs: Any) -> None:
    degree = graphs.by_degree(60, 200).in_degree
    assert (np.diff(degree) <= 0).all()
    found = graphs.crawled(60, 200)
    assert found.in_degree.argmax() == 0
    assert sorted(found.in_degree) == sorted(graphs._power_law("", 60, 200, 1).in_degree)


def test_stored_graphs(graphs: Any, tmp_path: pathlib.Path) -> None:
    for file, text in (
        (graphs.WEB, "# a comment\r\n0\t1\r\n2\t0\r\n"),
        (graphs.CIRCLES, "3,2,u,name\n1,2\n1,3\n"),
    ):
        (tmp_path / file).parent.mkdir()
        with gzip.open(tmp_path / file, "wt", newline="") as stream:
            stream.write(text)
    web = graphs.stored(tmp_path, graphs.WEB)
    assert (web.name, web.src.tolist(), web.dst.tolist()) == ("web-NotreDame", [0, 2], [1, 0])
    circles = graphs.stored(tmp_path, graphs.CIRCLES)
    assert (circles.src.tolist(), circles.dst.tolist()) == ([0, 0, 1, 2], [1, 2, 0, 0])
    assert circles.num_nodes == 3
    with pytest.raises(graphs.SkippedError, match=r"^soc-Epinions1: .* has no snap-soc-Epinions1"):
        graphs.stored(tmp_path, graphs.TRUST)
    with pytest.raises(graphs.SkippedError, match=r"^soc-Epinions1: GNNJIT_DATA_DIR has no"):
        graphs.stored(None, graphs.TRUST)
