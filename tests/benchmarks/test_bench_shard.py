"""The benchmark of sharded graphs runs at smoke size; it counts and predicts what it says."""

from __future__ import annotations

import dataclasses
import importlib
import json
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.once

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"
ROWS = {"bytes": 4, "memory": 5, "time": 5, "check": 18, "counts": 6, "model": 54}


@pytest.mark.long
def test_smoke(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "lines.jsonl"
    command = [sys.executable, str(FOLDER / "bench_shard.py"), "--smoke", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert [s for s in said if s.startswith("--- ")] == [f"--- {q}" for q in ROWS]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [x for x in lines if "notes" not in x]
    assert {q: sum(r["question"] == q for r in rows) for q in ROWS} == ROWS
    assert all(r["by_structure"] == pytest.approx(1, abs=0.2) for r in rows if "by_structure" in r)
    assert all(r["of_all"] < 1 for r in rows if r.get("exchange") == "ring" and "of_all" in r)
    assert all(x["notes"] and x["versions"] for x in lines if "notes" in x)


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def module(name: str) -> Any:
    return importlib.import_module(name)


# -- what must travel ------------------------------------------------------------------------------


def brute(src: Any, dst: Any, shard: Any) -> set[tuple[int, int]]:
    """Each row with each other shard that uses it."""
    pairs = zip(src.tolist(), shard[dst].tolist(), strict=True)
    return {(s, p) for s, p in pairs if shard[s] != p}


def test_counts_are_those_of_the_edges() -> None:
    work = module("shard.work")
    found = module("shard.partition_graphs").crawled(80, 400)
    partition = work.cut(found, "learned", 4)
    known = work.shards(found, partition)
    used = brute(found.src, found.dst, partition.assignment())
    assert known.halo.total == len(used)
    assert known.rows.total + known.sums.total <= len(used)
    assert known.edges.sum() == len(found.src)
    assert known.path >= known.edges.max()
    assert known.halo.most <= known.halo.sent <= 3 * known.num_rows
    assert known.halo.counts.sum(0).max() <= known.halo.most


def test_padding_is_that_of_the_graph() -> None:
    """What `gnnjit.shard` builds has blocks of the heights that are counted."""
    work, build = module("shard.work"), module("gnnjit.sharding.build")
    found = module("shard.partition_graphs").crawled(80, 400)
    partition = work.cut(found, "crawl", 4)
    known = work.shards(found, partition)
    table = build._HaloParts(build.plan(found.src, found.dst, partition))
    assert table.blocks.blocks == known.halo.blocks.blocks
    assert table.blocks.at_once == known.halo.blocks.at_once


def test_a_mesh() -> None:
    found = module("shard.work").mesh(3)
    assert np.bincount(found.dst).tolist() == [3, 5, 3, 5, 8, 5, 3, 5, 3]
    assert sorted(found.src[found.dst == 0].tolist()) == [1, 3, 4]


def test_a_part_of_what_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    work = module("shard.work")
    whole = work.Network("web", np.asarray([0, 1, 5]), np.asarray([1, 2, 0]), 6)
    monkeypatch.setattr(work, "network", lambda name, setting: whole)
    part = work.grown("web-NotreDame", 3, work.SMOKE)
    assert (part.src.tolist(), part.dst.tolist(), part.num_nodes) == ([0, 1], [1, 2], 3)


# -- the model of time -----------------------------------------------------------------------------


def machine(**changed: Any) -> Any:
    m = module("shard.machines")
    return dataclasses.replace(
        m.Machine("", m.Link(1.0, 10.0), m.Link(3.0, 2.0), 2, 0.5, 1e12), **changed
    )


def of(devices: int) -> Any:
    return module("shard.machines").Sent(
        devices, rows=10, edges=100, all_rows=9 * devices, all_edges=80 * devices, path=120,
        hops=devices - 1, halo=8, halo_least=6, cover=6, cover_least=4,
        messages=4, cover_messages=9,
    )  # fmt: skip


def seconds(kind: str, devices: int, widths: Any = (5,), **changed: Any) -> Any:
    m = module("shard.machines")
    taken = m.step(machine(**changed), m.Compute(1.0, 0.01, 0.1), of(devices), kind, widths)
    return dataclasses.astuple(taken)


def test_one_device_exchanges_nothing() -> None:
    assert seconds("halo", 1) == (3.0, 0.0, 3.0)


@pytest.mark.parametrize(
    ("kind", "devices", "exchange"),
    [
        ("all_gather", 2, 1 + 10 * 5 / 10),
        ("all_gather", 6, 3 + 4 * 0.5 + 4 * 10 * 5 / (2 * 2)),
        ("halo", 2, 4 * 1 + 8 * 5 / 10),
        ("halo", 6, 4 * 3 + 8 * 5 / 2),
        ("cover", 6, 9 * 3 + 6 * 5 / 2),
        ("halo, no padding", 6, 3 + 4 * 0.5 + 6 * 5 * (4 / 5) / 2),
        ("cover, no padding", 6, 2 * (3 + 4 * 0.5) + 4 * 5 * (4 / 5) / 2),
    ],
)
def test_exchanges(kind: str, devices: int, exchange: float) -> None:
    compute, moved, total = seconds(kind, devices)
    assert compute == 3.0
    assert moved == pytest.approx(exchange)
    assert total == pytest.approx(3.0 + exchange)
    assert seconds(kind, devices, (5, 5))[1] == pytest.approx(2 * exchange)


def test_a_ring_computes_meanwhile() -> None:
    """The slower of a hop and of what is computed, five times, and the last chunk."""
    work, hop = (0.01 * 120 + 0.1 * 10) / 6 + 1.0, 3 + 10 * 5 / 2
    assert seconds("ring", 6) == pytest.approx((6 * work, 5 * hop, work + 5 * hop))
    fast = {"between": module("shard.machines").Link(0.0, 1e12)}
    assert seconds("ring", 6, **fast)[2] == pytest.approx(6 * work)


def test_shared_cores_add_up() -> None:
    compute, moved, _ = seconds("halo", 2, shared=True)
    assert compute == pytest.approx(2 * 1 + 0.01 * 160 + 0.1 * 18)
    assert moved == pytest.approx(4 * 1 + 2 * 8 * 5 / 10)
    ring = seconds("ring", 2, shared=True)
    assert ring[0] == pytest.approx(2 * 2 * 1.0 + 0.01 * 160 + 0.1 * 18)
    assert ring[2] == pytest.approx(ring[0] + 1 + 2 * 10 * 5 / 10)


def test_parameters_are_added_up() -> None:
    more = seconds("halo", 6, parameters=8)[1] - seconds("halo", 6)[1]
    assert more == pytest.approx(3 + 6 * 0.5 + 2 * 8 / 2)


def test_a_cover_that_does_not_pay_is_a_halo() -> None:
    m = module("shard.machines")
    sent = dataclasses.replace(of(6), cover=8)
    compute = m.Compute(1.0, 0.01, 0.1)
    halo, cover = (m.step(machine(), compute, sent, k, (5,)) for k in ("halo", "cover"))
    assert halo == cover


def test_rates_are_found_again() -> None:
    check = module("shard.check")
    rates = np.asarray([1e-5, 2e-6, 1e-9])
    points = [
        check.Point("", p, 1, b, float(rates @ [1, p, b])) for p in (2, 4) for b in (1, 10**6)
    ]
    assert check.fit_link(points) == pytest.approx(rates)
    assert check.predict(rates, points[0]) == pytest.approx(points[0].seconds)
    samples = [
        {"edges": e, "rows": r, "seconds": 1e-4 + 1e-9 * e + 1e-8 * r}
        for e, r in ((100, 10), (10**6, 10), (10**4, 10**5))
    ]
    found = check.fit_compute(samples)
    assert (found.start, found.per_edge, found.per_row) == pytest.approx((1e-4, 1e-9, 1e-8))


def test_larger_graphs_are_no_more_than_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, work = module("shard.counts"), module("shard.work")
    predicted = counts.fit("mesh", work.SMOKE)(10**9, 4)
    assert predicted.halo <= 3 * predicted.rows
    assert predicted.all_edges / 4 <= predicted.edges <= predicted.path <= predicted.all_edges
