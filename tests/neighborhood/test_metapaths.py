"""Metapath instances: all of them, a sample of them, and what is refused."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import numpy as np
import pytest
from sample.exact import check_chances

import gnnjit
from gnnjit.errors import SampleError
from gnnjit.neighborhood import metapaths
from gnnjit.sample import Workers
from neighborhood.naive import in_neighbors, instances, movies, same, walks_to

PATHS = [["m", "d", "m"], ["m", "a", "m"], ["rev_plays", "plays", "rev_directs", "directs"]]


def naive(graph: gnnjit.TypedGraph) -> Any:
    """The instances of `PATHS`, each vertex by its number among movies, directors, actors."""
    into = {key[1]: in_neighbors(g) for key, g in graph.items()}
    first = {"m": 0, "d": 6, "a": 9}
    steps = [
        (["rev_directs", "directs"], "mdm"),
        (["rev_plays", "plays"], "mam"),
        (PATHS[2], "mamdm"),
    ]
    return {
        (root, i): [
            tuple(first[t] + v for t, v in zip(types, walk, strict=True))
            for walk in walks_to(root, [into[name] for name in names])
        ]
        for root in range(6)
        for i, (names, types) in enumerate(steps)
    }


def test_every_instance_is_found_once() -> None:
    graph = movies()
    hdg, wanted = metapaths(graph, PATHS), naive(graph)
    assert same(instances(hdg), wanted)
    assert hdg.types == ("m", "d", "a")
    counts = [sum(len(x) for (_, i), x in wanted.items() if i == j) for j in range(3)]
    assert [row[1:3] for row in hdg.report().rows] == [(n, n) for n in counts]
    assert not wanted[0, 0]
    assert len(wanted[1, 2]) > 20  # a root without instances, and one with many


def test_relations_of_edges_are_positions_and_types() -> None:
    hdg = metapaths(movies(), PATHS)
    leaf, middle, top = hdg.levels
    assert leaf.relations
    assert middle.relations
    assert top.relations
    length = np.asarray(leaf.in_degree)
    position = np.concatenate([np.arange(n) for n in length])
    assert np.array_equal(leaf.relations.number, position)
    assert np.array_equal(middle.relations.number, np.asarray(middle.dst) % 3)
    assert np.array_equal(middle.relations.degree, np.asarray(middle.in_degree)[middle.dst])
    assert np.array_equal(top.relations.number, np.arange(18) % 3)
    assert (leaf.num_relations, middle.num_relations, top.num_relations) == (5, 3, 3)


def test_beyond_a_cap_instances_are_drawn_from_all() -> None:
    graph = movies()
    hdg, wanted = metapaths(graph, PATHS, cap=4, seed=3), naive(graph)
    for key, found in instances(hdg).items():
        assert len(found) == min(4, len(wanted[key]))
        left = list(wanted[key])
        for instance in found:
            left.remove(instance)  # without replacement, and a true one
    report = hdg.report()
    assert report.cut == sum(max(0, len(x) - 4) for x in wanted.values())
    assert "cut by the cap of 4 a root" in str(report)


def test_sets_beyond_a_cap_have_the_same_chance() -> None:
    """Five walks of two steps end at vertex 0; of three kept, each of ten sets is as likely."""
    graph = gnnjit.Graph.from_edges([1, 1, 2, 3, 4, 5, 5], [0, 0, 0, 1, 1, 2, 2], num_nodes=6)
    every = walks_to(0, [in_neighbors(graph)] * 2)
    assert len(every) == 6
    sets = [tuple(sorted(s)) for s in itertools.combinations(every, 3)]
    chances = {s: sets.count(s) / len(sets) for s in sets}
    draws = [
        tuple(sorted(instances(metapaths(graph, [2], cap=3, seed=seed))[0, 0]))
        for seed in range(150)
    ]
    check_chances(draws, chances)


def test_walks_over_relations_by_number() -> None:
    src, dst, relation = [1, 2, 0, 0], [0, 0, 1, 2], [0, 1, 1, 0]
    graph = gnnjit.Graph.from_edges(src, dst, num_nodes=3, relation=relation)
    found = instances(metapaths(graph, [[1, 0], [0, 0]]))
    assert found[0, 0] == [(0, 1, 0)]
    assert found[2, 1] == [(1, 0, 2)]


def test_threads_and_watching_change_nothing() -> None:
    n = 5000
    src = np.random.default_rng(0).integers(0, n, 3 * n)
    graph = gnnjit.Graph.from_edges(src, np.arange(3 * n) % n, num_nodes=n)
    seen: list[tuple[int, int]] = []
    one = metapaths(graph, [2, 1], cap=3, watch=lambda *x: seen.append(x))
    with Workers(2) as workers:
        two = metapaths(graph, [2, 1], cap=3, workers=workers)
    jax.tree.map(np.testing.assert_array_equal, one, two)
    assert seen == [(n, 2 * n), (2 * n, 2 * n)]


def test_counting_does_not_enumerate() -> None:
    """Forty steps over two edges each: 2**40 instances at a root, of which two are found."""
    src, dst = [0, 0, 1, 1], [0, 1, 0, 1]
    hdg = metapaths(gnnjit.Graph.from_edges(src, dst), [40], cap=2)
    assert hdg.report().rows == (("40 steps", 4, 2**41, 2),)


def test_a_metapath_without_instances_has_none() -> None:
    graph = gnnjit.TypedGraph.from_edges(
        {("a", "plays", "m"): ([], []), ("m", "shows", "a"): ([0], [0])},
        num_nodes={"a": 2, "m": 3},
    )
    hdg = metapaths(graph, [["m", "a", "m"]])
    assert [level.num_edges for level in hdg.levels] == [0, 0, 3]
    total = gnnjit.layer(lambda v, e: gnnjit.sum(e.src))
    out = hdg({"m": np.ones((3, 2)), "a": np.ones((2, 2))}, total, total, total)
    assert np.array_equal(out, np.zeros((3, 2)))


GRAPH = movies()
PLAIN = gnnjit.Graph.from_edges([0, 1], [1, 0])


@pytest.mark.parametrize(
    ("graph", "paths", "more", "message"),
    [
        (GRAPH, [], {}, r"metapaths: paths is \[\], expected a list of metapaths"),
        (GRAPH, ["mdm"], {}, r"paths\[0\] is 'mdm', expected a sequence of relations, or of types"),
        (GRAPH, [["m"]], {}, r"paths\[0\] is one type, 'm', expected at least two"),
        (GRAPH, [["m", "m"]], {}, r"no relation leads from 'm' to 'm', expected one relation"),
        (GRAPH, [["sings"]], {}, r"paths\[0\]: relation names 'sings', which is no relation"),
        (
            GRAPH,
            [["directs", "plays"]],
            {},
            r"paths\[0\] does not compose: \('d', 'directs', 'm'\) ends at 'm', \('a', 'plays', "
            r"'m'\) starts at 'a'",
        ),
        (GRAPH, [["m", "d"], ["d", "m"]], {}, r"paths\[1\] ends at 'm' and paths\[0\] at 'd'"),
        (GRAPH, PATHS, {"cap": 0}, r"metapaths: cap is 0, expected a number from 1"),
        (GRAPH, PATHS, {"seed": -1}, r"metapaths: seed is -1, expected a whole number"),
        (PLAIN, [0], {}, r"metapaths: paths\[0\] is 0, expected a number from 1"),
        (PLAIN, [[0]], {}, r"paths\[0\] is \[0\], expected a number of steps"),
        (PLAIN, [2.5], {}, r"paths\[0\] is 2.5, expected a number of steps"),
        ("graph", [2], {}, r"metapaths: got 'graph', expected a gnnjit.Graph"),
    ],
)
def test_errors(graph: Any, paths: Any, more: Any, message: str) -> None:
    with pytest.raises(SampleError, match=message):
        metapaths(graph, paths, **more)


@pytest.mark.parametrize("steps", [62, 63, 70, 200])
def test_more_instances_than_can_be_counted(steps: int) -> None:
    graph = gnnjit.Graph.from_edges([0, 0, 1, 1], [0, 1, 0, 1])
    with pytest.raises(SampleError, match=r"root 0 has 2\*\*62 instances or more"):
        metapaths(graph, [steps], cap=1)


def test_relations_that_are_not_there() -> None:
    graph = gnnjit.Graph.from_edges([0], [1], num_nodes=2, relation=[0])
    with pytest.raises(SampleError, match=r"relation 3, expected a number from 0 to 0"):
        metapaths(graph, [[0, 3]])
