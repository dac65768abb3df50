"""Samples that nothing is left to chance in: hops around seeds, clusters, whole graphs."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from graph.strategies import edge_lists
from hypothesis import given
from hypothesis import strategies as st

from gnnjit.errors import GraphError, SampleError
from gnnjit.graph import Graph, batch
from gnnjit.nn import SAGE
from gnnjit.partition import Partition
from gnnjit.sample import ClusterSampler, GraphSampler, HopSampler, Workers
from sample.exact import DIRECTED, KITE, check_induced, graph_of, random_graph, same_bits

# ---- hops


@given(
    edge_lists(masked=False), st.lists(st.integers(0, 5), min_size=1, max_size=4),
    st.integers(0, 3),
)  # fmt: skip
def test_hops_find_what_a_search_finds(edges, seeds, hops) -> None:
    graph = Graph.from_edges(edges.src, edges.dst, edges.num_dst)
    seeds = [s % edges.num_dst for s in seeds]
    sample = HopSampler(graph, hops=hops).sample(seeds)
    reached = set(seeds)
    for _ in range(hops):
        reached |= {int(u) for u, v in zip(edges.src, edges.dst, strict=True) if v in reached}
    assert set(sample.vertices.tolist()) == reached
    assert sample.seeds is not None
    assert sample.vertices[sample.seeds].tolist() == seeds
    assert sample.vertices[: len(set(seeds))].tolist() == list(dict.fromkeys(seeds))
    check_induced(graph, sample)


def test_layers_give_seeds_what_they_do_on_the_graph() -> None:
    graph = random_graph(200, 250)
    x = np.random.default_rng(0).standard_normal((200, 4)).astype(np.float32)
    modules = [SAGE(4, 5, rngs=nnx.Rngs(0)), SAGE(5, 3, rngs=nnx.Rngs(1))]
    sample = HopSampler(graph, hops=2).sample([7, 3, 40])
    assert len(sample.vertices) < 150
    expected: Any = jnp.asarray(x)
    out: Any = jnp.asarray(x[sample.vertices])
    (block,) = sample.graphs()
    for module in modules:
        expected, out = module(graph, expected), module(block, out)
    np.testing.assert_allclose(out[sample.seeds], expected[np.array([7, 3, 40])], rtol=1e-5)


# ---- clusters


def test_clusters_come_with_the_edges_between_them() -> None:
    sampler = ClusterSampler(KITE, [2, 0, 1, 0, 0])
    assert sampler.num_seeds == 3
    sample = sampler.sample([2, 0])
    assert sample.vertices.tolist() == [0, 1, 3, 4]
    check_induced(KITE, sample)
    assert sampler.sample([0, 2, 0]).vertices.tolist() == [1, 3, 4, 0]
    assert sampler.sample([]).sizes == (0, 0)
    partition = Partition.of_assignment([2, 0, 1, 0, 0], 3)
    assert same_bits(ClusterSampler(KITE, partition).sample([2, 0]), sample)


@pytest.mark.parametrize("method", ["rcm", "given", "auto"])
def test_clusters_are_made(method: Any) -> None:
    graph = random_graph(300, 900)
    sampler = ClusterSampler(graph, 7, method=method)
    assert sampler.num_seeds == 7
    everything = [sampler.sample([c]).vertices for c in range(7)]
    assert sorted(np.concatenate(everything).tolist()) == list(range(300))
    edges = [int(sampler.sample([c]).degree.sum()) for c in range(7)]
    assert max(edges) < 1.2 * graph.num_edges / 7
    check_induced(graph, sampler.sample([3, 5]))


def test_making_clusters_keeps_neighbours_together() -> None:
    ring = graph_of([(i, (i + 37) % 200) for i in range(200)], 200)
    near = ClusterSampler(ring, 10, method="rcm").sample([4])
    assert near.edge_counts[0] > ClusterSampler(ring, 10, method="given").sample([4]).edge_counts[0]


# ---- graphs


def test_graphs_are_those_of_a_batch() -> None:
    graphs = [KITE, DIRECTED, Graph.from_edges([], [], 0), graph_of([(1, 0)], 2)]
    sampler = GraphSampler(graphs)
    assert sampler.num_seeds == 4
    sample = sampler.sample([3, 2, 0])
    (got,) = sample.graphs()
    wanted, index = batch([graphs[3], graphs[2], graphs[0]])
    assert sample.tree is not None
    assert sample.tree.tolist() == np.asarray(index).tolist()
    assert sample.vertices.tolist() == [11, 12, 0, 1, 2, 3, 4]
    ends = [
        sorted(zip(np.asarray(g.src).tolist(), np.asarray(g.dst).tolist(), strict=True))
        for g in (got, wanted)
    ]
    assert ends[0] == ends[1]


# ---- all


@pytest.mark.parametrize(
    "make",
    [
        lambda graph: (HopSampler(graph, hops=1), np.arange(4000)),
        lambda graph: (ClusterSampler(graph, 9, method="given"), [1, 4, 7, 2]),
        lambda graph: (GraphSampler([graph, KITE, graph]), [2, 0]),
    ],
    ids=["hops", "clusters", "graphs"],
)
def test_threads_and_seeds_of_batches_give_the_same_bits(make: Any) -> None:
    sampler, seeds = make(random_graph(20_000, 60_000, hubs=2))
    first = sampler.sample(seeds, 1)
    with Workers(3) as workers:
        assert same_bits(first, sampler.sample(seeds, 2, workers=workers))
    assert sampler.num_layers is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: HopSampler(KITE).sample([5]),
            "HopSampler.sample: seeds[0] is 5, expected a vertex from 0 to 4: number vertices as "
            "the graph does",
        ),
        (
            lambda: ClusterSampler(KITE, 0),
            "ClusterSampler: clusters is 0, expected a number from 1 to 2147483647",
        ),
        (
            lambda: ClusterSampler(KITE, [0, 1]),
            "ClusterSampler: clusters is int64 of shape (2,), expected how many to make, a "
            "Partition, or the cluster of each vertex, int[5]",
        ),
        (
            lambda: ClusterSampler(KITE, Partition.of_assignment([0, 1], 2)),
            "ClusterSampler: the partition has 2 vertices and the graph 5, expected a partition of "
            "this graph",
        ),
        (
            lambda: ClusterSampler(KITE, [0, 0, 1, 1, 1]).sample([0, 2]),
            "ClusterSampler.sample: seeds[1] is 2, expected a cluster from 0 to 1",
        ),
        (
            lambda: ClusterSampler(KITE, [0, 0, 1, 1, 1]).sample(None),
            "ClusterSampler.sample: seeds is None, expected some: int[B], each a cluster",
        ),
        (
            lambda: GraphSampler([KITE]).sample([-1]),
            "GraphSampler.sample: seeds[0] is -1, expected a graph from 0 to 0",
        ),
        (
            lambda: GraphSampler([KITE, KITE]).sample([1, 0, 1]),
            "GraphSampler.sample: seeds holds 1 more than once, expected each graph at most once: "
            "put it into two batches",
        ),
    ],
)
def test_bad_arguments(make: Any, message: str) -> None:
    with pytest.raises(SampleError) as caught:
        make()
    assert str(caught.value) == message


def test_an_unknown_method_and_a_negative_assignment() -> None:
    with pytest.raises(SampleError, match=r"^ClusterSampler: .*rcm"):
        ClusterSampler(KITE, 2, method="mtis")  # type: ignore[arg-type]
    with pytest.raises(SampleError, match=r"^ClusterSampler: .*-1"):
        ClusterSampler(KITE, [0, 1, -1, 0, 0])
    with pytest.raises(GraphError, match="hops is -1"):
        HopSampler(KITE, hops=-1)
