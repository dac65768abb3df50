"""A streamed function gives what it gives in memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gnnjit
from gnnjit.store.disk import DiskStore
from gnnjit.streaming.grid.streamed_graph import VertexArray
from gnnjit.streaming.stream import stream

from .functions import (
    Edges,
    PerVertex,
    assert_same,
    edges,
    in_memory,
    in_parts,
    on_graph,
    random_edges,
)

F = 3
W = np.random.default_rng(0).normal(size=(F, 4)).astype(np.float32) * 0.5


def _hub() -> Edges:
    found = random_edges(13, 30)
    found.dst[::2] = 6
    return found


GRAPHS = {
    "isolated": edges([0, 1, 1, 3], [1, 3, 0, 0], 6),
    "self loops": edges([0, 1, 2, 0], [0, 1, 2, 1], 5),
    "duplicates": edges([0, 0, 0, 4, 4], [1, 1, 1, 2, 2], 5),
    "no edges": edges([], [], 4),
    "hub": _hub(),
    "two vertices": edges([0, 1, 1], [1, 0, 1], 2),
}


def vertex_rows(data: Edges, *shape: int, seed: int = 0) -> PerVertex:
    """Small integers: sums are exact, and maxima have ties."""
    rng = np.random.default_rng(seed)
    return PerVertex(rng.integers(-2, 3, (data.num_nodes, *shape)).astype(np.float32))


def attend(score: Any, value: Any) -> Any:
    return gnnjit.sum(gnnjit.softmax(score) * value)


Layer = Callable[[Any, Any, Any], Any]

LAYERS: dict[str, Layer] = {
    "sum": lambda v, e, w: gnnjit.sum(e.src @ w),
    "mean": lambda v, e, w: gnnjit.mean(jnp.tanh(e.src @ w) + v @ w),
    "max": lambda v, e, w: gnnjit.max(e.src) @ w,
    "min": lambda v, e, w: gnnjit.min(jnp.tanh(e.src - e.dst) @ w),
    "std": lambda v, e, w: gnnjit.std(e.src) @ w + gnnjit.var(v @ w - e.src @ w),
    "logsumexp": lambda v, e, w: gnnjit.logsumexp(e.src @ w),
    "gat": lambda v, e, w: attend(jnp.sum(e.src @ w) + jnp.sum(v @ w), e.src @ w),
    "softmax of edges": lambda v, e, w: attend(jnp.tanh(e.src * e.dst) @ w, e.src @ w),
    "pna": lambda v, e, w: jnp.concatenate(
        [gnnjit.mean(e.src), gnnjit.max(e.src), gnnjit.min(e.src), gnnjit.std(e.src)]
    ) * jnp.log(gnnjit.degree() + 1.0),
    "edge mlp": lambda v, e, w: gnnjit.max(
        jnp.tanh(jnp.concatenate([e.src, e.dst]) @ jnp.concatenate([w, -w]))
    ),
    "nested": lambda v, e, w: gnnjit.max(e.src - gnnjit.mean(e.src) * v) @ w,
    "initial": lambda v, e, w: (gnnjit.max(e.src, initial=7.0) + gnnjit.sum(v, initial=v)) @ w,
    "edge dropout": lambda v, e, w: (
        gnnjit.sum(gnnjit.dropout(e.src, 0.5, jax.random.key(0))) @ w
    ),
    "vertex dropout": lambda v, e, w: gnnjit.dropout(v, 0.5, jax.random.key(0)) @ w
    + gnnjit.sum(gnnjit.dropout(e.src @ w, 0.3, jax.random.key(1))),
}  # fmt: skip


def with_gradients(name: str) -> Callable[..., Any]:
    layer = gnnjit.layer(LAYERS[name])

    def fn(graph: Any, x: Any, w: Any, weight: Any) -> Any:
        def loss(x: Any, w: Any) -> Any:
            out = layer(graph, x, w)
            return jnp.sum(jnp.sin(out) * weight[:, None]), out

        (value, out), grads = jax.value_and_grad(loss, (0, 1), has_aux=True)(x, w)
        return out, value, grads

    return fn


def assert_streams(fn: Any, data: Edges, *args: Any, parts: int, **options: Any) -> None:
    want = in_memory(fn, data, *args)
    finite = [np.abs(x[np.isfinite(x)]) for x in jax.tree.leaves(want)]
    scale = max(1.0, *(float(np.max(x, initial=0)) for x in finite))
    assert_same(in_parts(fn, data, *args, parts=parts, **options), want, atol=1e-5 * scale)


# Sums, maxima, minima and deviations alone: all of them are in "pna".
@pytest.mark.long
@pytest.mark.parametrize("name", [n for n in LAYERS if n not in ("sum", "max", "min", "std")])
def test_values_and_gradients_on_a_hub(name):
    data = GRAPHS["hub"]
    x, weight = vertex_rows(data, F), vertex_rows(data, seed=1)
    assert_streams(with_gradients(name), data, x, W, weight, parts=3)


@pytest.mark.parametrize("graph", [g for g in GRAPHS if g != "hub"])
def test_values_and_gradients_on_odd_graphs(graph):
    data = GRAPHS[graph]
    x, weight = vertex_rows(data, F), vertex_rows(data, seed=1)
    assert_streams(with_gradients("pna"), data, x, W, weight, parts=4)


@st.composite
def graphs(draw: st.DrawFn) -> Edges:
    n = draw(st.integers(2, 9))
    ends = st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=20)
    found = np.array(draw(ends), np.int32).reshape(-1, 2)
    if draw(st.booleans()):
        found[::2, 1] = n // 2
    return edges(found[:, 0], found[:, 1], n)


@pytest.mark.long
@pytest.mark.once
@settings(max_examples=8)
@given(graphs(), st.integers(1, 10), st.sampled_from(["mean", "max", "gat", "nested"]))
def test_any_graph_and_any_number_of_blocks(data, parts, name):
    layer = gnnjit.layer(LAYERS[name])
    x = vertex_rows(data, F)
    assert_streams(lambda g, x, w: layer(g, x, w), data, x, W, parts=parts)


# ------------------------------------------------------------------------------- hard numbers


@pytest.mark.parametrize(
    ("score", "everywhere"), [(1e4, False), (-1e4, False), (-np.inf, True), (-np.inf, False)]
)
def test_scores_of_any_size(score, everywhere):
    """Chunks whose maxima are far apart, or minus infinity."""
    data = GRAPHS["hub"]
    scores = np.linspace(-1, 1, data.num_nodes).astype(np.float32)
    scores[slice(None) if everywhere else slice(None, None, 3)] = score
    layer = gnnjit.layer(lambda v, e: (attend(e.src[0], e.src[1]), gnnjit.logsumexp(e.src[0])))

    def fn(graph: Any, scores: Any, x: Any) -> Any:
        def loss(scores: Any, x: Any) -> Any:
            out, lse = layer(graph, (scores, x))
            return jnp.sum(jnp.sin(out)) + jnp.sum(jnp.where(jnp.isfinite(lse), lse, 0))

        return layer(graph, (scores, x)), jax.grad(loss, (0, 1))(scores, x)

    x = vertex_rows(data)
    assert_streams(fn, data, PerVertex(scores), x, parts=4)


def test_ties_of_a_maximum_share_its_gradient_across_chunks():
    """Vertex 0 gets the same value from a vertex of each block."""
    data = edges([1, 3, 5, 6], [0, 0, 0, 0], 7)
    layer = gnnjit.layer(lambda v, e: gnnjit.max(e.src))
    x = PerVertex(np.array([0, 2, 9, 2, 9, 1, 2], np.float32))

    def grad(graph: Any, x: Any) -> Any:
        return jax.grad(lambda x: jnp.sum(layer(graph, x)))(x)

    got = in_parts(grad, data, x, parts=3)
    third = np.float32(1 / 3)
    np.testing.assert_allclose(got, [0, third, 0, third, 0, 0, third], rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half_precision(dtype):
    data = GRAPHS["hub"]
    layer = gnnjit.layer(lambda v, e: (gnnjit.sum(e.src), gnnjit.max(e.src), gnnjit.mean(v)))
    x = PerVertex(vertex_rows(data, F).rows.astype(dtype))  # sums of small integers are exact
    assert_same(in_parts(layer, data, x, parts=3), in_memory(layer, data, x), rtol=1e-2)


def test_integers_and_booleans():
    data = GRAPHS["hub"]
    layer = gnnjit.layer(lambda v, e: (
        gnnjit.sum(e.src["i"]), gnnjit.max(e.src["b"]), gnnjit.min(e.src["i"]), gnnjit.mean(v["i"])
    ))  # fmt: skip
    x = vertex_rows(data).rows

    def fn(graph: Any, i: Any, b: Any) -> Any:
        return layer(graph, {"i": i, "b": b})

    args = PerVertex(x.astype(np.int32)), PerVertex(x > 0)
    assert_same(in_parts(fn, data, *args, parts=3), in_memory(fn, data, *args))


# ---------------------------------------------------------------------------- transformations


SMOOTH = gnnjit.layer(lambda v, e, w: attend(jnp.tanh(e.src) @ w[:, 0] + v[0], e.src @ w))


def _second_order(graph: Any, x: Any, w: Any) -> Any:
    def norm(w: Any) -> Any:
        return jnp.sum(jax.grad(lambda x: jnp.sum(jnp.sin(SMOOTH(graph, x, w))))(x) ** 2)

    return jax.grad(norm)(w)


def _looped(graph: Any, x: Any, w: Any) -> Any:
    def loss(w: Any) -> Any:
        def step(h: Any, scale: Any) -> Any:
            h = jnp.tanh(SMOOTH(graph, h, w * scale))
            return h, jnp.sum(h)

        last, sums = jax.lax.scan(step, x, jnp.array([1.0, 0.5]))
        return jnp.sum(last**2) + jnp.sum(jnp.sin(sums)), last

    return jax.value_and_grad(loss, has_aux=True)(w)


def _checkpointed(graph: Any, x: Any, w: Any) -> Any:
    layer = jax.checkpoint(lambda x, w: jnp.tanh(SMOOTH(graph, x, w)))
    return jax.value_and_grad(lambda w: jnp.sum(layer(layer(x, w), w) ** 2))(w)


TRANSFORMED: dict[str, Callable[..., Any]] = {
    "jvp": lambda g, x, w: jax.jvp(lambda x: SMOOTH(g, x, w), (x,), (jnp.sin(x),)),
    "second order": _second_order,
    "vmap": lambda g, x, w: jax.vmap(lambda a: SMOOTH(g, x, w * a), out_axes=1)(jnp.arange(3.0)),
    "vmap over features": lambda g, x, w: jax.vmap(
        lambda x: SMOOTH(g, x, w), in_axes=2, out_axes=2
    )(jnp.stack([x, -x], axis=2)),
    "scan": _looped,
    "checkpoint": _checkpointed,
    "cond": lambda g, x, w: jax.lax.cond(w[0, 0] > 0, SMOOTH, lambda g, x, w: x @ w, g, x, w),
}


@pytest.mark.long
@pytest.mark.parametrize("name", TRANSFORMED)
def test_transformations(name):
    data = GRAPHS["hub"]
    w = W[:, :F]
    assert_streams(TRANSFORMED[name], data, vertex_rows(data, F), w, parts=3)


@pytest.mark.long
def test_edge_values_between_layers():
    data = GRAPHS["hub"]
    first = gnnjit.layer(lambda v, e, w: (jnp.tanh(jnp.concatenate([e.src, e.dst]) @ w),
                                          gnnjit.sum(e.src)))  # fmt: skip
    second = gnnjit.layer(lambda v, e: gnnjit.sum(gnnjit.softmax(e.data) * e.data) + gnnjit.max(v))

    def fn(graph: Any, x: Any, w: Any) -> Any:
        def loss(w: Any) -> Any:
            on_edges, total = first(graph, x, w)
            return jnp.sum(jnp.sin(second(graph, total, edges=jnp.cos(on_edges))))

        return jax.value_and_grad(loss)(w)

    assert_streams(fn, data, vertex_rows(data, F), np.concatenate([W, -W])[:, :F], parts=3)


# ------------------------------------------------------------------------- results and options


@pytest.mark.parametrize("order", ["given", "rcm", "random"])
def test_rows_are_in_the_users_order(order):
    data = random_edges(12, 40)
    ranks = np.random.default_rng(3).permutation(12)
    graph = data.streamed(order=ranks if order == "random" else order)
    args = vertex_rows(data, F), W, vertex_rows(data, seed=1)
    fn = with_gradients("gat" if order == "given" else "vertex dropout")
    assert_same(in_parts(fn, graph, *args, parts=3), in_memory(fn, data, *args), 2e-5, 2e-5)


def test_results_of_all_kinds():
    """Inputs passed on, constants, shared and per-vertex values, in a tree; each may be read."""
    data = random_edges(12, 40)

    def fn(graph: Any, x: Any, y: Any, w: Any) -> Any:
        return {
            "in": (x, w),
            "constants": (jnp.float32(2), jnp.arange(3)),
            "twice": [x + 1, x + 1],
            "rows": y * 2,
            "sum": x.sum(),
            "degrees": (graph.in_degree, graph.num_nodes),
        }

    args = vertex_rows(data, F), PerVertex(np.arange(12, dtype=np.int32)), W
    graph = data.streamed()
    function = stream(fn, memory_budget="1GiB", parts=3)
    got = function(graph, *on_graph(graph, args))
    assert isinstance(got["rows"], VertexArray)
    assert_same(jax.tree.map(np.asarray, got), in_memory(fn, data, *args))
    # Results are arguments of the next call.
    again = function(graph, got["in"][0], got["rows"], W)
    np.testing.assert_array_equal(np.asarray(again["rows"]), args[1].rows * 4)


@pytest.mark.parametrize("options", [
    {}, {"cached": False}, {"overlapped": False, "selective": False, "cached": False},
], ids=str)  # fmt: skip
def test_reruns_are_equal_bit_by_bit_however_data_moves(options):
    data = random_edges(12, 40)
    rng = np.random.default_rng(0)
    fn = with_gradients("softmax of edges")
    args = PerVertex(rng.normal(size=(12, F)).astype(np.float32)), W, vertex_rows(data)
    graph = data.streamed()
    function = stream(fn, memory_budget="1GiB", parts=4, **options)
    given_ = on_graph(graph, args)
    one, two = (jax.tree.map(np.asarray, function(graph, *given_)) for _ in range(2))
    assert_same(one, two, 0, 0)
    assert_same(one, in_memory(fn, data, *args), 2e-5, 2e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "threshold", "cached"),
    [("mean", 0.6, True), ("mean", 0.0, False), ("mean", 0.6, False), ("gat", 10.0, False)],
)
def test_reading_only_the_used_rows(name, threshold, cached):
    """`mean` has stages that read no rows of other blocks, `gat` some that are also its own."""
    data = GRAPHS["hub"]
    graph = data.streamed()
    graph.__dict__["rates"] = SimpleNamespace(threshold=threshold)
    fn = with_gradients(name)
    args = vertex_rows(data, F), W, vertex_rows(data, seed=1)
    function = stream(fn, memory_budget="1GiB", parts=5, cached=cached)
    got = jax.tree.map(np.asarray, function(graph, *on_graph(graph, args)))
    assert_same(got, in_memory(fn, data, *args), 2e-5, 2e-5)
    selected = function.traffic.moved["selected rows"] > 0
    assert selected == (threshold > 0 and not cached)


def test_a_graph_on_disk(tmp_path):
    data = random_edges(12, 40)
    fn = with_gradients("gat")
    args = vertex_rows(data, F), W, vertex_rows(data, seed=1)
    with DiskStore.create(tmp_path / "store") as store:
        got = in_parts(fn, data.streamed(store=store, order="rcm"), *args, parts=3)
    assert_same(got, in_memory(fn, data, *args), 2e-5, 2e-5)


@pytest.mark.parametrize("num_nodes", [0, 1])
def test_a_graph_of_hardly_any_vertices(num_nodes):
    data = edges([], [], num_nodes)
    layer = gnnjit.layer(lambda v, e: gnnjit.mean(e.src) + v)
    assert_streams(lambda g, x: (layer(g, x), x.sum(0)), data, vertex_rows(data, F), parts=3)


@pytest.mark.parametrize("process", [False, True])
def test_a_budget_of_the_process_gives_freed_memory_back(monkeypatch, process):
    calls = []
    module = sys.modules["gnnjit.streaming.stream"]  # whose name is the function's in the package
    monkeypatch.setattr(module, "give_memory_back", lambda: calls.append(None))
    stream(lambda graph: graph.num_nodes, memory_budget="1GiB", process=process)
    assert len(calls) == process


def test_a_layout_is_shared_unless_it_has_other_slices():
    data = random_edges(400, 900)
    graph = data.streamed()
    args = on_graph(graph, (vertex_rows(data, F), W))
    layer = gnnjit.layer(lambda v, e, w: gnnjit.sum(e.src @ w))

    def layout(**options: Any) -> tuple[int, int]:
        return stream(layer, memory_budget="1GiB", **options).prepare(graph, *args).shape

    assert layout(parts=2, slices=2) == (2, 2)
    assert layout() == (2, 2)
    assert layout(slices=1) == (1, 1)
    assert layout() == (1, 1)
