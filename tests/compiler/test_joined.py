"""Inside `jax.jit`, a typed layer is one program to JAX, and its transformations have rules for it:
the numbers are those of plain gathers."""

from __future__ import annotations

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit.lower import cpu, row_sums

SCHEMA = [("a", "r0", "a"), ("b", "r1", "a"), ("a", "r2", "b")]  # none are merged
COUNTS = {"a": 40, "b": 40}
F = 16


@gnnjit.layer
def conv(v: Any, e: Any, w: Any) -> Any:
    """R-GCN, by hand."""
    out = v @ w[e.dst_type]
    for r in e.relations:
        out += gnnjit.mean(r.src @ w[r.name])
    return out


@gnnjit.layer
def gated(v: Any, e: Any, w: Any) -> Any:
    """Not linear, with a product for edges; and a second result."""
    total = gnnjit.sum(e.map(lambda r: jax.nn.sigmoid((v @ w[r.name])[0]) * (r.src @ w["a"])))
    return total + v, gnnjit.degree() if e.dst_type == "a" else v


def given() -> tuple[gnnjit.TypedGraph, Any, Any]:
    rng = np.random.default_rng(0)
    edges = {k: np.stack([rng.integers(0, COUNTS[t], 90) for t in k[::2]]) for k in SCHEMA}
    x = {t: jnp.asarray(rng.normal(size=(n, F)), jnp.float32) for t, n in COUNTS.items()}
    names = ["a", "b", *(k[1] for k in SCHEMA)]
    w = {k: jnp.asarray(rng.normal(size=(F, F)) / 4, jnp.float32) for k in names}
    return gnnjit.TypedGraph.from_edges(edges, COUNTS), x, w


GRAPH, X, W = given()


def loss(layer: Any, x: Any, w: Any) -> Any:
    leaves = jax.tree.leaves(layer(GRAPH, x, w))
    return sum(jnp.sum(jnp.sin(y)) for y in leaves if jnp.issubdtype(y.dtype, jnp.inexact))


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_sums, "LEAST", 0)


def compare(f: Any, *args: Any, rtol: float = 1e-4) -> None:
    """As one program and as plain gathers, both compiled."""
    got = jax.jit(f)(*args)
    with gnnjit.reference():
        want = jax.jit(lambda *xs: f(*xs))(*args)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


both = pytest.mark.parametrize("layer", [conv, gated], ids=lambda f: f.__name__)


@both
def test_values_and_gradients(layer):
    def f(x: Any, w: Any) -> Any:
        return layer(GRAPH, x, w), jax.grad(functools.partial(loss, layer), (0, 1))(x, w)

    compare(f, X, W)


@both
def test_forward_and_second_derivatives(layer):
    def along(x: Any) -> Any:
        return jax.jvp(lambda y: loss(layer, y, W), (x,), (X,))[1]

    compare(lambda x: (along(x), jax.grad(along)(x)), X)


@both
def test_batches(layer):
    xs = jax.tree.map(lambda a: jnp.stack([a, -a]), X)
    compare(jax.vmap(lambda x: jax.grad(functools.partial(loss, layer))(x, W)), xs)


@both
def test_checkpoint_and_some_results(layer):
    f = jax.checkpoint(lambda x: jax.tree.leaves(layer(GRAPH, x, W)["b"])[0])
    compare(jax.grad(lambda x: jnp.sum(f(x) ** 2)), X)


def test_it_is_transposed():
    """`conv` is linear in its features."""
    y = conv(GRAPH, X, W)
    compare(lambda y: jax.linear_transpose(lambda x: conv(GRAPH, x, W), X)(y), y)


def test_what_is_not_read_is_not_computed():
    text = str(jax.make_jaxpr(lambda x: gated(GRAPH, x, W)["b"][1])(X))
    assert "typed_layer" in text
    dead = jax.jit(lambda x: gated(GRAPH, x, W)["b"][1]).lower(X).as_text()
    assert "gnnjit_cpu" not in dead


def test_small_layers_are_not_joined(monkeypatch):
    monkeypatch.setattr(row_sums, "LEAST", 40 * 5 * F * F + 1)
    assert "typed_layer" not in str(jax.make_jaxpr(lambda x: conv(GRAPH, x, W))(X))
    monkeypatch.setattr(row_sums, "LEAST", 40 * 5 * F * F)
    assert "typed_layer" in str(jax.make_jaxpr(lambda x: conv(GRAPH, x, W))(X))


def test_outside_of_jit_each_relation_is_compiled_once():
    assert "typed_layer" not in str(jax.make_jaxpr(lambda: conv(GRAPH, X, W))())


@pytest.mark.skipif(bool(cpu.why_no_row_sums(np.dtype(np.float32))), reason="no kernels")
def test_a_step_has_one_kernel_for_each_type_and_direction():
    """No relation's products, sums or gradients are written."""
    step = jax.jit(jax.grad(functools.partial(loss, conv), (0, 1))).lower(X, W).as_text()
    found = re.findall(r"custom_call @(gnnjit_cpu_\w+)", step)
    assert len(found) == 4


def test_other_platforms_have_each_relation_by_itself():
    exported = jax.export.export(jax.jit(lambda x: conv(GRAPH, x, W)), platforms=["cuda"])(X)
    assert "gnnjit_cpu" not in exported.mlir_module()
