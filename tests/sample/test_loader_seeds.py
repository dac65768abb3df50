"""Loaders whose seeds are links, clusters or graphs."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from gnnjit import Graph
from gnnjit.errors import SampleError
from gnnjit.sample import (
    ClusterSampler,
    GraphSampler,
    LinkSampler,
    Loader,
    NegativeSampler,
    NeighborSampler,
)

N, E = 60, 240


@pytest.fixture(scope="module")
def graph() -> Graph:
    src, dst = np.random.default_rng(0).integers(0, N, (2, E))
    return Graph.from_edges(src, dst, N)


def test_links(graph: Graph) -> None:
    src, dst = np.asarray(graph.src), np.asarray(graph.dst)
    sampler = LinkSampler(
        NeighborSampler(graph, (3, 2)), src, dst, negatives=NegativeSampler(graph, count=2)
    )
    rating, x = np.arange(E, dtype=np.float32), np.arange(N, dtype=np.float32)[:, None]
    loader = Loader(sampler, x, rating, batch_size=50, shapes=2, threads=0)
    seen = []
    for batch in loader:
        batch = jax.tree.map(np.asarray, batch)
        assert batch.seeds.shape == (150, 2)
        real = np.flatnonzero(batch.mask)
        ends = batch.vertices[batch.seeds]
        link = batch.y.astype(int)
        positive = real[batch.label[real] == 1]
        np.testing.assert_array_equal(ends[positive, 0], src[link[positive]])
        np.testing.assert_array_equal(ends[positive, 1], dst[link[positive]])
        negative = real[batch.label[real] == 0]
        np.testing.assert_array_equal(ends[negative, 0], src[link[negative]])
        edges = set(zip(src, dst, strict=True))
        assert not edges & set(zip(ends[negative, 0], ends[negative, 1], strict=True))
        assert len(negative) == 2 * len(positive)
        seen.extend(link[positive])
    assert sorted(seen) == list(range(E))


def test_graphs() -> None:
    rng = np.random.default_rng(1)
    sizes = rng.integers(2, 9, 20)
    graphs = [Graph.from_edges(*rng.integers(0, n, (2, 2 * n)), num_nodes=int(n)) for n in sizes]
    x, y = np.ones((sizes.sum(), 1), np.float32), np.arange(20)
    loader = Loader(GraphSampler(graphs), x, y, batch_size=6, shapes=2, threads=0)
    seen = []
    for batch in loader:
        batch = jax.tree.map(np.asarray, batch)
        assert batch.seeds is None
        held = np.bincount(batch.tree, batch.x[:, 0], minlength=7)
        np.testing.assert_array_equal(held[:6][batch.mask], sizes[batch.y[batch.mask]])
        assert held[6] == 0
        seen.extend(batch.y[batch.mask])
    assert sorted(seen) == list(range(20))


def test_clusters(graph: Graph) -> None:
    sampler = ClusterSampler(graph, np.arange(N) % 5)
    labelled = np.arange(N) < 30
    loader = Loader(sampler, y=np.arange(N), batch_size=2, labelled=labelled, shapes=1, threads=0)
    assert len(loader) == 3
    seen = np.concatenate([np.asarray(batch.y)[np.asarray(batch.mask)] for batch in loader])
    assert sorted(seen) == list(range(30))


def test_loaders_that_share_an_order(graph: Graph) -> None:
    sampler, y = NeighborSampler(graph, (3,)), np.arange(N)

    def make(i: int, n: int) -> Loader:
        return Loader(sampler, y=y, batch_size=8, shapes=1, threads=0, share=(i, n))

    whole = [np.asarray(batch.y)[np.asarray(batch.mask)] for batch in make(0, 1)]
    parts = [[np.asarray(b.y)[np.asarray(b.mask)] for b in make(i, 3)] for i in range(3)]
    assert [len(part) for part in parts] == [3, 3, 3]
    turns = [part for turn in zip(*parts, strict=True) for part in turn]
    assert [list(t) for t in turns] == [*map(list, whole), []]
    with pytest.raises(SampleError, match="state has share"):
        make(0, 3).set_state(make(1, 3).state())
    with pytest.raises(SampleError, match=r"share is \(3, 3\), expected \(i, n\) with i below n"):
        make(3, 3)
    with pytest.raises(SampleError, match="share is 3, expected two numbers"):
        Loader(sampler, share=3)  # type: ignore[arg-type]


class Wrapped(NeighborSampler):
    """A user's sampler, which passes on what it gets."""

    def sample(self, seeds, seed=0, **options):
        return super().sample(seeds, seed, **options)


def test_times_go_to_samplers_that_take_them(graph: Graph) -> None:
    links = LinkSampler(NeighborSampler(graph, (2,)), graph.src, graph.dst)
    clusters = ClusterSampler(graph, np.arange(N) % 5)
    for sampler, message in (
        (links, "LinkSampler, expected none: pass the times of links to LinkSampler"),
        (clusters, "ClusterSampler, expected none: leave times out"),
    ):
        with pytest.raises(SampleError) as raised:
            Loader(sampler, times=np.zeros(sampler.num_seeds))
        assert str(raised.value) == f"Loader: got times with a {message}"
    by_time = Wrapped(graph, (2,), edge_times=np.arange(E))
    batches = list(Loader(by_time, times=np.full(N, -1), batch_size=N, shapes=None))
    assert [batch.graphs[0].num_edges for batch in batches] == [0]
