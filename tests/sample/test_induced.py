"""Induced subgraphs against a plain loop over all edges."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from graph.strategies import edge_lists
from hypothesis import given
from hypothesis import strategies as st

from gnnjit.graph import Graph
from gnnjit.nn import SAGE
from gnnjit.sample import FrontierSampler, Workers
from gnnjit.sample.adjacency import Adjacency
from gnnjit.sample.induced import induced
from gnnjit.sample.numbering import Numbering
from sample.exact import DIRECTED, check_induced, random_graph, same_bits


def subgraph(graph: Graph, vertices: list[int], workers: int = 1):
    with Workers(workers) as threads:
        found = np.array(vertices, np.int32)
        return induced(Adjacency.of("test", graph), Numbering.of(found, graph.num_nodes), threads)


@given(edge_lists(masked=False), st.lists(st.integers(0, 5), max_size=8))
def test_it_holds_each_edge_between_two_of_its_vertices(edges, vertices) -> None:
    graph = Graph.from_edges(edges.src, edges.dst, edges.num_dst)
    vertices = [v for v in vertices if v < edges.num_dst]
    sample = subgraph(graph, vertices)
    assert sample.vertices.tolist() == list(dict.fromkeys(vertices))
    check_induced(graph, sample)


def test_padding_of_the_graph_is_no_edge() -> None:
    graph = Graph.from_edges([0, 1, 2], [1, 2, 0], 3, edge_mask=np.array([True, False, True]))
    sample = subgraph(graph, [0, 1, 2])
    assert sorted(sample.edge.tolist()) == [0, 2]


def test_all_vertices_give_the_graph_and_none_an_empty_one() -> None:
    whole = subgraph(DIRECTED, list(range(6)))
    assert whole.sizes == (6, 9)
    assert sorted(whole.edge.tolist()) == list(range(9))
    assert subgraph(DIRECTED, []).sizes == (0, 0)
    assert subgraph(Graph.from_edges([], [], 0), []).sizes == (0, 0)


def test_threads_give_the_same_bits() -> None:
    graph = random_graph(20_000, 60_000, hubs=2)
    vertices = np.random.default_rng(0).permutation(20_000)[:9_000].tolist()
    assert same_bits(subgraph(graph, vertices), subgraph(graph, vertices, 3))


@pytest.mark.parametrize("room", [0, 3])
def test_a_module_computes_on_it_what_it_computes_on_the_subgraph(room: int) -> None:
    graph = random_graph(300, 1200)
    sample = FrontierSampler(graph, frontier=20, vertices=120).sample(seed=3)
    shape = tuple(size + room for size in sample.sizes)
    (block,) = sample.graphs(shape if room else None)
    x = np.random.default_rng(0).standard_normal((300, 4)).astype(np.float32)
    rows = np.zeros((shape[0] if room else len(sample.vertices), 4), np.float32)
    rows[: len(sample.vertices)] = x[sample.vertices]
    module = SAGE(4, 3, rngs=nnx.Rngs(0))
    out = module(block, jnp.asarray(rows))[: len(sample.vertices)]

    inside = np.full(300, -1)
    inside[sample.vertices] = np.arange(len(sample.vertices))
    src, dst = inside[np.asarray(graph.src)], inside[np.asarray(graph.dst)]
    kept = (src >= 0) & (dst >= 0)
    plain = Graph.from_edges(src[kept], dst[kept], len(sample.vertices))
    expected = module(plain, jnp.asarray(x[sample.vertices]))
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
