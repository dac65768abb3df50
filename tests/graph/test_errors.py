"""Every message of the checks, word by word."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gnnjit.errors import GraphError
from gnnjit.graph import Graph, batch, coalesce, symmetrize
from gnnjit.graph.validate import index_dtype

LARGER = "pass a larger num_nodes, or subtract 1 if your vertices are numbered from 1"
NEGATIVE = "negative indices do not count from the end; mark padding with edge_mask="


def small() -> Graph:
    return Graph.from_edges([0, 1, 2], [1, 2, 2], 3)


def pair() -> Graph:
    return Graph.from_edges([0, 1], [1, 2], num_src=2, num_dst=3)


def traced(src: object, dst: object, **sizes: object) -> Graph:
    return jax.jit(lambda s, d: Graph.from_edges(s, d, **sizes))(src, dst)


FROM_EDGES = [
    pytest.param(
        ([0, 1], [1, 7]),
        {"num_nodes": 5},
        f"dst[1] is 7, expected a vertex from 0 to 4 (num_nodes=5): {LARGER}",
        id="out-of-range",
    ),
    pytest.param(
        ([0, 4], [1, 1]),
        {"num_src": 3},
        "src[1] is 4, expected a vertex from 0 to 2 (num_src=3): pass a larger num_src, or "
        "subtract 1 if your vertices are numbered from 1",
        id="out-of-range-bipartite",
    ),
    pytest.param(
        ([0], [0]),
        {"num_nodes": 0},
        f"src[0] is 0, expected no edges at all (num_nodes=0): {LARGER}",
        id="no-vertices",
    ),
    pytest.param(
        ([0, 9, 9], [0, 1, 1]),
        {"num_nodes": 2, "edge_mask": [True, False, True]},
        f"src[2] is 9, expected a vertex from 0 to 1 (num_nodes=2): {LARGER}",
        id="out-of-range-unmasked",
    ),
    pytest.param(
        ([0, 1, -2], [1, 1, 1]),
        {},
        f"src[2] is -2, expected a vertex from 0 to 1 (num_nodes=2): {NEGATIVE}",
        id="negative",
    ),
    pytest.param(
        ([0.0, 1.0], [1, 1]),
        {},
        "src has dtype float64, expected integers: pass vertex numbers, as in src.astype('int32')",
        id="float",
    ),
    pytest.param(
        ([0, 1], [True, False]),
        {},
        "dst has dtype bool, expected integers: pass vertex numbers, and what marks padding as "
        "edge_mask=",
        id="bool",
    ),
    pytest.param(
        ([0, 1], [1]),
        {},
        "src has 2 entries and dst has 1, expected one of each per edge: pass two arrays of the "
        "same length",
        id="lengths",
    ),
    pytest.param(
        (np.zeros((2, 3), int), [1]),
        {},
        "src has shape (2, 3), expected one vertex per edge, shape (num_edges,): split an edge "
        "list, as in from_edges(edge_index[0], edge_index[1])",
        id="two-dimensional",
    ),
    pytest.param(
        (0, [1]),
        {},
        "src has shape (), expected one vertex per edge, shape (num_edges,): split an edge "
        "list, as in from_edges(edge_index[0], edge_index[1])",
        id="scalar",
    ),
    pytest.param(
        ([0], [0]),
        {"num_nodes": -1},
        "num_nodes is -1, expected 0 or more: pass the number of vertices, or leave it out to use "
        "the largest index plus one",
        id="negative-count",
    ),
    pytest.param(
        ([0], [0]),
        {"num_nodes": 2.0},
        "num_nodes is 2.0 of type float, expected an integer: pass int(num_nodes)",
        id="float-count",
    ),
    pytest.param(
        ([0], [0]),
        {"num_dst": True},
        "num_dst is True of type bool, expected an integer: pass int(num_dst)",
        id="bool-count",
    ),
    pytest.param(
        ([0], [0]),
        {"num_nodes": 2, "num_src": 2},
        "num_nodes and num_src were both given, expected num_nodes alone (one vertex set) or "
        "num_src and num_dst (two vertex sets): drop one of them",
        id="both-counts",
    ),
    pytest.param(
        ([0], [0]),
        {"edge_mask": [1]},
        "edge_mask has dtype int64, expected bool (True marks a real edge): pass edge_mask != 0",
        id="mask-dtype",
    ),
    pytest.param(
        ([0], [0]),
        {"edge_mask": [True, False]},
        "edge_mask has shape (2,), expected (1,), one entry per edge: build it from the same edge "
        "list as src and dst",
        id="mask-shape",
    ),
    pytest.param(
        ([0], [0]),
        {"num_nodes": 0, "edge_mask": [False]},
        "num_src is 0 with room for 1 edges, expected at least one vertex for padding to point "
        "at: pass num_src=1 or more, or no edges",
        id="padding-without-vertices",
    ),
]


@pytest.mark.parametrize(("edges", "options", "message"), FROM_EDGES)
def test_from_edges(edges: tuple, options: dict, message: str) -> None:
    with pytest.raises(GraphError) as error:
        Graph.from_edges(*edges, **options)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("sizes", "name"), [({}, "num_nodes"), ({"num_src": 2}, "num_dst"), ({"num_dst": 2}, "num_src")]
)
def test_traced_edges_need_sizes(sizes: dict, name: str) -> None:
    with pytest.raises(GraphError) as error:
        traced(np.array([0]), np.array([0]), **sizes)
    assert str(error.value) == (
        f"{name} is missing and the edges are traced, expected a static size: their largest index "
        f"is unknown inside jit, so pass {name}="
    )


def test_traced_size() -> None:
    with pytest.raises(GraphError) as error:
        jax.jit(lambda s, n: Graph.from_edges(s, s, n))(np.array([0]), 3)
    assert str(error.value) == (
        "num_nodes is a traced value, expected a static integer: sizes are fixed when a function "
        "is compiled, so pass a Python int (a capacity)"
    )


def test_traced_float_indices() -> None:
    with pytest.raises(GraphError) as error:
        traced(jnp.array([0.5], jnp.float32), jnp.array([0]), num_nodes=2)
    assert str(error.value) == (
        "src has dtype float32, expected integers: pass vertex numbers, as in src.astype('int32')"
    )


def test_counts_beyond_32_bits() -> None:
    with jax.enable_x64(False), pytest.raises(GraphError) as error:
        Graph.from_edges([0], [0], num_src=2**31, num_dst=1)
    assert str(error.value) == (
        "num_src is 2147483648, expected at most 2147483647 for 32-bit indices: enable 64-bit ones "
        "with jax.config.update('jax_enable_x64', True)"
    )
    assert index_dtype(num_edges=2**31 - 1) == np.int32


@pytest.mark.parametrize(
    ("graph", "x", "space", "message"),
    [
        (
            small(),
            np.zeros((5, 2)),
            "dst",
            "x has 5 rows, but the graph has 3 vertices: pass arrays with one row per vertex",
        ),
        (
            small(),
            {"a": np.zeros((1, 2)), "b": (np.zeros(3), 1.0)},
            "src",
            "x['a'] has 1 row; x['b'][1] has no rows (it is a scalar), but the graph has 3 "
            "vertices: pass arrays with one row per vertex",
        ),
        (
            pair(),
            np.zeros(3),
            "src",
            "x has 3 rows, but the graph has 2 sources: pass arrays with one row per vertex",
        ),
        (
            pair(),
            np.zeros(2),
            "dst",
            "x has 2 rows, but the graph has 3 destinations: pass arrays with one row per vertex",
        ),
        (
            pair(),
            np.zeros(3),
            "edge",
            "x has 3 rows, but the graph has 2 edges: pass arrays with one row per edge",
        ),
    ],
)
def test_check(graph: Graph, x: object, space: str, message: str) -> None:
    with pytest.raises(GraphError) as error:
        graph.check(x, space, "x")
    assert str(error.value) == message


@pytest.mark.parametrize(("space", "rows"), [("src", 2), ("dst", 3), ("edge", 2)])
def test_check_accepts_what_fits(space: str, rows: int) -> None:
    pair().check({"a": np.zeros((rows, 4)), "b": None}, space, "x")
    jax.jit(lambda x: pair().check(x, space, "x"))(np.zeros(rows))


PAIR = "a bipartite graph with 2 sources and 3 destinations, expected one vertex set"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: small().degree("up"),
            "degree() got 'up', expected one of 'in', 'dst', 'out', 'src': pass 'in' for the edges "
            "that end at a vertex",
        ),
        (
            lambda: pair().with_self_loops(),
            f"with_self_loops() on {PAIR}: add the vertex's own features in the layer instead",
        ),
        (
            lambda: pair().to_undirected(),
            f"num_nodes asked of {PAIR}: use num_src or num_dst",
        ),
        (
            lambda: small().pad(num_nodes=2),
            "num_nodes=2 is below the 3 that the graph has, expected at least 3: nothing is cut "
            "off, so pass a larger capacity",
        ),
        (
            lambda: small().pad(num_edges=1),
            "num_edges=1 is below the 3 that the graph has, expected at least 3: nothing is cut "
            "off, so pass a larger capacity",
        ),
        (
            lambda: pair().pad(4),
            "num_nodes was given for a bipartite graph, expected num_src and num_dst: pad each "
            "vertex set by itself",
        ),
        (
            lambda: small().pad(num_src=4),
            "num_src or num_dst was given for a graph of one vertex set, expected num_nodes: pass "
            "num_nodes=",
        ),
        (
            lambda: Graph.from_edges([], []).pad(num_edges=4),
            "num_src is 0 with room for 4 edges, expected at least one vertex for padding to point "
            "at: pass num_src=1 or more, or no edges",
        ),
        (
            lambda: small().pad_nodes({"a": np.zeros((4, 2))}),
            "x['a'] has shape (4, 2), expected at most 3 rows: pad the features of the graph that "
            "was padded, [rows, ...]",
        ),
        (
            lambda: small().pad_edges(1.0),
            "edges has shape (), expected at most 3 rows: pad the features of the graph that was "
            "padded, [rows, ...]",
        ),
        (
            lambda: batch([]),
            "batch() got no graphs, expected at least one: pass a non-empty list",
        ),
        (
            lambda: batch([small(), pair(), small()]),
            "batch() got 1 bipartite graphs and 2 of one vertex set, expected one kind: batch them "
            "apart",
        ),
        (
            lambda: coalesce([0, -1], [0, 0]),
            "src[1] is -1, expected a vertex number, 0 or more: negative indices do not count from "
            "the end; leave padding out",
        ),
        (
            lambda: jax.jit(symmetrize)(np.array([0]), np.array([0])),
            "the edges are traced, expected concrete ones: the number of edges that remain is "
            "unknown inside jit, so edit the edge list before",
        ),
        (
            lambda: jax.jit(lambda g: g.statistics())(small()),
            "statistics() was called on a traced graph, expected a concrete one: call it outside "
            "jit",
        ),
        (
            lambda: small().gcn_norm(np.ones(2)),
            "weights has 2 rows, but the graph has 3 edges: pass arrays with one row per edge",
        ),
        (
            lambda: small().with_self_loops(np.ones((4, 2))),
            "edges has 4 rows, but the graph has 3 edges: pass arrays with one row per edge",
        ),
    ],
)
def test_methods(call, message: str) -> None:
    with pytest.raises(GraphError) as error:
        call()
    assert str(error.value) == message
