"""Gradients through primitives whose results are of several types: counters, positions, flags."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import gnnjit

pytestmark = pytest.mark.usefixtures("loops_stay")

SRC, DST = np.array([0, 1, 2, 0, 3, 4, 2]), np.array([1, 2, 0, 2, 1, 1, 3])
G = gnnjit.Graph.from_edges(SRC, DST, num_nodes=6)
X = jnp.asarray(np.random.default_rng(3).normal(size=(6, 4)), jnp.float32)


@jax.custom_jvp
def counted(x, k):
    return x * x * k, k + 1


@counted.defjvp
def _(primals, tangents):
    x, k = primals
    return counted(x, k), (2 * x * k * tangents[0], np.zeros((), jax.dtypes.float0))


@jax.custom_vjp
def scaled(x, k):
    return jnp.sin(x) * k, k + 1


scaled.defvjp(
    lambda x, k: (scaled(x, k), (x, k)),
    lambda res, ct: (ct[0] * jnp.cos(res[0]) * res[1], np.zeros((), jax.dtypes.float0)),
)


def carries(m):
    def step(c, i):
        return (jnp.sin(c[0]), c[1] + i), c[0] * c[1]

    (a, n), steps = lax.scan(step, (m, jnp.int32(1)), jnp.arange(3))
    return a * n + steps[-1]


def no_rule_beside(m):
    """A primitive without a derivative, on a path through which no gradient flows."""
    return m + lax.nextafter(lax.stop_gradient(m * 2), jnp.ones_like(m))


CASES: dict[str, Any] = {
    "fori_loop": lambda m: lax.fori_loop(0, 4, lambda i, c: jnp.cos(c) * (i + 1), m),
    "scan": carries,
    "top_k": lambda m: lax.top_k(m, 3)[0] * (1 + lax.top_k(m, 3)[1]),
    "sort": lambda m: lax.sort((m, jnp.arange(4)), num_keys=1)[0] * 3,
    "argsort": lambda m: jnp.tanh(m[jnp.argsort(m)]),
    "argmax": lambda m: m * jnp.argmax(m),
    "custom_jvp": lambda m: counted(m, jnp.int32(3))[0],
    "custom_vjp": lambda m: scaled(m, jnp.int32(3))[0],
    "integer_pow": lambda m: m**3,
    "frexp": lambda m: jnp.frexp(m)[0] * jnp.frexp(m)[1],
    "cond": lambda m: lax.cond(m[0] > 0, lambda: (m, 1), lambda: (m * m, 2))[0],
    "lu": lambda m: lax.linalg.lu(jnp.outer(m, m) + jnp.eye(4))[0][1],
    "no rule": no_rule_beside,
}


def longhand(f: Any, x: jax.Array) -> jax.Array:
    """The maximum over incoming edges, without gnnjit."""
    messages = jax.vmap(f)(x[SRC] * x[DST])
    into = (jnp.arange(6)[:, None] == DST)[..., None]
    most = jnp.where(into, messages, -jnp.inf).max(1)
    return jnp.where(into.any(1), most, 0)


def gradient(run):
    return jax.grad(lambda x: jnp.square(run(x)).sum())


@pytest.mark.parametrize("name", CASES)
def test_a_maximum_has_a_gradient(name):
    layer = gnnjit.layer(lambda v, e: gnnjit.max(CASES[name](e.src * v)))
    assert jax.eval_shape(gradient(lambda x: layer(G, x)), X).shape == X.shape


@pytest.mark.parametrize("name", ["scan", "top_k", "custom_vjp", "no rule"])
def test_the_gradient_of_a_maximum(name):
    f = CASES[name]
    layer = gnnjit.layer(lambda v, e: gnnjit.max(f(e.src * v)))
    got, want = gradient(lambda x: layer(G, x))(X), gradient(lambda x: longhand(f, x))(X)
    assert np.abs(want).max() > 0.1
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("said", ["logsumexp", "softmax", "min", "std"])
def test_other_words_have_gradients(said):
    def f(v, e):
        m = carries(e.src * v)
        found = getattr(gnnjit, said)(m)
        return gnnjit.sum(found * m) if said == "softmax" else found

    layer = gnnjit.layer(f)
    assert jax.eval_shape(gradient(lambda x: layer(G, x)), X).shape == X.shape


def test_forward_through_a_loop_of_unknown_length():
    def halve(m):
        return lax.while_loop(lambda c: c[1] < 3, lambda c: (c[0] / 2, c[1] + 1), (m, 0))[0]

    layer = gnnjit.layer(lambda v, e: gnnjit.max(halve(e.src * v)))
    got = jax.jvp(lambda x: layer(G, x), (X,), (jnp.ones_like(X),))[1]
    want = jax.jvp(lambda x: longhand(lambda m: m / 8, x), (X,), (jnp.ones_like(X),))[1]
    np.testing.assert_allclose(got, want, rtol=1e-5)
