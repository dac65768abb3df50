"""Derivatives of higher order, and layers under JAX's transformations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit

from .cases import CASES, GRAPHS, features, layer_of
from .plain import plain

E = GRAPHS["isolated"]
G = E.graph()
AT = features(E)


def compiled(name: str) -> Any:
    layer = layer_of(CASES[name].fn)
    return lambda x, w: layer(G, x, {**AT["p"], "w": w}, edges=AT["data"])


def oracle(name: str) -> Any:
    fn, count = CASES[name].fn, len(E.src)
    return lambda x, w: plain(fn, E, x, x, AT["data"], {**AT["p"], "w": w})[count:]


def loss(f: Any) -> Any:
    return lambda x, w: jnp.sum(jnp.sin(f(x, w)))


def close(a: Any, b: Any, rtol: float = 2e-3) -> None:
    for have, want in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        scale = float(jnp.max(jnp.abs(want))) + 1e-6
        np.testing.assert_allclose(have, want, atol=rtol * scale)


def hessian(f: Any) -> Any:
    return jax.hessian(loss(f), 1)


def reverse_over_reverse(f: Any) -> Any:
    return jax.grad(lambda x, w: jnp.sum(jnp.cos(jax.grad(loss(f), 1)(x, w))), 0)


def forward(f: Any) -> Any:
    return lambda x, w: jax.jvp(f, (x, w), (x * 0.5, jnp.ones_like(w)))


def third(f: Any) -> Any:
    def along(t: Any, x: Any, w: Any) -> Any:
        return loss(f)(x * (1 + t), w * (1 + t))

    return lambda x, w: jax.grad(jax.grad(jax.grad(along)))(0.1, x, w)


def over_features(f: Any) -> Any:
    return lambda x, w: jax.vmap(f, (0, None))(jnp.stack([x, -x, x * 2]), w)


def over_parameters(f: Any) -> Any:
    return lambda x, w: jax.vmap(jax.grad(loss(f), 1), (None, 2))(x, jnp.stack([w, w * 2], 2))


def checkpointed(f: Any) -> Any:
    return lambda x, w: jax.grad(jax.checkpoint(loss(f)), (0, 1))(x, w)


DERIVED = [hessian, reverse_over_reverse, forward, third, over_features, over_parameters,
           checkpointed]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "derive"),
    [
        *(("gat_concat", d) for d in DERIVED),
        ("extremes", hessian),
        ("moments", forward),
        ("vectors", reverse_over_reverse),
    ],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_derived(name, derive):
    args = AT["dst"] * 0.5, AT["p"]["w"]
    close(jax.jit(derive(compiled(name)))(*args), jax.jit(derive(oracle(name)))(*args))


def test_scan_over_layers():
    step = gnnjit.layer(lambda v, e, w: jnp.tanh(gnnjit.sum(e.src * e.dst) @ w + v))
    square = AT["p"]["w"][:, :3]

    def run(f: Any, w: Any) -> Any:
        return jnp.sum(jax.lax.scan(lambda h, _: (f(h, w), None), AT["dst"], None, length=3)[0])

    def by_hand(h: Any, w: Any) -> Any:
        total = jax.ops.segment_sum(h[E.src] * h[E.dst], E.dst, E.num_dst)
        return jnp.tanh(total @ w + h)

    have = jax.value_and_grad(lambda w: run(lambda h, w: step(G, h, w), w))(square)
    close(have, jax.value_and_grad(lambda w: run(by_hand, w))(square))


@pytest.mark.parametrize("name", ["edge_mlp", "extremes"])
def test_edges_traced_in_jit(name):
    layer = layer_of(CASES[name].fn)

    @jax.jit
    def value_and_grad(src: Any, dst: Any, x: Any) -> Any:
        def f(x: Any) -> Any:
            graph = gnnjit.Graph.from_edges(src, dst, num_nodes=E.num_dst)
            return jnp.sum(jnp.sin(layer(graph, x, AT["p"], edges=AT["data"])))

        return jax.value_and_grad(f)(x)

    want = jax.value_and_grad(lambda x: loss(oracle(name))(x, AT["p"]["w"]))(AT["dst"])
    close(value_and_grad(E.src, E.dst, AT["dst"]), want)


def test_graphs_of_their_own_under_vmap():
    layer = gnnjit.layer(lambda v, e, w: gnnjit.max(jnp.tanh(e.src @ w + v)))
    w = AT["p"]["w"][:, :3]

    def one(src: Any, dst: Any, x: Any, w: Any) -> Any:
        return layer(gnnjit.Graph.from_edges(src, dst, num_nodes=6), x, w)

    src, dst = np.array([[0, 1, 2], [3, 3, 6]]), np.array([[1, 1, 0], [2, 2, 1]])  # 6: no edge
    xs = jnp.stack([AT["dst"], AT["dst"] * 2])
    batched = jax.vmap(one, (0, 0, 0, None))
    have = jax.value_and_grad(lambda w: jnp.sum(jnp.sin(batched(src, dst, xs, w))))(w)

    def by_hand(i: int, w: Any, count: int) -> Any:
        graph = gnnjit.Graph.from_edges(src[i, :count], dst[i, :count], 6)
        return jnp.sum(jnp.sin(layer(graph, xs[i], w)))

    want = jax.value_and_grad(lambda w: by_hand(0, w, 3) + by_hand(1, w, 2))(w)
    close(have, want)


def test_a_layer_of_layers():
    inner = gnnjit.layer(lambda v, e, w: gnnjit.mean(e.src @ w))
    both = jax.jit(lambda x, w: inner(G, jnp.tanh(inner(G, x, w)), w))
    w = AT["p"]["w"][:, :3]

    def mean(x: Any) -> Any:
        count = jnp.maximum(jnp.bincount(E.dst, length=6), 1)[:, None]
        return jax.ops.segment_sum((x @ w)[E.src], E.dst, 6) / count

    close(both(AT["dst"], w), mean(jnp.tanh(mean(AT["dst"]))))


@pytest.mark.parametrize("name", ["gat_concat", "edge_mlp"])
def test_reruns_are_bitwise_equal(name):
    e = GRAPHS["hub"]
    graph, at, layer = e.graph(), features(e), layer_of(CASES[name].fn)
    f = jax.jit(jax.value_and_grad(
        lambda at: jnp.sum(jnp.sin(layer(graph, at["dst"], at["p"], edges=at["data"])))
    ))  # fmt: skip
    first, second = jax.tree.leaves(f(at)), jax.tree.leaves(f(at))
    for a, b in zip(first, second, strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_the_same_layer_twice_compiles_once():
    traced: list[int] = []

    @gnnjit.layer
    def f(v, e):
        traced.append(1)
        return gnnjit.sum(jax.nn.silu(e.src + v))

    g = jax.jit(f)
    g(G, AT["dst"])
    g(G, AT["dst"] * 2)
    assert len(traced) == 1
