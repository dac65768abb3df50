"""GraphSAINT's samplers against the chances of the paper."""

from __future__ import annotations

import collections
import itertools
from typing import Any

import numpy as np
import pytest

from gnnjit.errors import SampleError
from gnnjit.graph import Graph
from gnnjit.sample import EdgeSampler, VertexSampler, WalkSampler, Workers
from gnnjit.sample.adjacency import Adjacency
from gnnjit.sample.alias import AliasTable, pick
from gnnjit.sample.random import key_of
from sample.exact import (
    DIRECTED,
    KITE,
    check_chances,
    check_induced,
    random_graph,
    same_bits,
)

GRAPHS = pytest.mark.parametrize("graph", [KITE, DIRECTED], ids=["symmetric", "directed"])
NOTHING = Graph.from_edges([], [], 4)


def normalised(graph: Graph) -> np.ndarray:
    """`D^-1 A`, an entry for each edge: `[N, E]`, row by destination."""
    src, dst = np.asarray(graph.src), np.asarray(graph.dst)
    out = np.zeros((graph.num_nodes, len(src)))
    out[dst, np.arange(len(src))] = 1 / np.bincount(dst, minlength=graph.num_nodes)[dst]
    return out


@GRAPHS
@pytest.mark.parametrize("weights", ["norm", "degree", "uniform", [0, 1, 0, 2, 0.5, 0]])
def test_vertices(graph: Graph, weights: Any) -> None:
    n = graph.num_nodes
    given = np.array(weights[:n]) if isinstance(weights, list) else weights
    if isinstance(weights, list):
        exact = given
    elif weights == "norm":
        own = np.asarray(graph.src)[None] == np.arange(n)[:, None]
        exact = own @ (normalised(graph) ** 2).sum(0)
    else:
        exact = np.bincount(graph.dst, minlength=n) if weights == "degree" else np.ones(n)
    drawn = VertexSampler(graph, vertices=20_000, weights=given).drawn(3).tolist()
    check_chances(drawn, dict(enumerate(exact / exact.sum())))


def test_vertices_that_are_drawn_one_after_the_other_do_not_depend_on_each_other() -> None:
    drawn = VertexSampler(KITE, vertices=40_000, weights="degree").drawn(4).reshape(-1, 2)
    chance = np.array([3, 2, 2, 2, 1]) / 10
    pairs = itertools.product(range(5), repeat=2)
    check_chances(map(tuple, drawn.tolist()), {(a, b): chance[a] * chance[b] for a, b in pairs})


@GRAPHS
def test_edges(graph: Graph) -> None:
    src, dst = np.asarray(graph.src), np.asarray(graph.dst)
    weight = 1 / np.bincount(src)[src] + 1 / np.bincount(dst)[dst]
    chances: dict[Any, float] = collections.defaultdict(float)
    for u, v, chance in zip(src.tolist(), dst.tolist(), weight / weight.sum(), strict=True):
        chances[u, v] += chance
    drawn = EdgeSampler(graph, edges=20_000).drawn(5).reshape(-1, 2)
    check_chances(map(tuple, drawn.tolist()), chances)


@GRAPHS
@pytest.mark.parametrize("roots", [None, [0, 2]])
def test_walks(graph: Graph, roots: list[int] | None) -> None:
    adjacency = Adjacency.of("test", graph)
    rows = np.split(adjacency.neighbor, adjacency.indptr[1:-1])
    starts = range(graph.num_nodes) if roots is None else roots
    chances = {(v,): 1 / len(starts) for v in starts}
    for _ in range(2):
        longer: dict[Any, float] = collections.defaultdict(float)
        for walk, chance in chances.items():
            steps = rows[walk[-1]].tolist() or [walk[-1]]
            for u in steps:
                longer[*walk, u] += chance / len(steps)
        chances = dict(longer)
    drawn = WalkSampler(graph, walks=20_000, length=2, roots=roots).drawn(6).reshape(-1, 3)
    check_chances(map(tuple, drawn.tolist()), chances)


@pytest.mark.parametrize("weights", [[1.0], [0, 0, 3.0], [1e-300, 1e300, 1e300], [5, 0, 1, 1, 0.1]])
def test_alias_tables_draw_by_weight(weights: list[float]) -> None:
    table = AliasTable.of("test", "weights", np.array(weights, np.float64))
    key = key_of("test", 1)
    drawn = [int(pick(table.share, table.alias, key, i)) for i in range(3000)]
    share = np.array(weights) / max(weights)
    if np.count_nonzero(share > 1e-9) == 1:
        assert set(drawn) == {int(np.argmax(share))}
    else:
        check_chances(drawn, dict(enumerate(share / share.sum())))


def test_weights_of_zero_are_never_drawn_of_many() -> None:
    """Where rounding leaves columns of the table over."""
    rng = np.random.default_rng(0)
    weights = rng.random(10_001) * (rng.random(10_001) < 0.5)
    table = AliasTable.of("test", "weights", weights)
    drawn_by = np.where(table.share > 0, weights > 0, True) & (weights[table.alias] > 0)
    assert drawn_by.all()
    mass = np.minimum(table.share, 1)
    mass = mass + np.bincount(table.alias, 1 - mass, minlength=len(weights))
    np.testing.assert_allclose(mass / len(weights), weights / weights.sum(), atol=1e-12)


SAMPLERS: list[Any] = [
    lambda graph: VertexSampler(graph, vertices=7000),
    lambda graph: EdgeSampler(graph, edges=7000),
    lambda graph: WalkSampler(graph, walks=7000, length=2),
]


@pytest.mark.parametrize("make", SAMPLERS, ids=["vertex", "edge", "walk"])
def test_threads_give_the_same_bits(make: Any) -> None:
    sampler = make(random_graph(20_000, 60_000, hubs=2))
    with Workers(3) as workers:
        assert same_bits(sampler.sample(seed=1), sampler.sample(seed=1, workers=workers))
    assert not same_bits(sampler.sample(seed=1), sampler.sample(seed=2))


@pytest.mark.parametrize("make", SAMPLERS, ids=["vertex", "edge", "walk"])
def test_samples_are_induced_by_what_is_drawn(make: Any) -> None:
    graph = random_graph(300, 700)
    sampler = make(graph)
    sampler.vertices = sampler.edges = sampler.walks = 30
    sample = sampler.sample(seed=2)
    assert sample.vertices.tolist() == list(dict.fromkeys(sampler.drawn(2).tolist()))
    check_induced(graph, sample)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: VertexSampler(KITE, vertices=0),
            "VertexSampler: vertices is 0, expected a number from 1 to 2147483647",
        ),
        (
            lambda: VertexSampler(KITE, weights="norms"),
            "VertexSampler: weights is 'norms', expected one of norm, degree, uniform, or a number "
            "for each vertex",
        ),
        (
            lambda: VertexSampler(KITE, weights=[1, 2]),
            "VertexSampler: weights is int64 of shape (2,), expected numbers of shape (5,): one "
            "per vertex",
        ),
        (
            lambda: VertexSampler(KITE, weights=[1, 2, -3, 4, 5]),
            "VertexSampler: weights holds -3, expected finite numbers >= 0: what has weight 0 is "
            "never drawn",
        ),
        (
            lambda: VertexSampler(KITE, weights=[1, np.nan, 3, 4, 5]),
            "VertexSampler: weights holds nan, expected finite numbers >= 0: what has weight 0 is "
            "never drawn",
        ),
        (
            lambda: VertexSampler(NOTHING),
            "VertexSampler: no entry of weights, of 4, is above 0, expected at least one: nothing "
            "can be drawn",
        ),
        (
            lambda: EdgeSampler(NOTHING),
            "EdgeSampler: the graph has no edges, expected some to draw from",
        ),
        (
            lambda: WalkSampler(Graph.from_edges([], [], 0)),
            "WalkSampler: there are 0 roots in a graph of 0 vertices, expected at least one vertex "
            "to start from",
        ),
        (
            lambda: WalkSampler(KITE, length=0),
            "WalkSampler: length is 0, expected a number from 1 to 2147483647",
        ),
        (
            lambda: WalkSampler(KITE).sample(seed=-1),
            "WalkSampler.sample: seed is -1, expected a whole number from 0 to 2**64 - 1: pass "
            "another for each batch",
        ),
    ],
)
def test_bad_arguments(make: Any, message: str) -> None:
    with pytest.raises(SampleError) as caught:
        make()
    assert str(caught.value) == message


def test_walks_without_edges_stay() -> None:
    sample = WalkSampler(NOTHING, walks=50, length=3).sample()
    assert sample.sizes == (4, 0)
