"""Globals and readouts of a streamed graph, or batch, give what they give in memory."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from edge_lists import EdgeList

import gnnjit
from gnnjit import readout
from gnnjit.errors import GraphError
from gnnjit.streaming import StreamedGraph

from .functions import PerEdge, PerVertex, assert_same, in_memory, in_parts, random_edges

F = 3


@dataclasses.dataclass(frozen=True, eq=False)
class Batched(EdgeList):
    """The edges of a batch."""

    batch: gnnjit.Graph

    def graph(self) -> gnnjit.Graph:
        return self.batch


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


def arguments(data: EdgeList, num_graphs: int) -> Any:
    rng = np.random.default_rng(0)
    sizes = data.num_nodes, len(data.src), num_graphs
    x, d, u = (np.float32(rng.normal(size=(n, F))) for n in sizes)
    p = {"e": np.float32(rng.normal(size=(4 * F, F))), "v": np.float32(rng.normal(size=(3 * F, F)))}
    return PerVertex(x), PerEdge(d), u, p


@pytest.mark.parametrize("fn", [values, gradients])
@pytest.mark.parametrize("parts", [1, 3])
def test_one_graph(fn: Any, parts: int) -> None:
    args = arguments(EDGES, 1)
    assert_same(in_parts(fn, EDGES, *args, parts=parts), in_memory(fn, EDGES, *args), 1e-4, 1e-4)


@pytest.mark.parametrize("fn", [values, gradients])
@pytest.mark.parametrize("order", ["given", "rcm"])
def test_a_batch(fn: Any, order: str) -> None:
    one = random_edges(9, 25)
    empty = gnnjit.Graph.from_edges([], [], 0)
    graph, index = gnnjit.graph.batch([one.graph(), empty, EDGES.graph(), one.graph()])
    data = Batched(np.asarray(graph.src), np.asarray(graph.dst), graph.num_nodes, graph)
    streamed = StreamedGraph.from_edges(
        data.src, data.dst, data.num_nodes, order=order, graph_index=index, num_graphs=4
    )
    assert repr(streamed) == "StreamedGraph(58 vertices, 210 edges, 4 graphs)"
    args = arguments(data, 4)
    assert_same(in_parts(fn, streamed, *args, parts=3), in_memory(fn, data, *args), 1e-4, 1e-4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"graph_index": [0, 1]}, "graph_index has 2 entries, expected 3: pass the graph of each"),
        ({"graph_index": [0, 1, 2], "num_graphs": 2},
         "graph_index holds 2, expected numbers from 0 to 1: pass a larger num_graphs"),
        ({"graph_index": [0, -1, 0]}, "graph_index holds -1, expected numbers from 0 to 0"),
        ({"num_graphs": 2}, "num_graphs is 2 without a graph_index, expected both"),
    ],
)  # fmt: skip
def test_numbers_of_graphs_that_do_not_fit(given: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        StreamedGraph.from_edges([0, 1], [1, 2], 3, **given)


def test_globals_of_another_number_of_graphs() -> None:
    x, d, u, p = arguments(EDGES, 2)
    with pytest.raises(GraphError, match="globals has 2 rows, but the graph has 1 graph"):
        in_parts(values, EDGES, x, d, u, p, parts=1)
