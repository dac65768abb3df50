"""Layers on typed graphs: values and gradients are those of plain gathers and segment sums."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from compiler import typed_cases as cases
from compiler.typed_cases import F, edges_of, inputs, on_graph, run_plain


def close(got: Any, expected: Any, rtol: float = 2e-5) -> None:
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


def linear(tree: Any) -> Any:
    """A number that every entry counts in, by a weight of its own."""
    return sum(
        (jnp.sum(leaf * jnp.cos(jnp.arange(leaf.size, dtype=leaf.dtype)).reshape(leaf.shape))
         for leaf in jax.tree.leaves(tree)),
        jnp.zeros(()),
    )  # fmt: skip


def compare(layer: Any, case: str, dtype: Any = np.float32, rtol: float = 2e-5) -> None:
    edges, counts = edges_of(case)
    x, w = inputs(edges, counts, dtype)
    graph = gnnjit.TypedGraph.from_edges(edges, counts)
    compiled = on_graph(layer)

    @jax.jit
    def fast(graph: Any, x: Any, w: Any) -> Any:
        out = compiled(graph, x, w)
        return linear(out), out

    @jax.jit  # one program, instead of one for each operation
    def slow(x: Any, w: Any) -> Any:
        out = run_plain(layer, edges, x, w)
        return linear(out), out

    (_, got), grads = jax.value_and_grad(fast, (1, 2), has_aux=True)(graph, x, w)
    (_, expected), plain_grads = jax.value_and_grad(slow, (0, 1), has_aux=True)(x, w)
    close(got, expected, rtol)
    close(grads, plain_grads, rtol)


SHORT = [(layer, "academic") for layer in cases.LAYERS] + [(cases.hgt, "one-type")]
LONG = [(f, case) for f in cases.LAYERS for case in cases.CASES if (f, case) not in SHORT]


@pytest.mark.parametrize(
    ("layer", "case"),
    [*SHORT, *(pytest.param(*pair, marks=pytest.mark.long) for pair in LONG)],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_values_and_gradients(layer, case):
    compare(layer, case)


@pytest.mark.parametrize("layer", [cases.hgt, cases.two_stages], ids=lambda f: f.__name__)
def test_double_precision(layer):
    with jax.enable_x64(True):
        compare(layer, "academic", np.float64, 1e-10)


def academic(dtype: Any = np.float32) -> tuple[gnnjit.TypedGraph, Any, Any]:
    edges, counts = edges_of("academic")
    return (gnnjit.TypedGraph.from_edges(edges, counts), *inputs(edges, counts, dtype))


@gnnjit.layer
def gated(v: Any, e: Any, w: Any) -> Any:
    """Edge data, and results on the edges of one relation and of all."""
    message = e.map(lambda r: r.src * r.data if r.name == "writes" else r.src)
    of_one = {r.name: r.src + r.data for r in e.relations if r.name == "writes"}
    return {"v": gnnjit.sum(message) @ w, "one": of_one, "all": message, "source": [
        r.src for r in e.relations if r.name == "cites"]}  # fmt: skip


def test_data_of_edges_and_results_on_edges():
    graph, x, w = academic()
    key = ("author", "writes", "paper")
    data = jnp.asarray(np.random.default_rng(1).normal(size=(14, F)), jnp.float32)
    got = gated(graph, x, w["q"], edges={"writes": data})
    src = {k: np.asarray(graph[k].src) for k in graph.relations}
    message = {k: x[k[0]][src[k]] for k in graph.relations}
    message[key] = message[key] * data
    close(got["paper"]["one"], {"writes": x["author"][src[key]] + data})
    close(got["paper"]["all"], {k: message[k] for k in graph.into("paper")})
    close(got["paper"]["source"], [x["paper"][src["paper", "cites", "paper"]]])
    assert list(got["paper"]["all"]) == list(graph.into("paper"))
    assert got["venue"]["all"] == {}
    assert got["nothing"]["v"].shape == (0, F)
    dst = {k: np.asarray(graph[k].dst) for k in graph.relations}
    summed = sum(
        jax.ops.segment_sum(message[k], dst[k], 7) for k in graph.into("paper")
    )  # fmt: skip
    close(got["paper"]["v"], summed @ w["q"])


def test_padding_reaches_no_result_and_no_gradient():
    graph, x, w = academic()
    padded = graph.pad({"author": 8, "paper": 9}, {"writes": 20, "prints": 3})
    layer = on_graph(cases.hgt)

    def loss(graph: Any, x: Any, w: Any) -> Any:
        out = layer(graph, x, w)
        return sum(jnp.sum(jnp.sin(out[t][: x_small[t].shape[0]])) for t in out)

    x_small = x
    expected = jax.grad(loss, (1, 2))(graph, x, w)
    got = jax.grad(loss, (1, 2))(padded, padded.pad_nodes(x), w)
    close({t: got[0][t][: len(x[t])] for t in x}, expected[0])
    close(got[1], expected[1])

    data = padded.pad_edges({"writes": jnp.ones((14, F))})
    key = ("author", "writes", "paper")
    data[key] = data[key].at[14:].set(jnp.nan)
    out = gated(padded, padded.pad_nodes(x), w["q"], edges=data)
    assert np.isfinite(out["paper"]["v"]).all()


def test_a_type_without_relations_gets_zeros_of_the_right_shape():
    graph, x, _w = academic()
    wide = jnp.ones((F, 5))

    @gnnjit.layer
    def layer(v: Any, e: Any, wide: Any) -> Any:
        weight = gnnjit.softmax(e.map(lambda r: jnp.sum(r.src * r.dst)))
        return gnnjit.sum(weight * e.map(lambda r: r.src)) @ wide + gnnjit.degree()

    out = layer(graph, x, wide)
    assert out["venue"].shape == (2, 5)
    assert out["nothing"].shape == (0, 5)
    assert not out["venue"].any()
    assert out["paper"].any()


def test_edges_that_tie_across_relations_share_the_gradient():
    graph = gnnjit.TypedGraph.from_edges(
        {("a", "one", "b"): ([0, 1], [0, 0]), ("a", "two", "b"): ([2, 3], [0, 0])}, {"a": 4, "b": 2}
    )

    @gnnjit.layer
    def largest(v: Any, e: Any) -> Any:
        return gnnjit.max(e.map(lambda r: r.src))

    x = jnp.asarray([2.0, 2.0, 2.0, 1.0])
    b = jnp.zeros(2)
    grad = jax.grad(lambda x: jnp.sum(largest(graph, {"a": x, "b": b})["b"] * 3))(x)
    assert grad.tolist() == [1.0, 1.0, 1.0, 0.0]
    whole = (x * 10).astype(jnp.int32)
    assert largest(graph, {"a": whole, "b": b})["b"].tolist() == [20, 0]


def test_scores_of_minus_infinity_weigh_nothing():
    graph = gnnjit.TypedGraph.from_edges(
        {("a", "one", "b"): ([0, 1], [0, 1]), ("a", "two", "b"): ([2, 1], [0, 1])}, {"a": 3, "b": 2}
    )

    @gnnjit.layer
    def weights(v: Any, e: Any) -> Any:
        weight = gnnjit.softmax(e.map(lambda r: r.src))
        return gnnjit.sum(weight * e.map(lambda r: jnp.where(r.src > 0, r.src, 1.0)))

    x = {"a": jnp.asarray([-jnp.inf, -jnp.inf, 3.0]), "b": jnp.zeros(2)}
    close(weights(graph, x)["b"], np.array([3.0, 0.0]))
    large = {"a": jnp.asarray([1e4, 1.0, 2e4]), "b": jnp.zeros(2)}
    close(weights(graph, large)["b"], np.array([2e4, 1.0]))


def test_vmap_over_weights_and_second_derivatives():
    graph, x, w = academic()
    layer = on_graph(cases.rgcn)
    many = jax.tree.map(lambda a: jnp.stack([a, 0.5 * a]), w)
    got = jax.jit(jax.vmap(lambda w: layer(graph, x, w)))(many)
    for i in range(2):
        one = jax.jit(layer)(graph, x, jax.tree.map(lambda a, i=i: a[i], many))
        close(jax.tree.map(lambda a, i=i: a[i], got), one)

    edges, _ = edges_of("academic")
    smooth = cases.attention_by_relation

    def curved(f: Any) -> Any:
        return lambda a: linear(jax.tree.map(jnp.sin, f({**w, "a": a})))

    fast = curved(lambda w: on_graph(smooth)(graph, x, w))
    slow = curved(lambda w: run_plain(smooth, edges, x, w))
    close(*(jax.jit(jax.hessian(f))(w["a"]) for f in (fast, slow)), 2e-4)


def test_one_traced_call_for_each_relation_and_the_same_interpreted():
    graph, x, w = academic()
    layer = on_graph(cases.hgt)
    reports = layer.check(graph, x, w)
    assert len(reports) == len(graph.relations) + 2  # one that stands in for each type without
    assert all(report.ok for report in reports)
    explained = layer.explain(graph, x, w)
    assert [str(e.program).count("for each edge") for e in explained.layers] == [1] * len(reports)
    with gnnjit.reference():
        close(layer(graph, x, w), run_plain(cases.hgt, edges_of("academic")[0], x, w))
    with jax.disable_jit():
        close(layer(graph, x, w), run_plain(cases.hgt, edges_of("academic")[0], x, w))


def test_random_numbers_of_relations_and_types_differ():
    ends = (np.arange(400), np.arange(400))
    graph = gnnjit.TypedGraph.from_edges(
        {("a", "one", "b"): ends, ("a", "two", "b"): ends}, {"a": 400, "b": 400}
    )

    @gnnjit.layer
    def draws(v: Any, e: Any, key: Any) -> Any:
        return [gnnjit.random_uniform(key, r.src) for r in e.relations], (
            gnnjit.random_uniform(key, v)
        )

    x = {"a": jnp.ones(400), "b": jnp.ones(400)}
    out = draws(graph, x, jax.random.key(0))
    rows = np.stack([*out["b"][0], out["b"][1], out["a"][1]])
    assert np.abs(np.corrcoef(rows) - np.eye(4)).max() < 0.2
    assert ((rows >= 0) & (rows < 1)).all()
    assert abs(rows.mean() - 0.5) < 0.05


def test_dropout_of_attention_keeps_its_mean():
    ends = (np.zeros(2000, int), np.zeros(2000, int))
    graph = gnnjit.TypedGraph.from_edges(
        {("a", "one", "b"): ends, ("a", "two", "b"): ends}, {"a": 1, "b": 1}
    )

    @gnnjit.layer
    def layer(v: Any, e: Any, key: Any) -> Any:
        weight = gnnjit.dropout(gnnjit.softmax(e.map(lambda r: r.src)), 0.5, key)
        return gnnjit.sum(weight * e.map(lambda r: r.src))

    out = layer(graph, {"a": jnp.ones(1), "b": jnp.ones(1)}, jax.random.key(1))
    assert abs(float(out["b"][0]) - 1) < 0.1
    assert float(out["b"][0]) != 1


def test_a_method_with_static_arguments_and_a_type_without_features():
    class Model:
        def __init__(self, w: Any):
            self.w = w

        @gnnjit.layer(static_argnames="twice")
        def __call__(self, v: Any, e: Any, *, twice: bool) -> Any:
            out = sum(gnnjit.sum(r.src @ self.w) for r in e.relations) + jnp.zeros(F)
            return 2 * out if twice else out

    graph = gnnjit.TypedGraph.from_edges({("a", "to", "b"): ([0, 1], [1, 1])}, {"a": 2, "b": 2})
    x = {"a": jnp.ones((2, F)), "b": None}
    out = Model(jnp.eye(F))(graph, x, twice=True)
    close(out, {"a": jnp.zeros((2, F)), "b": jnp.asarray([[0.0] * F, [4.0] * F])})


def test_a_sum_over_no_relations_is_zero_for_each_vertex():
    graph, x, _ = academic()

    @gnnjit.layer
    def layer(v: Any, e: Any) -> Any:
        return sum(gnnjit.sum(r.src) for r in e.relations)

    out = layer(graph, x)
    assert {t: (y.shape, y.dtype) for t, y in out.items()} == {
        t: (rows.shape, jnp.float32) for t, rows in x.items()
    }
    assert not out["venue"].any()
