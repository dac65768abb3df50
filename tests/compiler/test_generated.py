"""Generated graphs, and generated layer functions, against plain code."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from strategies import edge_lists, expressions

import gnnjit

from .cases import GRAPHS, Case
from .test_oracle import compare

N, E, F = 7, 14, 3
RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(N, F)), jnp.float32)
D = jnp.asarray(RNG.normal(size=(E, F)), jnp.float32)


@gnnjit.layer
def everything(v, e):
    m = jnp.tanh(e.src * e.data + v)
    weight = gnnjit.softmax(m * v)
    return jnp.concatenate([gnnjit.sum(weight * e.src), gnnjit.max(m), gnnjit.std(m)]), m


def by_hand(src: Any, dst: Any, real: Any, x: Any, d: Any) -> Any:
    """Dense, with a row of `inside` per vertex: which edges are its own."""
    inside = (dst[None] == jnp.arange(N)[:, None]) & real[None]
    count = jnp.maximum(inside.sum(1), 1)[:, None]
    some = inside.any(1)[:, None]
    m = jnp.tanh(x[src] * d + x[dst])

    def total(y: Any) -> Any:
        return jnp.einsum("ne,ef->nf", inside.astype(y.dtype), y)

    exp = jnp.exp(m * x[dst])
    soft = total(exp * x[src]) / jnp.where(some, total(exp), 1)
    most = jnp.max(jnp.where(inside[..., None], m, -9.0), axis=1)
    var = total(jnp.square(m - (total(m) / count)[dst])) / count
    std = jnp.where(var > 0, jnp.sqrt(jnp.where(var > 0, var, 1)), 0)
    return jnp.concatenate([soft, jnp.where(some, most, 0), std], axis=1), m * real[:, None]


@jax.jit
def compiled(graph: Any, x: Any, d: Any) -> Any:
    return everything(graph, x, edges=d)


@jax.jit
def gradient(graph: Any, x: Any, d: Any) -> Any:
    def loss(x: Any, d: Any) -> Any:
        out, m = everything(graph, x, edges=d)
        return jnp.sum(jnp.sin(out)) + jnp.sum(m**2)

    return jax.grad(loss, (0, 1))(x, d)


@jax.jit
def gradient_by_hand(src: Any, dst: Any, real: Any, x: Any, d: Any) -> Any:
    def loss(x: Any, d: Any) -> Any:
        out, m = by_hand(src, dst, real, x, d)
        return jnp.sum(jnp.sin(out)) + jnp.sum(m**2)

    return jax.grad(loss, (0, 1))(x, d)


@given(edge_lists(N, E))
@settings(max_examples=40)
def test_graphs(edges):
    """Padded to one size: one compilation for all of them, and NaN behind the edges."""
    src, dst = edges
    graph = gnnjit.Graph.from_edges(src, dst, N).pad(N, E)
    real = jnp.arange(E) < len(src)
    data = jnp.where(real[:, None], D, jnp.nan)
    padded = (jnp.asarray(np.pad(a, (0, E - len(a)))) for a in (src, dst))
    args = (*padded, real, X, D)
    want = (by_hand(*args), gradient_by_hand(*args))
    have = (compiled(graph, X, data), gradient(graph, X, data))
    for a, b in zip(jax.tree.leaves(have), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-4)


@given(expressions())
@settings(max_examples=4)
def test_functions(fn):
    def layer(g: Any, v: Any, e: Any, p: Any) -> Any:
        return g.sum(jnp.tanh(fn(g, v, e, p)) * e.data)

    compare(Case(layer), GRAPHS["hub"])
