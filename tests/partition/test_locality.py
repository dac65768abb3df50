"""Orderings of vertices: permutations that keep neighbours together."""

from __future__ import annotations

import dataclasses
import re
import sys
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from fake_pymetis import fake_metis
from graph.strategies import edge_lists
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.csgraph import reverse_cuthill_mckee

from gnnjit.errors import GraphError
from gnnjit.partition.locality import Ordering, order_vertices

pytestmark = pytest.mark.once

NONE = np.zeros(0, np.int32)
RING = np.arange(8), (np.arange(8) + 1) % 8


def shuffled_path(num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    names = np.random.default_rng(0).permutation(num_nodes)
    return names[:-1], names[1:]


@pytest.fixture
def no_metis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymetis", None)


def bandwidth(order: Ordering, src: np.ndarray, dst: np.ndarray) -> int:
    return int(np.abs(order.rank[src] - order.rank[dst]).max())


@given(edge_lists(masked=False), st.sampled_from(["auto", "rcm", "given"]))
def test_every_method_is_a_permutation_and_its_inverse(edges, method):
    order = order_vertices(edges.src, edges.dst, edges.num_src, method=method)
    assert order.rank.dtype == order.vertex.dtype == np.int64
    assert sorted(order.vertex.tolist()) == list(range(edges.num_src))
    assert order.rank[order.vertex].tolist() == list(range(edges.num_src))


@pytest.mark.parametrize("method", ["auto", "rcm", "given", "metis"])
@pytest.mark.parametrize("num_nodes", [0, 1, 3])
def test_graphs_without_edges(num_nodes, method, monkeypatch):
    calls = fake_metis(monkeypatch, [])
    order = order_vertices([], [], num_nodes, method=method, parts=4)
    assert sorted(order.vertex.tolist()) == list(range(num_nodes))
    assert order.method == {"auto": "metis"}.get(method, method)
    assert calls == []


def test_a_vertex_with_a_self_loop():
    assert order_vertices([0, 0], [0, 0], 1, method="rcm").vertex.tolist() == [0]


def test_rcm_finds_a_shuffled_path():
    src, dst = shuffled_path(50)
    order = order_vertices(src, dst, 50, method="rcm")
    assert bandwidth(order, src, dst) == 1
    assert bandwidth(order_vertices(src, dst, 50, method="given"), src, dst) > 10


@given(st.integers(1, 60), st.integers(0, 200), st.integers(0, 2**32 - 1))
def test_rcm_is_scipys_of_the_symmetric_pattern(num_nodes, num_edges, seed):
    src, dst = np.random.default_rng(seed).integers(0, num_nodes, (2, num_edges))
    both = np.zeros((num_nodes, num_nodes), bool)
    both[src, dst] = both[dst, src] = True
    np.fill_diagonal(both, False)
    expected = reverse_cuthill_mckee(scipy.sparse.csr_array(both), symmetric_mode=True)
    found = order_vertices(src, dst, num_nodes, method="rcm").vertex
    assert found.tolist() == expected.tolist()


def test_256_equal_edges_do_not_cancel():
    path = [np.repeat(x, 256) for x in shuffled_path(20)]
    assert bandwidth(order_vertices(*path, 20, method="rcm"), *path) == 1


@pytest.mark.parametrize("method", ["rcm", "auto"])
def test_direction_duplicates_and_loops_do_not_count(method):
    src, dst = np.random.default_rng(1).integers(0, 30, (2, 60))
    more = np.concatenate([dst, src, src, np.arange(30)])
    other = np.concatenate([src, dst, dst, np.arange(30)])
    one = order_vertices(src, dst, 30, method=method)
    assert order_vertices(more, other, 30, method=method).vertex.tolist() == one.vertex.tolist()


def test_a_permutation_of_the_user():
    order = order_vertices(*RING, 8, method=np.uint8([3, 1, 2, 0, 7, 6, 5, 4]))
    assert order.vertex.tolist() == order.rank.tolist() == [3, 1, 2, 0, 7, 6, 5, 4]
    assert order.method == "array"
    assert order_vertices([], [], 0, method=[]).vertex.tolist() == []


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_rows_are_permuted_and_back(array):
    order = order_vertices([], [], 3, method=[2, 0, 1])
    x = array([[0, 0], [1, 10], [2, 20]])
    new = order.to_new(x)
    assert type(new) is type(x)
    assert new.tolist() == [[2, 20], [0, 0], [1, 10]]
    assert order.to_old(new).tolist() == x.tolist()
    assert order.to_old([10, 11, 12]).tolist() == [11, 12, 10]


def test_an_ordering_is_frozen():
    order = order_vertices(*RING, 8, method="given")
    with pytest.raises(dataclasses.FrozenInstanceError):
        order.method = "rcm"  # pyright: ignore


@pytest.mark.parametrize("rows", [np.zeros((4, 2)), np.zeros(2), np.float32(1), [1, 2]])
def test_rows_of_another_graph(rows):
    order = order_vertices([], [], 3, method="given")
    shape = re.escape(str(np.shape(rows)))
    message = (
        rf"^the array has shape {shape}, expected \(3, \.\.\.\), one row per vertex: pass vertex "
        r"data of the graph that was ordered$"
    )
    with pytest.raises(GraphError, match=message):
        order.to_new(rows)
    with pytest.raises(GraphError, match=message):
        order.to_old(rows)


def test_metis_sorts_by_part_then_by_rcm(monkeypatch):
    part = [1, 0, 1, 0, 1, 0, 1, 0]
    fake_metis(monkeypatch, part)
    order = order_vertices(*RING, 8, parts=2)
    rcm = order_vertices(*RING, 8, method="rcm")
    assert order.method == "metis"
    expected = sorted(range(8), key=lambda v: (part[v], rcm.rank[v]))
    assert order.vertex.tolist() == expected


def test_metis_gets_each_neighbour_once_and_no_loops(monkeypatch):
    calls = fake_metis(monkeypatch, [0, 0, 1])
    order_vertices([0, 1, 1, 2, 0], [1, 0, 2, 2, 1], 3, method="metis", parts=2)
    ((parts, keywords),) = calls
    assert parts == 2
    assert sorted(keywords) == ["adjncy", "xadj"]
    assert keywords["xadj"].tolist() == [0, 1, 3, 4]
    assert keywords["adjncy"].tolist() == [1, 0, 2, 1]
    assert keywords["xadj"].dtype == keywords["adjncy"].dtype == np.int32


def test_newer_releases_of_pymetis(monkeypatch):
    @dataclasses.dataclass(frozen=True)
    class CSRAdjacency:
        adj_starts: np.ndarray
        adjacent: np.ndarray

    class Options:
        def __init__(self, **keywords: int) -> None:
            self.keywords = keywords

    others = {"CSRAdjacency": CSRAdjacency, "Options": Options}
    width = np.dtype(np.int64)
    calls = fake_metis(monkeypatch, [0, 0, 1], zero_copy_dtype=lambda: width, **others)
    order_vertices([0, 1], [1, 2], 3, parts=2, seed=np.int64(7))
    ((_, keywords),) = calls
    assert sorted(keywords) == ["adjacency", "options"]
    assert keywords["adjacency"].adj_starts.tolist() == [0, 1, 3, 4]
    assert keywords["adjacency"].adjacent.tolist() == [1, 0, 2, 1]
    assert keywords["adjacency"].adjacent.dtype == width
    assert keywords["options"].keywords == {"seed": 7}
    assert type(keywords["options"].keywords["seed"]) is int


def test_metis_gets_no_more_parts_than_vertices(monkeypatch):
    calls = fake_metis(monkeypatch, range(8))
    order_vertices(*RING, 8, parts=100)
    assert [parts for parts, _ in calls] == [8]


def test_more_neighbours_than_metis_counts(monkeypatch):
    fake_metis(monkeypatch, [], zero_copy_dtype=lambda: np.dtype(np.int8))
    src, dst = shuffled_path(66)
    with pytest.raises(
        GraphError,
        match=r"^the vertices have 130 neighbours in all, expected at most 127, which the indices "
        r'of this build of METIS can count: pass method="rcm"$',
    ):
        order_vertices(src, dst, 66, parts=2)


def test_auto_without_need_of_metis(monkeypatch):
    calls = fake_metis(monkeypatch, [])
    assert order_vertices(*RING, 8, parts=1).method == "rcm"
    assert calls == []


@pytest.mark.usefixtures("no_metis")
def test_auto_without_metis():
    assert order_vertices(*RING, 8, parts=2).method == "rcm"


@pytest.mark.usefixtures("no_metis")
@pytest.mark.parametrize("parts", [1, 2])
def test_metis_is_not_installed(parts):
    with pytest.raises(
        GraphError,
        match=r'^method is "metis", which needs the package pymetis, and it cannot be imported: '
        r'pip install pymetis, or pass method="rcm"$',
    ):
        order_vertices(*RING, 8, method="metis", parts=parts)


def test_the_real_metis_separates_two_cliques():
    pytest.importorskip("pymetis")
    names = np.random.default_rng(0).permutation(12)
    pairs = [(c + i, c + j) for c in (0, 6) for i in range(6) for j in range(i)]
    src, dst = names[np.array([*pairs, (0, 6)]).T]
    order = order_vertices(src, dst, 12, method="metis", parts=2, seed=3)
    again = order_vertices(src, dst, 12, method="metis", parts=2, seed=3)
    assert order.vertex.tolist() == again.vertex.tolist()
    assert set(order.rank[names[:6]]) in (set(range(6)), set(range(6, 12)))


PERMUTATION = "pass each old number once, as numpy.argsort(key) does"


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (
            "nested",
            'method is \'nested\', expected one of "auto", "metis", "rcm", "given", or an integer '
            "array (the old number of each new vertex): pass one of these",
        ),
        (
            None,
            'method is None, expected one of "auto", "metis", "rcm", "given", or an integer array '
            "(the old number of each new vertex): pass one of these",
        ),
        (
            [0, 1, 2],
            "method is an array of shape (3,), expected (4,): pass the old number of each new "
            "vertex",
        ),
        (
            [0.0, 1.0, 2.0, 3.0],
            "method is an array of dtype float64, expected integers: pass the old number of each "
            "new vertex",
        ),
        ([0, 1, 4, 3], f"method[2] is 4, expected a vertex from 0 to 3: {PERMUTATION}"),
        ([0, 1, 2, -1], f"method[3] is -1, expected a vertex from 0 to 3: {PERMUTATION}"),
        (
            [0, 3, 3, 1],
            "method holds vertex 3 2 times and lacks vertex 2, expected a permutation: "
            f"{PERMUTATION}",
        ),
    ],
)
def test_methods_that_are_none(method, message):
    with pytest.raises(GraphError, match=f"^{re.escape(message)}$"):
        order_vertices([0], [1], 4, method=method)


RANGE = "number the vertices from 0, leave padding edges out, or pass a larger num_nodes"


@pytest.mark.parametrize(
    ("src", "dst", "num_nodes", "message"),
    [
        ([0, 4], [1, 1], 4, f"src[1] is 4, expected a vertex from 0 to 3 (num_nodes=4): {RANGE}"),
        ([0, 1], [-1, 1], 4, f"dst[0] is -1, expected a vertex from 0 to 3 (num_nodes=4): {RANGE}"),
        ([0], [0], 0, f"src[0] is 0, expected no entries (num_nodes=0): {RANGE}"),
        (
            [0, 1],
            [0],
            4,
            "src has 2 entries and dst has 1, expected one of each per edge: pass two arrays of "
            "the same length",
        ),
        (
            [2.0],
            [0],
            4,
            "src has dtype float64, expected integers: pass vertex numbers, as in "
            "src.astype('int32')",
        ),
    ],
)
def test_edges_that_are_none(src, dst, num_nodes, message):
    with pytest.raises(GraphError, match=f"^{re.escape(message)}$"):
        order_vertices(src, dst, num_nodes, method="given")


@pytest.mark.parametrize("wrong", [-1, 1.5, True, None, "4"])
@pytest.mark.parametrize(("name", "least"), [("num_nodes", 0), ("parts", 1), ("seed", 0)])
def test_sizes_that_are_none(name, least, wrong):
    arguments: dict[str, Any] = {"src": NONE, "dst": NONE, "num_nodes": 4, name: wrong}
    message = f"{name} is {wrong!r}, expected a whole number, {least} or more: pass such an int"
    with pytest.raises(GraphError, match=f"^{re.escape(message)}$"):
        order_vertices(**arguments)
