"""Samples of a graph with relations by number have the relations of their edges."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gnnjit.graph import Graph
from gnnjit.nn import RGCN
from gnnjit.sample import (
    ClusterSampler,
    EdgeSampler,
    HopSampler,
    LinkSampler,
    Loader,
    NeighborSampler,
)
from gnnjit.sample.adjacency import Adjacency
from sample.exact import random_graph


def related(num_nodes: int = 40, num_edges: int = 160) -> Graph:
    graph = random_graph(num_nodes, num_edges)
    relation = np.random.default_rng(5).integers(0, 4, graph.num_edges)
    return Graph.from_edges(
        np.asarray(graph.src), np.asarray(graph.dst), num_nodes, relation=relation, num_relations=5
    )


GRAPH = related()
TIMES = np.random.default_rng(6).integers(0, 9, GRAPH.num_edges)
DRAWN: dict[str, Any] = {
    "neighbor": lambda: NeighborSampler(GRAPH, (3, 2)).sample([1, 2, 3]),
    "by time": lambda: NeighborSampler(GRAPH, (3, 2), edge_times=TIMES).sample(
        [1, 2], times=[5, 7]
    ),
    "hops": lambda: HopSampler(GRAPH, hops=2).sample([4, 5]),
    "edge": lambda: EdgeSampler(GRAPH, edges=12).sample(),
    "cluster": lambda: ClusterSampler(GRAPH, 4).sample([0, 2]),
    "links": lambda: LinkSampler(NeighborSampler(GRAPH, (9,)), GRAPH.src, GRAPH.dst).sample([0, 1]),
}


@pytest.mark.parametrize("kind", DRAWN)
@pytest.mark.parametrize("room", [0, 5])
def test_edges_have_their_relations(kind: str, room: int) -> None:
    sample = DRAWN[kind]()
    assert GRAPH.relations is not None
    of_edge = np.asarray(GRAPH.relations.number)
    for graph in sample.graphs(tuple(n + room for n in sample.sizes) if room else None):
        real = graph.num_edges if graph.mask is None else int(np.sum(graph.mask))
        number, dst = graph.relations.number, np.asarray(graph.dst)
        np.testing.assert_array_equal(number[:real], of_edge[sample.edge[:real]])
        same = (number[:real, None] == number[:real]) & (dst[:real, None] == dst[:real])
        np.testing.assert_array_equal(graph.relations.degree[:real], same.sum(axis=1))
        np.testing.assert_array_equal(graph.relations.degree[real:], 0)
        assert graph.num_relations == 5


@pytest.mark.parametrize("mean", ["relation", "all"])
def test_rgcn_on_all_neighbours_gives_the_rows_of_the_whole_graph(mean: str) -> None:
    x = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    layers = [RGCN(6, 6, num_relations=5, mean=mean, rngs=nnx.Rngs(i)) for i in range(2)]
    batch = next(iter(Loader(NeighborSampler(GRAPH, (-1, -1)), x, batch_size=16, shapes=1)))
    h, whole = batch.x, jnp.asarray(x)
    for layer, graph in zip(layers, batch.graphs, strict=True):
        h, whole = layer(graph, h), layer(GRAPH, whole)
    seeds = batch.vertices[batch.seeds]
    np.testing.assert_allclose(h[batch.seeds], whole[seeds], rtol=1e-4, atol=1e-5)


def test_a_graph_without_relations_has_none() -> None:
    plain = dataclasses.replace(GRAPH, relations=None)
    assert Adjacency.of("test", plain).relations is None
    assert NeighborSampler(plain, (2,)).sample([0]).graphs()[0].relations is None
