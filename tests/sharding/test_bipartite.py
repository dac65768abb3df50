"""Two vertex sets on shards, each with a cut of its own: values and gradients of one device."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit import Bipartite
from gnnjit.errors import GraphError
from gnnjit.partition.partition import equal_vertices

from .graphs import EXCHANGES, assert_same, mesh

F, SRC, DST, E = 3, 9, 14, 40


@functools.cache
def graph() -> gnnjit.Graph:
    rng = np.random.default_rng(0)
    src, dst, relation = (rng.integers(0, n, E) for n in (SRC - 1, DST - 2, 3))
    mask = np.arange(E) != 7  # padding in the user's list
    return gnnjit.Graph.from_edges(
        src, dst, num_src=SRC, num_dst=DST, edge_mask=mask, relation=relation, num_relations=3
    )


def arguments() -> tuple[Bipartite, Any, Any]:
    rng = np.random.default_rng(1)
    x, y, d, w = (np.float32(rng.normal(size=(n, F))) for n in (SRC, DST, E, F))
    return Bipartite(x, y), d, np.stack([w, w.T, -w])


@gnnjit.layer
def layer(v: Any, e: Any, w: Any) -> Any:
    score = jnp.tanh(e.src @ w[0] + v @ w[1])
    message = gnnjit.dropout(e.src, 0.3, jax.random.key(0)) @ w[e.relation]
    edge = score * e.data
    vertex = gnnjit.sum(gnnjit.softmax(score) * message) + gnnjit.max(e.src * v)
    return vertex + gnnjit.degree(), edge, jnp.sum(w)


def value_and_gradients(graph: Any, args: Any, weight: Any) -> Any:
    def loss(args: Any) -> Any:
        x, d, w = args
        vertex, edge, shared = layer(graph, x, w, edges=d)
        total = jnp.sum(jnp.cos(vertex) * weight[:, None]) + jnp.sum(jnp.sin(edge)) + shared
        return total, (vertex, edge)

    return jax.grad(loss, has_aux=True)(args)


@functools.cache
def of_one_device() -> Any:
    (x, d, w), (vertex, edge) = jax.jit(value_and_gradients)(
        graph(), arguments(), np.ones(DST, np.float32)
    )
    return jax.tree.map(np.asarray, (x, d, w, vertex, edge))


def compare(s: Any) -> None:
    x, d, w = arguments()
    args = s.put(x), s.put_edges(d), w
    weight = s.put(np.ones(DST, np.float32))
    (x, d, w), (vertex, edge) = jax.jit(value_and_gradients)(s, args, weight)
    got = s.get(x), s.get_edges(d), np.asarray(w), s.get(vertex), s.get_edges(edge)
    assert_same(got, of_one_device())


@pytest.mark.parametrize(
    "exchange",
    ["halo", *(pytest.param(x, marks=pytest.mark.long) for x in EXCHANGES if x != "halo")],
)
def test_values_and_gradients(exchange: str) -> None:
    compare(gnnjit.shard(graph(), mesh(4), exchange=exchange))


def test_a_cover_with_a_partition_of_each_set() -> None:
    partition = Bipartite(np.arange(SRC) % 3, equal_vertices(DST, 3))
    s = gnnjit.shard(graph(), mesh(3), partition=partition, exchange="cover")
    np.testing.assert_array_equal(s.rows("src").sizes, [3, 3, 3])
    copied = gnnjit.layer(lambda v, e, w: gnnjit.sum((e.src @ w) * v) + v)
    x, _, w = arguments()
    got = s.get(jax.jit(copied)(s, s.put(x), w[0]))
    assert_same(got, np.asarray(copied(graph(), x, w[0])))


def test_readouts_read_both_sets() -> None:
    g, _ = gnnjit.graph.batch([graph().pad(), graph().pad()])

    @gnnjit.layer
    def read(v: Any, e: Any) -> Any:
        return v * e.globals + gnnjit.sum(e.src * e.globals), gnnjit.readout.mean(v)

    rng = np.random.default_rng(0)
    x = Bipartite(*(np.float32(rng.normal(size=(2 * n, F))) for n in (SRC, DST)))
    u = np.float32(rng.normal(size=(2, F)))
    s = gnnjit.shard(g, mesh(2), exchange="halo")
    rows, whole = read(s, s.put(x), globals=u)
    assert_same((s.get(rows), np.asarray(whole)), tuple(map(np.asarray, read(g, x, globals=u))))


def test_what_is_said_of_it() -> None:
    s = gnnjit.shard(graph(), mesh(2), partition="vertices", exchange="halo")
    assert repr(s).startswith("ShardedGraph(9 sources and 14 destinations on 2 shards of 5 and 7, ")
    assert "9 sources, 14 destinations, 39 edges on 2 shards: partition vertices" in str(s.report)
    assert "sources a shard   4 to 5" in str(s.report)
    assert (s.num_src, s.num_dst, s.bipartite) == (10, 14, True)


MISTAKES = {
    "one partition": (
        lambda: gnnjit.shard(graph(), mesh(2), partition=np.zeros(DST, int)),
        r"partition is ndarray of shape .*, expected a name or a gnnjit\.Bipartite: pass "
        r"gnnjit\.Bipartite\(src=\.\.\., dst=\.\.\.\), a partition of each vertex set",
    ),
    "sources of another number": (
        lambda: gnnjit.shard(
            graph(), mesh(2), partition=Bipartite(np.zeros(DST, int), np.zeros(DST, int))
        ),
        r"vertices of 'src': partition deals 14 vertices out to 2 shards, expected 9 vertices",
    ),
    "rows of the wrong set": (
        lambda: gnnjit.shard(graph(), mesh(2)).put(Bipartite(np.zeros(DST), np.zeros(DST))),
        r"x\.src has 14 rows, but the graph has 9 sources: pass arrays with one row per source",
    ),
    "rebalance": (
        lambda: gnnjit.rebalance(graph(), gnnjit.shard(graph(), mesh(2)), layer),
        r"rebalance\(\) got Graph.*, expected a Graph with one vertex set: time shards with",
    ),
    "a block": (
        lambda: gnnjit.shard(dataclasses.replace(graph(), nested=True), mesh(2)),
        r"shard\(\) got Graph.*, a block of a sampled batch, expected a whole graph: blocks differ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    call, message = MISTAKES[name]
    with pytest.raises(GraphError, match=message):
        call()
