"""Partitions: every vertex in one shard, the least maximum, and what crosses between shards."""

from __future__ import annotations

import dataclasses
import itertools
import re
import sys
from typing import Any

import numpy as np
import pytest
from fake_pymetis import fake_metis
from graph.strategies import edge_lists
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnjit.errors import GraphError
from gnnjit.partition.metis import WEIGHT
from gnnjit.partition.partition import (
    Partition,
    balanced,
    cut_edges,
    equal_edges,
    equal_vertices,
    halo_rows,
    imbalance,
    metis,
)
from gnnjit.partition.vertex_features import VERTEX_FEATURES, vertex_features

pytestmark = pytest.mark.once

RING = np.arange(8), (np.arange(8) + 1) % 8
COSTS = st.lists(st.integers(0, 9), max_size=9)


def least_maximum(cost: Any, parts: int) -> float:
    """By trying every cut."""
    n = len(cost)
    cuts = itertools.combinations_with_replacement(range(n + 1), parts - 1)
    return min(max(sum(cost[a:b]) for a, b in itertools.pairwise([0, *cut, n])) for cut in cuts)


def loads(cost: Any, partition: Partition) -> list[float]:
    return partition.totals(np.asarray(cost, float)).tolist()


@given(COSTS, st.integers(1, 5), st.randoms())
def test_balanced_has_the_least_maximum(cost, parts, random):
    order = list(range(len(cost)))
    random.shuffle(order)
    found = balanced(cost, parts, order)
    along = [cost[v] for v in order]
    assert found.order.tolist() == order
    assert found.num_shards == parts
    assert found.method == "learned"
    assert max(loads(cost, found)) == least_maximum(along, parts)


@given(
    st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=8), st.integers(1, 4)
)
def test_balanced_with_any_costs(cost, parts):
    found = balanced(cost, parts)
    assert max(loads(cost, found)) <= least_maximum(cost, parts) * (1 + 1e-12)


@given(st.lists(st.floats(0.5, 1), min_size=50, max_size=200), st.integers(1, 9))
@settings(max_examples=10)
def test_no_shard_is_left_short(cost, parts):
    """Among the cuts of the least maximum, bound k is near k/P of the total cost."""
    shares = np.array(loads(cost, balanced(cost, parts))) / (sum(cost) / parts)
    assert shares.min() >= 1 - 2 * parts / sum(cost)


@pytest.mark.parametrize("parts", [1, 3, 8])
def test_one_cost_for_all_is_equal_vertices(parts):
    sizes = balanced(np.full(24, 3.0), parts).sizes
    assert sizes.tolist() == equal_vertices(24, parts).sizes.tolist() == [24 // parts] * parts


def test_vertices_without_cost_are_dealt_out_evenly():
    assert balanced(np.zeros(8), 4).bounds.tolist() == [0, 2, 4, 6, 8]


def test_a_hub_has_a_shard_of_its_own():
    assert balanced([1, 1, 50, 1, 1], 3).bounds.tolist() == [0, 2, 3, 5]


@pytest.mark.parametrize("num_nodes", [0, 1, 2])
def test_fewer_vertices_than_shards(num_nodes):
    for found in (
        equal_vertices(num_nodes, 4),
        equal_edges(np.ones(num_nodes, int), 4),
        balanced(np.ones(num_nodes), 4),
    ):
        assert found.num_shards == 4
        assert found.sizes.sum() == num_nodes
        assert found.sizes.max(initial=0) <= 1


def test_equal_vertices_and_edges():
    found = equal_vertices(10, 3, order=np.arange(10)[::-1])
    assert found.sizes.tolist() == [3, 3, 4]
    assert found.assignment().tolist() == [2, 2, 2, 2, 1, 1, 1, 0, 0, 0]
    assert found.method == "vertices"
    edges = equal_edges([4, 0, 0, 2, 2, 4], 3)
    assert edges.method == "edges"
    assert loads([4, 0, 0, 2, 2, 4], edges) == [4, 4, 4]


@given(st.lists(st.integers(0, 3), max_size=12), st.randoms())
def test_an_assignment_is_kept(shard, random):
    order = list(range(len(shard)))
    random.shuffle(order)
    found = Partition.of_assignment(shard, 4, order=order)
    assert found.assignment().tolist() == shard
    assert found.order.dtype == found.bounds.dtype == np.int64
    assert found.order.tolist() == sorted(order, key=lambda v: shard[v])
    assert found.method == "given"
    assert Partition.of_assignment(shard, 4).order.tolist() == sorted(
        range(len(shard)), key=lambda v: shard[v]
    )


def test_a_partition_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        equal_vertices(3, 1).method = "edges"  # pyright: ignore


def test_totals_of_rows():
    found = Partition.of_assignment([1, 0, 1], 3)
    assert found.totals(np.array([[1, 2], [3, 4], [5, 6]])).tolist() == [[3, 4], [6, 8], [0, 0]]


@given(edge_lists(masked=False), st.integers(1, 4), st.integers(0, 99))
def test_what_crosses(edges, parts, seed):
    shard = np.random.default_rng(seed).integers(0, parts, edges.num_src)
    found = Partition.of_assignment(shard, parts)
    pairs = list(zip(edges.src.tolist(), edges.dst.tolist(), strict=True))
    assert cut_edges(edges.src, edges.dst, found) == sum(shard[u] != shard[v] for u, v in pairs)
    needed = {(u, shard[v]) for u, v in pairs if shard[u] != shard[v]}
    rows = np.zeros((parts, parts), int)
    for u, p in needed:
        rows[shard[u], p] += 1
    halo = halo_rows(edges.src, edges.dst, found)
    assert halo.dtype == np.int64
    assert halo.tolist() == rows.tolist()


def test_256_edges_from_one_source_are_one_row():
    found = equal_vertices(2, 2)
    edges = np.zeros(256, np.uint8), np.ones(256, np.int32)
    assert halo_rows(*edges, found).tolist() == [[0, 1], [0, 0]]
    assert cut_edges(*edges, found) == 256


def test_imbalance():
    assert imbalance([1, 2, 3], equal_vertices(3, 3)) == 1.5
    assert imbalance([0, 0, 0], equal_vertices(3, 3)) == 1
    assert imbalance([], equal_vertices(0, 3)) == 1


def features_by_hand(edges: Any, width: int, rank: Any, line: int) -> list[list[float]]:
    rows = []
    for v in range(edges.num_dst):
        sources = sorted(int(rank[u]) for u in edges.src[edges.dst == v])
        runs: list[list[int]] = []
        for s in sources:
            if runs and s <= runs[-1][-1] + 1:
                runs[-1].append(s)
            else:
                runs.append([s])
        lines = [sum(-(-len(r) * size // line) for r in runs) for size in (4, 4 * width)]
        rows.append([1, len(sources), len(runs), *lines])
    return rows


@given(edge_lists(masked=False), st.integers(1, 40), st.sampled_from([4, 8, 64]), st.randoms())
def test_vertex_features(edges, width, line, random):
    order = list(range(edges.num_src))
    random.shuffle(order)
    n = edges.num_src
    found = vertex_features(edges.src, edges.dst, n, width, order, line)
    assert found.tolist() == features_by_hand(edges, width, np.argsort(order), line)
    plain = vertex_features(edges.src, edges.dst, n, width, line=line)
    assert plain.tolist() == features_by_hand(edges, width, np.arange(n), line)


def test_vertex_features_of_the_paper():
    """Vertex 1 with the neighbours 3, 4, 6, 8: three runs."""
    found = vertex_features([3, 4, 6, 8], [1] * 4, 9, width=32, line=128)
    assert dict(zip(VERTEX_FEATURES, found[1].tolist(), strict=True)) == {
        "vertex": 1, "neighbors": 4, "runs": 3, "neighbor accesses": 3, "activation accesses": 4,
    }  # fmt: skip


def test_metis_gets_costs_as_whole_numbers(monkeypatch):
    calls = fake_metis(monkeypatch, [1, 1, 0])
    found = metis([0, 1, 1, 2, 0], [1, 0, 2, 2, 1], 3, 2, cost=[1, 2, 1])
    assert found.method == "metis"
    assert found.assignment().tolist() == [1, 1, 0]
    ((parts, keywords),) = calls
    assert parts == 2
    assert sorted(keywords) == ["adjncy", "vweights", "xadj"]
    assert keywords["xadj"].tolist() == [0, 1, 3, 4]
    assert keywords["adjncy"].tolist() == [1, 0, 2, 1]
    assert keywords["vweights"].tolist() == [WEIGHT // 4, WEIGHT // 2, WEIGHT // 4]
    assert {keywords[k].dtype for k in keywords} == {np.dtype(np.int32)}


def test_newer_releases_of_pymetis(monkeypatch):
    @dataclasses.dataclass(frozen=True)
    class CSRAdjacency:
        adj_starts: np.ndarray
        adjacent: np.ndarray

    @dataclasses.dataclass(frozen=True)
    class Options:
        seed: int

    others = {"CSRAdjacency": CSRAdjacency, "Options": Options}
    width = np.dtype(np.int64)
    calls = fake_metis(monkeypatch, [0, 0, 1], zero_copy_dtype=lambda: width, **others)
    metis([0, 1], [1, 2], 3, 2, seed=7)
    ((_, keywords),) = calls
    assert sorted(keywords) == ["adjacency", "options"]
    assert keywords["adjacency"].adjacent.dtype == width
    assert keywords["options"].seed == 7


def test_metis_gets_no_more_parts_than_vertices(monkeypatch):
    calls = fake_metis(monkeypatch, range(8))
    assert metis(*RING, 8, 100).num_shards == 100
    assert [parts for parts, _ in calls] == [8]


@pytest.mark.parametrize(("num_nodes", "parts"), [(0, 3), (6, 3)])
def test_metis_is_not_called_without_edges(num_nodes, parts, monkeypatch):
    calls = fake_metis(monkeypatch, [])
    found = metis([], [], num_nodes, parts)
    assert calls == []
    assert found.method == "metis"
    assert found.sizes.tolist() == [num_nodes // parts] * parts


def test_more_neighbours_than_metis_counts(monkeypatch):
    fake_metis(monkeypatch, [], zero_copy_dtype=lambda: np.dtype(np.int8))
    with pytest.raises(
        GraphError,
        match=r"^the vertices have 130 neighbours in all, expected at most 127, which the indices "
        r"of this build of METIS can count: cut with balanced\(\)$",
    ):
        metis(np.arange(65), np.arange(1, 66), 66, 2)


@pytest.mark.parametrize("parts", [1, 2])
def test_metis_is_not_installed(parts, monkeypatch):
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(
        GraphError,
        match=r"^metis\(\) needs the package pymetis, and it cannot be imported: pip install "
        r"pymetis, or cut with balanced\(\)$",
    ):
        metis(*RING, 8, parts)


def test_the_real_metis_separates_two_cliques():
    pytest.importorskip("pymetis")
    names = np.random.default_rng(0).permutation(12)
    pairs = [(c + i, c + j) for c in (0, 6) for i in range(6) for j in range(i)]
    src, dst = names[np.array([*pairs, (0, 6)]).T]
    assert cut_edges(src, dst, metis(src, dst, 12, 2, seed=3, cost=np.ones(12))) == 1


ONCE = "pass each vertex once, as numpy.argsort(key) does"
BOUNDS = "pass where each shard begins, and the number of vertices"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: balanced([1, 2], 0),
            "num_shards is 0, expected a whole number, 1 or more: pass such an int",
        ),
        (
            lambda: equal_vertices(3, 1.5),  # pyright: ignore
            "num_shards is 1.5, expected a whole number, 1 or more: pass such an int",
        ),
        (
            lambda: equal_vertices(-1, 1),
            "num_nodes is -1, expected a whole number, 0 or more: pass such an int",
        ),
        (
            lambda: balanced([1, -2.5], 2),
            "cost[1] is -2.5, expected a finite number >= 0: no vertex takes less than nothing",
        ),
        (
            lambda: balanced([np.nan], 2),
            "cost[0] is nan, expected a finite number >= 0: no vertex takes less than nothing",
        ),
        (
            lambda: balanced([1e308, 1e308], 2),
            "cost sums up to inf, expected a finite number: measure in a larger unit",
        ),
        (
            lambda: equal_edges([[1]], 2),
            "in_degree has shape (1, 1), expected (num_nodes,), one number per vertex: pass what "
            "each vertex costs",
        ),
        (
            lambda: imbalance([1, 2], equal_vertices(3, 2)),
            "cost has shape (2,), expected (3,), one number per vertex: pass what each vertex "
            "costs",
        ),
        (
            lambda: balanced([1, 1, 1], 2, order=[0, 1]),
            "order has shape (2,), expected (3,): pass the vertex at each position",
        ),
        (
            lambda: Partition(np.zeros((1, 1), int), np.array([0, 1]), "given"),
            "order has shape (1, 1), expected (num_nodes,): pass the vertex at each position",
        ),
        (
            lambda: balanced([1, 1], 2, order=[0.0, 1.0]),
            "order has dtype float64, expected integers: pass the vertex at each position",
        ),
        (
            lambda: balanced([1, 1], 2, order=[0, 2]),
            f"order[1] is 2, expected a vertex from 0 to 1: {ONCE}",
        ),
        (
            lambda: balanced([1, 1, 1], 2, order=[0, 2, 2]),
            "order holds vertex 2 2 times and lacks vertex 1, expected a permutation: " + ONCE,
        ),
        (
            lambda: Partition(np.arange(3), np.array(3), "given"),
            f"bounds has shape (), expected (num_shards + 1,), with one shard or more: {BOUNDS}",
        ),
        (
            lambda: Partition(np.arange(3), np.array([0, 2, 1, 3]), "given"),
            f"bounds is [0, 2, 1, 3], expected numbers that rise from 0 to 3: {BOUNDS}",
        ),
        (
            lambda: Partition.of_assignment([[0]], 2),
            "shard has shape (1, 1), expected (num_nodes,): pass the shard of each vertex",
        ),
        (
            lambda: Partition.of_assignment([0, 2], 2),
            "shard[1] is 2, expected a shard from 0 to 1: pass a larger num_shards",
        ),
        (
            lambda: Partition.of_assignment([0.5], 2),
            "shard has dtype float64, expected integers: pass the shard of each vertex",
        ),
        (
            lambda: equal_vertices(3, 2).totals([1, 2]),
            "the array has shape (2,), expected (3, ...), one row per vertex: pass vertex data of "
            "the graph that was cut",
        ),
        (
            lambda: cut_edges([0], [3], equal_vertices(3, 2)),
            "dst[0] is 3, expected a vertex from 0 to 2 (num_nodes=3): pass a larger num_nodes, or "
            "subtract 1 if your vertices are numbered from 1",
        ),
        (
            lambda: vertex_features([0], [0], 1, width=0),
            "width is 0, expected a whole number, 1 or more: pass such an int",
        ),
    ],
)
def test_messages(make, message):
    with pytest.raises(GraphError, match=f"^{re.escape(message)}$"):
        make()
