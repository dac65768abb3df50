"""What draws are compared with: exact probabilities, plain loops, and a few small graphs."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from scipy import stats

from gnnjit.graph import Graph
from gnnjit.sample import Loader, Sample

Chances = Mapping[Any, float]

LEAST = 1e-4
"""The p-value that draws at fixed seeds must have."""


def check_chances(draws: Iterable[Hashable], chances: Chances) -> None:
    """That outcomes come as often as they should: a chi-square test, rare ones taken together."""
    counts = collections.Counter(draws)
    total = sum(counts.values())
    impossible = {outcome: n for outcome, n in counts.items() if chances.get(outcome, 0) == 0}
    assert not impossible
    assert abs(sum(chances.values()) - 1) < 1e-9
    seen, expected, rare = [], [], np.zeros(2)
    for outcome, chance in chances.items():
        if chance * total < 5:
            rare += counts[outcome], chance * total
        else:
            seen.append(counts[outcome])
            expected.append(chance * total)
    if rare[1] > 0:
        seen.append(rare[0])
        expected.append(rare[1])
    assert len(seen) > 1
    # A handful of rare outcomes leaves a group of under 5, which is too coarse by little.
    assert stats.chisquare(seen, expected).pvalue > LEAST


def check_same(first: Iterable[Hashable], second: Iterable[Hashable]) -> None:
    """That two sets of draws may have one distribution: a chi-square test of both."""
    counts = [collections.Counter(draws) for draws in (first, second)]
    outcomes = sorted(set(counts[0]) | set(counts[1]), key=str)
    table = np.array([[count[outcome] for outcome in outcomes] for count in counts])
    often = table.sum(0) >= 10
    table = np.column_stack([table[:, often], table[:, ~often].sum(1)])
    assert stats.chi2_contingency(table[:, table.sum(0) > 0]).pvalue > LEAST


def marginal(chances: Chances, name: Callable[[Any], Hashable]) -> dict[Any, float]:
    """The chances of what `name` makes of each outcome."""
    out: dict[Any, float] = collections.defaultdict(float)
    for outcome, chance in chances.items():
        out[name(outcome)] += chance
    return dict(out)


def successive(weights: Sequence[float], count: int) -> dict[tuple[int, ...], float]:
    """The sets that come of `count` draws without replacement, each by weight among what is left
    (fewer where too few weights are positive)."""
    live = [i for i, weight in enumerate(weights) if weight > 0]
    out: dict[tuple[int, ...], float] = collections.defaultdict(float)
    for order in itertools.permutations(live, min(count, len(live))):
        chance, left = 1.0, sum(weights)
        for i in order:
            chance *= weights[i] / left
            left -= weights[i]
        out[tuple(sorted(order))] += chance
    return dict(out)


def graph_of(edges: Sequence[tuple[int, int]], num_nodes: int) -> Graph:
    src, dst = np.array(edges, np.int64).reshape(-1, 2).T
    return Graph.from_edges(src, dst, num_nodes)


def both_ways(edges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    return [*edges, *((v, u) for u, v in edges)]


KITE = graph_of(both_ways([(0, 1), (0, 2), (0, 3), (1, 2), (3, 4)]), 5)
"""Degrees 3, 2, 2, 2, 1."""

DIRECTED = graph_of([(1, 0), (2, 0), (3, 0), (4, 0), (0, 1), (3, 1), (1, 2), (1, 2), (4, 4)], 6)
"""With parallel edges, a self loop, vertices of in-degree 0, and one without edges."""


def random_graph(num_nodes: int, num_edges: int, seed: int = 0, hubs: float = 1.0) -> Graph:
    """A symmetric one, in which low numbers have more edges."""
    rng = np.random.default_rng(seed)
    ends = (num_nodes * rng.random((2, num_edges)) ** hubs).astype(np.int64)
    return Graph.from_edges(np.r_[ends[0], ends[1]], np.r_[ends[1], ends[0]], num_nodes)


def edges_of(sample: Sample) -> Iterator[tuple[int, int, int]]:
    """(source, destination, number) of each edge, in numbers of the graph."""
    rows = np.repeat(np.arange(len(sample.indptr) - 1), np.diff(sample.indptr))
    for row, neighbor, edge in zip(rows, sample.neighbor, sample.edge, strict=True):
        yield int(sample.vertices[neighbor]), int(sample.vertices[row]), int(edge)


def typed_edges_of(sample: Any, key: Any) -> list[tuple[int, int, int]]:
    """(source, destination, number) of each edge of a relation, in numbers of the graph."""
    drawn = sample.drawn[key]
    rows = np.repeat(np.arange(len(drawn.indptr) - 1), np.diff(drawn.indptr))
    source, target = sample.vertices[key[0]], sample.vertices[key[2]]
    edges = zip(source[drawn.neighbor], target[rows], sample.edge[key], strict=True)
    return [(int(u), int(v), int(e)) for u, v, e in edges]


def same_leaves(first: Any, second: Any) -> bool:
    """Whether two pytrees have equal arrays."""
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def check_stream(loader: Callable[..., Loader]) -> None:
    """That threads and resuming do not change the batches of what `loader(**options)` makes, and
    that one made alone is the same."""
    alone = list(loader(threads=0))
    many = loader(threads=2)
    stream = iter(many)
    first = next(stream)
    state = json.loads(json.dumps(many.state()))
    assert same_leaves([first, *stream], alone)
    assert same_leaves(list(loader(state=state)), alone[1:])
    assert same_leaves(loader().on_host(0, 2), alone[2])
    assert len({str(jax.tree.structure(batch)) for batch in alone}) <= 2


def check_sample(graph: Graph, sample: Sample) -> None:
    """That the sample's vertices and edges are those of the graph, each vertex once a tree."""
    src, dst = np.asarray(graph.src), np.asarray(graph.dst)
    for u, v, edge in edges_of(sample):
        assert (src[edge], dst[edge]) == (u, v)
    trees = np.zeros_like(sample.vertices) if sample.tree is None else sample.tree
    assert len(set(zip(trees, sample.vertices, strict=True))) == len(sample.vertices)
    degree = np.bincount(dst, minlength=graph.num_nodes)
    assert sample.degree.tolist() == degree[sample.vertices].tolist()
    assert sample.sizes[len(sample.vertex_counts) - 1] == len(sample.vertices)
    assert sample.edge_counts[-1] == len(sample.edge) == len(sample.neighbor)


def check_induced(graph: Graph, sample: Sample) -> None:
    """That a sample is the subgraph that its vertices induce, edges by destination, then slot."""
    check_sample(graph, sample)
    assert sample.is_subgraph
    number = {int(v): i for i, v in enumerate(sample.vertices)}
    ends = zip(np.asarray(graph.src).tolist(), np.asarray(graph.dst).tolist(), strict=True)
    inside = [
        (number[v], edge, number[u]) for edge, (u, v) in enumerate(ends) if {u, v} <= number.keys()
    ]
    rows = np.repeat(np.arange(len(number)), np.diff(sample.indptr))
    own = zip(rows.tolist(), sample.edge.tolist(), sample.neighbor.tolist(), strict=True)
    assert list(own) == sorted(inside)


def same_bits(first: Sample, second: Sample) -> bool:
    """Whether two samples are equal, array by array."""
    names = [field.name for field in dataclasses.fields(first)]
    pairs = [(getattr(first, name), getattr(second, name)) for name in names]
    return all(np.array_equal(a, b) and type(a) is type(b) for a, b in pairs)
