"""jraph's GraphsTuple: batches, padding, round trips, errors."""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gnnjit.errors import GraphError
from gnnjit.graph import Graph
from gnnjit.interop.jraph import from_graphs_tuple, to_graphs_tuple

jraph = pytest.importorskip("jraph")


def two_graphs(**changes: Any) -> Any:
    fields = {
        "nodes": {"x": np.arange(10.0).reshape(5, 2)},
        "edges": np.arange(4.0),
        "senders": np.array([0, 1, 3, 4]),
        "receivers": np.array([1, 2, 4, 4]),
        "globals": np.array([[1.0], [2.0]]),
        "n_node": np.array([3, 2]),
        "n_edge": np.array([2, 2]),
    }
    return jraph.GraphsTuple(**{**fields, **changes})


def assert_same_tuple(a: Any, b: Any) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


def test_from_graphs_tuple() -> None:
    got = from_graphs_tuple(two_graphs())
    assert repr(got.graph) == "Graph(5 vertices, 4 edges)"
    np.testing.assert_array_equal(got.graph.src, [0, 1, 3, 4])
    np.testing.assert_array_equal(got.graph.in_degree, [0, 1, 1, 0, 2])
    np.testing.assert_array_equal(got.graph_index, [0, 0, 0, 1, 1])
    assert got.graph_mask is None


def test_padding_is_understood() -> None:
    padded = jraph.pad_with_graphs(two_graphs(), n_node=8, n_edge=7, n_graph=5)
    got = from_graphs_tuple(padded, padded=True)
    np.testing.assert_array_equal(got.graph.mask, jraph.get_edge_padding_mask(padded))
    np.testing.assert_array_equal(got.graph_mask, jraph.get_graph_padding_mask(padded))
    np.testing.assert_array_equal(got.graph.in_degree, [0, 1, 1, 0, 2, 0, 0, 0])
    np.testing.assert_array_equal(got.graph_index, [0, 0, 0, 1, 1, 2, 2, 2])


@pytest.mark.parametrize("n_edge", [4, 7])
@pytest.mark.parametrize("n_graph", [3, 5])
def test_round_trip_with_padding(n_edge: int, n_graph: int) -> None:
    padded = jraph.pad_with_graphs(two_graphs(), n_node=8, n_edge=n_edge, n_graph=n_graph)
    got = from_graphs_tuple(padded, padded=True)
    back = to_graphs_tuple(got.graph, got.nodes, got.edges, got.globals, got.n_node, got.n_edge)
    assert_same_tuple(back, padded)


def test_round_trip_without_padding() -> None:
    got = from_graphs_tuple(two_graphs())
    back = to_graphs_tuple(got.graph, got.nodes, got.edges, got.globals, got.n_node, got.n_edge)
    assert_same_tuple(back, two_graphs())


def test_round_trip_inside_jit() -> None:
    padded = jraph.pad_with_graphs(two_graphs(), n_node=8, n_edge=7, n_graph=3)

    @jax.jit
    def there_and_back(graphs: Any) -> Any:
        got = from_graphs_tuple(graphs, padded=True)
        return to_graphs_tuple(got.graph, got.nodes, got.edges, got.globals, got.n_node, got.n_edge)

    assert_same_tuple(there_and_back(padded), padded)


def test_one_graph_by_default() -> None:
    made = to_graphs_tuple(Graph.from_edges([0, 1], [1, 2], 4))
    assert (made.n_node.tolist(), made.n_edge.tolist()) == ([4], [2])
    assert made.nodes is None


def test_number_of_vertices_without_features() -> None:
    assert from_graphs_tuple(two_graphs(nodes=None)).graph.num_nodes == 5


MASKED = Graph.from_edges([0, 0, 1], [0, 0, 1], 3, edge_mask=[True, False, True])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: from_graphs_tuple(two_graphs(senders=None)),
            "the GraphsTuple has no senders or no receivers, expected both: set them to arrays of "
            "shape [num_edges]",
        ),
        (
            lambda: from_graphs_tuple(two_graphs(n_node=np.array([3, 3]))),
            "n_node adds up to 6, but there are 5 vertices: pass one count per graph, padding "
            "graphs included",
        ),
        (
            lambda: from_graphs_tuple(two_graphs(n_edge=np.array([1, 2]))),
            "n_edge adds up to 3, but there are 4 edges: pass one count per graph, padding graphs "
            "included",
        ),
        (
            lambda: from_graphs_tuple(two_graphs(n_edge=np.array([4]))),
            "n_node has shape (2,) and n_edge has shape (1,), expected one count per graph in "
            "both: pass two arrays of shape [num_graphs]",
        ),
        (
            lambda: jax.jit(from_graphs_tuple)(two_graphs(nodes=None)),
            "the GraphsTuple is traced and has no nodes, expected an array of known size: set "
            "nodes to zeros of shape [num_nodes, 0]",
        ),
        (
            lambda: to_graphs_tuple(MASKED),
            "the graph has padding edges and n_node or n_edge is missing, expected both, with the "
            "padding as the last graph: pass those of from_graphs_tuple(..., padded=True)",
        ),
        (
            lambda: to_graphs_tuple(MASKED, n_node=[2, 1], n_edge=[2, 1]),
            "edge 1 is padding, expected 2 real edges and then the padding graph's: reorder the "
            "edges or correct n_edge",
        ),
        (
            lambda: to_graphs_tuple(MASKED, n_node=[2, 1], n_edge=[1, 2]),
            "edge 2 is real, expected 1 real edges and then the padding graph's: reorder the "
            "edges or correct n_edge",
        ),
        (
            lambda: to_graphs_tuple(Graph.from_edges([0], [0]), edges=jnp.ones(2)),
            "edges has 2 rows, but the graph has 1 edges: pass arrays with one row per edge",
        ),
    ],
)
def test_errors(call, message: str) -> None:
    with pytest.raises(GraphError) as error:
        call()
    assert str(error.value) == message


def test_jraph_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jraph", None)
    with pytest.raises(GraphError) as error:
        to_graphs_tuple(Graph.from_edges([0], [0]))
    assert str(error.value) == (
        "jraph is not installed, expected it for a GraphsTuple: pip install jraph"
    )
