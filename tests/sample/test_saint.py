"""GraphSAINT's weights: the means over samples are those of the graph."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy import stats

from gnnjit.errors import SampleError
from gnnjit.nn import SAGE
from gnnjit.sample import (
    EdgeSampler,
    FrontierSampler,
    NeighborSampler,
    Normalized,
    Sample,
    VertexSampler,
    WalkSampler,
    Workers,
)
from gnnjit.sample.adjacency import Adjacency
from sample.exact import DIRECTED, KITE, LEAST, random_graph, same_bits

GRAPH = random_graph(40, 60, hubs=2)
MAKERS: dict[str, Any] = {
    "frontier": lambda graph: FrontierSampler(graph, frontier=4, vertices=16),
    "vertex": lambda graph: VertexSampler(graph, vertices=16),
    "edge": lambda graph: EdgeSampler(graph, edges=8),
    "walk": lambda graph: WalkSampler(graph, walks=5, length=2),
}
SAMPLERS = pytest.mark.parametrize("name", MAKERS)


def means(sample: Sample, x: np.ndarray) -> np.ndarray:
    """What a module's weighted mean of neighbours is, per vertex of the sample."""
    assert sample.edge_weight is not None
    rows = np.repeat(np.arange(len(sample.vertices)), np.diff(sample.indptr))
    sums = np.bincount(
        rows, sample.edge_weight * x[sample.vertices][sample.neighbor], len(sample.vertices)
    )
    return sums / np.maximum(np.diff(sample.indptr), 1)


@SAMPLERS
@pytest.mark.parametrize("graph", [GRAPH, DIRECTED], ids=["symmetric", "directed"])
def test_over_the_counted_samples_the_means_are_exact(name: str, graph: Any) -> None:
    """Equations 2 and 3 with counts for chances: nothing is left to chance on the same samples."""
    normalized = Normalized(MAKERS[name](graph), 60, seed=1)
    x = np.random.default_rng(0).standard_normal(graph.num_nodes)
    loss, sums = 0.0, np.zeros(graph.num_nodes)
    for seed in normalized.seeds:
        sample = normalized.sample(seed=seed)
        assert sample.weight is not None
        loss += float(sample.weight @ x[sample.vertices]) / 60
        sums[sample.vertices] += means(sample, x)
    counts = normalized.vertex_count
    assert loss == pytest.approx(x[counts > 0].sum() / graph.num_nodes, rel=1e-5)
    adjacency = Adjacency.of("test", graph)
    rows = np.repeat(np.arange(graph.num_nodes), adjacency.degree())
    seen = normalized.edge_count > 0
    expected = np.bincount(rows[seen], x[adjacency.neighbor][seen], graph.num_nodes)
    expected /= np.maximum(adjacency.degree(), 1)
    np.testing.assert_allclose(sums / np.maximum(counts, 1), expected, rtol=1e-5, atol=1e-6)


@SAMPLERS
def test_over_other_samples_they_are_near(name: str) -> None:
    normalized = Normalized(MAKERS[name](KITE), 3000)
    x = np.array([3.0, -1.0, 2.0, 5.0, 4.0])
    samples = [normalized.sample(seed=seed) for seed in range(3000)]
    loss = np.mean([float(s.weight @ x[s.vertices]) for s in samples if s.weight is not None])
    assert loss == pytest.approx(x.mean(), abs=0.05)
    of_0 = [means(s, x)[s.vertices == 0] for s in samples]
    assert np.concatenate(of_0).mean() == pytest.approx((-1 + 2 + 5) / 3, abs=0.1)


def test_counts_have_the_chances_of_vertices_and_edges() -> None:
    """Of `k` draws with replacement, vertices of chance q are in a sample with 1 - (1 - q)^k."""
    sampler = VertexSampler(KITE, vertices=3, weights="degree")
    normalized = Normalized(sampler, 2000, seed=5)
    q = np.array([3, 2, 2, 2, 1]) / 10
    for v in range(5):
        chance = 1 - (1 - q[v]) ** 3
        test = stats.binomtest(int(normalized.vertex_count[v]), 2000, chance)
        assert test.pvalue > LEAST
    adjacency = sampler.adjacency
    rows = np.repeat(np.arange(5), adjacency.degree())
    for slot, (u, v) in enumerate(zip(adjacency.neighbor, rows, strict=True)):
        chance = 1 - (1 - q[u]) ** 3 - (1 - q[v]) ** 3 + (1 - q[u] - q[v]) ** 3
        test = stats.binomtest(int(normalized.edge_count[slot]), 2000, chance)
        assert test.pvalue > LEAST


def test_a_module_takes_the_weights() -> None:
    """With all of the graph in every sample the weights are 1 and N times the loss's is 1."""
    sampler = FrontierSampler(GRAPH, frontier=2000, vertices=2000)
    sample = Normalized(sampler, 3).sample()
    assert sample.vertex_counts == (40,)
    assert sample.weight is not None
    assert sample.edge_weight is not None
    np.testing.assert_allclose(sample.weight * 40, 1, rtol=1e-6)
    np.testing.assert_allclose(sample.edge_weight, 1, rtol=1e-6)
    some = Normalized(MAKERS["edge"](GRAPH), 20).sample()
    x = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32)
    module = SAGE(3, 2, aggregator="mean", rngs=nnx.Rngs(0))
    (block,) = some.graphs()
    own = jnp.asarray(x[some.vertices])
    out = module(block, own, edges=jnp.asarray(some.edge_weight))
    mean = np.stack([means(some, column) for column in x.T], axis=1).astype(np.float32)
    expected = module.own(own) + module.neighbors(jnp.asarray(mean))
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


def test_what_was_never_counted_weighs_as_if_it_was_once() -> None:
    sampler = WalkSampler(GRAPH, walks=2, length=1)
    normalized = Normalized(sampler, 1)
    never = next(
        sample
        for sample in (normalized.sample(seed=seed) for seed in range(99))
        if (normalized.vertex_count[sample.vertices] == 0).all() and sample.edge_counts[0]
    )
    assert never.weight is not None
    assert never.edge_weight is not None
    np.testing.assert_allclose(never.weight, 1 / 40)
    rows = np.repeat(np.arange(len(never.vertices)), np.diff(never.indptr))
    share = np.diff(never.indptr)[rows] / never.degree[rows]
    np.testing.assert_allclose(never.edge_weight, share, rtol=1e-6)


@SAMPLERS
def test_threads_give_the_same_bits(name: str) -> None:
    sampler = MAKERS[name](random_graph(9000, 30_000))
    alone = Normalized(sampler, 7, seed=2)
    with Workers(3) as workers:
        several = Normalized(sampler, 7, seed=2, workers=workers)
        assert np.array_equal(alone.vertex_count, several.vertex_count)
        assert np.array_equal(alone.edge_count, several.edge_count)
        assert same_bits(alone.sample(seed=1), several.sample(seed=1, workers=workers))
    assert len(set(alone.seeds)) == 7
    assert alone.seconds > 0
    assert (alone.num_seeds, alone.num_layers) == (None, None)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Normalized(MAKERS["walk"](KITE), 0),
            "Normalized: samples is 0, expected a number from 1 to 2147483647",
        ),
        (
            lambda: Normalized(MAKERS["walk"](KITE), 70_000),
            "Normalized: samples is 70000, expected at most 65535",
        ),
        (
            lambda: Normalized(3),  # type: ignore[arg-type]
            "Normalized: sampler is 3, expected one that draws from the whole graph: a "
            "FrontierSampler, VertexSampler, EdgeSampler or WalkSampler",
        ),
        (
            lambda: Normalized(MAKERS["walk"](KITE)).sample([1]),
            "WalkSampler.sample: seeds is [1], expected None: the vertices are drawn from the "
            "whole graph; pass seed= for another sample",
        ),
    ],
)
def test_bad_arguments(make: Any, message: str) -> None:
    with pytest.raises(SampleError) as caught:
        make()
    assert str(caught.value) == message


def test_samplers_with_seeds_are_refused() -> None:
    sampler: Any = NeighborSampler(KITE, (2,))
    with pytest.raises(SampleError, match=r"^Normalized: sampler is .*, expected one that draws"):
        Normalized(sampler)
