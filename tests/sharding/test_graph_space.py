"""Globals and readouts on shards are those of one device, in value and gradient."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit import readout

from .functions import F
from .graphs import EXCHANGES, assert_same, mesh


def ring(vertices: int, seed: int) -> gnnjit.Graph:
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, max(vertices, 1), (2, 3 * vertices))
    return gnnjit.Graph.from_edges(src, dst, vertices)


@functools.cache
def graph(name: str) -> gnnjit.Graph:
    if name == "not batched":
        return ring(11, 0)
    batched, _ = gnnjit.graph.batch([ring(n, n) for n in (5, 0, 1, 9)])
    return batched.pad(20, 50, num_graphs=5) if name == "padded" else batched


@gnnjit.layer
def block(v: Any, e: Any, p: Any) -> Any:
    edge = jnp.tanh(jnp.concatenate([e.data, e.src, v, e.globals]) @ p["e"])
    vertex = jnp.tanh(jnp.concatenate([gnnjit.sum(edge), v, e.globals]) @ p["v"])
    of_graph = readout.mean(edge) + readout.max(vertex) + readout.std(vertex) + readout.min(edge)
    weight = readout.softmax(vertex)
    return vertex, edge, (e.globals + of_graph, readout.sum(weight * v))


def value_and_gradients(graph: Any, args: Any) -> Any:
    def loss(args: Any) -> Any:
        x, d, u, p = args
        out = block(graph, x, p, edges=d, globals=u)
        return sum(jnp.sum(jnp.cos(y)) for y in out[2]), out

    return jax.grad(loss, has_aux=True)(args)


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("name", ["batched", "padded", "not batched"])
def test_a_block_with_globals(name: str, exchange: str) -> None:
    g = graph(name)
    rng = np.random.default_rng(0)
    draw = functools.partial(rng.normal, size=None)
    shapes = {"e": (4 * F, F), "v": (3 * F, F)}
    p = {k: np.float32(rng.normal(size=shape)) for k, shape in shapes.items()}
    x, d, u = (np.float32(draw(size=(n, F))) for n in (g.num_nodes, g.num_edges, g.num_graphs))
    s = gnnjit.shard(g, mesh(4), exchange=exchange)
    assert s.num_graphs == g.num_graphs
    run = jax.jit(value_and_gradients)
    (dx, dd, du, dp), (vertex, edge, of_graphs) = run(s, (s.put(x), s.put_edges(d), u, p))
    assert all(y.sharding.is_fully_replicated for y in of_graphs)
    got = (s.get(dx), s.get_edges(dd), du, dp), (s.get(vertex), s.get_edges(edge), of_graphs)
    assert_same(got, run(g, (x, d, u, p)))


def test_globals_of_another_number_of_graphs() -> None:
    s = gnnjit.shard(graph("batched"), mesh(2))
    with pytest.raises(
        gnnjit.errors.GraphError, match="globals has 3 rows, but the graph has 4 gr"
    ):
        gnnjit.layer(lambda v, e: v + e.globals)(
            s, s.put(np.ones((15, F))), globals=np.ones((3, F))
        )
