"""`prod`, `any` and `all` over the edges of a vertex against plain JAX, in value and gradient."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit.lower import choose

from .drawn import GRAPHS, F, assert_same, drawn, features, of, real


def plain(word: str, values: Any, rows: np.ndarray, count: int) -> Any:
    """A reduction of `[edges, ...]` into rows, one row after the other."""
    how = getattr(jnp, word)
    return jnp.stack([how(values[np.flatnonzero(rows == r)], axis=0) for r in range(count)])


def with_zeros(graph: gnnjit.Graph, dtype: Any = np.float32) -> tuple[Any, Any]:
    """Features of vertices, and of edges of which a third is 0."""
    x, d, _ = features(graph, dtype)
    d[np.random.default_rng(3).random(d.shape) < 0.3] = 0
    return x, d


def layer_of(over: str) -> Any:
    @gnnjit.layer
    def layer(v: Any, e: Any) -> Any:
        return gnnjit.prod(e.data * (1 + v**2) * e.src, over=over) * v  # type: ignore[arg-type]

    return layer


@pytest.mark.parametrize("over", ["in", "out"])
@pytest.mark.parametrize("name", GRAPHS)
def test_products_with_zeros_among_the_factors(name: str, over: str) -> None:
    graph, layer = of(name), layer_of(over)
    kept, src, dst = real(graph)

    def slow(x: Any, d: Any) -> Any:
        values = d[kept] * (1 + x[dst] ** 2) * x[src]
        return plain("prod", values, dst if over == "in" else src, graph.num_nodes) * x

    assert_same(lambda x, d: layer(graph, x, edges=d), slow, with_zeros(graph))


@pytest.mark.parametrize("kernel", ["cpu", "bucketed", "segment",
                                    pytest.param("pallas", marks=pytest.mark.long)])  # fmt: skip
def test_every_lowering(kernel: str) -> None:
    with choose.prefer(kernel):
        graph, layer = of("some"), layer_of("in")
        _, src, dst = real(graph)

        def slow(x: Any, d: Any) -> Any:
            return plain("prod", d * (1 + x[dst] ** 2) * x[src], dst, graph.num_nodes) * x

        assert_same(lambda x, d: layer(graph, x, edges=d), slow, with_zeros(graph))


@pytest.mark.parametrize("zeros", [0, 1, 2, 3])
def test_second_derivatives(zeros: int) -> None:
    with jax.enable_x64(True):
        graph = gnnjit.Graph.from_edges([0] * 5, [1] * 5, 2)
        x, d = np.ones(2), np.array([2.0, -1.5, 3.0, 0.5, -1.0])
        d[:zeros] = 0
        layer = gnnjit.layer(lambda v, e: gnnjit.prod(e.data * e.src))
        got = jax.jit(jax.hessian(lambda d: layer(graph, x, edges=d)[1]))(d)
        np.testing.assert_allclose(got, jax.jit(jax.hessian(jnp.prod))(d), rtol=1e-12, atol=1e-14)
        with gnnjit.reference():
            got = jax.jit(jax.grad(lambda d: layer(graph, x, edges=d)[1]))(d)
        np.testing.assert_allclose(got, jax.jit(jax.grad(jnp.prod))(d), rtol=1e-12)


@pytest.mark.parametrize("over", ["in", "out"])
@pytest.mark.parametrize("name", GRAPHS)
def test_any_and_all(name: str, over: Any) -> None:
    graph = of(name)
    kept, src, dst = real(graph)
    _, d = with_zeros(graph)
    rows = dst if over == "in" else src
    layer = gnnjit.layer(
        lambda v, e: (gnnjit.any(e.data, over=over), gnnjit.all(e.data > -1, over=over))
    )
    some, every = layer(graph, np.zeros((graph.num_nodes, F), np.float32), edges=d)
    assert some.dtype == every.dtype == jnp.bool_
    assert some.tolist() == plain("any", d[kept], rows, graph.num_nodes).tolist()
    assert every.tolist() == plain("all", d[kept] > -1, rows, graph.num_nodes).tolist()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.int8, jnp.bool_, jnp.complex64])
def test_dtypes_are_those_of_jax(dtype: Any) -> None:
    graph = of("some")
    d = jnp.asarray(np.random.default_rng(0).integers(0, 3, (graph.num_edges, F))).astype(dtype)
    got = gnnjit.layer(lambda v, e: gnnjit.prod(e.data))(graph, np.zeros(7), edges=d)
    want = plain("prod", d, np.asarray(graph.dst), 7)
    assert got.dtype == want.dtype
    np.testing.assert_allclose(np.complex64(got), np.complex64(want))


def test_half_precision_is_multiplied_in_float32() -> None:
    graph = gnnjit.Graph.from_edges([0] * 64, [1] * 64, 2)
    d = jnp.full(64, 1.0078125, jnp.bfloat16)
    got = gnnjit.layer(lambda v, e: gnnjit.prod(e.data))(graph, np.zeros(2), edges=d)
    np.testing.assert_allclose(np.float32(got), [1, 1.0078125**64], rtol=4e-3)


def test_no_edges_nan_and_initial() -> None:
    graph = gnnjit.Graph.from_edges([0, 0, 1], [1, 1, 2], 4)
    d = np.array([np.nan, 0, 2], np.float32)
    layer = gnnjit.layer(lambda v, e: (gnnjit.prod(e.data), gnnjit.prod(e.data, initial=7),
                                       gnnjit.any(e.data), gnnjit.all(e.data)))  # fmt: skip
    product, seven, some, every = layer(graph, np.zeros(4), edges=d)
    np.testing.assert_array_equal(product, [1, np.nan, 2, 1])
    np.testing.assert_array_equal(seven, [7, np.nan, 2, 7])
    assert some.tolist() == [False, True, True, False]
    assert every.tolist() == [True, False, True, True]


def test_padding_may_hold_anything() -> None:
    graph = of("padded")
    x, d = with_zeros(graph)
    x[6:], d[12:] = np.nan, np.inf
    layer = gnnjit.layer(lambda v, e: gnnjit.prod(e.data * (1 + v**2) * e.src))

    def loss(x: Any, d: Any) -> Any:
        return jnp.sum(jnp.sin(layer(graph, x, edges=d)))

    got = jax.value_and_grad(loss, (0, 1))(x, d)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(got))


def test_transformations_and_check() -> None:
    graph = drawn(7, 20)
    x, d = with_zeros(graph)
    layer = layer_of("in")
    assert layer.check(graph, x, edges=d).ok
    one = functools.partial(lambda x, d: layer(graph, x, edges=d), d=d)
    got = jax.jit(jax.vmap(one))(np.stack([x, 2 * x]))
    np.testing.assert_allclose(got[1], one(2 * x), rtol=1e-5)
    with jax.disable_jit():
        np.testing.assert_allclose(one(x), got[0], rtol=1e-5)
