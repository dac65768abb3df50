"""The graphs, and what is selected from them."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from typing import Any

import numpy as np

import gnnjit
from gnnjit import neighborhood
from gnnjit.data import Dataset, LinkDataset, open_dataset
from gnnjit.neighborhood import HDG
from gnnjit.sample import Workers

CAP = 10
"""Instances of a root and metapath, on graphs without types of their own."""

SETS = 64
"""Anchor sets: the neighbour types of P-GNN."""

STEPS = 3
"""There and back in each of the metapaths of a wide schema, by either of two types each time."""

TYPES = "abc"
"""Vertex `i` of a graph without types is of type `i % 3`: roots are a, metapaths aba and aca."""


@dataclasses.dataclass(frozen=True, eq=False)
class Edges:
    """`int64[E]` twice, and vertices by type in the order of their numbers."""

    name: str
    src: np.ndarray
    dst: np.ndarray
    num_nodes: int
    typed: gnnjit.TypedGraph
    paths: list[Any]
    cap: int | None


def opened(name: str, folder: pathlib.Path) -> Edges:
    """A graph of SNAP both ways, or IMDB with directors and actors."""
    if name != "imdb":
        data = open_dataset(name, folder)
        assert isinstance(data, LinkDataset)
        links = np.concatenate([data.train, data.val, data.test])
        ends = links[:, [0, 2]].T.astype(np.int64)
        both = np.unique(np.concatenate([ends, ends[::-1]], axis=1), axis=1)
        return of_edges(name, *both[:, both[0] != both[1]], data.num_nodes)
    data = open_dataset("imdb", folder, metapaths=False)
    assert isinstance(data, Dataset)
    sizes = data.graph.num_nodes
    first = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
    parts = [
        (np.asarray(one.src) + first[key[0]], np.asarray(one.dst) + first[key[2]])
        for key, one in data.graph.items()
    ]
    src, dst = (np.concatenate(ends).astype(np.int64) for ends in zip(*parts, strict=True))
    paths = [["movie", "director", "movie"], ["movie", "actor", "movie"]]
    return Edges("imdb", src, dst, sum(sizes.values()), data.graph, paths, None)


def made(n: int, degree: int = 10) -> Edges:
    """A random graph whose sources follow a power law."""
    rng = np.random.default_rng(0)
    src = np.minimum(n * rng.random(n * degree // 2) ** 3, n - 1).astype(np.int64)
    dst = rng.integers(0, n, len(src))
    return of_edges(f"made-{n}", np.r_[src, dst], np.r_[dst, src], n)


def of_edges(name: str, src: np.ndarray, dst: np.ndarray, n: int) -> Edges:
    kind_src, kind_dst, edges = src % 3, dst % 3, {}
    for i, a in enumerate(TYPES):
        for j, b in enumerate(TYPES):
            chosen = (kind_src == i) & (kind_dst == j)
            edges[a, "to", b] = src[chosen] // 3, dst[chosen] // 3
    counts = {t: len(range(i, n, 3)) for i, t in enumerate(TYPES)}
    typed = gnnjit.TypedGraph.from_edges(edges, counts)
    return Edges(name, src, dst, n, typed, [["a", "b", "a"], ["a", "c", "a"]], CAP)


def selected(model: str, graph: Any, edges: Edges, workers: Workers) -> HDG:
    """FlexGraph's settings (section 7): the 10 vertices that 10 walks of length 3 visit most. Two
    wide schemas: the nearest vertices of 64 sets, and eight metapaths of seven vertices."""
    if model == "pinsage":
        return neighborhood.random_walks(graph, workers=workers)
    if model == "pgnn":
        return neighborhood.anchors(graph, num=SETS, workers=workers)
    if model == "magnn-wide":
        wide = wide_paths(edges.paths)
        return neighborhood.metapaths(graph, wide, cap=CAP, workers=workers)
    return neighborhood.metapaths(graph, edges.paths, cap=edges.cap, workers=workers)


def wide_paths(paths: list[list[str]]) -> list[list[str]]:
    """Of metapaths there and back, all sequences of `STEPS`."""
    some = itertools.product(paths, repeat=STEPS)
    return [[first[0][0], *(t for path in first for t in path[1:])] for first in some]
