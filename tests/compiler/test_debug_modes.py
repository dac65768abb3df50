"""JAX's switches for finding mistakes: layers under them are right, and raise no false alarm."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import gnnjit
from gnnjit import nn

SRC, DST = np.array([0, 1, 2, 2, 0, 3]), np.array([1, 2, 0, 1, 1, 1])
GRAPH = gnnjit.Graph.from_edges(SRC, DST, num_nodes=5)
"""Two vertices without edges into them, and one with a single one."""
PADDED = GRAPH.pad(7, 9)
X = jnp.asarray(np.random.default_rng(0).normal(size=(5, 4)), jnp.float32)

MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "debug_nans": lambda: jax.debug_nans(True),
    "debug_infs": lambda: jax.debug_infs(True),
    "check_tracer_leaks": jax.check_tracer_leaks,
    "numpy_rank_promotion": lambda: jax.numpy_rank_promotion("raise"),
    "numpy_dtype_promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "enable_x64": lambda: jax.enable_x64(True),
    "default_device": lambda: jax.default_device(jax.devices()[-1]),
    "transfer_guard": lambda: jax.transfer_guard("disallow"),
}
gcn, gat = nn.GCN(4, 3, rngs=nnx.Rngs(0)), nn.GAT(4, 3, heads=2, rngs=nnx.Rngs(0))
LAYERS: dict[str, Callable[[Any, Any], Any]] = {
    "gcn": lambda g, x: gcn(g, x),
    "gat": lambda g, x: gat(g, x),
    "max": gnnjit.layer(lambda v, e: gnnjit.max(e.src * v)),
    "std": gnnjit.layer(lambda v, e: gnnjit.std(e.src - v)),
    "edge": gnnjit.layer(lambda v, e: jnp.tanh(e.src * v)),
}


def value_and_gradient(f: Any, g: Any, x: Any) -> Any:
    def loss(x: Any) -> Any:
        out = f(g, x)
        return jnp.sum(out * out), out

    return jax.value_and_grad(loss, has_aux=True)(x)


@pytest.fixture(scope="module")
def expected() -> Any:
    """With none of the switches on, the padded graph's in the rows of the other."""
    found = {}
    for name, f in LAYERS.items():
        (loss, out), grad = value_and_gradient(f, GRAPH, X)
        found[name] = jax.device_get((loss, out, grad))
    return found


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", LAYERS)
def test_right_values_and_no_false_alarm(name: str, mode: str, expected: Any) -> None:
    f, padded = LAYERS[name], jnp.pad(X, ((0, 2), (0, 0)))

    def run(both: Any) -> Any:
        return [value_and_gradient(f, g, x) for g, x in both]

    arguments = [(GRAPH, X), (PADDED, padded)]
    step = jax.jit(lambda both: run(both))  # a trace of its own
    with MODES[mode]():
        found = [step(arguments)]
        if mode != "transfer_guard":  # JAX's own rules move constants outside of jit
            found.append(run(arguments[:1]))
    for (loss, out), grad in found[0] + found[-1]:
        want = expected[name]
        got = (loss, out[: len(want[1])], grad[: len(X)])
        for a, b in zip(jax.device_get(got), want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_transfers_of_a_call_by_itself() -> None:
    """Neither a graph nor a layer's constants come from the host in each call."""
    layer = LAYERS["max"]
    want = layer(GRAPH, X)
    with jax.transfer_guard("disallow"):
        found, back = jax.vjp(lambda x: layer(GRAPH, x), X)
        back(found)
    np.testing.assert_array_equal(jax.device_get(found), jax.device_get(want))


def test_float64_under_enable_x64() -> None:
    with jax.enable_x64(True):
        x = jnp.asarray(np.asarray(X), jnp.float64) / 3
        found = gnnjit.layer(lambda v, e: gnnjit.sum(e.src / 7))(GRAPH, x)
    assert found.dtype == np.float64
    want = np.zeros((5, 4))
    np.add.at(want, DST, np.asarray(x)[SRC] / 7)
    np.testing.assert_allclose(found, want, rtol=1e-14)


def test_what_is_wrong_is_told() -> None:
    """The switches see into layers: a NaN of the user's own, a leaked tracer, a promoted rank."""
    logs = gnnjit.layer(lambda v, e: gnnjit.sum(jnp.log(e.src - 1e3)))
    said = r"invalid value \(nan\) encountered in test_debug_modes.py:\d+: .*<lambda>"
    with jax.debug_nans(True):
        with pytest.raises(FloatingPointError, match=said):
            logs(GRAPH, X)
        with pytest.raises(FloatingPointError, match=said):
            jax.jit(lambda g, x: logs(g, x))(GRAPH, X)
        with pytest.raises(FloatingPointError, match="nan"):
            jax.grad(lambda x: jnp.sum(logs(GRAPH, x)))(X)
    with jax.numpy_rank_promotion("raise"), pytest.raises(ValueError, match="rank_promotion"):
        gnnjit.layer(lambda v, e: gnnjit.sum(e.src + jnp.ones((2, 4))))(GRAPH, X)
    with jax.numpy_dtype_promotion("strict"), pytest.raises(ValueError, match="promot"):
        gnnjit.layer(lambda v, e: gnnjit.sum(e.src * jnp.arange(4)))(GRAPH, X)
