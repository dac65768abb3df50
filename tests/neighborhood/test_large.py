"""Levels of one vertex set are graphs: they stream, shard and are sampled as others."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

import gnnjit
from gnnjit.neighborhood import HDG, random_walks
from gnnjit.sample import NeighborSampler
from gnnjit.streaming import StreamedGraph

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
