"""Gradients of maxima: each row gives one share in all, to the edges that attain it, whatever code
computes forward and backward. GPU kernels: `tests/kernels/test_extremes.py`."""

from __future__ import annotations

from typing import Any

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
from gnnjit.lower.deciding import in_float32
from gnnjit.lower.ties import Ties

RNG = np.random.default_rng(0)
SRC, DST = RNG.integers(0, 24, 200), RNG.integers(0, 22, 200)
GRAPH = gnnjit.Graph.from_edges(SRC, DST, num_nodes=24)
ROWS = len(set(DST.tolist()))


def network(v: Any, e: Any, p: Any) -> Any:
    """`shift` gets one share for each feature, from all edges of a row together."""
    hidden = jax.nn.relu(jnp.concatenate([v, e.src - v]) @ p["a"])
    return gnnjit.max(hidden @ p["b"] + p["shift"])


def smooth(v: Any, e: Any, p: Any) -> Any:
    return gnnjit.min(jnp.tanh(e.src @ p["b"] * v) + p["shift"])


LAYERS = {"network": network, "smooth": smooth}


def example(width: int, dtype: Any, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> Any:
        return jnp.asarray(rng.normal(size=shape) / np.sqrt(shape[0]), dtype)

    params = {
        "a": draw(2 * width, width),
        "b": draw(width, width),
        "shift": jnp.zeros(width, dtype),
    }
    return params, jnp.asarray(rng.normal(size=(24, width)), dtype)


def gradients(name: str, params: Any, x: Any) -> Any:
    layer = gnnjit.layer(LAYERS[name])

    def loss(p: Any, x: Any) -> Any:
        return jnp.sum(layer(GRAPH, x, p).astype(jnp.float32))

    return jax.jit(jax.grad(loss, (0, 1)))(params, x)


@pytest.mark.parametrize(
    ("name", "dtype", "kernel"),
    [
        ("network", "float32", "cpu"),
        ("network", "bfloat16", "segment"),
        ("smooth", "float16", "cpu"),
    ],
)
def test_each_row_gives_one_share(name, dtype, kernel):
    """And half precision is no farther from float32 than the layer as it is written."""
    params, x = example(24, dtype)
    with choose.prefer(kernel):
        have = gradients(name, params, x)
    share = np.asarray(have[0]["shift"], np.float32)
    np.testing.assert_allclose(share, ROWS, rtol=2 * float(jnp.finfo(dtype).eps))
    with gnnjit.reference():
        exact = gradients(name, *jax.tree.map(lambda a: a.astype(jnp.float32), (params, x)))
        plain = gradients(name, params, x)
    for a, b, c in zip(*map(jax.tree.leaves, (have, plain, exact)), strict=True):
        off, usual = (float(jnp.linalg.norm(y.astype(jnp.float32) - c)) for y in (a, b))
        assert off <= 2 * usual + 1e-5 * float(jnp.linalg.norm(c))


FNS = {"read": lambda v, e: gnnjit.max(e.src), "computed": lambda v, e: gnnjit.min(e.src - v)}


@pytest.mark.parametrize(
    ("name", "kernel"),
    [("read", "cpu"), ("computed", "cpu"), ("read", "segment"), ("computed", "bucketed")],
)
def test_the_gradient_of_nan_is_nan(name, kernel):
    x = RNG.normal(size=(24, 3)).astype(np.float32)
    x[5, 1] = np.nan
    layer = gnnjit.layer(FNS[name])

    def slope(x: Any) -> Any:
        return jax.grad(lambda x: jnp.sum(layer(GRAPH, x) ** 2))(x)

    with choose.prefer(kernel):
        have = np.asarray(jax.jit(slope)(x))
    with gnnjit.reference():
        want = np.asarray(jax.jit(lambda x: slope(x))(x))
    assert np.isnan(want).any()
    np.testing.assert_array_equal(np.isnan(have), np.isnan(want))
    np.testing.assert_allclose(have, want, rtol=1e-5)


def test_duplicate_edges_share_in_half_precision():
    graph = gnnjit.Graph.from_edges([0, 0, 1], [2, 2, 2], 3)
    layer = gnnjit.layer(lambda v, e, w: gnnjit.max(jnp.tanh(e.src * w) + e.data))
    x, data = jnp.array([[2.0], [1.0], [0.0]], jnp.bfloat16), jnp.zeros((3, 1), jnp.bfloat16)
    slope = jax.grad(lambda d: jnp.sum(layer(graph, x, jnp.bfloat16(1.5), edges=d)))(data)
    np.testing.assert_array_equal(np.asarray(slope, np.float32)[:, 0], [0.5, 0.5, 0])


def body(fn: Any, dtype: Any) -> Any:
    return capture(lambda x: [fn(x)], [Value((4,), np.dtype(dtype), Space.EDGE)]).program


def test_deciding_values_are_float32():
    wide = in_float32(body(lambda x: jax.nn.relu(x * x) - 0.1, jnp.bfloat16), (0,))
    assert wide is not None
    assert {v.dtype for e in wide.equations for v in e.outputs} <= {np.dtype(np.float32)}
    x = jnp.asarray(RNG.normal(size=4), jnp.bfloat16)
    (have,) = evaluate_element(wide, [x])
    tenth = np.float32(jnp.bfloat16(0.1))
    np.testing.assert_allclose(have, np.square(np.float32(x)) - tenth, rtol=1e-6)


@pytest.mark.parametrize(
    ("fn", "dtype"),
    [
        (lambda x: x * x, jnp.float32),
        (lambda x: x, jnp.bfloat16),
        (lambda x: jnp.nextafter(x, x + 1), jnp.bfloat16),
        (lambda x: jax.lax.fori_loop(0, 200, lambda _, y: y * y, x), jnp.bfloat16),
    ],
    ids=["float32", "only read", "of the type", "a loop"],
)
def test_what_stays_in_its_own_type(fn, dtype):
    assert in_float32(body(fn, dtype), (0,)) is None


def test_shares_in_double_precision():
    with jax.enable_x64(True):
        graph = gnnjit.Graph.from_edges([0, 1, 2], [0, 0, 0], num_nodes=3)
        layer = gnnjit.layer(lambda v, e: gnnjit.max(e.src))
        share = jax.grad(lambda x: layer(graph, x).sum())(np.ones((3, 1)))
    np.testing.assert_array_equal(share[:, 0], [1 / 3] * 3)


def stopped(v: Any, e: Any, p: Any) -> Any:
    return gnnjit.sum(e.src @ p["b"]) * jax.lax.stop_gradient(gnnjit.max(e.src @ p["b"]))


def read_too(v: Any, e: Any, p: Any) -> Any:
    top = gnnjit.max(e.src @ p["b"])
    return gnnjit.sum(e.src @ p["b"]) * jax.lax.stop_gradient(top) + top


@pytest.mark.parametrize(("fn", "counted"), [(stopped, 0), (read_too, 1)])
def test_ties_are_counted_where_a_derivative_is_read(fn, counted, monkeypatch):
    params, x = example(5, jnp.float32)
    layer = gnnjit.layer(fn)
    calls = []
    weights = Ties.weights

    def spy(ties: Ties, *rest: Any) -> Any:
        calls.extend(ties.numbers)
        return weights(ties, *rest)

    monkeypatch.setattr(Ties, "weights", spy)

    def gradient() -> Any:
        return jax.grad(lambda p, x: jnp.sin(layer(GRAPH, x, p)).sum(), (0, 1))(params, x)

    have = gradient()
    assert len(calls) == counted
    with gnnjit.reference():
        want = gradient()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), have, want)
