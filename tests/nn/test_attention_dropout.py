"""Dropout of attention coefficients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gnnjit import Graph
from gnnjit.nn import APPNP, GAT, GATv2, GraphTransformer

RATE, DEGREE = 0.5, 4000


@pytest.fixture
def star() -> tuple[Graph, jax.Array]:
    """Vertex 0 with `DEGREE` in-edges; every value is 1, so the output is the weights' sum."""
    return Graph.from_edges(np.arange(1, DEGREE + 1), np.zeros(DEGREE, int)), jnp.ones(
        (DEGREE + 1, 2)
    )


def ones(kind: Any) -> Any:
    module = kind(2, 1, heads=2, dropout=RATE, rngs=nnx.Rngs(0))
    return jax.tree.map(lambda a: jnp.full_like(a, 0.5) if a.ndim == 2 else a, module)


@pytest.mark.parametrize("kind", [GAT, GATv2])
def test_without_key_nothing_is_dropped(kind: Any, star: tuple[Graph, jax.Array]) -> None:
    np.testing.assert_allclose(ones(kind)(*star), 1, rtol=1e-5)


@pytest.mark.parametrize("kind", [GAT, GATv2])
def test_mean_is_kept_and_heads_differ(kind: Any, star: tuple[Graph, jax.Array]) -> None:
    out = ones(kind)(*star, key=jax.random.key(0))
    np.testing.assert_allclose(out[0], 1, atol=0.08)  # five standard deviations
    assert out[0, 0] != out[0, 1]
    share = np.asarray(out[1:])  # alone with themselves: kept and doubled, or dropped
    assert set(np.unique(share.round(4))) == {0.0, 2.0}
    np.testing.assert_allclose(share.mean(), 1, atol=0.06)


def test_key_decides(star: tuple[Graph, jax.Array]) -> None:
    module = ones(GAT)
    first, again, other = (module(*star, key=jax.random.key(k)) for k in (0, 0, 1))
    assert (first == again).all()
    assert (first != other).any()


def test_transformer_and_appnp_drop_coefficients_of_edges(star: tuple[Graph, jax.Array]) -> None:
    transformer = jax.tree.map(
        jnp.zeros_like, GraphTransformer(2, 1, heads=2, dropout=RATE, rngs=nnx.Rngs(0))
    )
    transformer.value.bias[...] = jnp.ones(2)  # the mean of its values
    out = transformer(*star, key=jax.random.key(0))
    np.testing.assert_allclose(out[0], 1, atol=0.08)
    assert out[0, 0] != out[0, 1]

    steps, x = APPNP(1, 0.0, dropout=RATE, self_loops=False), star[1]
    cycle = Graph.from_edges(np.arange(DEGREE), np.roll(np.arange(DEGREE), 1), DEGREE)
    share = np.asarray(steps(cycle, x[:DEGREE], key=jax.random.key(0)))
    assert set(np.unique(share.round(4))) == {0.0, 2.0}
    np.testing.assert_allclose(share.mean(), 1, atol=0.08)
    np.testing.assert_allclose(steps(cycle, x[:DEGREE]), 1)
    assert (share != steps(cycle, x[:DEGREE], key=jax.random.key(1))).any()


def test_gradient_uses_the_same_draw(star: tuple[Graph, jax.Array]) -> None:
    graph, x = star
    module, key = ones(GAT), jax.random.key(3)

    def loss(x: jax.Array) -> jax.Array:
        return module(graph, x, key=key)[0].sum()

    _, tangent = jax.jvp(loss, (x,), (x,))  # the scores are equal, so the output is linear in x
    np.testing.assert_allclose(tangent, loss(x), rtol=1e-4)
    np.testing.assert_allclose(jnp.sum(jax.grad(loss)(x) * x), tangent, rtol=1e-4)
