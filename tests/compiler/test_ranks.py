"""Words that order the edges of a vertex, against plain NumPy and JAX, in value and gradient."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit.errors import GnnjitWarning, LayerError
from gnnjit.lower import choose

from .drawn import GRAPHS, F, assert_same, drawn, features, of, real

K = 3


def rows_of(graph: gnnjit.Graph, over: str) -> list[np.ndarray]:
    """The numbers of the edges of each vertex."""
    kept, src, dst = real(graph)
    return [kept[(dst if over == "in" else src) == row] for row in range(graph.num_nodes)]


def plain(word: str, values: Any, order: np.ndarray, rows: list[np.ndarray]) -> Any:
    """A word of `[edges, F]`, one row after the other. `order`: one number for each edge."""
    found = []
    for at in rows:
        some = values[at]
        padding = jnp.zeros((max(0, K - len(at)), F), values.dtype)
        whole = {
            "median": lambda some=some: jnp.median(some, axis=0),
            "quantile": lambda some=some: jnp.quantile(some, jnp.array([0.1, 1.0]), axis=0),
            "sort": lambda some=some: jnp.sort(some, axis=0)[:K],
            "top_k": lambda some=some: -jnp.sort(-some, axis=0)[:K],
            "by": lambda some=some, at=at: some[np.argsort(order[at], kind="stable")][:K],
            "top_by": lambda some=some, at=at: some[np.argsort(-order[at], kind="stable")][:K],
        }[word]
        if word in ("median", "quantile"):
            shape = (F,) if word == "median" else (2, F)
            found.append(whole() if len(at) else jnp.zeros(shape, values.dtype))
        else:
            found.append(jnp.concatenate([whole(), padding]))
    return jnp.stack(found)


WORDS = ("median", "quantile", "sort", "top_k", "by", "top_by")


def said(word: str, value: Any, order: Any, over: Any) -> Any:
    return {
        "median": lambda: gnnjit.median(value, over=over),
        "quantile": lambda: gnnjit.quantile(value, [0.1, 1.0], over=over),
        "sort": lambda: gnnjit.sort(value, K, over=over),
        "top_k": lambda: gnnjit.top_k(value, K, over=over),
        "by": lambda: gnnjit.sort(value, K, order=order, over=over),
        "top_by": lambda: gnnjit.top_k(value, K, order=order, over=over),
    }[word]()


@gnnjit.layer(static_argnames=("over",))
def words(v: Any, e: Any, *, over: str) -> Any:
    value = jnp.tanh(e.src * v + e.data["value"])
    return {word: said(word, value, e.data["order"], over) for word in WORDS}


def compare(graph: gnnjit.Graph, over: str, dtype: Any, rtol: float) -> None:
    x, d, _ = features(graph, dtype)
    order = np.random.default_rng(5).integers(0, 3, graph.num_edges).astype(dtype)
    src, dst = np.asarray(graph.src), np.asarray(graph.dst)

    def fast(x: Any, d: Any) -> Any:
        return words(graph, x, edges={"value": d, "order": order}, over=over)

    def slow(x: Any, d: Any) -> Any:
        values = jnp.tanh(x[src] * x[dst] + d)
        return {word: plain(word, values, order, rows_of(graph, over)) for word in WORDS}

    assert_same(fast, slow, (x, d), rtol)


@pytest.mark.parametrize("name", GRAPHS)
def test_every_word(name: str) -> None:
    compare(of(name), "in", np.float32, 2e-5)


def test_outgoing_edges() -> None:
    compare(drawn(7, 20), "out", np.float32, 2e-5)


def test_double_precision() -> None:
    with jax.enable_x64(True):
        compare(drawn(6, 15), "in", np.float64, 1e-10)


@pytest.mark.parametrize("kernel", ["segment", pytest.param("bucketed", marks=pytest.mark.long)])
def test_other_lowerings(kernel: str) -> None:
    with choose.prefer(kernel):
        compare(drawn(6, 15), "in", np.float32, 2e-5)


@pytest.mark.parametrize("over", ["in", "out"])
@pytest.mark.parametrize("name", GRAPHS)
def test_arguments_of_extremes(name: str, over: Any) -> None:
    graph = of(name)
    d = np.random.default_rng(0).integers(-2, 3, (graph.num_edges, F)).astype(np.float32)
    layer = gnnjit.layer(
        lambda v, e: (gnnjit.argmax(e.data * 2, over=over), gnnjit.argmin(e.data * 2, over=over))
    )
    got = layer(graph, np.zeros((graph.num_nodes, F), np.float32), edges=d)
    for found, pick in zip(got, (np.argmax, np.argmin), strict=True):
        want = [at[pick(d[at], 0)] if len(at) else [-1] * F for at in rows_of(graph, over)]
        assert found.dtype == jnp.int32
        assert found.tolist() == np.array(want).tolist()


NAN = np.array([1, np.nan, -np.inf, 3, np.nan, 2], np.float32)


def test_nan_and_infinity() -> None:
    graph = gnnjit.Graph.from_edges([0] * 6 + [1], [1] * 6 + [2], 4)
    d = np.append(NAN, np.float32(np.inf))

    @gnnjit.layer
    def layer(v: Any, e: Any) -> Any:
        value = e.data
        return {
            "largest": gnnjit.argmax(value), "smallest": gnnjit.argmin(value),
            "median": gnnjit.median(value), "sort": gnnjit.sort(value, 6),
            "top": gnnjit.top_k(value, 3), "none": gnnjit.median(value, initial=5.0),
            "few": gnnjit.top_k(value, 2, initial=-1.0),
        }  # fmt: skip

    got = jax.tree.map(np.asarray, layer(graph, np.zeros(4), edges=d))
    assert got["largest"].tolist() == [-1, 1, 6, -1]
    assert got["smallest"].tolist() == [-1, 1, 6, -1]
    np.testing.assert_array_equal(got["median"], [0, np.nan, np.inf, 0])
    np.testing.assert_array_equal(got["sort"][1], np.sort(NAN))
    np.testing.assert_array_equal(got["top"][1], [np.nan, np.nan, 3])
    np.testing.assert_array_equal(got["none"], [5, np.nan, np.inf, 5])
    np.testing.assert_array_equal(got["few"], [[-1, -1], [np.nan] * 2, [np.inf, -1], [-1, -1]])


def test_ties_come_by_position_and_zeros_are_equal() -> None:
    graph = gnnjit.Graph.from_edges([0] * 4, [1] * 4, 2)
    d = np.array([0.0, -0.0, 0.0, -0.0], np.float32)
    layer = gnnjit.layer(lambda v, e: (gnnjit.argmax(e.data), gnnjit.sort(e.data, 4, order=e.data)))
    first, _ = layer(graph, np.zeros(2), edges=d)
    assert first.tolist() == [-1, 0]
    numbers = np.arange(4)
    both = gnnjit.layer(lambda v, e: (gnnjit.sort(e.data["n"], 4, order=e.data["t"]),
                                      gnnjit.top_k(e.data["n"], 4, order=e.data["t"])))  # fmt: skip
    for got in both(graph, np.zeros(2), edges={"n": numbers, "t": d}):
        assert got[1].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int8, jnp.uint32, jnp.bool_])
def test_dtypes(dtype: Any) -> None:
    graph = of("some")
    d = jnp.asarray(np.random.default_rng(0).integers(0, 100, (graph.num_edges, F))).astype(dtype)
    layer = gnnjit.layer(lambda v, e: (gnnjit.sort(e.data, 2), gnnjit.median(e.data)))
    smallest, median = layer(graph, np.zeros(7), edges=d)
    assert smallest.dtype == dtype
    assert median.dtype == jnp.median(d).dtype
    for row, at in enumerate(rows_of(graph, "in")):
        want = np.sort(np.asarray(d)[at], axis=0)[:2]
        assert np.asarray(smallest)[row][: len(at)].tolist() == want.tolist()
        if len(at):
            want = np.float32(jnp.median(d[at].astype(jnp.float32), axis=0))
            np.testing.assert_allclose(np.float32(median[row]), want, rtol=1e-2)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_padding_may_hold_anything(bad: float) -> None:
    graph = of("padded")
    x, d, _ = features(graph)
    x[6:], d[12:] = bad, bad
    edges = {"value": d, "order": d[:, 0]}

    def loss(x: Any, d: Any) -> Any:
        outs = words(graph, x, edges={**edges, "value": d}, over="in")
        return sum(jnp.sum(jnp.sin(y)) for y in outs.values())

    got = jax.value_and_grad(loss, (0, 1))(x, d)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(got))


def test_no_array_of_edges() -> None:
    n, m, width = 500, 50_000, 16
    src, dst = np.random.default_rng(0).integers(0, n, (2, m))
    graph = gnnjit.Graph.from_edges(src, np.where(np.arange(m) < m // 2, 0, dst), n)
    layer = gnnjit.layer(lambda v, e: gnnjit.median(jnp.tanh(e.src * v)))
    run = jax.jit(jax.grad(lambda x: jnp.sum(layer(graph, x))))
    needed = run.lower(jnp.zeros((n, width))).compile().memory_analysis().temp_size_in_bytes
    assert needed < 4 * m * width / 2


def test_transformations_check_and_second_derivatives() -> None:
    graph = drawn(7, 20)
    x, d, _ = features(graph)
    layer = gnnjit.layer(lambda v, e: gnnjit.median(e.src * v + e.data) * v)
    assert layer.check(graph, x, edges=d).ok
    one = functools.partial(lambda x, d: layer(graph, x, edges=d), d=d)
    got = jax.jit(jax.vmap(one))(np.stack([x, 2 * x]))
    np.testing.assert_allclose(got[1], one(2 * x), rtol=1e-5)

    def turned(f: Any) -> Any:
        return jax.jit(jax.grad(lambda x: jnp.sum(jax.jvp(f, [x], [jnp.cos(x)])[1] ** 2)))(x)

    def slow(x: Any) -> Any:
        values = x[np.asarray(graph.src)] * x[np.asarray(graph.dst)] + d
        return plain("median", values, d[:, 0], rows_of(graph, "in")) * x

    np.testing.assert_allclose(turned(one), turned(slow), rtol=1e-4, atol=1e-4)
    with jax.disable_jit(), pytest.warns(GnnjitWarning, match="orders the edges of a vertex"):
        np.testing.assert_allclose(one(x), slow(x), rtol=1e-5, atol=1e-6)


def test_inside_vmap() -> None:
    graph = of("some")
    x, d, _ = features(graph)
    one = gnnjit.layer(lambda v, e: jax.vmap(lambda z: gnnjit.median(z * 2), 1)(e.data[None] * v))
    got = one(graph, x, edges=d)
    want = gnnjit.layer(lambda v, e: gnnjit.median(e.data * v * 2))(graph, x, edges=d)
    np.testing.assert_allclose(got[..., 0], want, rtol=1e-6)


MISTAKES = {
    "k": (lambda v, e: gnnjit.top_k(e.src, 0), "top_k: k must be a whole number from 1 to 1024, g"),
    "size": (lambda v, e: gnnjit.sort(e.src, 1.5), "sort: size must be a whole number .*, got 1.5"),
    "order": (lambda v, e: gnnjit.sort(e.src, 2, order=e.src),
              r"sort: order must be one number per edge, \[\], got float32\[3\]"),
    "q": (lambda v, e: gnnjit.quantile(e.src, 1.5), "q must be a number from 0 to 1, or several"),
    "text": (lambda v, e: gnnjit.quantile(e.src, "half"), "or several, got 'half'"),
    "traced": (lambda v, e: gnnjit.quantile(e.src, v[0]), "q is traced, expected numbers that are"),
    "complex": (lambda v, e: gnnjit.argmax(e.src * 1j), r"argmax\(\) got complex64\[3\], expected"),
    "shared": (lambda v, e: gnnjit.median(jnp.ones(3)), r"median\(\) needs a value on edges or"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    fn, message = MISTAKES[name]
    with pytest.raises(LayerError, match=message):
        gnnjit.layer(fn)(of("some"), features(of("some"))[0])
