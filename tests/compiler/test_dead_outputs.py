"""What nobody reads of a layer is not computed, kept, or read."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit

N, E, F = 40, 3000, 24
RANDOM = np.random.default_rng(11)
G = gnnjit.Graph.from_edges(*RANDOM.integers(0, N, size=(2, E)), num_nodes=N)
X = jnp.asarray(RANDOM.normal(size=(N, F)), jnp.float32)
W = jnp.asarray(RANDOM.normal(size=(F, F)), jnp.float32)
UNREAD = jnp.ones((97,))
BYTES = 4 * E * F


@gnnjit.layer
def both(v, e, w, unread):
    score = jnp.tanh(e.src * v)
    return {
        "edge": score + unread[0],
        "vertex": gnnjit.sum(gnnjit.softmax(score) * (e.src @ w)),
        "max": gnnjit.max(score),
    }


@gnnjit.layer
def alone(v, e, w):
    return gnnjit.sum(gnnjit.softmax(jnp.tanh(e.src * v)) * (e.src @ w))


def vertex(g: Any, x: Any, w: Any) -> Any:
    return both(g, x, w, UNREAD)["vertex"]


def loss(g: Any, x: Any, w: Any) -> Any:
    return jnp.sum(jnp.sin(vertex(g, x, w)))


def over(g: Any, x: Any, w: Any) -> Any:
    return jnp.sum(
        jax.lax.scan(lambda h, _: (jnp.tanh(vertex(g, h, w)), None), x, None, length=3)[0]
    )


PROGRAMS = {
    "forward": vertex,
    "gradient": jax.grad(loss, (1, 2)),
    "gradient of jit": jax.grad(jax.jit(loss), (1, 2)),
    "checkpoint": jax.grad(jax.checkpoint(loss), (1, 2)),
    "scan": jax.grad(over, (1, 2)),
    "scan of checkpoints": jax.grad(
        lambda g, x, w: jnp.sum(
            jax.lax.scan(jax.checkpoint(lambda h, _: (vertex(g, h, w), None)), x, None, length=2)[0]
        ),
        (1, 2),
    ),
    "batch": lambda g, x, w: jax.vmap(lambda x: vertex(g, x, w))(jnp.stack([x, -x])),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_edge_output(name):
    compiled = jax.jit(PROGRAMS[name]).lower(G, X, W).compile()
    assert f"f32[{E},{F}]" not in compiled.as_text()
    assert compiled.memory_analysis().temp_size_in_bytes < BYTES


def test_values_are_those_of_all_outputs():
    every = jax.jit(lambda g, x, w: both(g, x, w, UNREAD))(G, X, W)
    for name, want in every.items():
        have = jax.jit(lambda g, x, w, name=name: both(g, x, w, UNREAD)[name])(G, X, W)
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-5)


def test_gradients_are_those_of_the_smaller_layer():
    have = jax.jit(jax.grad(loss, (1, 2)))(G, X, W)
    want = jax.jit(jax.grad(lambda g, x, w: jnp.sum(jnp.sin(alone(g, x, w))), (1, 2)))(G, X, W)
    for a, b in zip(have, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_operands_of_dead_outputs_are_not_read():
    """Neither what only the dead output reads, nor what no output does."""

    def f(x: Any, w: Any, unread: Any) -> Any:
        return both(G, x, w, unread)["max"]

    text = jax.jit(f).lower(X, W, UNREAD).as_text()
    signature = text[text.index("@main(") :].split("->")[0]
    assert f"tensor<{N}x{F}xf32>" in signature
    assert f"tensor<{F}x{F}xf32>" not in signature
    assert f"tensor<{UNREAD.size}xf32>" not in signature


def test_a_score_stays_with_its_softmax():
    """The maximum that an output refers to is computed, though nobody else reads it."""
    f = gnnjit.layer(lambda v, e: (gnnjit.logsumexp(e.src * v), gnnjit.sum(e.src)))
    have = jax.jit(lambda g, x: f(g, x)[0])(G, X)
    with gnnjit.reference():
        want = f(G, X)[0]
    np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-5)


def test_a_cotangent_of_some_outputs_alone():
    def f(x: Any) -> Any:
        outs = both(G, x, W, UNREAD)
        return jnp.sum(outs["vertex"]), outs["edge"]

    compiled = jax.jit(lambda x: jax.grad(f, has_aux=True)(x)[0]).lower(X).compile()
    assert f"f32[{E},{F}]" not in compiled.as_text()
