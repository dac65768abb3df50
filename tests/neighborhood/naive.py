"""Neighbourhoods enumerated naively, in plain Python and NumPy."""

from __future__ import annotations

import collections
from collections.abc import Sequence

import numpy as np

import gnnjit
from gnnjit.neighborhood import HDG

Instances = dict[tuple[int, int], list[tuple[int, ...]]]
"""For each root and neighbour type its instances, as numbers of vertices."""


def movies(seed: int = 0) -> gnnjit.TypedGraph:
    """Movies, directors and actors: a movie without either, one with edges given twice, a hub."""
    rng = np.random.default_rng(seed)
    directs = rng.integers(0, 3, 9), np.r_[rng.integers(1, 6, 8), 1]
    plays = np.r_[rng.integers(0, 4, 8), 3, 3, 3, 3], np.r_[rng.integers(1, 6, 8), 1, 2, 3, 3]
    graph = gnnjit.TypedGraph.from_edges(
        {("d", "directs", "m"): directs, ("a", "plays", "m"): plays},
        num_nodes={"m": 6, "d": 3, "a": 4},
    )
    return graph.with_reverse()


def in_neighbors(graph: gnnjit.Graph) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(graph.num_dst)]
    for u, v in zip(np.asarray(graph.src).tolist(), np.asarray(graph.dst).tolist(), strict=True):
        found[v].append(u)
    return found


def walks_to(root: int, steps: Sequence[list[list[int]]]) -> list[tuple[int, ...]]:
    """All walks that end at a root, each as its vertices; `steps` are in-neighbours, the first
    step's first."""
    if not steps:
        return [(root,)]
    found = [walks_to(u, steps[:-1]) for u in steps[-1][root]]
    return [(*walk, root) for some in found for walk in some]


def instances(hdg: HDG) -> Instances:
    """Those of an HDG with three levels, each vertex by its number among all."""
    leaf, middle, top = hdg.levels
    vertices: dict[int, list[int]] = collections.defaultdict(list)
    for u, i in zip(np.asarray(leaf.src).tolist(), np.asarray(leaf.dst).tolist(), strict=True):
        vertices[i].append(u)
    assert np.array_equal(middle.src, np.arange(middle.num_edges))
    assert np.array_equal(top.dst, np.arange(top.num_edges) // hdg.num_types)
    found: Instances = {divmod(j, hdg.num_types): [] for j in range(hdg.num_roots * hdg.num_types)}
    for i, j in enumerate(np.asarray(middle.dst).tolist()):
        found[divmod(j, hdg.num_types)].append(tuple(vertices[i]))
    return found


def same(first: Instances, second: Instances) -> bool:
    """Whether both have the same instances, in whatever order."""
    return {k: sorted(v) for k, v in first.items()} == {k: sorted(v) for k, v in second.items()}
