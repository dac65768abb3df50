"""Typed graphs on shards, every type cut by itself: values and gradients of one device."""

from __future__ import annotations

import functools
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
from gnnjit.errors import GraphError, LayerError
from gnnjit.nn import HAN, HGT, RGCN
from gnnjit.sharding import ShardedTypedGraph

from .graphs import assert_same, mesh


@functools.cache
def academic() -> TypedGraph:
    return TypedGraph.from_edges(*edges_of("academic"))


def put(graph: Any, x: Any) -> Any:
    return graph.put(x) if isinstance(graph, ShardedTypedGraph) else x


def get(graph: Any, x: Any) -> Any:
    return jax.tree.map(np.asarray, graph.get(x) if isinstance(graph, ShardedTypedGraph) else x)


def value_and_gradients(fn: Any, graph: Any, x: Any, w: Any) -> Any:
    """Of `fn(graph, x, w)`, a dictionary from types to rows; the loss weighs every row."""
    rng = np.random.default_rng(2)
    rows = {t: np.float32(rng.uniform(0.5, 1, (n, 1))) for t, n in graph.num_nodes.items()}

    def loss(x: Any, w: Any, rows: Any, graph: Any) -> Any:
        out = fn(graph, x, w)
        return sum(jnp.sum(jnp.cos(y) * rows[t]) for t, y in out.items()), out

    run = jax.jit(jax.grad(loss, (0, 1), has_aux=True))
    (dx, dw), out = run(put(graph, x), w, put(graph, rows), graph)
    return get(graph, dx), jax.tree.map(np.asarray, dw), get(graph, out)


def compare(fn: Any, graph: TypedGraph, x: Any, w: Any, exchange: str, shards: int = 3) -> None:
    sharded = gnnjit.shard(graph, mesh(shards), exchange=exchange)
    want = value_and_gradients(fn, graph, x, w)
    assert_same(value_and_gradients(fn, sharded, x, w), want)


SHORT = [("rgcn", "halo")]
LONG = [(f.__name__, "cover") for f in cases.LAYERS if f is not cases.rgcn]
LONG += [("hgt", "ring"), ("hgt", "halo")]


@pytest.mark.parametrize(
    ("layer", "exchange"), [*SHORT, *(pytest.param(*x, marks=pytest.mark.long) for x in LONG)]
)
def test_layers(layer: str, exchange: str) -> None:
    """A hub, parallel relations, one without edges, types that no relation ends at, and none."""
    x, w = inputs(*edges_of("academic"))
    compare(on_graph(getattr(cases, layer)), academic(), x, w, exchange)


MODELS = {
    "rgcn": functools.partial(RGCN, F, 4),
    "han": functools.partial(HAN, F, 4, heads=2),
    "hgt": functools.partial(HGT, F, 4, heads=2),
}


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_modules(name: str) -> None:
    graph = academic().select(["writes", "by"])
    model = MODELS[name](types=graph.types, relations=graph.relations, rngs=nnx.Rngs(0))
    definition, params, rest = nnx.split(model, nnx.Param, ...)

    def fn(graph: Any, x: Any, params: Any) -> Any:
        return nnx.merge(definition, params, rest)(graph, x)

    x, _ = inputs(*edges_of("academic"))
    compare(fn, graph, x, params, "halo", 2)


@gnnjit.layer
def with_data(v: Any, e: Any) -> Any:
    message = e.map(lambda r: r.src * r.data if r.name == "writes" else r.src)
    return gnnjit.sum(message), message


def test_data_and_results_of_edges() -> None:
    graph, (x, _) = academic(), inputs(*edges_of("academic"))
    writes = ("author", "writes", "paper")
    d = {"writes": np.random.default_rng(0).normal(size=(graph.num_edges[writes], 1))}
    d = jax.tree.map(np.float32, d)
    s = gnnjit.shard(graph, mesh(2), exchange="halo")
    got, want = with_data(s, s.put(x), edges=s.put_edges(d)), with_data(graph, x, edges=d)
    of_edges = s.get_edges(got["paper"][1])
    assert_same(
        (s.get({t: y[0] for t, y in got.items()}), of_edges),
        jax.tree.map(np.asarray, ({t: y[0] for t, y in want.items()}, want["paper"][1])),
    )


def test_a_partition_for_each_type() -> None:
    graph = academic()
    partition = {t: np.arange(n) % 2 for t, n in graph.num_nodes.items()}
    s = gnnjit.shard(graph, mesh(2), partition=partition, exchange="halo")
    assert s.lengths == {"author": 6, "paper": 8, "venue": 2, "nothing": 2}
    assert {t: int(mask.sum()) for t, mask in s.vertex_mask.items()} == s.num_nodes
    assert s["cites"].partition().bounds.tolist() == [0, 4, 7]
    assert s["writes"].bipartite
    assert not s["cites"].bipartite
    assert repr(s).startswith("ShardedTypedGraph(6 author, 7 paper, 2 venue, 0 nothing; ('author',")
    assert s.report.startswith("('author', 'writes', 'paper'): 6 sources, 7 destinations, 14 edges")


MISTAKES = {
    "one partition": (
        lambda g: gnnjit.shard(g, mesh(2), partition=np.zeros(3, int)),
        "partition is ndarray of shape (3,), expected a name or a dictionary with a partition for "
        "each vertex type: pass one for 'author', 'paper', 'venue', 'nothing'",
    ),
    "a type left out": (
        lambda g: gnnjit.shard(g, mesh(2), partition={"paper": "vertices"}),
        "partition is a dictionary of 'paper', expected a name or a dictionary with a partition",
    ),
    "an unknown type": (
        lambda g: gnnjit.shard(g, mesh(2)).put({"book": 1}),
        "'book' is no vertex type of the graph; it has 'author', 'paper', 'venue', 'nothing'",
    ),
    "the whole graph's rows": (
        lambda g: copied(gnnjit.shard(g, mesh(4)), inputs(*edges_of("academic"))[0]),
        "x['author'] has 6 rows, but the graph has 8 rows of type 'author' on its shards: pass "
        "what graph.put(...) gave",
    ),
}


@gnnjit.layer
def copied(v: Any, e: Any) -> Any:
    return v


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    call, message = MISTAKES[name]
    with pytest.raises((GraphError, LayerError)) as error:
        call(academic())
    assert message in str(error.value)


@pytest.mark.long
def test_check_and_plain_operations() -> None:
    graph, (x, w) = academic(), inputs(*edges_of("academic"))
    s, layer = gnnjit.shard(graph, mesh(2), exchange="halo"), on_graph(cases.rgcn)
    assert all(report.ok for report in gnnjit.check(layer, s, s.put(x), w))
    with gnnjit.reference():
        plain = s.get(layer(s, s.put(x), w))
    assert_same(plain, jax.tree.map(np.asarray, layer(graph, x, w)))
