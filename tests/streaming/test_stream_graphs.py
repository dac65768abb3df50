"""A streamed graph is one graph: globals and readouts give what they give in memory."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit import readout

from .functions import PerEdge, PerVertex, assert_same, in_memory, in_parts, random_edges

F = 3
EDGES = random_edges(40, 160)


@gnnjit.layer
def block(v: Any, e: Any, p: Any) -> Any:
    edge = jnp.tanh(jnp.concatenate([e.data, e.src, v, e.globals]) @ p["e"])
    vertex = jnp.tanh(jnp.concatenate([gnnjit.sum(edge), v, e.globals]) @ p["v"])
    of_graph = readout.mean(edge) + readout.max(vertex) + readout.std(vertex) + readout.min(edge)
    weight = readout.softmax(vertex)
    return vertex, (e.globals + of_graph, readout.sum(weight * v))


def values(graph: Any, x: Any, d: Any, u: Any, p: Any) -> Any:
    return block(graph, x, p, edges=d, globals=u)


def gradients(graph: Any, x: Any, d: Any, u: Any, p: Any) -> Any:
    def loss(x: Any, d: Any, u: Any, p: Any) -> Any:
        vertex, of_graph = values(graph, x, d, u, p)
        return jnp.sum(vertex**2) + sum(jnp.sum(jnp.cos(y)) for y in of_graph)

    return jax.grad(loss, (0, 1, 2, 3))(x, d, u, p)


@pytest.mark.parametrize("fn", [values, gradients])
@pytest.mark.parametrize("parts", [1, 3])
def test_a_block_with_globals(fn: Any, parts: int) -> None:
    rng = np.random.default_rng(0)
    x, d, u = (np.float32(rng.normal(size=(n, F))) for n in (EDGES.num_nodes, len(EDGES.src), 1))
    p = {"e": np.float32(rng.normal(size=(4 * F, F))), "v": np.float32(rng.normal(size=(3 * F, F)))}
    args = PerVertex(x), PerEdge(d), u, p
    assert_same(in_parts(fn, EDGES, *args, parts=parts), in_memory(fn, EDGES, *args), 1e-4, 1e-4)
