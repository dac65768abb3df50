"""A second axis of the mesh splits features."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import gnnjit
from gnnjit.lower.sharded import aggregate

from .graphs import random_edges


@gnnjit.layer
def total(v: Any, e: Any, p: Any) -> Any:
    return jnp.tanh(gnnjit.sum(e.src) @ p["w"])


@gnnjit.layer
def gated(v: Any, e: Any, p: Any) -> Any:
    z = e.src @ p["w"]
    return gnnjit.sum(jax.nn.sigmoid(z + v @ p["w"] + p["b"]) * z)


@gnnjit.layer
def attention(v: Any, e: Any, p: Any) -> Any:
    z = e.src @ p["w"]
    score = jax.nn.leaky_relu(z @ p["b"] + (v @ p["w"]) @ p["b"])
    return gnnjit.sum(gnnjit.softmax(score) * z)


@gnnjit.layer
def matmul_on_edges(v: Any, e: Any, p: Any) -> Any:
    return gnnjit.max(jnp.tanh(e.src @ p["w"] + v @ p["w"]) @ p["u"])


E = random_edges(13, 60)
RNG = np.random.default_rng(0)
P = {
    "w": RNG.normal(size=(8, 12)).astype(np.float32),
    "u": RNG.normal(size=(12, 12)).astype(np.float32),
    "b": RNG.normal(size=12).astype(np.float32),
}
X = RNG.normal(size=(13, 8)).astype(np.float32)
WEIGHTS = RNG.normal(size=(13, 12)).astype(np.float32)


def gradients(layer: Any, graph: Any, x: Any, weights: Any) -> Any:
    def loss(x: Any, p: Any) -> Any:
        return jnp.sum(layer(graph, x, p) * weights)

    return jax.jit(jax.value_and_grad(loss, (0, 1)))(x, P)


@pytest.mark.parametrize("exchange", ["halo", "cover", "ring", "all_gather"])
@pytest.mark.parametrize("layer", [total, gated, attention, matmul_on_edges])
def test_equal(layer: Any, exchange: str) -> None:
    mesh = Mesh(np.asarray(jax.devices()[:6]).reshape(3, 2), ("shards", "features"))
    graph = gnnjit.shard(
        E.graph(), mesh, "shards", partition="vertices", exchange=exchange, features="features"
    )
    value, (x, p) = gradients(layer, graph, graph.put(X), graph.put(WEIGHTS))
    want, (want_x, want_p) = gradients(layer, E.graph(), X, WEIGHTS)
    np.testing.assert_allclose(value, want, rtol=1e-4)
    np.testing.assert_allclose(graph.get(x), want_x, rtol=1e-4, atol=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), p, want_p)


@pytest.mark.parametrize(
    ("layer", "split"), [(total, True), (gated, True), (matmul_on_edges, False)]
)
def test_what_treats_features_alone_is_split(layer: Any, split: bool, monkeypatch: Any) -> None:
    found = []

    def narrowed(body: Any, parts: int, original: Any = aggregate.narrowed) -> Any:
        found.append(original(body, parts) is not None)
        return original(body, parts)

    monkeypatch.setattr(aggregate, "narrowed", narrowed)
    mesh = Mesh(np.asarray(jax.devices()[:4]).reshape(2, 2), ("shards", "features"))
    graph = gnnjit.shard(
        E.graph(), mesh, "shards", partition="vertices", exchange="halo", features="features"
    )
    jax.jit(layer).lower(graph, graph.put(X), P)
    assert set(found) == {split}
