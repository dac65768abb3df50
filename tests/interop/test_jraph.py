"""jraph's GraphsTuple: batches, padding, round trips, errors."""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilations import compilations
from hypothesis import given, settings
from hypothesis import strategies as st

import gnnjit
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
    assert repr(got.graph) == "Graph(5 vertices, 4 edges, 2 graphs)"
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
            "the GraphsTuple has no senders, expected an array: make one with all of senders, "
            "receivers, n_node and n_edge",
        ),
        (
            lambda: from_graphs_tuple(two_graphs(n_node=None)),
            "the GraphsTuple has no n_node, expected an array: make one with all of senders, "
            "receivers, n_node and n_edge",
        ),
        (
            lambda: from_graphs_tuple(two_graphs(senders=np.array([0, 1, 3, 2]))),
            "senders[3] is 2, but edge 3 belongs to graph 1, whose vertices are 3 to 4: correct "
            "n_node and n_edge, or number vertices over the whole batch, as jraph.batch does",
        ),
        (
            lambda: from_graphs_tuple(two_graphs(receivers=np.array([1, 2, 4]))),
            "receivers has 3 entries, expected 4, the sum of n_edge: pass one per edge",
        ),
        (
            lambda: from_graphs_tuple(two_graphs(n_edge=np.array([5, -1]))),
            "n_edge[1] is -1, expected 0 or more: pass the size of each graph",
        ),
        (
            lambda: from_graphs_tuple(two_graphs(edges=np.arange(5.0))),
            "edges has 5 rows, but the graph has 4 edges: pass one row per edge",
        ),
        (
            lambda: from_graphs_tuple(two_graphs(globals=np.zeros((3, 1)))),
            "globals has 3 rows, but the graph has 2 graphs: pass one row per graph",
        ),
        (
            lambda: from_graphs_tuple(two_graphs(n_node=np.array([3.0, 2.0]))),
            "n_node has dtype float64, expected integers: pass the size of each graph",
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


FIELDS = ("senders", "receivers", "n_node", "n_edge", "nodes", "edges", "globals")
WRONG: dict[str, Any] = {
    "shorter": lambda x, k: x[: len(x) - 1],
    "longer": lambda x, k: np.concatenate([x, x]),
    "negative": lambda x, k: np.where(np.arange(len(x)) == k % len(x), -1, x),
    "other": lambda x, k: np.where(np.arange(len(x)) == k % len(x), k, x),
    "huge": lambda x, k: np.where(np.arange(len(x)) == k % len(x), 2**40, x),
    "float": lambda x, k: x + 0.5,
    "text": lambda x, k: np.array(["a"] * len(x)),
    "column": lambda x, k: x[:, None],
    "scalar": lambda x, k: x[0],
    "none": lambda x, k: None,
    "span": lambda x, k: np.zeros(len(x), "m8[s]"),
}


@given(st.sampled_from(FIELDS), st.sampled_from(sorted(WRONG)), st.integers(0, 9), st.booleans())
@settings(max_examples=150, deadline=None)
def test_mutated_tuples(field: str, how: str, number: int, padded: bool) -> None:
    """An error of ours, or a graph whose parts fit each other."""
    batch = two_graphs(nodes=np.arange(5.0), globals=np.arange(2.0))
    batch = batch._replace(**{field: WRONG[how](getattr(batch, field), number)})
    try:
        got = from_graphs_tuple(batch, padded=padded)
    except GraphError as error:
        message = str(error)
    else:
        message = ""
        assert got.graph.num_nodes == len(got.graph_index) == int(np.sum(got.n_node))
        assert got.graph.num_edges == int(np.sum(got.n_edge))
    assert len(message) <= 1000


def test_nothing_is_compiled_for_a_concrete_batch() -> None:
    batches = [
        two_graphs(),
        jraph.pad_with_graphs(two_graphs(), n_node=9, n_edge=8, n_graph=4),
        jraph.batch_np([two_graphs()] * 3),
    ]
    with compilations() as found:
        for number, batch in enumerate(batches):
            got = from_graphs_tuple(batch, padded=number == 1)
            back = to_graphs_tuple(
                got.graph, got.nodes, got.edges, got.globals, got.n_node, got.n_edge
            )
            jax.block_until_ready(back)
    assert not found


@pytest.mark.parametrize("padded", [False, True])
def test_a_block_with_globals_is_jraphs_graph_network(padded: bool) -> None:
    batch = jraph.batch([two_graphs(), two_graphs()])
    rng = np.random.default_rng(0)
    sizes = {"nodes": batch.n_node.sum(), "edges": batch.n_edge.sum(), "globals": 4}
    batch = batch._replace(**{k: np.float32(rng.normal(size=(n, 3))) for k, n in sizes.items()})
    w = {k: np.float32(rng.normal(size=(n, 3))) for k, n in (("e", 12), ("v", 9), ("u", 9))}

    def new(key: str, *parts: Any) -> Any:
        return jnp.tanh(jnp.concatenate(parts, axis=-1) @ w[key])

    @gnnjit.layer
    def block(v: Any, e: Any) -> Any:
        edge = new("e", e.data, e.src, v, e.globals)
        vertex = new("v", v, gnnjit.sum(edge), e.globals)
        pooled = gnnjit.readout.sum(vertex), gnnjit.readout.sum(edge)
        return vertex, edge, new("u", *pooled, e.globals)

    want = jraph.GraphNetwork(
        lambda edge, sent, received, u: new("e", edge, sent, received, u),
        lambda v, _, received, u: new("v", v, received, u),
        lambda v, edge, u: new("u", v, edge, u),
    )(batch)
    given = jraph.pad_with_graphs(batch, 16, 16, 6) if padded else batch
    found = from_graphs_tuple(given, padded=padded)
    got = block(found.graph, found.nodes, edges=found.edges, globals=found.globals)
    for y, expected in zip(got, (want.nodes, want.edges, want.globals), strict=True):
        np.testing.assert_allclose(y[: len(expected)], expected, rtol=1e-5, atol=1e-5)
