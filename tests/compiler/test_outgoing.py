"""Reductions over outgoing edges against plain JAX, in value and gradient."""

from __future__ import annotations

import dataclasses
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

WORDS = ("sum", "mean", "max", "min", "var", "std", "logsumexp")


def plain(word: str, values: Any, rows: np.ndarray, count: int) -> Any:
    """A reduction of `[edges, ...]` into rows, one row after the other."""
    how: dict[str, Any] = {
        "mean": jnp.mean, "sum": jnp.sum, "max": jnp.max, "min": jnp.min, "var": jnp.var,
        "std": jnp.std, "logsumexp": jax.nn.logsumexp,
    }  # fmt: skip
    found = []
    for row in range(count):
        some = values[np.flatnonzero(rows == row)]
        alone = word in ("std", "var") and len(some) < 2
        empty = jnp.zeros(values.shape[1:], values.dtype)
        found.append(how[word](some, axis=0) if len(some) and not alone else empty)
    return jnp.stack(found)


def plain_softmax(values: Any, rows: np.ndarray) -> Any:
    out = jnp.zeros_like(values)
    for row in np.unique(rows):
        at = np.flatnonzero(rows == row)
        out = out.at[at].set(jax.nn.softmax(values[at], axis=0))
    return out


@gnnjit.layer
def words(v: Any, e: Any, w: Any) -> Any:
    value = jnp.tanh(e.src * v + e.data @ w)
    weight = gnnjit.softmax(value, over="out")
    found = {word: getattr(gnnjit, word)(value, over="out") for word in WORDS}
    return found, gnnjit.sum(weight * e.src), gnnjit.mean(value) * gnnjit.degree(over="out")


def plain_words(graph: gnnjit.Graph, x: Any, d: Any, w: Any) -> Any:
    (kept, src, dst), n = real(graph), graph.num_nodes
    value = jnp.tanh(x[src] * x[dst] + d[kept] @ w)
    found = {word: plain(word, value, src, n) for word in WORDS}
    weighted = plain("sum", plain_softmax(value, src) * x[src], dst, n)
    degree = np.bincount(src, minlength=n)[:, None]
    return found, weighted, plain("mean", value, dst, n) * degree


def fast_words(graph: gnnjit.Graph, x: Any, d: Any, w: Any) -> Any:
    return words(graph, x, w, edges=d)


@pytest.mark.parametrize("name", GRAPHS)
def test_every_word(name: str) -> None:
    graph = of(name)
    fast, slow = (functools.partial(f, graph) for f in (fast_words, plain_words))
    assert_same(fast, slow, features(graph))


@pytest.mark.parametrize("kernel", ["cpu", "bucketed", "segment", *map(
    lambda k: pytest.param(k, marks=pytest.mark.long), ["csr", "pallas"])])  # fmt: skip
def test_every_lowering(kernel: str) -> None:
    graph = of("some")
    with choose.prefer(kernel):
        fast, slow = (functools.partial(f, graph) for f in (fast_words, plain_words))
        assert_same(fast, slow, features(graph))


def test_double_precision_and_second_derivatives() -> None:
    with jax.enable_x64(True):
        graph = drawn(6, 12)
        args = features(graph, np.float64)
        fast, slow = (functools.partial(f, graph) for f in (fast_words, plain_words))
        assert_same(fast, slow, args, rtol=1e-8)
        x, d, w = args

        def turned(f: Any, w: Any) -> Any:
            found, weighted, _ = jax.jvp(lambda w: f(x, d, w), [w], [jnp.cos(w)])[1]
            return jnp.sum(jnp.sin(weighted)) + jnp.sum(found["max"] ** 2 + found["sum"])

        got, want = (jax.jit(jax.grad(functools.partial(turned, f)))(w) for f in (fast, slow))
        np.testing.assert_allclose(got, want, rtol=1e-8)


def mlp(p: Any, *parts: Any) -> Any:
    return jnp.tanh(jnp.concatenate(parts, axis=-1) @ p["a"]) @ p["b"]


@gnnjit.layer
def block(v: Any, e: Any, p: Any) -> Any:
    """A block of Battaglia et al. (2018) with sent and received edges, as jraph has them."""
    edge = mlp(p["edge"], e.data, e.src, v)
    return mlp(p["vertex"], v, gnnjit.sum(edge, over="out"), gnnjit.sum(edge)), edge


def as_jraph(graph: gnnjit.Graph, x: Any, d: Any, p: Any) -> Any:
    """The arithmetic of `jraph.GraphNetwork`."""
    senders, receivers = np.asarray(graph.src), np.asarray(graph.dst)
    edge = mlp(p["edge"], d, x[senders], x[receivers])
    sent = jax.ops.segment_sum(edge, senders, graph.num_nodes)
    received = jax.ops.segment_sum(edge, receivers, graph.num_nodes)
    return mlp(p["vertex"], x, sent, received), edge


def parameters() -> Any:
    rng = np.random.default_rng(2)
    widths = {"edge": 3 * F, "vertex": 3 * F}
    return {
        name: {k: np.float32(rng.normal(size=s) / 4) for k, s in (("a", (n, 64)), ("b", (64, F)))}
        for name, n in widths.items()
    }


@pytest.mark.parametrize("name", ["some", "no edges"])
def test_sent_and_received_edges_against_jraphs_arithmetic(name: str) -> None:
    graph = of(name)
    x, d, _ = features(graph)
    assert_same(
        lambda x, d, p: block(graph, x, p, edges=d),
        functools.partial(as_jraph, graph),
        (x, d, parameters()),
    )


def test_no_edge_function_is_evaluated_twice() -> None:
    graph = drawn(7, 20)
    rng = np.random.default_rng(0)
    x, d = (np.float32(rng.normal(size=(n, 32))) for n in (7, 20))
    w = np.float32(rng.normal(size=(32, 32)))

    @gnnjit.layer
    def layer(v: Any, e: Any, w: Any) -> Any:
        edge = jnp.tanh((e.src + v + e.data) @ w)
        return gnnjit.sum(jnp.tanh(edge @ w), over="out") + gnnjit.sum(jnp.tanh(edge @ w))

    text = str(layer.explain(graph, x, w, edges=d))
    kernels = text.split("--- kernels")[1].split("\n\n")
    rows = [k for k in kernels if ": cpu, one row per" in k]
    by_source = [k for k in rows if "one row per source" in k]
    assert len([k for k in rows if "forward" in k and k not in by_source]) == 1
    assert len(by_source) == 2  # values and gradients: both read what the others wrote
    assert all("dot_general" not in k and " @ " not in k for k in by_source)


def test_two_vertex_sets() -> None:
    graph = gnnjit.Graph.from_edges([0, 1, 1], [0, 0, 2], num_src=2, num_dst=3)
    rng = np.random.default_rng(0)
    x = gnnjit.Bipartite(*(np.float32(rng.normal(size=(n, F))) for n in (2, 3)))
    for word in (*WORDS, "degree"):

        @gnnjit.layer
        def layer(v: Any, e: Any, word: str = word) -> Any:
            args = () if word == "degree" else (e.src,)
            return v + getattr(gnnjit, word)(*args, over="out")

        with pytest.raises(LayerError, match=r"two vertex sets \(2 sources, 3 destinations\)"):
            layer(graph, x)
    got = gnnjit.layer(lambda v, e: gnnjit.softmax(e.src * v, over="out"))(graph, x)
    value = x.src[graph.src] * x.dst[graph.dst]
    np.testing.assert_allclose(got, plain_softmax(value, np.asarray(graph.src)), rtol=1e-5)


def test_a_block_of_a_sampled_batch() -> None:
    graph = gnnjit.Graph.from_edges([0, 1], [0, 0], num_src=3, num_dst=1)
    graph = dataclasses.replace(graph, nested=True)
    with pytest.raises(LayerError, match="a block of a sampled batch"):
        gnnjit.layer(lambda v, e: gnnjit.sum(e.src, over="out"))(graph, np.ones((3, F), np.float32))


def test_no_such_edges() -> None:
    both: Any = "both"
    with pytest.raises(LayerError, match=r'over must be "in" .* or "out" .*, got .both.'):
        gnnjit.layer(lambda v, e: gnnjit.sum(e.src, over=both))(of("some"), np.ones((7, F)))
    with pytest.raises(LayerError, match=r"gnnjit.degree\(\) was called outside a layer"):
        gnnjit.degree(over="out")


def test_where_each_end_is_read() -> None:
    graph = gnnjit.Graph.from_edges([0, 0, 1], [1, 2, 2], 3)
    x = np.array([[1], [10], [100]], np.float32)
    layer = gnnjit.layer(lambda v, e: (gnnjit.sum(e.src, over="out"), gnnjit.sum(v, over="out"),
                                       gnnjit.sum(gnnjit.sum(e.src), over="out")))  # fmt: skip
    own, ends, twice = layer(graph, x)
    assert own[:, 0].tolist() == [2, 10, 0]
    assert ends[:, 0].tolist() == [110, 100, 0]
    assert twice[:, 0].tolist() == [1 + 11, 11, 0]


def test_initial_and_dtypes() -> None:
    graph = of("some")
    x = jnp.ones((7, F), jnp.bfloat16)
    layer = gnnjit.layer(lambda v, e: (gnnjit.mean(e.src, over="out", initial=-1),
                                       gnnjit.sum(v[0] > 0, over="out"),
                                       gnnjit.max(v > 0, over="out")))  # fmt: skip
    mean, count, some = layer(graph, x)
    degree = np.bincount(np.asarray(graph.src), minlength=7)
    assert (mean.dtype, count.dtype, some.dtype) == (jnp.bfloat16, jnp.int32, jnp.bool_)
    assert count.tolist() == degree.tolist()
    assert mean[:, 0].tolist() == [1 if n else -1 for n in degree]
    assert some[:, 0].tolist() == [bool(n) for n in degree]


def test_sums_of_half_precision_do_not_lose_small_terms() -> None:
    graph = gnnjit.Graph.from_edges([0] * 4096, [1] * 4096, 2)
    x = jnp.ones((2, 1), jnp.bfloat16)
    d = jnp.ones((4096, 1), jnp.bfloat16)
    got = gnnjit.layer(lambda v, e: gnnjit.sum(e.data * v, over="out"))(graph, x, edges=d)
    assert got[:, 0].tolist() == [4096, 0]


def test_nan_reaches_its_own_vertex_alone() -> None:
    graph = gnnjit.Graph.from_edges([0, 0, 1], [1, 2, 2], 3)
    d = np.array([np.nan, 1, 2], np.float32)

    @gnnjit.layer
    def layer(v: Any, e: Any) -> Any:
        return gnnjit.max(e.data * v, over="out"), gnnjit.sum(e.data * v, over="out")

    for got in layer(graph, np.ones(3, np.float32), edges=d):
        assert np.isnan(got).tolist() == [True, False, False]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_padding_may_hold_anything(bad: float) -> None:
    graph = of("padded")
    x, d, w = features(graph)
    x[6:], d[12:] = bad, bad
    got = fast_words(graph, x, d, w)
    assert all(np.isfinite(y).all() for y in jax.tree.leaves(got))

    def loss(*args: Any) -> Any:
        return sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(fast_words(graph, *args)))

    assert all(np.isfinite(g).all() for g in jax.grad(loss, (0, 1, 2))(x, d, w))


def test_transformations() -> None:
    graph = of("some")
    x, d, _ = features(graph)
    p = parameters()
    every = np.stack([x, 0.5 * x])
    got = jax.jit(jax.vmap(lambda x: block(graph, x, p, edges=d)))(every)
    for i in range(2):
        for y, z in zip(got, as_jraph(graph, every[i], d, p), strict=True):
            np.testing.assert_allclose(y[i], z, rtol=1e-5, atol=1e-5)


def test_check_and_reverse() -> None:
    graph = of("padded")
    x, d, w = features(graph)
    assert words.check(graph, x, w, edges=d).ok
    total = gnnjit.layer(lambda v, e: gnnjit.sum(e.src * v * e.data, over="out"))
    inward = gnnjit.layer(lambda v, e: gnnjit.sum(e.src * v * e.data))
    np.testing.assert_allclose(
        total(graph, x, edges=d), inward(graph.reverse(), x, edges=d), rtol=1e-6
    )


def test_without_jit_it_is_compiled_all_the_same() -> None:
    graph = of("some")
    x, d, w = features(graph)
    want = fast_words(graph, x, d, w)
    with (
        jax.disable_jit(),
        pytest.warns(GnnjitWarning, match=r"\(over=.out.\), so it cannot run edge"),
    ):
        got = fast_words(graph, x, d, w)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), got, want)
