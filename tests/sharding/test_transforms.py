"""What JAX does to functions, with layers on shards in them: as on one device."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit

from .functions import F, arguments, gated
from .graphs import EXCHANGES, GRAPHS, assert_same

HUB = GRAPHS["hub"]
X, D, P = arguments(HUB)
OTHER_X, _, OTHER_P = arguments(HUB, seed=1)


@pytest.fixture(params=EXCHANGES)
def sharded(request: pytest.FixtureRequest) -> Any:
    return HUB.shard(4, request.param, "at random")


def layer(graph: Any, x: Any, p: Any) -> Any:
    return gated(graph, x, None, p).vertex


def loss(graph: Any, x: Any, p: Any) -> Any:
    """Padding adds nothing: it has no edges."""
    return jnp.sum(jnp.sin(layer(graph, x, p)))


def on_host(tree: Any) -> Any:
    return jax.tree.map(np.asarray, tree)


def test_uncompiled(sharded):
    got = sharded.get(layer(sharded, sharded.put(X), P))
    assert_same(got, on_host(layer(HUB.graph(), X, P)))


@functools.partial(jax.jit, static_argnames="axis")
def batched(graph, xs, axis):
    f = jax.vmap(jax.value_and_grad(loss, 1), in_axes=(None, axis, None))
    return f(graph, xs, P)


@pytest.mark.parametrize("axis", [0, 2])
def test_vmap_over_features(sharded, axis):
    xs = np.stack([X, OTHER_X], axis=axis)
    put = jnp.stack([sharded.put(X), sharded.put(OTHER_X)], axis=axis)
    values, grads = batched(sharded, put, axis=axis)
    got = np.asarray(values), np.stack([sharded.get(row) for row in grads])
    assert_same(got, on_host(batched(HUB.graph(), xs, axis=axis)))


by_parameters = jax.jit(jax.vmap(jax.grad(loss, 2), in_axes=(None, None, 0)))


def test_vmap_over_parameters(sharded):
    stacked = jax.tree.map(lambda a, b: jnp.stack([a, b]), P, OTHER_P)
    got = on_host(by_parameters(sharded, sharded.put(X), stacked))
    assert_same(got, on_host(by_parameters(HUB.graph(), X, stacked)))


@jax.jit
def pushed(graph, x, p, dx, dp):
    return jax.jvp(lambda x, p: layer(graph, x, p), (x, p), (dx, dp))


def test_jvp(sharded):
    got = pushed(sharded, sharded.put(X), P, sharded.put(OTHER_X), OTHER_P)
    assert_same(sharded.get(got), on_host(pushed(HUB.graph(), X, P, OTHER_X, OTHER_P)))


@functools.partial(jax.jit, static_argnames="mode")
def hessian_times(graph, x, t, mode):
    gradient = jax.grad(lambda x: loss(graph, x, P))
    if mode == "forward over reverse":
        return jax.jvp(gradient, (x,), (t,))[1]
    return jax.grad(lambda x: jnp.vdot(gradient(x), t))(x)


@pytest.mark.parametrize("mode", ["forward over reverse", "reverse over reverse"])
def test_hessian_vector_product(sharded, mode):
    got = sharded.get(hessian_times(sharded, sharded.put(X), sharded.put(OTHER_X), mode=mode))
    assert_same(got, on_host(hessian_times(HUB.graph(), X, OTHER_X, mode=mode)))


@gnnjit.layer
def step(v, e, w):
    return v + jnp.tanh(gnnjit.mean(e.src @ w))


@functools.partial(jax.jit, static_argnames="kept")
def deep(graph, x, weights, kept):
    def body(x, w):
        return step(graph, x, w), None

    def loss(x, weights):
        one = jax.checkpoint(body) if kept == "checkpoint" else body
        return jnp.sum(jnp.sin(jax.lax.scan(one, x, weights)[0]))

    return jax.value_and_grad(loss, (0, 1))(x, weights)


@pytest.mark.parametrize("kept", ["all", "checkpoint"])
def test_scan_over_layers(sharded, kept):
    weights = np.random.default_rng(0).normal(size=(3, F, F)).astype(np.float32)
    value, (dx, dw) = deep(sharded, sharded.put(X), weights, kept=kept)
    got = on_host((value, (sharded.get(dx), dw)))
    assert_same(got, on_host(deep(HUB.graph(), X, weights, kept=kept)))


@gnnjit.layer
def drawn(v, e, key):
    edge = gnnjit.dropout(e.data, 0.4, key), gnnjit.random_uniform(key, like=e.data)
    message = gnnjit.dropout(e.src * e.data, 0.5, key)
    return (gnnjit.dropout(v, 0.3, key), gnnjit.sum(message)), (
        *edge,
        gnnjit.dropout(e.src, 0.5, key),
    )


def test_random_numbers_follow_the_users_numbering(sharded):
    """Masks are equal bit for bit: what is dropped is exactly 0."""
    key = jax.random.key(3)
    vertex, edge = jax.jit(drawn)(sharded, sharded.put(X), key, edges=sharded.put_edges(D))
    want = on_host(jax.jit(drawn)(HUB.graph(), X, key, edges=D))
    got = sharded.get(vertex), sharded.get_edges(edge)
    assert_same(got, want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(a == 0, b == 0)


def test_reference(sharded):
    @gnnjit.layer
    def layer(v, e, key):
        return gnnjit.sum(gnnjit.dropout(e.src, 0.5, key)) + gnnjit.degree(), e.src - v

    key = jax.random.key(0)
    with gnnjit.reference():
        vertex, edge = layer(sharded, sharded.put(X), key)
    want = on_host(layer(HUB.graph(), X, key))
    assert_same((sharded.get(vertex), sharded.get_edges(edge)), want)


def test_check(sharded):
    assert step.check(sharded, sharded.put(X), P["w"][:, :F]).ok


def test_explain(sharded):
    assert repr(sharded) in str(step.explain(sharded, sharded.put(X), P["w"][:, :F]))
