"""The bound on what rounding does, against what it does."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit.frontend.capture import capture
from gnnjit.ir.evaluate import evaluate_element
from gnnjit.ir.program import Value
from gnnjit.ir.space import Space
from gnnjit.lower import choose
from gnnjit.lower.error_bounds import with_error_bounds

F32 = np.dtype(np.float32)
RNG = np.random.default_rng(0)
W = jnp.asarray(RNG.normal(size=(16, 16)), jnp.float32)

FUNCTIONS = {
    "cancel": lambda x: (x + 1000.0) - 1000.0,
    "product": lambda x: x @ W,
    "network": lambda x: jax.nn.gelu(jnp.tanh(x @ W) @ W) - 0.1,
    "norm": lambda x: (x - x.mean()) / jnp.sqrt(x.var() + 1e-3),
    "sum": lambda x: jnp.sum(x * x - 1.0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_error_is_within_the_bound(name):
    """float32 against float64; nor is the bound so wide that everything would tie."""
    fn = FUNCTIONS[name]
    found = capture(lambda x: [fn(x)], [Value((16,), F32, Space.EDGE)])
    program, constants = found.program, found.constants
    rows = jnp.asarray(RNG.normal(size=(200, 16)), jnp.float32)
    values = jax.vmap(lambda x: evaluate_element(program, [x, *constants])[0])(rows)
    ((_, bounds),) = jax.vmap(lambda x: with_error_bounds(program, [x, *constants]))(rows)
    with jax.enable_x64(True):
        exact = jax.vmap(fn)(np.asarray(rows, np.float64))
    off = np.abs(np.asarray(values, np.float64) - np.asarray(exact))
    assert (off <= np.asarray(bounds)).all()
    scale = {"cancel": 1e3}.get(name, float(jnp.abs(values).max()))
    assert np.median(bounds) < 1e-4 * scale


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize(
    ("shapes", "dimensions"),
    [
        (((6,), (6, 5)), (((0,), (0,)), ((), ()))),
        (((6, 3), (5, 6)), (((0,), (1,)), ((), ()))),
        (((4, 6), (6, 4, 2)), (((1,), (0,)), ((0,), (1,)))),
        (((2, 3, 4), (4, 2, 5)), (((0, 2), (1, 0)), ((), ()))),
        (((6,), (6,)), (((0,), (0,)), ((), ()))),
    ],
)
def test_products_are_bounded_by_norms(shapes, dimensions, scale):
    """At least the product of magnitudes, and not much more."""
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=s).astype(np.float32) for s in shapes)
    a *= np.float32(scale)

    def fn(a, b):
        return [jax.lax.dot_general(a, b, dimensions)]

    program = capture(fn, [Value(x.shape, F32, Space.EDGE) for x in (a, b)]).program
    ((_, bound),) = jax.jit(lambda a, b: with_error_bounds(program, [a, b]))(a, b)
    (most,) = fn(np.abs(a), np.abs(b))
    share = np.asarray(bound) / (2 * np.finfo(np.float32).eps * np.asarray(most, np.float64))
    assert bound.shape == most.shape
    assert (share >= 1 - 1e-5).all()
    assert share.max() < 8
    assert np.median(share) < 2


def test_a_product_of_zeros_is_exact():
    program = capture(lambda x: [x @ W], [Value((16,), F32, Space.EDGE)])
    ((_, bound),) = with_error_bounds(program.program, [jnp.zeros(16), *program.constants])
    assert not bound.any()


@pytest.mark.parametrize("fn", [lambda x: x, lambda x: -x[::-1], lambda x: jnp.abs(x)[:3]])
def test_what_is_only_moved_is_exact(fn):
    program = capture(lambda x: [fn(x)], [Value((4,), F32, Space.EDGE)]).program
    ((_, bound),) = with_error_bounds(program, [jnp.ones(4)])
    assert bound is None


def test_a_maximum_that_cancels_keeps_its_gradient():
    """What is left of 1000 is off by 1e-4, thousands of units of its own last place."""
    count = 64
    x = jnp.asarray(RNG.normal(size=(count, 8)), jnp.float32)
    graph = gnnjit.Graph.from_edges(np.arange(count), np.arange(count), count)
    layer = gnnjit.layer(
        lambda v, e, w: gnnjit.max(jnp.tanh(e.src @ w[:8, :8] + v) * 1000.0 - 999.0 * v)
    )
    for kernel in ("pallas", "segment"):
        with choose.prefer(kernel):
            slope = jax.jit(jax.grad(lambda b: jnp.sum(layer(graph, x + b, W))))(jnp.zeros(8))
        want = jax.grad(
            lambda b: jnp.sum(jnp.tanh((x + b) @ W[:8, :8] + x + b) * 1000.0 - 999.0 * (x + b))
        )(jnp.zeros(8))
        np.testing.assert_allclose(slope, want, rtol=1e-3)
