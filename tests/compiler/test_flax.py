"""Layers as methods of Flax modules, and static arguments."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import gnnjit

from .cases import GRAPHS

E = GRAPHS["isolated"]
G = E.graph()
X = jnp.asarray(np.random.default_rng(0).normal(size=(6, 3)), jnp.float32)


def summed(y: Any) -> Any:
    return jax.ops.segment_sum(y[E.src], E.dst, 6)


class Linen(linen.Module):
    width: int

    @linen.compact
    @gnnjit.layer
    def __call__(self, v, e):
        dense = linen.Dense(self.width)
        return gnnjit.sum(jnp.tanh(dense(e.src))) + self.param(
            "bias", linen.initializers.ones, (self.width,)
        )


class Setup(linen.Module):
    def setup(self):
        self.dense = linen.Dense(4)

    @gnnjit.layer
    def __call__(self, v, e):
        return gnnjit.sum(jnp.tanh(self.dense(e.src))) + 1.0


@pytest.mark.parametrize("module", [Linen(4), Setup()], ids=["compact", "setup"])
def test_linen(module):
    variables = module.init(jax.random.key(0), G, X)
    params = variables["params"]
    (dense,) = [p for name, p in params.items() if name != "bias"]
    assert dense["kernel"].shape == (3, 4)

    def by_hand(dense: Any) -> Any:
        return summed(jnp.tanh(X @ dense["kernel"] + dense["bias"])) + 1.0

    np.testing.assert_allclose(module.apply(variables, G, X), by_hand(dense), rtol=1e-5, atol=1e-6)
    have = jax.grad(lambda v: jnp.sum(jnp.sin(module.apply(v, G, X))))(variables)["params"]
    (have,) = [p for name, p in have.items() if name != "bias"]
    want = jax.grad(lambda d: jnp.sum(jnp.sin(by_hand(d))))(dense)
    np.testing.assert_allclose(have["kernel"], want["kernel"], rtol=1e-4, atol=1e-5)


class Nnx(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.linear = nnx.Linear(3, 4, rngs=rngs)
        self.scale = nnx.Param(jnp.full(4, 2.0))

    @gnnjit.layer
    def __call__(self, v, e, *, shift=0.0):
        return gnnjit.sum(self.linear(e.src) * self.scale[...]) + shift

    @gnnjit.layer(static_argnames="how")
    def reduced(self, v, e, *, how):
        return getattr(gnnjit, how)(self.linear(e.src))


def test_nnx():
    model = Nnx(nnx.Rngs(0))
    z = X @ model.linear.kernel[...] + model.linear.bias[...]
    np.testing.assert_allclose(model(G, X), summed(z * 2), rtol=1e-5, atol=1e-5)
    grads = nnx.grad(lambda m: jnp.sum(m(G, X, shift=1.0) ** 2))(model)
    want = jax.grad(lambda s: jnp.sum((summed(z * s) + 1.0) ** 2))(jnp.full(4, 2.0))
    np.testing.assert_allclose(grads["scale"][...], want, rtol=1e-4)


def test_nnx_sees_new_weights():
    model = Nnx(nnx.Rngs(0))
    before = nnx.jit(lambda m, x: m(G, x))(model, X)
    model.scale[...] = jnp.full(4, 4.0)
    np.testing.assert_allclose(model(G, X), before * 2, rtol=1e-5, atol=1e-5)


def test_explain_and_check_of_methods():
    model = Nnx(nnx.Rngs(0))
    assert gnnjit.check(model, G, X)[0].ok
    assert "Nnx.__call__" in str(gnnjit.explain(model, G, X))


@pytest.mark.parametrize("how", ["sum", "max", "mean"])
def test_static_argument_of_a_method(how):
    model = Nnx(nnx.Rngs(0))
    want = gnnjit.layer(lambda v, e: getattr(gnnjit, how)(model.linear(e.src)))(G, X)
    np.testing.assert_allclose(model.reduced(G, X, how=how), want, rtol=1e-6)


@pytest.mark.parametrize("names", ["act", ("act",), ["act"]], ids=["str", "tuple", "list"])
def test_static_arguments(names):
    @gnnjit.layer(static_argnames=names)
    def f(v, e, w, *, act, scale=1.0):
        return gnnjit.sum(act(e.src * w)) * scale

    for act in (jnp.tanh, jnp.sin):
        have = f(G, X, 0.5, act=act, scale=3.0)
        np.testing.assert_allclose(have, summed(act(X * 0.5)) * 3, rtol=1e-5, atol=1e-6)
