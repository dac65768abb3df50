"""Modules on the blocks of a batch: with all neighbours, the numbers of the whole graph."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gnnjit import Bipartite, Graph
from gnnjit.errors import GraphError, LayerError
from gnnjit.nn import (
    GAT,
    GCN,
    GGNN,
    GIN,
    PNA,
    SAGE,
    CommNet,
    EdgeConv,
    GatedGCN,
    GATv2,
    GraphTransformer,
)  # fmt: skip
from gnnjit.sample import NeighborSampler

MODULES: dict[str, Any] = {
    "gcn": GCN,
    "gcn-as-is": partial(GCN, self_loops=False),
    "sage": SAGE,
    "sage-pool": partial(SAGE, aggregator="pool"),
    "gat": GAT,
    "gatv2": partial(GATv2, heads=2, concat=False),
    "gin": lambda i, o, rngs: GIN(i, 4, o, rngs=rngs),
    "commnet": CommNet,
    "edgeconv": lambda i, o, rngs: EdgeConv(i, 4, o, rngs=rngs),
    "gatedgcn": GatedGCN,
    "pna": partial(PNA, delta=1.2),
    "transformer": GraphTransformer,
}
N, F = 40, 5


def make_graph() -> Graph:
    """Directed, with an isolated vertex (the last)."""
    src, dst = np.random.default_rng(0).integers(0, N - 1, (2, 90))
    return Graph.from_edges(src, dst, N)


def loss(module: Any, graphs: Any, x: Any, rows: Any) -> jax.Array:
    first, second = module
    h = jnp.tanh(first(graphs[0], x))
    return jnp.sum(jnp.sin(second(graphs[-1], h)[rows]))


@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_all_neighbours_give_the_numbers_of_the_whole_graph(name: str, padding: bool) -> None:
    graph, rngs = make_graph(), nnx.Rngs(0)
    x = jnp.asarray(np.random.default_rng(1).normal(size=(N, F)).astype(np.float32))
    module = nnx.List([MODULES[name](F, F, rngs=rngs), MODULES[name](F, F, rngs=rngs)])
    seeds = np.array([3, N - 1, 17])
    sample = NeighborSampler(graph, [-1, -1]).sample(seeds)
    shape = tuple(size + 7 for size in sample.sizes) if padding else None
    blocks = jax.device_put(sample.graphs(shape))
    rows = np.concatenate([x[sample.vertices], np.full((7 if padding else 0, F), np.nan)])
    rows = rows.astype(np.float32)

    grad = nnx.value_and_grad(loss, argnums=(0, 2))
    want, (weights, by_x) = grad(module, (graph, graph), x, seeds)
    got, (block_weights, by_rows) = grad(module, blocks, jnp.asarray(rows), sample.seeds)

    np.testing.assert_allclose(got, want, rtol=2e-5)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-5), block_weights, weights)
    whole = np.zeros((N, F), np.float32)
    whole[sample.vertices] = by_rows[: len(sample.vertices)]
    np.testing.assert_allclose(whole, by_x, rtol=2e-4, atol=2e-5)


def test_a_sampled_gcn_is_the_whole_one_on_average() -> None:
    graph = make_graph()
    x = np.random.default_rng(1).normal(size=(N, F)).astype(np.float32)
    module, times = GCN(F, 2, rngs=nnx.Rngs(0)), 1000
    sampler = NeighborSampler(graph, [1], disjoint=True)
    sample = sampler.sample(np.repeat(np.arange(N), times))
    (block,) = sample.graphs()
    found = np.float64(module(block, x[sample.vertices])).reshape(N, times, 2)
    error = np.abs(found.mean(axis=1) - np.asarray(module(graph, x)))
    assert (error <= 5 * found.std(axis=1) / times**0.5 + 1e-4).all()
    assert found.std(axis=1).max() > 0.3


def test_normalisation_of_a_block_is_that_of_the_whole_graph() -> None:
    graph = make_graph()
    sample = NeighborSampler(graph, [2]).sample([1, 2, 5])
    (block,) = sample.graphs()
    np.testing.assert_array_equal(block.gcn_norm(), np.asarray(graph.gcn_norm())[sample.edge])
    with pytest.raises(GraphError, match="weighted degrees was asked of a block"):
        block.gcn_norm(np.ones(block.num_edges))


def test_features_of_a_block() -> None:
    (block,) = NeighborSampler(make_graph(), [2]).sample([1, 2, 5]).graphs()
    x = np.zeros((block.num_src, F), np.float32)
    both = block.at_both_ends(x)
    assert isinstance(both, Bipartite)
    assert both.dst.shape == (3, F)
    assert block.at_both_ends(both) is both
    assert make_graph().at_both_ends(x) is x
    with pytest.raises(
        GraphError, match=f"x has 2 rows, but the graph has {block.num_src} sources"
    ):
        block.at_both_ends(x[:2])
    with pytest.raises(GraphError, match=f"x has {block.num_src + 1} rows"):
        SAGE(F, 2, rngs=nnx.Rngs(0))(block, np.zeros((block.num_src + 1, F), np.float32))


def test_weights_of_a_block_have_no_degrees() -> None:
    (block,) = NeighborSampler(make_graph(), [2]).sample([1, 2, 5]).graphs()
    x, weights = np.zeros((block.num_src, F), np.float32), np.ones(block.num_edges, np.float32)
    with pytest.raises(LayerError, match=r"GCN was given weights of the edges of a block"):
        GCN(F, 2, rngs=nnx.Rngs(0))(block, x, edges=weights)
    with pytest.raises(LayerError, match="GGNN was given a graph between two vertex sets"):
        GGNN(F, steps=2, rngs=nnx.Rngs(0))(block, x)
