"""Neighbours that are vertices: rings, walks, anchor sets, and the user's own."""

from __future__ import annotations

import collections
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sample.exact import check_chances

import gnnjit
from gnnjit.errors import SampleError
from gnnjit.neighborhood import HDG, Records, anchors, hops, random_walks, select
from gnnjit.sample import Workers
from neighborhood.naive import in_neighbors

Edges = dict[tuple[int, int], float]


def small() -> gnnjit.Graph:
    """Two directed circles that share vertex 0, a self loop, an edge twice, an isolated vertex."""
    src = [0, 1, 2, 0, 3, 4, 5, 1, 2, 2]
    dst = [1, 2, 0, 3, 4, 5, 0, 1, 3, 3]
    return gnnjit.Graph.from_edges(src, dst, num_nodes=7)


def distances(graph: gnnjit.Graph) -> np.ndarray:
    """`[root, vertex]`: edges of the shortest path from the vertex to the root; inf without."""
    size, found = graph.num_nodes, np.full((graph.num_nodes,) * 2, np.inf)
    into = in_neighbors(graph)
    for root in range(size):
        reached, d = {root}, 0
        while reached:
            found[root, sorted(reached)] = d
            near = {u for v in reached for u in into[v]}
            reached, d = {u for u in near if np.isinf(found[root, u])}, d + 1
    return found


def pairs(hdg: HDG) -> list[tuple[int, int]]:
    """(number of the destination, vertex) of the bottom level."""
    level = hdg.levels[0]
    return list(zip(np.asarray(level.dst).tolist(), np.asarray(level.src).tolist(), strict=True))


def test_rings_are_vertices_by_distance() -> None:
    graph, far = small(), distances(small())
    hdg = hops(graph, 3)
    wanted = [(v * 3 + d - 1, u) for v in range(7) for d in (1, 2, 3) for u in range(7)
              if far[v, u] == d]  # fmt: skip
    assert pairs(hdg) == wanted
    assert hdg.levels[1].fan_in == 3
    assert hdg.report().rows[0][1:] == (8, 8, 2)


def test_rings_are_aggregated_as_by_hand() -> None:
    graph, far = small(), distances(small())
    x = jnp.arange(14.0).reshape(7, 2)
    w = jnp.asarray([1.0, -2.0, 0.5])
    mean = gnnjit.layer(lambda v, e: gnnjit.mean(e.src) + v * 0)
    top = gnnjit.layer(lambda v, e: gnnjit.sum(w[e.relation] * e.src) + v)
    ours = jax.jit(lambda h, x: h(x, mean, top))(hops(graph, 3), x)
    for v in range(7):
        rings = [x[far[v] == d] for d in (1, 2, 3)]
        total = sum(w[d] * r.mean(0) for d, r in enumerate(rings) if len(r))
        np.testing.assert_allclose(ours[v], x[v] + total, rtol=1e-6)


def visits_by_hand(graph: gnnjit.Graph, root: int, length: int) -> dict[Any, float]:
    """The chance of each walk from a root, as its vertices."""
    into, chances = in_neighbors(graph), collections.defaultdict(float)
    walks: dict[tuple[int, ...], float] = {(root,): 1.0}
    for _ in range(length):
        longer = collections.defaultdict(float)
        for walk, chance in walks.items():
            near = into[walk[-1]]
            for u in near:
                longer[*walk, u] += chance / len(near)
            if not near:
                chances[walk] += chance
        walks = longer
    for walk, chance in walks.items():
        chances[walk] += chance
    return chances


def kept_of(counts: collections.Counter[int], top_k: int) -> list[frozenset[tuple[int, int]]]:
    """All sets of vertices with their visits that may be kept, equally likely."""
    if len(counts) <= top_k:
        return [frozenset(counts.items())]
    least = sorted(counts.values(), reverse=True)[top_k - 1]
    sure = [item for item in counts.items() if item[1] > least]
    equal = [item for item in counts.items() if item[1] == least]
    return [frozenset([*sure, *some]) for some in itertools.combinations(equal, top_k - len(sure))]


def test_walks_keep_what_they_visit_as_often_as_they_should() -> None:
    """Two walks of two steps, two vertices kept: each outcome has its exact chance."""
    graph = gnnjit.Graph.from_edges([1, 2, 3, 4, 0, 3, 0, 4], [0, 0, 1, 1, 1, 2, 2, 2], num_nodes=5)
    walks, chances = visits_by_hand(graph, 0, 2), collections.defaultdict(float)
    for (one, p), (two, q) in itertools.product(walks.items(), repeat=2):
        counts = collections.Counter(u for u in (*one[1:], *two[1:]) if u != 0)
        options = kept_of(counts, 2)
        for kept in options:
            total = sum(n for _, n in kept)
            named = frozenset((u, round(n / total, 4)) for u, n in kept)
            chances[named] += p * q / len(options)
    draws = []
    for seed in range(200):
        hdg = random_walks(graph, num_walks=2, length=2, top_k=2, seed=seed)
        own = slice(0, int(hdg.levels[0].in_degree[0]))
        vertex, weight = (np.asarray(a)[own].tolist() for a in (hdg.levels[0].src, hdg.edges[0]))
        draws.append(frozenset((u, round(w, 4)) for u, w in zip(vertex, weight, strict=True)))
    check_chances(draws, chances)


def test_weights_of_walks_sum_to_one_and_reach_layers() -> None:
    graph = small()
    hdg = random_walks(graph, num_walks=30, length=3, top_k=3)
    pooled = gnnjit.layer(lambda v, e: gnnjit.sum(e.data * e.src))
    total = np.asarray(hdg(jnp.ones(7), pooled))
    np.testing.assert_allclose(total, [1, 1, 1, 1, 1, 1, 0], rtol=1e-6)
    assert np.asarray(hdg.levels[0].in_degree).max() == 3
    assert not hdg.levels[0].bipartite
    assert np.asarray(hdg.levels[0].src != hdg.levels[0].dst).all()
    assert hdg.report().cut > 0


def test_walks_are_the_same_on_any_number_of_threads() -> None:
    n = 5000
    src = np.random.default_rng(0).integers(0, n, 3 * n)
    graph = gnnjit.Graph.from_edges(src, np.arange(3 * n) % n, num_nodes=n)
    with Workers(2) as workers:
        found = [
            (
                random_walks(graph, top_k=4, workers=w),
                hops(graph, 2, workers=w),
                anchors(graph, num=4, workers=w),
            )
            for w in (Workers(), workers)
        ]
    jax.tree.map(np.testing.assert_array_equal, *found)
    other = random_walks(graph, top_k=4, seed=1)
    assert not np.array_equal(found[0][0].levels[0].src[:5000], other.levels[0].src[:5000])


def test_anchors_are_the_nearest_of_each_set() -> None:
    graph, far, sets = small(), distances(small()), [[5, 2], [6], [0, 1, 3]]
    hdg = anchors(graph, sets)
    wanted = []
    for v in range(7):
        for i, s in enumerate(sets):
            u = min(s, key=lambda u: far[v, u])
            if np.isfinite(far[v, u]):
                wanted.append((v * 3 + i, u, 1 / (1 + far[v, u])))
    assert pairs(hdg) == [(j, u) for j, u, _ in wanted]
    np.testing.assert_allclose(hdg.edges[0], [c for *_, c in wanted], rtol=1e-6)
    near = anchors(graph, sets, hops=1)
    assert pairs(near) == [(j, u) for j, u, c in wanted if c >= 0.5]


def test_neighbours_selected_anew_share_what_is_compiled() -> None:
    graph, x, traces = small(), jnp.arange(7.0), []
    pooled = gnnjit.layer(lambda v, e: gnnjit.sum(e.data * e.src))
    w = jnp.asarray([1.0, 2.0, 3.0])
    top = gnnjit.layer(lambda v, e: gnnjit.sum(w[e.relation] * e.src))

    @jax.jit
    def f(hdg: HDG, x: Any) -> Any:
        traces.append(hdg)
        return hdg(x, pooled) if len(hdg.parts) == 1 else hdg(x, pooled, top)

    for seed in range(3):
        walks = random_walks(graph, num_walks=2, length=2, top_k=3, seed=seed)
        np.testing.assert_array_equal(f(walks.pad(21), x), walks(x, pooled))
    assert len(traces) == 1
    sets = anchors(graph, num=3, seed=1)
    np.testing.assert_allclose(f(sets.pad(25), x), sets(x, pooled, top), rtol=1e-6)


def test_random_anchor_sets_have_the_sizes_of_the_paper() -> None:
    graph = gnnjit.Graph.from_edges(np.arange(1024), np.roll(np.arange(1024), 1))
    hdg = anchors(graph, num=20)
    sizes = [int(name.split()[-1]) for name, *_ in hdg.report().rows]
    expected = np.array([1024 / 2 ** (i % 10 + 1) for i in range(20)])
    assert (np.abs(sizes - expected) < 5 * np.sqrt(expected) + 1).all()
    assert anchors(graph).num_types == 100
    assert min(sizes) >= 1


def test_select_is_given_in_edges_and_gives_levels() -> None:
    graph = small()

    def both(indptr: Any, neighbor: Any) -> Any:
        root = np.repeat(np.arange(7), np.diff(indptr))
        order = np.lexsort((np.arange(len(root)) % 2, root))
        return Records(root[order], neighbor[order], (np.arange(len(root)) % 2)[order])

    hdg = select(graph, both, types=["even", "odd"])
    assert [level.num_edges for level in hdg.levels] == [10, 14]
    assert [row[0] for row in hdg.report().rows] == ["even", "odd"]
    flat = select(graph, lambda p, n: (np.repeat(np.arange(7), np.diff(p)), n, None, n * 0.5))
    np.testing.assert_array_equal(flat.levels[0].dst, np.sort(np.asarray(graph.dst)))
    np.testing.assert_array_equal(flat.edges[0], np.asarray(flat.levels[0].src) * 0.5)


def test_select_of_instances() -> None:
    instances = [[0, 1, 2], [3, -1, -1], [4, 0, -1]]
    hdg = select(small(), lambda p, n: (np.array([0, 0, 6]), np.array(instances)))
    leaf, middle = hdg.levels
    assert np.asarray(leaf.src).tolist() == [0, 1, 2, 3, 4, 0]
    assert np.asarray(leaf.in_degree).tolist() == [3, 1, 2]
    assert np.asarray(middle.dst).tolist() == [0, 0, 6]
    x, total = jnp.arange(7.0), gnnjit.layer(lambda v, e: gnnjit.sum(e.src) * (1 + v))
    np.testing.assert_array_equal(hdg(x, total, total), [6, 0, 0, 0, 0, 0, 4 * 7 * 7])


A = np.array
NONSENSE = {
    "no records": ([1, 2], {}, r"select: the function gave \[1, 2\], expected \(root, vertex\)"),
    "floats": ((A([0.0]), A([1])), {}, r"gave root as float64 of shape \(1,\), expected integers"),
    "lengths": ((A([0, 1]), A([1])), {}, r"gave vertex as int64 of shape \(1,\), expected"),
    "wrong ids": ((A([0]), A([7])), {}, r"gave vertex\[0\] as 7, expected a vertex from 0 to 6"),
    "negative": ((A([-1]), A([0])), {}, r"gave root\[0\] as -1, expected a vertex from 0 to 6"),
    "unsorted": ((A([1, 0]), A([0, 0])), {}, r"neighbour 1 .* is of root 0, after one of root 1"),
    "types unsorted": (
        (A([0, 0]), A([0, 0]), A([1, 0])), {"types": 2}, "expected neighbours sorted by root, then"
    ),
    "no types": ((A([0]), A([0])), {"types": 2}, "the function gave no types of neighbours"),
    "types": ((A([0]), A([0]), A([0])), {}, "the function gave types of neighbours, and types is"),
    "wrong type": ((A([0]), A([0]), A([2])), {"types": 2}, r"gave type\[0\] as 2, expected a type"),
    "types named": ((A([0]), A([0])), {"types": "ab"}, "types is 'ab', expected names of"),
    "holes": ((A([0]), A([[1, -1, 2]])), {}, r"gave instance 0 as \[1, -1, 2\], expected one"),
    "float instances": ((A([0]), A([[1.0]])), {}, r"gave vertex as float64 of shape \(1, 1\)"),
    "ragged": ((A([0]), [[1], [2, 3]]), {}, r"vertex is a list that NumPy cannot read"),
    "data": ((A([0]), A([0]), None, A([1.0, 2.0])), {}, r"gave data as float64 of shape \(2,\)"),
    "data of instances": ((A([0]), A([[0]]), None, A([1.0])), {}, "expected none for instances"),
}  # fmt: skip


@pytest.mark.parametrize("name", NONSENSE)
def test_select_of_nonsense(name: str) -> None:
    given, more, message = NONSENSE[name]
    with pytest.raises(SampleError, match=message):
        select(small(), lambda indptr, neighbor: given, **more)


def test_select_cannot_write_to_the_graph() -> None:
    def spoil(indptr: Any, neighbor: Any) -> Any:
        neighbor[0] = 1

    with pytest.raises(ValueError, match="read-only"):
        select(small(), spoil)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g: hops(g, 0), "hops: k is 0, expected a number from 1"),
        (lambda g: random_walks(g, length=0), "random_walks: length is 0, expected a number"),
        (lambda g: random_walks(g, num_walks=0), "random_walks: num_walks is 0, expected a number"),
        (lambda g: random_walks(g, top_k=0), "random_walks: top_k is 0, expected a number from 1"),
        (lambda g: random_walks(g, seed=-1), "random_walks: seed is -1, expected a whole number"),
        (lambda g: anchors(g, num=0), "anchors: num is 0, expected a number from 1"),
        (lambda g: anchors(g, []), r"anchors: sets is \[\], expected a list of anchor sets"),
        (lambda g: anchors(g, [[0], []]), r"anchors: sets\[1\] is empty, expected at least one"),
        (lambda g: anchors(g, [[9]]), r"anchors: sets\[0\]\[0\] is 9, expected a vertex from 0"),
        (lambda g: anchors(g, [[0]], num=1), "anchors: got both sets and num=1, expected one"),
        (lambda g: hops(g.reverse, 1), "hops: got .*, expected a gnnjit.Graph"),
    ],
)  # fmt: skip
def test_errors(call: Any, message: str) -> None:
    with pytest.raises(SampleError, match=message):
        call(small())


def test_a_graph_without_vertices() -> None:
    graph = gnnjit.Graph.from_edges([], [], num_nodes=0)
    assert random_walks(graph).levels[0].num_edges == 0
    assert hops(graph, 2).num_roots == 0
    with pytest.raises(SampleError, match="anchors: the graph has 0 vertices"):
        anchors(graph)
