"""Typed graphs whose edges lie in a store: values and gradients of the graph in memory."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiler import typed_cases as cases
from compiler.typed_cases import F, edges_of, inputs, on_graph
from flax import nnx

import gnnjit
from gnnjit import TypedGraph
from gnnjit.errors import GraphError, LayerError, StreamError
from gnnjit.nn import HAN, HGT, RGCN
from gnnjit.store import DiskStore
from gnnjit.streaming import StreamedTypedGraph


def value_and_gradients(fn: Any, graph: Any, x: Any, w: Any, edges: Any = None) -> Any:
    """Of `fn(graph, x, w)`, a dictionary from types to rows; the loss weighs every row."""
    rng = np.random.default_rng(2)
    rows = {t: np.float32(rng.uniform(0.5, 1, (n, 1))) for t, n in graph.num_nodes.items()}

    def loss(x: Any, w: Any, graph: Any) -> Any:
        out = fn(graph, x, w) if edges is None else fn(graph, x, w, edges=edges)
        return sum(jnp.sum(jnp.cos(y) * rows[t]) for t, y in out.items()), out

    return jax.jit(jax.grad(loss, (0, 1), has_aux=True))(x, w, graph)


def compare(fn: Any, case: str, x: Any, w: Any, parts: int = 3, **options: Any) -> None:
    edges, counts = edges_of(case)
    streamed = StreamedTypedGraph.from_edges(edges, counts, parts=parts, **options)
    want = value_and_gradients(fn, TypedGraph.from_edges(edges, counts), x, w)
    got = value_and_gradients(fn, streamed, x, w)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5), got, want)


SHORT = ["rgcn"]
LONG = [f.__name__ for f in cases.LAYERS if f.__name__ not in SHORT]


@pytest.mark.parametrize(
    "layer", [*SHORT, *(pytest.param(x, marks=pytest.mark.long) for x in LONG)]
)
def test_layers(layer: str) -> None:
    """A hub, parallel relations, one without edges, types that no relation ends at, and none."""
    x, w = inputs(*edges_of("academic"))
    compare(on_graph(getattr(cases, layer)), "academic", x, w)


MODELS = {
    "rgcn": functools.partial(RGCN, F, 4),
    "han": functools.partial(HAN, F, 4, heads=2),
    "hgt": functools.partial(HGT, F, 4, heads=2),
}


@pytest.mark.parametrize(
    "name", ["han", *(pytest.param(n, marks=pytest.mark.long) for n in ("rgcn", "hgt"))]
)
def test_models_from_a_disk(name: str, tmp_path: Path) -> None:
    edges, counts = edges_of("academic")
    graph = TypedGraph.from_edges(edges, counts)
    net = MODELS[name](types=graph.types, relations=graph.relations, rngs=nnx.Rngs(0))
    definition, params = nnx.split(net)
    x, _ = inputs(edges, counts)

    def fn(graph: Any, x: Any, params: Any) -> Any:
        return nnx.merge(definition, params)(graph, x)

    compare(fn, "academic", x, params, store=DiskStore.create(tmp_path / "edges"))


@gnnjit.layer
def weighted(v: Any, e: Any, w: Any) -> Any:
    return v @ w + sum(gnnjit.mean(r.data * r.src) for r in e.relations)


RING = {("a", "to", "a"): (np.arange(12), np.roll(np.arange(12), 1))}


def test_data_of_edges_lie_on_the_device() -> None:
    rng = np.random.default_rng(0)
    x, w = {"a": np.float32(rng.normal(size=(12, F)))}, np.float32(rng.normal(size=(F, F)))
    data = {"to": np.float32(rng.normal(size=(12, 1)))}
    want = value_and_gradients(weighted, TypedGraph.from_edges(RING), x, w, data)
    got = value_and_gradients(weighted, StreamedTypedGraph.from_edges(RING, parts=5), x, w, data)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5), got, want)


def test_more_parts_than_vertices_and_one() -> None:
    x, w = inputs(*edges_of("academic"))
    compare(on_graph(cases.rgcn), "academic", x, w, parts=40)
    compare(on_graph(cases.rgcn), "academic", x, w, parts=1)


def test_the_device_holds_the_edges_of_one_part() -> None:
    rng, count = np.random.default_rng(0), 30_000
    edges = {("a", "to", "a"): rng.integers(0, 50, (2, count))}
    x, w = {"a": jnp.ones((50, F))}, jnp.ones((F, F))

    def needed(graph: Any) -> int:
        def loss(x: Any, graph: Any) -> Any:
            return jnp.sum(summed(graph, x, w)["a"] ** 2)

        memory = jax.jit(jax.grad(loss)).lower(x, graph).compile().memory_analysis()
        return memory.temp_size_in_bytes + memory.argument_size_in_bytes

    whole = needed(TypedGraph.from_edges(edges))
    assert whole > 16 * count
    assert needed(StreamedTypedGraph.from_edges(edges, parts=16)) < whole / 4


@gnnjit.layer
def summed(v: Any, e: Any, w: Any) -> Any:
    return sum(gnnjit.sum(jnp.tanh(r.src @ w)) for r in e.relations)


@gnnjit.layer
def numbered(v: Any, e: Any, key: Any) -> Any:
    return sum(gnnjit.sum(gnnjit.dropout(r.src, 0.5, key)) for r in e.relations)


@gnnjit.layer
def of_edges(v: Any, e: Any) -> Any:
    return [r.src for r in e.relations]


@pytest.mark.parametrize(
    ("layer", "more", "message"),
    [
        (
            numbered,
            (jax.random.key(0),),
            r"needs the numbers of vertices or edges \(.*\), as random draws for each",
        ),
        (of_edges, (), r"a value of edges is returned on a typed graph in parts"),
    ],
    ids=["random draws", "edge results"],
)
def test_what_parts_cannot_tell_is_refused(layer: Any, more: Any, message: str) -> None:
    graph = StreamedTypedGraph.from_edges(RING, parts=2)
    with pytest.raises(LayerError, match=message):
        layer(graph, {"a": jnp.ones((12, F))}, *more)


def test_mistakes_are_named() -> None:
    graph = StreamedTypedGraph.from_edges(RING, parts=2)
    with pytest.raises(GraphError, match=r"the graph of \('a', 'to', 'a'\) was asked for, whose"):
        graph["to"]
    with pytest.raises(GraphError, match="parts is 0, expected a whole number from 1"):
        StreamedTypedGraph.from_edges(RING, parts=0)
    with pytest.raises(GraphError, match="12"):
        StreamedTypedGraph.from_edges({("a", "to", "a"): ([0, 12], [0, 1])}, {"a": 12}, parts=2)
    with pytest.raises(GraphError, match=r"x\['a'\]"):
        weighted(graph, {"a": jnp.ones((11, F))}, jnp.ones((F, F)))


def test_it_says_what_it_is() -> None:
    graph = StreamedTypedGraph.from_edges(RING, parts=2)
    assert repr(graph) == "StreamedTypedGraph(12 a; 12 ('a', 'to', 'a'); 2 parts of each type)"
    assert (graph.num_nodes, graph.num_edges) == ({"a": 12}, {("a", "to", "a"): 12})


@pytest.mark.parametrize("streamed", [False, True])
def test_streamed_functions_are_of_one_vertex_set(streamed: bool) -> None:
    graph: Any = TypedGraph.from_edges(RING)
    if streamed:
        graph = StreamedTypedGraph.from_edges(RING, parts=2)
    run = gnnjit.stream(lambda g: g.num_nodes, memory_budget="1MiB")
    with pytest.raises(StreamError, match=f"a streamed function got a {type(graph).__name__}, exp"):
        run(graph)
