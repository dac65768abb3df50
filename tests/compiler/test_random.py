"""Dropout and random numbers: one draw per element, the same numbers whenever they are needed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit

KEY = jax.random.key(3)
N = 50
RNG = np.random.default_rng(0)
SRC, DST = RNG.integers(0, N, 4000), RNG.integers(0, N, 4000)
G = gnnjit.Graph.from_edges(SRC, DST, N)
X = jnp.asarray(RNG.normal(size=(N, 4)), jnp.float32)


@gnnjit.layer
def on_edges(v, e, key):
    return gnnjit.random_uniform(key, like=e.src + e.dst)


@gnnjit.layer
def on_vertices(v, e, key):
    return gnnjit.random_uniform(key, like=v)


@gnnjit.layer
def on_sources(v, e, key):
    return gnnjit.random_uniform(key, like=e.src)


@gnnjit.layer
def dropped(v, e, key, x=None):
    return gnnjit.sum(gnnjit.dropout(e.src * v, 0.25, key)), gnnjit.dropout(e.src * v, 0.25, key)


@pytest.mark.parametrize("draw", [on_edges, on_vertices])
def test_uniform(draw):
    u = np.asarray(draw(G, jnp.zeros((N, 64)) if draw is on_vertices else X, KEY))
    assert 0 <= u.min() <= u.max() < 1
    assert abs(u.mean() - 0.5) < 0.03
    assert abs(u.var() - 1 / 12) < 0.01
    assert len(np.unique(u)) > 0.99 * u.size
    flat = u - u.mean()
    assert abs((flat[1:] * flat[:-1]).mean()) < 0.01
    assert abs((flat[:, 1:] * flat[:, :-1]).mean()) < 0.01


def test_other_keys_draw_other_numbers():
    a, b = on_edges(G, X, KEY), on_edges(G, X, jax.random.key(4))
    assert float(jnp.mean(a == b)) < 1e-3
    np.testing.assert_array_equal(a, on_edges(G, X, KEY))


def test_element_0_of_a_key_of_zeros_draws_as_others_do():
    first = [np.asarray(on_vertices(G, jnp.zeros((N, 4)), jax.random.key(k)))[0, 0] for k in (0, 1)]
    assert 0 not in first


def test_an_old_style_key():
    np.testing.assert_array_equal(on_edges(G, X, jax.random.key_data(KEY)), on_edges(G, X, KEY))


def test_sources_draw_once_per_source():
    u = np.asarray(on_sources(G, X, KEY))
    for vertex in (0, 7):
        rows = u[SRC == vertex]
        assert (rows == rows[0]).all()
    assert (u[SRC == 0][0] != u[SRC == 7][0]).all()


def test_numbers_do_not_depend_on_the_graphs_edges_or_on_padding():
    few = gnnjit.Graph.from_edges(SRC[:100], DST[:100], N)
    np.testing.assert_array_equal(on_edges(few, X, KEY), on_edges(G, X, KEY)[:100])
    padded = on_edges(few.pad(N + 1, 120), jnp.pad(X, ((0, 1), (0, 0))), KEY)
    np.testing.assert_array_equal(padded[:100], on_edges(few, X, KEY))


def test_the_reference_draws_the_same():
    have = dropped(G, X, KEY)
    with gnnjit.reference():
        want = dropped(G, X, KEY)
    for a, b in zip(have, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_dropout_keeps_three_quarters_and_the_mean():
    kept = np.asarray(dropped(G, jnp.ones_like(X), KEY)[1])
    assert set(np.unique(kept)) == {0.0, np.float32(1 / 0.75)}
    assert abs((kept > 0).mean() - 0.75) < 0.02


def test_the_sum_and_its_gradient_use_the_mask_of_the_forward():
    mask = np.asarray(dropped(G, jnp.ones_like(X), KEY)[1])

    def by_hand(x):
        return jax.ops.segment_sum(mask * x[SRC] * x[DST], DST, N)

    np.testing.assert_allclose(dropped(G, X, KEY)[0], by_hand(X), rtol=1e-4, atol=1e-4)
    have = jax.grad(lambda x: jnp.sum(jnp.sin(dropped(G, x, KEY)[0])))(X)
    want = jax.grad(lambda x: jnp.sum(jnp.sin(by_hand(x))))(X)
    np.testing.assert_allclose(have, want, rtol=1e-3, atol=1e-3)


def test_keys_under_vmap():
    keys = jax.random.split(KEY, 3)
    have = jax.vmap(lambda k: dropped(G, X, k)[0])(keys)
    np.testing.assert_allclose(have[2], dropped(G, X, keys[2])[0], rtol=1e-4, atol=1e-4)


def test_leaves_draw_independently():
    layer = gnnjit.layer(lambda v, e, key: gnnjit.dropout((v, v), 0.5, key))
    a, b = layer(G, jnp.ones((N, 64)), KEY)
    assert 0.3 < float(jnp.mean(a == b)) < 0.7


def test_rate_zero_changes_nothing():
    layer = gnnjit.layer(lambda v, e, key: gnnjit.dropout(v, 0, key))
    np.testing.assert_array_equal(layer(G, X, KEY), X)
