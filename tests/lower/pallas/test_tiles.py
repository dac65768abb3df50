"""Rules of the GPU kernels that do more than name a primitive: padding, matrices, rewritten
functions. Each is run on the edges, at sizes that are no powers of two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from pallas import numeric

import gnnjit
from gnnjit.lower import choose

COUNT = 20
pytestmark = numeric
RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(COUNT, 3, 5)) * 2, jnp.float32)
W = jnp.asarray(RNG.normal(size=(5, 20)), jnp.float32)
LARGE = jnp.asarray(RNG.normal(size=(20, 24)), jnp.float32)
HALVES = jnp.asarray(np.arange(-30, 30).reshape(COUNT, 3) / 2, jnp.float32)
GRAPH = gnnjit.Graph.from_edges(np.arange(COUNT), np.arange(COUNT), COUNT)


@pytest.fixture(autouse=True)
def exact_products():
    """A GPU would round the factors to 10 bits."""
    with jax.default_matmul_precision("highest"):
        yield


RULES: dict[str, Callable[[Any], Any]] = {
    "sum of all": lambda x: jnp.sum(jnp.exp(x)),
    "sum of rows": lambda x: jnp.sum(jnp.exp(x), axis=1),
    "largest": lambda x: jnp.max(x - 100, axis=0),
    "least": lambda x: jnp.min(x + 100),
    "any": lambda x: jnp.any(x > 3, axis=1).astype(jnp.float32),
    "all": lambda x: jnp.all(x > -2, axis=0).astype(jnp.float32),
    "cumsum": lambda x: jnp.cumsum(x, axis=1),
    "transpose": lambda x: x.T * 2,
    "iota": lambda x: x * lax.iota(jnp.float32, 5),
    "one column": lambda x: x[:, 3],
    "one entry": lambda x: x[1, 4] * x,
    "stack": lambda x: jnp.stack([x[0], x[2]]),
    "concatenate": lambda x: jnp.concatenate([x[:1, :4], x[1:2, 1:2] * x[2:3, :4]], axis=0),
    "pieces of four": lambda x: jnp.concatenate([x[:, :4], -x[:, :4]], axis=1),
    "halves": lambda x: jnp.concatenate([x[:, :4], -x[:, :4]], axis=1)[:, 4:] + 0 * x[:, :4],
    "split": lambda x: jnp.split(jnp.concatenate([x[:, :4], x[:, :4]], axis=1), 2, axis=1)[1],
    "add an axis": lambda x: x[:, None, :] * x[None],
    "layer norm": lambda x: (x - x.mean(1, keepdims=True)) * lax.rsqrt(x.var(1, keepdims=True) + 1),
    "matrix": lambda x: jnp.exp(x) @ W,
    "matrix, twice": lambda x: jnp.tanh(jnp.exp(x[0]) @ W) @ LARGE,
    "matrix from the left": lambda x: LARGE.T @ (jnp.exp(x[0]) @ W),
    "vectors": lambda x: jnp.exp(x[0]) @ jnp.exp(x[1]),
    "heads": lambda x: jnp.einsum("hf,hf->h", jnp.exp(x), jnp.exp(-x)),
    "outer": lambda x: jnp.outer(x[:, 0], x[0]),
    "matrix of the edge": lambda x: x.T @ jnp.exp(x),
    "erf": lambda x: lax.erf(x),
    "erfc": lambda x: lax.erfc(x),
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "log2": lambda x: jnp.log2(jnp.abs(x)),
    "clamp": lambda x: jnp.clip(x, -0.5, 1.0),
    "select": lambda x: jnp.where(x[0] > 0, x[1], 7.0),
    "remainder": lambda x: lax.rem(x, jnp.float32(0.7)),
    "integer": lambda x: (x * 10).astype(jnp.int32) // 3,
}


def on_edges(fn: Callable[[Any], Any], x: Any) -> Any:
    layer = gnnjit.layer(lambda v, e: fn(e.data * 1.0))
    return jax.jit(lambda x: layer(GRAPH, jnp.zeros((COUNT, 1)), edges=x))(x)


def chosen_by(fn: Callable[[], Any], monkeypatch: Any) -> tuple[Any, set[str]]:
    names: set[str] = set()

    def spy(*args: Any, choose: Callable[..., choose.Choice] = choose.choose) -> choose.Choice:
        choice = choose(*args)
        names.add(choice.kernel)
        return choice

    monkeypatch.setattr(choose, "choose", spy)
    with choose.prefer("pallas"):
        return fn(), names


@pytest.mark.parametrize("name", RULES)
def test_rule(name, monkeypatch):
    have, names = chosen_by(lambda: on_edges(RULES[name], X), monkeypatch)
    assert names == {"pallas"}
    want = jax.vmap(RULES[name])(X)
    assert (have.shape, have.dtype) == (want.shape, want.dtype)
    np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "method", [lax.RoundingMethod.TO_NEAREST_EVEN, lax.RoundingMethod.AWAY_FROM_ZERO]
)
def test_round_is_exact(method, monkeypatch):
    have, names = chosen_by(lambda: on_edges(lambda x: lax.round(x, method), HALVES), monkeypatch)
    assert names == {"pallas"}
    np.testing.assert_array_equal(have, lax.round(HALVES, method))


def test_erf_within_a_few_units(monkeypatch):
    x = jnp.linspace(-6, 6, COUNT * 500).reshape(COUNT, 500).astype(jnp.float32)
    have, _ = chosen_by(lambda: on_edges(lax.erf, x), monkeypatch)
    with jax.enable_x64(True):
        want = np.asarray(lax.erf(np.asarray(x, np.float64)))
    np.testing.assert_allclose(have, want, rtol=8 * np.finfo(np.float32).eps)


def test_what_lies_in_the_padding_does_no_harm(monkeypatch):
    """log of 0 is -inf there, and must not reach a sum or a product."""
    fn = lambda x: jnp.log(jnp.abs(x) + 1e-3).sum(1) + (jnp.log(jnp.abs(x) + 1e-3) @ W).sum(1)  # noqa: E731
    have, names = chosen_by(lambda: on_edges(fn, X), monkeypatch)
    assert names == {"pallas"}
    np.testing.assert_allclose(have, jax.vmap(fn)(X), rtol=1e-4, atol=1e-4)
