"""The Dashboard against the algorithm that it makes quick."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest

from gnnjit.errors import SampleError
from gnnjit.graph import Graph
from gnnjit.sample import FrontierSampler, Workers
from gnnjit.sample.adjacency import Adjacency
from gnnjit.sample.frontier import walked
from gnnjit.sample.random import key_of
from sample.exact import (
    DIRECTED,
    KITE,
    check_chances,
    check_induced,
    check_same,
    graph_of,
    random_graph,
    same_bits,
)  # fmt: skip


def exact_pops(graph: Graph, size: int, pops: int, most: int) -> dict[tuple[int, ...], float]:
    """The chance of each sequence of pops, over all first frontiers and moves."""
    adjacency = Adjacency.of("test", graph)
    rows = np.split(adjacency.neighbor, adjacency.indptr[1:-1])
    chances: dict[Any, float] = {((), ()): 1.0}  # of the pops so far and the frontier
    for _ in range(size):
        chances = summed(
            ((popped, tuple(sorted((*frontier, v)))), chance / graph.num_nodes)
            for (popped, frontier), chance in chances.items()
            for v in range(graph.num_nodes)
        )
    for _ in range(pops):
        chances = summed(moves(chances, rows, most))
    return summed((popped, chance) for (popped, _), chance in chances.items())


def moves(chances: Any, rows: Any, most: int) -> Any:
    for (popped, frontier), chance in chances.items():
        entries = [min(len(rows[v]), most) for v in frontier]
        if not sum(entries):
            yield (popped, frontier), chance
        for i, u in enumerate(frontier):
            for w in rows[u] if entries[i] else ():
                left = (*frontier[:i], *frontier[i + 1 :], int(w))
                share = entries[i] / sum(entries) / len(rows[u])
                yield ((*popped, u), tuple(sorted(left))), chance * share


def summed(pairs: Any) -> Any:
    out = collections.defaultdict(float)
    for outcome, chance in pairs:
        out[outcome] += chance
    return dict(out)


def naive_pop(graph: Graph, size: int, pops: int, seed: int) -> int:
    """The last of `pops` pops of algorithm 2, a walk over the frontier for each."""
    rng = np.random.default_rng(seed)
    adjacency = Adjacency.of("test", graph)
    degree = adjacency.degree()
    frontier, u = rng.integers(0, graph.num_nodes, size), -1
    for _ in range(pops):
        sums = np.cumsum(degree[frontier])
        at = np.searchsorted(sums, rng.integers(0, sums[-1]), side="right")
        u = int(frontier[at])
        frontier[at] = adjacency.neighbor[adjacency.indptr[u] + rng.integers(0, degree[u])]
    return u


@pytest.mark.once
@pytest.mark.parametrize("enlargement", [1.01, 2, 9])
@pytest.mark.parametrize("most", [None, 1, 2])
@pytest.mark.parametrize("graph", [KITE, DIRECTED], ids=["symmetric", "directed"])
def test_pops_have_the_papers_chances(graph: Graph, most: int | None, enlargement: float) -> None:
    sampler = FrontierSampler(
        graph, frontier=2, vertices=5, enlargement=enlargement, most_entries=most
    )
    drawn = (sampler.drawn(seed)[2:] for seed in range(6000))
    check_chances((tuple(d.tolist()) for d in drawn), exact_pops(graph, 2, 3, most or 99))


@pytest.mark.parametrize("most", [None, 2])
def test_the_next_pop_is_by_degree_in_the_frontier(most: int | None) -> None:
    """One pop, for each first frontier apart."""
    sampler = FrontierSampler(KITE, frontier=2, vertices=3, most_entries=most)
    degree = np.minimum([3, 2, 2, 2, 1], most or 99)
    chances = summed(
        ((min(a, b), max(a, b), u), degree[u] / (degree[a] + degree[b]) / 25)
        for a in range(5)
        for b in range(5)
        for u in (a, b)
    )
    drawn = (sampler.drawn(seed).tolist() for seed in range(8000))
    check_chances(((min(a, b), max(a, b), u) for a, b, u in drawn), chances)


def test_long_runs_are_those_of_naive_sampling() -> None:
    graph = random_graph(40, 120, hubs=2)
    sampler = FrontierSampler(graph, frontier=6, vertices=6 + 50, enlargement=1.3)
    check_same(
        (int(sampler.drawn(seed)[-1]) for seed in range(2000)),
        (naive_pop(graph, 6, 50, seed) for seed in range(2000)),
    )


@pytest.mark.parametrize("most", [5, 2**31 - 1])
@pytest.mark.parametrize(("size", "room"), [(50, 1), (50, 100_000), (2000, 1)])
@pytest.mark.parametrize("eta", [1.5, 2.0, 3.0])
def test_a_pop_takes_at_most_the_enlargement_in_probes(
    eta: float, size: int, room: int, most: int
) -> None:
    graph = random_graph(5000, 20_000, hubs=3)
    adjacency = Adjacency.of("test", graph)
    roots = np.arange(5000, dtype=np.int32)
    roots.flags.writeable = False
    found = np.empty(20_000, np.int32)
    count, probes = walked(
        adjacency.indptr, adjacency.neighbor, roots, size, most, eta, room, key_of("test", 0), found
    )
    assert count == len(found)
    assert probes <= eta * (count - size)


def test_the_sample_is_induced_by_what_is_drawn() -> None:
    graph = random_graph(200, 500)
    sampler = FrontierSampler(graph, frontier=10, vertices=60)
    for seed in range(5):
        drawn, sample = sampler.drawn(seed).tolist(), sampler.sample(seed=seed)
        assert len(drawn) == 60
        assert sample.vertices.tolist() == list(dict.fromkeys(drawn))
        check_induced(graph, sample)
    assert (sampler.num_seeds, sampler.num_layers) == (None, None)


def test_the_first_frontier_is_of_the_roots() -> None:
    roots = np.zeros(40, bool)
    roots[[3, 7, 8]] = True
    sampler = FrontierSampler(random_graph(40, 90), frontier=5, vertices=9, roots=roots)
    first = np.concatenate([sampler.drawn(seed)[:5] for seed in range(300)])
    check_chances(first.tolist(), {3: 1 / 3, 7: 1 / 3, 8: 1 / 3})


def test_a_frontier_without_edges_ends() -> None:
    lonely = FrontierSampler(Graph.from_edges([], [], 4), frontier=3, vertices=9)
    assert len(lonely.drawn()) == 3
    assert lonely.sample().edge_counts == (0,)
    path = graph_of([(0, 1), (1, 2)], 3)  # in-neighbours of 2: 1, then 0, which has none
    sampler = FrontierSampler(path, frontier=1, vertices=9, roots=[2])
    assert sampler.drawn(5).tolist() == [2, 2, 1]


def test_threads_give_the_same_bits() -> None:
    sampler = FrontierSampler(random_graph(20_000, 60_000), frontier=1000, vertices=9000)
    with Workers(3) as workers:
        assert same_bits(sampler.sample(seed=1), sampler.sample(seed=1, workers=workers))
    assert not same_bits(sampler.sample(seed=1), sampler.sample(seed=2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"frontier": 0}, "FrontierSampler: frontier is 0, expected a number from 1 to 2147483647"),
        (
            {"frontier": 9},
            "FrontierSampler: vertices is 8 and frontier 9, expected a budget of at least the "
            "frontier, which is part of the sample",
        ),
        (
            {"enlargement": 1},
            "FrontierSampler: enlargement is 1, expected a number above 1: the table over the "
            "entries that are valid; 2 is usual",
        ),
        (
            {"most_entries": 0},
            "FrontierSampler: most_entries is 0, expected a number from 1 to 2147483647",
        ),
        (
            {"roots": [5]},
            "FrontierSampler: roots[0] is 5, expected a vertex from 0 to 4: number vertices as the "
            "graph does",
        ),
        (
            {"roots": []},
            "FrontierSampler: there are 0 roots in a graph of 5 vertices, expected at least one "
            "vertex to start from",
        ),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SampleError) as caught:
        FrontierSampler(KITE, **{"frontier": 2, "vertices": 8, **arguments})
    assert str(caught.value) == message


def test_an_empty_graph() -> None:
    with pytest.raises(SampleError) as caught:
        FrontierSampler(Graph.from_edges([], [], 0))
    assert str(caught.value) == (
        "FrontierSampler: there are 0 roots in a graph of 0 vertices, expected at least one vertex "
        "to start from"
    )


def test_seeds_are_refused() -> None:
    sampler: Any = FrontierSampler(KITE, frontier=2, vertices=4)
    with pytest.raises(SampleError) as caught:
        sampler.sample([0])
    assert str(caught.value) == (
        "FrontierSampler.sample: seeds is [0], expected None: the vertices are drawn from the "
        "whole graph; pass seed= for another sample"
    )
