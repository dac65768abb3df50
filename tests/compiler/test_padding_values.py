"""What stands in padding, NaN and infinities included, reaches nothing that is real."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit.lower.choose import prefer

RNG = np.random.default_rng(5)
SRC, DST = np.array([0, 1, 2, 3, 1, 4]), np.array([1, 2, 0, 2, 0, 1])
P = gnnjit.Graph.from_edges(SRC, DST, num_nodes=6).pad(9, 10)
X, E = (jnp.asarray(RNG.normal(size=s), jnp.float32) for s in ((6, 3), (6, 3)))
W, B = (jnp.asarray(RNG.normal(size=s), jnp.float32) for s in ((3, 3), (3,)))


def everything(v, e, w, b):
    """All ways in which an edge's own features meet weights, and a distance that has a pole."""
    score = gnnjit.softmax((e.data * b).sum())
    return {
        "sum": gnnjit.sum(jnp.tanh(e.data @ w) * b + score * (e.src @ w)),
        "max": gnnjit.max(jnp.log(jnp.abs(e.data)) * b),
        "distance": gnnjit.mean(jnp.linalg.norm(e.src - v) * b),
        "sigmoid": gnnjit.sum(jax.nn.sigmoid(v @ w) * e.src),
        "edge": e.data * b + e.src,
    }


layer = gnnjit.layer(everything)


def padded(x, n, value):
    return jnp.full((n, *x.shape[1:]), value, x.dtype).at[: len(x)].set(x)


def step(f, value_of_rows, value_of_edges):
    x, edges = padded(X, 9, value_of_rows), padded(E, 10, value_of_edges)

    def loss(x, edges, w, b):
        outs = f(P, x, w, b, edges=edges)
        return sum(jnp.square(y[:6]).sum() for y in jax.tree.leaves(outs)), outs["edge"]

    (_, edge), gradients = jax.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True)(
        x, edges, W, B
    )
    return edge, gradients


def same(got, want):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), got, want)


@pytest.fixture(scope="module")
def clean():
    return step(layer, 0.0, 0.0)


@pytest.mark.long
def test_the_oracle_is_as_indifferent_as_the_layer(clean):
    with gnnjit.reference():
        same(step(layer, np.inf, np.nan), clean)


@pytest.mark.parametrize("kernel", ["cpu", "segment"])
def test_lowerings(kernel, clean):
    with prefer(kernel):
        same(step(layer, np.nan, np.nan), clean)


def test_check_raises_no_false_alarm():
    assert layer.check(P, padded(X, 9, np.nan), W, B, edges=padded(E, 10, np.nan)).ok


def test_a_graph_of_padding_alone():
    nothing = gnnjit.Graph.from_edges([0, 0], [0, 0], num_nodes=2, edge_mask=[False, False])
    bad = jnp.full((2, 3), jnp.nan)
    with gnnjit.reference():
        own = gnnjit.layer(lambda v, e, w: gnnjit.sum(jnp.tanh(e.data @ w)))
        w = jax.grad(lambda w: own(nothing, bad, w, edges=bad).sum())(W)
    np.testing.assert_array_equal(w, jnp.zeros((3, 3)))


@pytest.mark.parametrize("reference", [False, True])
def test_a_returned_vertex_value_is_computed_for_every_row(reference):
    """`v * b` is plain JAX: NaN of a row stays in it, and is in the gradient of `b`."""
    own = gnnjit.layer(lambda v, e, b: v * b + gnnjit.sum(e.src))

    def run(value):
        x = padded(X, 9, value)
        return own(P, x, B), jax.grad(lambda b: jnp.square(own(P, x, b)[:6]).sum())(B)

    with gnnjit.reference() if reference else contextlib.nullcontext():
        y, gradient = run(jnp.nan)
        assert np.isfinite(y[:6]).all()
        assert np.isnan(y[6:]).all()
        assert np.isnan(gradient).all()
        assert np.isfinite(run(0.0)[1]).all()
