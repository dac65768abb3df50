"""NaN, infinities and the ends of erf and erfc in emitted GPU kernels: what a CPU makes of them.

The reference is XLA's CPU code, where NaN wins every comparison.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit

from . import on_cuda
from .test_executed import GRAPHS

WIDTH = 6
SPECIAL = np.float32([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e15, -1e15, -np.nan])

WORDS = {
    "reductions": lambda v, e: {
        "max": gnnjit.max(e.src),
        "min": gnnjit.min(e.src),
        "max of computed values": gnnjit.max(e.src - v),
        "sum": gnnjit.sum(e.src * v),
        "mean": gnnjit.mean(e.src * v),
        "std": gnnjit.std(e.src + v),
    },
    "softmax": lambda v, e: {
        "softmax": gnnjit.sum(gnnjit.softmax(e.src - v) * e.src),
        "logsumexp": gnnjit.logsumexp(e.src - v),
    },
    "elementwise": lambda v, e: {
        "maximum": gnnjit.sum(jnp.maximum(e.src, v)),
        "minimum": gnnjit.sum(jnp.minimum(v, e.src)),
        "relu": gnnjit.sum(jax.nn.relu(e.src - v)),
        "leaky relu": gnnjit.sum(jax.nn.leaky_relu(e.src - v)),
        "clip": gnnjit.sum(jnp.clip(e.src - v, -1, 1)),
        "clip by features": gnnjit.sum(jnp.clip(e.src, v, v + 1)),
        "relu6": gnnjit.sum(jax.nn.relu6(e.src + v)),
        "sign": gnnjit.sum(jnp.sign(e.src + v)),
        "round": gnnjit.sum(jnp.round(e.src + v)),
    },
    "within an element": lambda v, e: {
        "largest feature": gnnjit.sum(jnp.max(e.src - v)),
        "smallest feature": gnnjit.sum(jnp.min(e.src - v)),
        "normalised": gnnjit.sum(jax.nn.softmax(e.src + v)),
    },
}


def features() -> Any:
    """Random numbers, and every special one at some vertices, in some columns."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, WIDTH)).astype(np.float32)
    x[np.arange(8) * 2, np.arange(8) % WIDTH] = SPECIAL
    return jnp.asarray(x)


@pytest.mark.parametrize("words", WORDS)
def test_as_on_a_cpu(words):
    layer, made, x = gnnjit.layer(WORDS[words]), GRAPHS["hubs"](), features()
    done = on_cuda.run(layer, made, x)
    assert done.launches
    with gnnjit.reference():
        want = jax.jit(lambda x: layer(made, x))(x)
    for word, expected in want.items():
        assert np.isfinite(expected).any()
        assert not np.isfinite(expected).all() or word == "sign"
        np.testing.assert_allclose(done.outputs[word], expected, rtol=2e-5, atol=1e-5, err_msg=word)


ARGUMENTS = np.float32(
    [-np.inf, -3e38, -1e19, -30, -11, -9.3, -4, -1, -1e-3, -0.0, 0, 0.5, 1, 1.5, 2, 3, 4, 5, 9, 30,
     1e19, 3e38, np.inf, np.nan]
)  # fmt: skip


@pytest.mark.parametrize("name", ["erf", "erfc"])
def test_the_error_function(name):
    """Relative accuracy wherever float32 has it; 2, 0, 1 and -1 at the ends."""
    from scipy import special

    count = len(ARGUMENTS)
    graph = gnnjit.Graph.from_edges(np.arange(count), np.arange(count), count)
    fn = getattr(jax.scipy.special, name)
    layer = gnnjit.layer(lambda v, e: gnnjit.sum(fn(e.data)))
    x, data = jnp.zeros(count), jnp.asarray(ARGUMENTS)
    have = on_cuda.run(lambda x, d: layer(graph, x, edges=d), x, data).outputs
    want = getattr(special, name)(ARGUMENTS.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-37)


SLOPES = {
    "max": lambda v, e: gnnjit.max(e.src),
    "computed": lambda v, e: gnnjit.min(e.src - v),
    "relu": lambda v, e: gnnjit.sum(jax.nn.relu(e.src - v)),
}


@pytest.mark.parametrize("word", SLOPES)
def test_gradients_of_a_diverged_model_are_nan(word):
    layer, made, x = gnnjit.layer(SLOPES[word]), GRAPHS["hubs"](), features()
    x = jnp.where(jnp.abs(x) > 1e30, 1.0, x)  # the reference multiplies infinities by 0

    def slope(x: Any) -> Any:
        return jax.grad(lambda x: jnp.sum(layer(made, x) ** 2))(x)

    have = on_cuda.run(slope, x).outputs
    with gnnjit.reference():
        want = np.asarray(jax.jit(lambda x: slope(x))(x))
    assert np.isnan(want).any()
    np.testing.assert_array_equal(np.isnan(have), np.isnan(want))
