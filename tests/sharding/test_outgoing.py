"""Reductions over outgoing edges on shards are those of one device, in value and gradient."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit

from .functions import F
from .graphs import EXCHANGES, assert_same, mesh


@functools.cache
def graph() -> gnnjit.Graph:
    src, dst = np.random.default_rng(0).integers(0, 22, (2, 70))
    return gnnjit.Graph.from_edges(src, dst, 23)


@gnnjit.layer
def block(v: Any, e: Any, w: Any) -> Any:
    edge = jnp.tanh(jnp.concatenate([e.data, e.src, v]) @ w)
    out = gnnjit.mean(edge, over="out") * v + gnnjit.sum(edge)
    return out + gnnjit.std(edge, over="out") + gnnjit.degree(over="out"), edge


def value_and_gradients(graph: Any, args: Any, layer: Any = block) -> Any:
    def loss(args: Any) -> Any:
        x, d, w = args
        out = layer(graph, x, w, edges=d)
        return sum(jnp.sum(jnp.cos(y)) for y in out), out

    return jax.grad(loss, has_aux=True)(args)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_block_with_sent_edges(exchange: str) -> None:
    rng, g = np.random.default_rng(0), graph()
    x, d, w = (np.float32(rng.normal(size=(n, F))) for n in (g.num_nodes, g.num_edges, 3 * F))
    s = gnnjit.shard(g, mesh(4), exchange=exchange)
    run = jax.jit(value_and_gradients)
    (dx, dd, dw), (vertex, edge) = run(s, (s.put(x), s.put_edges(d), w))
    got = (s.get(dx), s.get_edges(dd), dw), (s.get(vertex), s.get_edges(edge))
    assert_same(got, run(g, (x, d, w)))


@gnnjit.layer
def extremes(v: Any, e: Any, w: Any) -> Any:
    """Reductions over outgoing edges that are no sums, vertices without any among them."""
    edge = jnp.tanh(jnp.concatenate([e.data, e.src, v]) @ w)
    far = gnnjit.max(edge, over="out") - gnnjit.min(e.dst * e.src, over="out")
    weight = gnnjit.softmax(edge * 9, over="out")
    sent = gnnjit.sum(weight * e.dst, over="out") + gnnjit.logsumexp(edge, over="out")
    return far + sent + gnnjit.prod(1 + edge / 3, over="out"), weight + far


@pytest.mark.long
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_extremes(exchange: str) -> None:
    rng, g = np.random.default_rng(0), graph()
    x, d, w = (np.float32(rng.normal(size=(n, F))) for n in (g.num_nodes, g.num_edges, 3 * F))
    s = gnnjit.shard(g, mesh(4), exchange=exchange)
    run = jax.jit(functools.partial(value_and_gradients, layer=extremes))
    (dx, dd, dw), (vertex, edge) = run(s, (s.put(x), s.put_edges(d), w))
    got = (s.get(dx), s.get_edges(dd), dw), (s.get(vertex), s.get_edges(edge))
    assert_same(*jax.tree.map(np.asarray, (got, run(g, (x, d, w)))))


@gnnjit.layer
def ranks(v: Any, e: Any) -> Any:
    edge = jnp.tanh(e.src * v + e.data)
    sent = gnnjit.argmax(edge, over="out"), gnnjit.max(edge, over="out")
    return gnnjit.argmax(edge), gnnjit.median(edge), gnnjit.prod(edge), *sent


@pytest.mark.parametrize("exchange", ["halo", pytest.param("ring", marks=pytest.mark.long)])
def test_ranks_and_products(exchange: str) -> None:
    rng, g = np.random.default_rng(0), graph()
    x, d = (np.float32(rng.normal(size=(n, F))) for n in (g.num_nodes, g.num_edges))
    s = gnnjit.shard(g, mesh(4), exchange=exchange)
    got = tuple(map(s.get, ranks(s, s.put(x), edges=s.put_edges(d))))
    assert_same(got, ranks(g, x, edges=d))
