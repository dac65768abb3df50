"""Generated graphs and partitions. Padding holds NaN: it reaches no result and no gradient."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import edge_lists

import gnnjit

from .graphs import EXCHANGES, assert_same, mesh

N, E, F = 7, 14, 3
RNG = np.random.default_rng(0)
X, D = RNG.normal(size=(N, F)).astype(np.float32), RNG.normal(size=(E, F)).astype(np.float32)
W = RNG.normal(size=(F, F)).astype(np.float32)


@gnnjit.layer
def layer(v, e, w):
    m = jnp.tanh((e.src @ w) * e.data + v @ w)
    weight = gnnjit.softmax(m * v)
    return jnp.concatenate([gnnjit.sum(weight * e.src), gnnjit.max(m), gnnjit.std(m)]), m


@jax.jit
def results(graph: Any, real: Any, x: Any, d: Any, w: Any) -> Any:
    """Values and gradients; a loss over what is `real`."""

    def loss(x: Any, d: Any, w: Any) -> Any:
        vertex, edge = layer(graph, x, w, edges=d)
        seen = [jnp.where(r[:, None], y, 0) for r, y in zip(real, (vertex, edge), strict=True)]
        return jnp.sum(jnp.sin(seen[0])) + jnp.sum(seen[1] ** 2), (vertex, edge)

    return jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(x, d, w)


def on_one_device(src: Any, dst: Any) -> Any:
    """Padded to one size: one compilation for all graphs."""
    graph = gnnjit.Graph.from_edges(src, dst, N).pad(N, E)
    real = jnp.ones(N, bool), jnp.arange(E) < len(src)
    (value, (vertex, edge)), (dx, dd, dw) = results(graph, real, X, D, W)
    count = len(src)
    return jax.tree.map(np.asarray, (value, vertex, edge[:count], dx, dd[:count], dw))


@st.composite
def dealt(draw: st.DrawFn) -> tuple[int, list[int]]:
    """The number of shards, and that of each vertex: often all alike, or on few of them."""
    shards = draw(st.sampled_from([1, 2, 3, 4, 8]))
    some = draw(st.lists(st.integers(0, shards - 1), min_size=1, max_size=3))
    return shards, draw(st.lists(st.sampled_from(some), min_size=N, max_size=N))


@pytest.mark.long
@pytest.mark.once
@given(edge_lists(N, E), dealt(), st.sampled_from(EXCHANGES))
@settings(max_examples=12)
def test_graphs_and_partitions(edges, dealt, exchange):
    src, dst = edges
    shards, partition = dealt
    graph = gnnjit.Graph.from_edges(src, dst, N)
    sharded = gnnjit.shard(graph, mesh(shards), partition=partition, exchange=exchange)
    real = sharded.vertex_mask, sharded.mask
    rows = sharded.put(X), sharded.put_edges(D[: len(src)])
    x, d = (jnp.where(r[:, None], a, jnp.nan) for r, a in zip(real, rows, strict=True))
    (value, (vertex, edge)), (dx, dd, dw) = results(sharded, real, x, d, W)
    get, get_edges = sharded.get, sharded.get_edges
    got = value, get(vertex), get_edges(edge), get(dx), get_edges(dd), dw
    assert_same(jax.tree.map(np.asarray, got), on_one_device(src, dst), rtol=2e-3, atol=1e-4)
    assert not np.asarray(dx)[~np.asarray(real[0])].any()
    assert not np.asarray(dd)[~np.asarray(real[1])].any()
