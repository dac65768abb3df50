"""Levels of one vertex set are graphs: they stream, shard and are sampled as others."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import gnnjit
from gnnjit import neighborhood
from gnnjit.errors import GraphError
from gnnjit.neighborhood import HDG, metapaths, random_walks
from gnnjit.sample import NeighborSampler
from gnnjit.streaming import StreamedGraph
from neighborhood.naive import movies

pooled = gnnjit.layer(lambda v, e, w: v @ w + gnnjit.sum(e.data * jnp.tanh(e.src @ w)))


def walked() -> tuple[HDG, jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    graph = gnnjit.Graph.from_edges(*rng.integers(0, 40, (2, 160)), num_nodes=41)
    x, w = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((41, 3), (3, 2)))
    return random_walks(graph, top_k=5), x, w


def test_sharded() -> None:
    hdg, x, w = walked()
    level, (data,) = hdg.levels[0], hdg.edges
    sharded = gnnjit.shard(level, Mesh(np.array(jax.devices()[:4]), "d"), exchange="halo")
    y = jax.jit(pooled)(sharded, sharded.put(x), w, edges=sharded.put_edges(data))
    np.testing.assert_allclose(sharded.get(y), pooled(level, x, w, edges=data), atol=1e-5)


def test_streamed() -> None:
    hdg, x, w = walked()
    level, (data,) = hdg.levels[0], hdg.edges

    def loss(w: jax.Array, graph: gnnjit.Graph, x: jax.Array, data: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(pooled(graph, x, w, edges=data)))

    big = StreamedGraph.from_edges(level.src, level.dst, level.num_nodes)
    streamed = gnnjit.stream(jax.grad(loss), memory_budget="1MiB", parts=2)
    found = streamed(w, big, big.put("x", np.asarray(x)), big.put_edges("d", np.asarray(data)))
    np.testing.assert_allclose(found, jax.grad(loss)(w, level, x, data), atol=1e-5)


def test_sampled() -> None:
    hdg, x, w = walked()
    level, (data,) = hdg.levels[0], hdg.edges
    sample = NeighborSampler(level, [-1]).sample([3, 40, 7])
    block, rows = sample.graphs()[0], x[sample.vertices]
    some = pooled(block, rows, w, edges=data[sample.edge])
    np.testing.assert_allclose(some, pooled(level, x, w, edges=data)[jnp.array([3, 40, 7])],
                               atol=1e-6)  # fmt: skip


@gnnjit.layer
def at_positions(v: Any, e: Any, p: Any) -> Any:
    return gnnjit.sum(e.src * p[e.relation]) + 0.1 * v


@gnnjit.layer
def attend(v: Any, e: Any, p: Any) -> Any:
    score = jnp.tanh(jnp.sum(e.src * p[e.relation]) + jnp.sum(v))
    return gnnjit.sum(gnnjit.softmax(score) * e.src)


@pytest.mark.parametrize("by", ["cost", pytest.param("given", marks=pytest.mark.long)])
def test_metapaths_are_sharded_by_their_roots(by: str) -> None:
    graph = movies()
    hdg = metapaths(graph, [["m", "d", "m"], ["m", "a", "m"]])
    rng = np.random.default_rng(0)
    x = {t: jnp.asarray(rng.normal(size=(n, 4)), jnp.float32) for t, n in graph.num_nodes.items()}
    p = jnp.asarray(rng.normal(size=(3, 4)), jnp.float32)
    given = None if by == "cost" else [3, 0, 3, 1, 0, 1]
    mesh = Mesh(np.array(jax.devices()[:4]), "d")
    sharded = neighborhood.shard(hdg, mesh, partition=given, exchange="halo")

    def loss(p: Any, hdg: Any, x: Any, weight: Any) -> Any:
        stages = [functools.partial(f, p=p) for f in (at_positions, attend, attend)]
        out = hdg(x, *stages, lambda roots, h: roots + h)
        return jnp.sum(jnp.sin(out) * weight), out

    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 2), has_aux=True))
    weight = jnp.ones((6, 1))
    (one, y), (by_p, by_x) = step(p, hdg, x, weight)
    last = sharded.levels[-1]
    (two, z), (by_q, by_rows) = step(p, sharded, sharded.put(hdg, x), last.put(weight))
    np.testing.assert_allclose(sharded.get(z), y, atol=1e-5)
    np.testing.assert_allclose(two, one, atol=1e-4)
    np.testing.assert_allclose(by_q, by_p, atol=1e-4)
    close = functools.partial(np.testing.assert_allclose, atol=1e-4)
    jax.tree.map(close, sharded.get_features(by_rows), by_x)


def test_walks_are_sharded_by_their_roots() -> None:
    hdg, x, w = walked()
    sharded = neighborhood.shard(hdg, Mesh(np.array(jax.devices()[:4]), "d"), exchange="halo")
    stage = functools.partial(pooled, w=w)
    np.testing.assert_allclose(
        sharded.get(sharded(sharded.put(hdg, x), stage)), hdg(x, stage), atol=1e-5
    )
    edges = np.asarray(sharded.levels[0].edge_counts)
    assert edges.max() < 1.5 * edges.mean()


def test_errors_of_sharding() -> None:
    hdg, x, _ = walked()
    mesh = Mesh(np.array(jax.devices()[:2]), "d")
    with pytest.raises(GraphError, match=r"shard\(\) got Graph.*, expected a concrete HDG"):
        neighborhood.shard(hdg.levels[0], mesh)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match=r"partition has shape \(3,\), expected \(41,\)"):
        neighborhood.shard(hdg, mesh, partition=[0, 1, 0])
    with pytest.raises(GraphError, match="axis is 'x', expected one of the mesh"):
        neighborhood.shard(hdg, mesh, "x")
    with pytest.raises(GraphError, match="of 1 levels was called with 3 stages, expected 1, or 2"):
        neighborhood.shard(hdg, mesh)(x, pooled, pooled, pooled)
