"""Streamed functions that take and give data of the edges."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gnnjit
from gnnjit.errors import GraphError, StoreError, StreamError
from gnnjit.store import DiskStore, HostStore
from gnnjit.streaming import EdgeArray
from gnnjit.streaming.stream import stream

from .functions import (
    Edges,
    PerEdge,
    PerVertex,
    assert_same,
    edges,
    in_memory,
    in_parts,
    random_edges,
)

F, G = 3, 2


@gnnjit.layer
def weighted(v: Any, e: Any, w: Any) -> Any:
    return gnnjit.sum(jnp.tanh(jnp.concatenate([e.src, e.data]) @ w)) + v @ w[:F]


@gnnjit.layer
def attention(v: Any, e: Any, w: Any) -> Any:
    score = jnp.sum(jnp.tanh(jnp.concatenate([e.src, e.data]) @ w) * (v @ w[:F]))
    return gnnjit.sum(gnnjit.softmax(score) * (e.src @ w[:F]))


@gnnjit.layer
def scores(v: Any, e: Any, w: Any) -> Any:
    return jnp.tanh(jnp.concatenate([e.src, e.data]) @ w) * (v @ w[:F])


@gnnjit.layer
def network(v: Any, e: Any, w: Any) -> Any:
    """The new vertices, and new data of the edges that nobody has to read."""
    message = jnp.tanh(jnp.concatenate([e.src, e.data]) @ w)
    return gnnjit.sum(message) + v @ w[:F], message[:G]


LAYERS = {"weighted": weighted, "attention": attention}


def arguments(data: Edges, seed: int = 0) -> tuple[PerVertex, PerEdge, Any]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(data.num_nodes, F)).astype(np.float32)
    on_edges = rng.normal(size=(len(data.src), G)).astype(np.float32)
    return PerVertex(x), PerEdge(on_edges), rng.normal(size=(F + G, 4)).astype(np.float32) / 2


def with_gradients(layer: Any) -> Any:
    """Values, and gradients of all arguments: that of the edges' data is one of the edges."""

    def fn(graph: Any, x: Any, data: Any, w: Any) -> Any:
        def loss(x: Any, data: Any, w: Any) -> Any:
            out = layer(graph, x, w, edges=jnp.sin(data))
            return jnp.sum(jnp.sin(out)), out

        return jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(x, data, w)

    return fn


@pytest.mark.long
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("name", LAYERS)
def test_values_and_gradients(name, parts):
    data = random_edges(13, 50)
    fn, args = with_gradients(LAYERS[name]), arguments(data)
    assert_same(in_parts(fn, data, *args, parts=parts), in_memory(fn, data, *args), atol=1e-4)


@pytest.mark.long
@pytest.mark.once
@settings(max_examples=5, deadline=None)
@given(st.integers(1, 9), st.integers(0, 30), st.integers(1, 4), st.integers(0, 3))
def test_any_graph(num_nodes, num_edges, parts, seed):
    data = random_edges(num_nodes, num_edges, seed)
    fn, args = with_gradients(weighted), arguments(data, seed)
    got = in_parts(fn, data, *args, parts=min(parts, num_nodes))
    assert_same(got, in_memory(fn, data, *args), atol=1e-4)


@gnnjit.layer
def doubled(v: Any, e: Any) -> Any:
    return v + gnnjit.sum(e.src), 2 * e.data


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("looped", [False, True])
@pytest.mark.parametrize("read", ["vertices", "vertices, behind edges that are not", "edges"])
def test_results_of_layers_that_nobody_reads(read, looped, parts):
    """A network ends with new vertices and new data of the edges, and a loss reads one of them."""
    data = random_edges(13, 50)

    def loss(graph: Any, x: Any, data: Any, w: Any) -> Any:
        def block(carry: Any, _: Any) -> Any:
            x, data = carry
            x, data = network(graph, x, w, edges=data)
            return (x[:, :F], data), None

        if looped:
            (x, data), _ = jax.lax.scan(block, (x, data), length=2)
        else:
            (x, data), _ = block(block((x, data), None)[0], None)
        if read == "vertices, behind edges that are not":
            x, _ = doubled(graph, x, edges=data)
        return jnp.sum(jnp.sin(data if read == "edges" else x))

    def step(graph: Any, x: Any, data: Any, w: Any) -> Any:
        return jax.value_and_grad(lambda *a: loss(graph, *a), (0, 1, 2))(x, data, w)

    args = arguments(data)
    assert_same(in_parts(step, data, *args, parts=parts), in_memory(step, data, *args), atol=1e-4)


def test_other_orders_of_the_vertices_and_a_disk(tmp_path):
    data = random_edges(40, 200)
    fn, args = with_gradients(weighted), arguments(data)
    with DiskStore.create(tmp_path / "store") as store:
        got = in_parts(fn, data.streamed(store, order="rcm"), *args, parts=4)
    assert_same(got, in_memory(fn, data, *args), atol=1e-4)


def test_results_on_the_edges_are_arguments():
    data = random_edges(20, 90)
    x, on_edges, w = arguments(data)

    def first(graph: Any, x: Any, data: Any, w: Any) -> Any:
        return 2 * scores(graph, x, w, edges=data)

    def second(graph: Any, x: Any, data: Any, w: Any) -> Any:
        return weighted(graph, x, w, edges=data[:, :G])

    graph = data.streamed(order="rcm")
    rows, values = graph.put("x", x.rows), graph.put_edges("e", on_edges.rows)
    np.testing.assert_array_equal(np.asarray(values), on_edges.rows)
    one, two = (stream(f, memory_budget="1GiB", parts=3) for f in (first, second))
    between = one(graph, rows, values, w)
    assert isinstance(between, EdgeArray)
    want = in_memory(first, data, x, on_edges, w)
    assert_same(np.asarray(between), want)
    got = np.asarray(two(graph, rows, between, w))
    assert_same(got, in_memory(second, data, x, PerEdge(want), w))
    other = stream(second, memory_budget="1GiB", parts=2)
    message = (
        r"EdgeArray\(result\.\d+: float32\[90, 4\]\) was made in 3 blocks, and this function "
        r"streams in 2: give both the same `parts`, or pass its numpy\.asarray to put_edges"
    )
    with pytest.raises(StreamError, match=f"^{message}$"):
        other(graph, rows, between, w)
    again = graph.put_edges("between", np.asarray(between))
    assert_same(np.asarray(other(graph, rows, again, w)), got)


def test_new_data_under_an_old_name():
    data = random_edges(12, 40)
    x, on_edges, w = arguments(data)
    graph = data.streamed()
    rows = graph.put("x", x.rows)
    function = stream(
        lambda graph, x, data, w: weighted(graph, x, w, edges=data), memory_budget="1GiB", parts=2
    )
    old = function(graph, rows, graph.put_edges("e", on_edges.rows), w)
    new = function(graph, rows, graph.put_edges("e", on_edges.rows + 1), w)
    assert not np.allclose(old, new)
    have = function(graph, rows, graph.put_edges("e", on_edges.rows), w)
    np.testing.assert_array_equal(have, old)


def test_copies_go_with_their_grid():
    data = random_edges(12, 40)
    x, on_edges, w = arguments(data)
    graph = data.streamed()
    args = graph.put("x", x.rows), graph.put_edges("e", on_edges.rows), w
    for parts in (2, 3):
        stream(
            lambda graph, x, data, w: weighted(graph, x, w, edges=data), memory_budget="1GiB",
            parts=parts,
        )(graph, *args)  # fmt: skip
    copies = {parts: f"grid.{parts}.order.user.edge.e" for parts in (2, 3)}
    assert {*copies.values()} < {*graph.store.names()}
    graph.keep_blocks({3})
    assert copies[2] not in graph.store.names()
    assert copies[3] in graph.store.names()


def test_errors():
    graph = edges([0, 1], [1, 0], 3).streamed()
    message = (
        "put_edges('e') got an array of shape (3, 1), expected one row for each of the 2 edges: "
        "pass [2, ...]"
    )
    with pytest.raises(GraphError, match=f"^{re.escape(message)}$"):
        graph.put_edges("e", np.zeros((3, 1), np.float32))
    graph.put("x", np.zeros((3, 1), np.float32))
    message = (
        "StreamedGraph(3 vertices, 2 edges) has no array 'x' of the edges, put_edges has written "
        "nothing: pass one of these, or write it with put_edges('x', ...)"
    )
    with pytest.raises(StoreError, match=f"^{re.escape(message)}$"):
        graph.edge_array("x")
    message = "the array 'in' has 2 rows, expected 3, one for each of the vertices"
    graph.store.add("in", 2, (), np.float32)
    with pytest.raises(GraphError, match=f"^{re.escape(message)}$"):
        graph.column("in")
    with pytest.raises(StoreError, match="complex64"):
        graph.put_edges("e", np.zeros(2, np.complex64))


def test_another_graph_in_the_same_store():
    store = HostStore()
    layer = gnnjit.layer(lambda v, e: gnnjit.sum(e.src * e.data))
    function = stream(
        lambda graph, x, data: layer(graph, x, edges=data), memory_budget="1GiB", parts=2
    )
    x, weights = np.array([[1], [10], [100]], np.float32), np.ones((2, 1), np.float32)
    one = edges([0, 1], [1, 2], 3).streamed(store)
    old = one, one.put("x", x), one.put_edges("e", weights)
    np.testing.assert_array_equal(np.asarray(function(*old)), [[0], [1], [10]])
    two = edges([2, 1], [0, 0], 3).streamed(store)
    new = two, two.put("x", x), two.put_edges("e", weights)
    np.testing.assert_array_equal(np.asarray(function(*new)), [[110], [0], [0]])
    message = (
        "another graph was made in the store of StreamedGraph(3 vertices, 2 edges), which has "
        "dropped its edges: give each graph a store of its own"
    )
    for call in (lambda: function(*old), lambda: one.put("x", x)):
        with pytest.raises(StreamError, match=f"^{re.escape(message)}$"):
            call()


@gnnjit.layer
def by_relation(v: Any, e: Any, w: Any) -> Any:
    return gnnjit.sum(e.src @ w[e.data]) + v @ w[0]


@pytest.mark.long
def test_matrices_that_edges_pick():
    data, rng = random_edges(20, 120), np.random.default_rng(0)
    x = PerVertex(rng.normal(size=(20, 16)).astype(np.float32))
    kinds = PerEdge(rng.integers(0, 4, 120).astype(np.int32))
    w = rng.normal(size=(5, 16, 16)).astype(np.float32) / 4

    def fn(graph: Any, x: Any, kinds: Any, w: Any) -> Any:
        def loss(x: Any, w: Any) -> Any:
            return jnp.sum(jnp.sin(by_relation(graph, x, w, edges=kinds)))

        return jax.value_and_grad(loss, (0, 1))(x, w)

    got = in_parts(fn, data, x, kinds, w, parts=2)
    assert_same(got, in_memory(fn, data, x, kinds, w), atol=1e-4)
