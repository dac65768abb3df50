"""Gradients of maxima whose traversals are partly kernels and partly XLA, with products in tf32
wherever the kernels allow it, while XLA's are float32."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import gnnjit
from gnnjit import nn

from . import on_cuda
from .test_executed import _edges, _graph, with_tasks

ROWS = len(set(_edges(120)[1].tolist()))


def gradients(width: int, dtype: Any) -> tuple[Any, Any, Any]:
    """The gradients of the sum over an EdgeConv, its parameters, and features."""
    definition, params = nnx.split(nn.EdgeConv(width, width, width, rngs=nnx.Rngs(1)))
    graph = with_tasks(_graph())

    def loss(params: Any, x: Any) -> Any:
        return jnp.sum(nnx.merge(definition, params)(graph, x).astype(jnp.float32))

    x = jnp.asarray(np.random.default_rng(width).normal(size=(20, width)), dtype)
    params = jax.tree.map(lambda a: a.astype(dtype), params)
    return jax.grad(loss, (0, 1)), params, x


@pytest.mark.long
@pytest.mark.parametrize(
    ("width", "dtype"),
    [(72, "float32"), (128, "float32"), (40, "float32"), (100, "bfloat16")],
)
def test_no_share_is_lost_between_lowerings(width, dtype):
    fn, params, x = gradients(width, dtype)
    done = on_cuda.run(fn, params, x, tf32=True)
    assert any(name.startswith("gnnjit_") for name in done.launches)
    share = np.asarray(done.outputs[0]["out"]["bias"][...], np.float32)
    np.testing.assert_allclose(share, ROWS, rtol=2 * float(jnp.finfo(dtype).eps))
    with gnnjit.reference():
        exact = jax.tree.map(lambda a: a.astype(jnp.float32), (params, x))
        want = jax.jit(gradients(width, "float32")[0])(*exact)
        plain = want if dtype == "float32" else jax.jit(gradients(width, dtype)[0])(params, x)
    for a, b, c in zip(*map(jax.tree.leaves, (done.outputs, plain, want)), strict=True):
        off, usual = (np.linalg.norm(np.asarray(y, np.float32) - c) for y in (a, b))
        assert off <= 2 * usual + 1e-3 * np.linalg.norm(c)


def test_a_maximum_of_large_numbers_keeps_its_gradient():
    """The features cancel but for three digits."""
    fn, params, x = gradients(72, "float32")
    done = on_cuda.run(fn, params, x + 100, tf32=True)
    np.testing.assert_allclose(done.outputs[0]["out"]["bias"][...], ROWS, rtol=1e-6)


def test_second_derivatives():
    """Recomputed once more, of a smooth function of the edge."""

    def body(v: Any, e: Any, w: Any, shift: Any) -> Any:
        return gnnjit.min(jnp.tanh(e.src @ w * v) + shift * shift)

    layer, graph = gnnjit.layer(body), with_tasks(_graph())
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.normal(size=(n, 72)), jnp.float32) for n in (20, 72))

    def slope(shift: Any) -> Any:
        return jnp.sum(jax.grad(lambda s: jnp.sum(layer(graph, x, w / 8, s)))(shift))

    done = on_cuda.run(jax.grad(slope), jnp.ones(72), tf32=True)
    np.testing.assert_allclose(done.outputs, 2 * ROWS, rtol=1e-6)
