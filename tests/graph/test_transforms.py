"""Degrees, normalisation, self loops, padding, batching, statistics, edge lists."""

from __future__ import annotations

import enum
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from gnnjit.graph import Bipartite, Graph, batch, coalesce, symmetrize

from .strategies import Edges, edge_lists, make

FEW = settings(max_examples=40, deadline=None)


def real_pairs(graph: Graph) -> list[tuple[int, int]]:
    """The (source, destination) of the real edges, in order."""
    mask = np.ones(graph.num_edges, bool) if graph.mask is None else np.asarray(graph.mask)
    src, dst = np.asarray(graph.src)[mask], np.asarray(graph.dst)[mask]
    return list(zip(src.tolist(), dst.tolist(), strict=True))


def row_neighbors(structure) -> list[list[int]]:
    indptr, neighbor = np.asarray(structure.indptr), np.asarray(structure.neighbor)
    return [neighbor[a:b].tolist() for a, b in itertools.pairwise(indptr)]


class Side(enum.Enum):
    SRC = "src"
    DST = "dst"


@given(edge_lists(bipartite=True))
@FEW
def test_degrees(edges: Edges) -> None:
    graph = make(edges, bipartite=True)
    into = np.bincount(edges.dst[edges.real], minlength=edges.num_dst)
    out_of = np.bincount(edges.src[edges.real], minlength=edges.num_src)
    for space in ("in", "dst", Side.DST):
        np.testing.assert_array_equal(graph.degree(space), into)
    for space in ("out", "src", Side.SRC):
        np.testing.assert_array_equal(graph.degree(space), out_of)
    np.testing.assert_array_equal(graph.in_degree, into)
    np.testing.assert_array_equal(graph.out_degree, out_of)


@given(edge_lists())
@FEW
def test_gcn_norm_against_a_dense_matrix(edges: Edges) -> None:
    graph = make(edges)
    n, real = edges.num_src, edges.real
    weights = np.arange(1.0, len(edges.src) + 1)
    dense = np.zeros((n, n))
    np.add.at(dense, (edges.dst[real], edges.src[real]), weights[real])
    degree = dense.sum(1)
    root = np.divide(1, np.sqrt(degree), out=np.zeros(n), where=degree > 0)
    expected = root[:, None] * dense * root[None, :]
    norm = graph.gcn_norm(weights)
    got = np.zeros((n, n))
    np.add.at(got, (np.asarray(graph.dst), np.asarray(graph.src)), np.asarray(norm))
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    assert norm.dtype == jnp.float32
    assert not np.asarray(norm)[~real].any()


def test_gcn_norm_of_kipf_and_welling() -> None:
    graph = Graph.from_edges([0, 1, 1, 2], [1, 0, 2, 1], 3).with_self_loops()
    d = np.array([2, 3, 2])
    pairs = np.array(real_pairs(graph))
    expected = 1 / np.sqrt(d[pairs[:, 0]] * d[pairs[:, 1]])
    np.testing.assert_allclose(graph.gcn_norm(), expected, rtol=1e-6)


def test_gcn_factors_multiply_to_the_norm_of_a_bipartite_graph() -> None:
    graph = Graph.from_edges([0, 0, 1, 3], [0, 1, 1, 1], num_src=4, num_dst=3)
    at_src, at_dst = graph.gcn_factors()
    np.testing.assert_allclose(at_src, [2**-0.5, 1, 0, 1], rtol=1e-6)
    np.testing.assert_allclose(at_dst, [1, 3**-0.5, 0], rtol=1e-6)
    np.testing.assert_allclose(graph.gcn_norm(), at_src[graph.src] * at_dst[graph.dst])


def test_gradient_of_gcn_norm_is_finite_at_degree_zero() -> None:
    graph = Graph.from_edges([0, 1], [1, 2], 4)
    gradient = jax.grad(lambda w: graph.gcn_norm(w).sum())(jnp.array([0.0, 4.0]))
    assert np.isfinite(gradient).all()


def test_self_loops_are_added_where_missing() -> None:
    graph = Graph.from_edges([0, 1, 1, 2], [1, 1, 1, 0], 4)
    looped, edges = graph.with_self_loops(
        {"w": jnp.arange(4, dtype=jnp.int16), "v": jnp.ones((4, 2))}, fill=7
    )
    assert real_pairs(looped) == [(0, 1), (1, 1), (1, 1), (2, 0), (0, 0), (2, 2), (3, 3)]
    assert looped.mask is None
    np.testing.assert_array_equal(edges["w"], [0, 1, 2, 3, 7, 7, 7])
    np.testing.assert_array_equal(edges["v"][3:], [[1, 1], [7, 7], [7, 7], [7, 7]])
    assert edges["w"].dtype == jnp.int16


def test_self_loops_at_every_vertex() -> None:
    graph = Graph.from_edges([0, 1], [1, 1], 2).with_self_loops(missing_only=False)
    assert real_pairs(graph) == [(0, 1), (1, 1), (0, 0), (1, 1)]


@given(edge_lists())
@settings(max_examples=20, deadline=None)
def test_self_loops_of_a_traced_graph(edges: Edges) -> None:
    graph = make(edges)
    weights = jnp.arange(1.0, graph.num_edges + 1)
    traced, values = jax.jit(lambda g, w: g.with_self_loops(w, fill=-1))(graph, weights)
    assert real_pairs(traced) == real_pairs(graph.with_self_loops())
    assert traced.num_edges == graph.num_edges + graph.num_nodes
    assert row_neighbors(traced.in_structure) == row_neighbors(graph.with_self_loops().in_structure)
    np.testing.assert_array_equal(values[graph.num_edges :], -np.ones(graph.num_nodes))


def test_self_loops_keep_the_count_of_dropped_edges() -> None:
    build = jax.jit(lambda s: Graph.from_edges(s, s, 2).with_self_loops())
    assert int(build(np.array([0, 2, 5])).num_dropped()) == 2


@given(edge_lists())
@FEW
def test_padding_changes_no_row(edges: Edges) -> None:
    graph = make(edges)
    padded = graph.pad(graph.num_nodes + 2, graph.num_edges + 3)
    assert (padded.num_nodes, padded.num_edges) == (graph.num_nodes + 2, graph.num_edges + 3)
    assert real_pairs(padded) == real_pairs(graph)
    for name in ("in_structure", "out_structure"):
        before, after = getattr(graph, name), getattr(padded, name)
        assert row_neighbors(after) == [*row_neighbors(before), [], []]
        assert sorted(np.asarray(after.edge).tolist()) == list(range(padded.num_edges))
        np.testing.assert_array_equal(after.edge[: graph.num_edges], before.edge)


def test_graphs_padded_alike_share_one_compilation() -> None:
    traces = []

    @jax.jit
    def degrees(graph: Graph) -> jax.Array:
        traces.append(graph)
        return graph.in_degree

    first = Graph.from_edges([0, 1, 2], [0, 0, 0], 3).pad(5, 4)
    second = Graph.from_edges([0, 1, 2, 3], [3, 2, 1, 0], 5).pad(5, 4)
    assert degrees(first).tolist() == [3, 0, 0, 0, 0]
    assert degrees(second).tolist() == [1, 1, 1, 1, 0]
    assert len(traces) == 1


def test_padding_a_traced_and_a_bipartite_graph() -> None:
    graph = Graph.from_edges([0, 1], [2, 0], num_src=2, num_dst=3)
    padded = jax.jit(lambda g: g.pad(num_src=4, num_dst=5, num_edges=6))(graph)
    assert (padded.num_src, padded.num_dst, padded.num_edges) == (4, 5, 6)
    np.testing.assert_array_equal(padded.in_degree, [1, 0, 1, 0, 0])
    np.testing.assert_array_equal(padded.mask, [True, True, False, False, False, False])


def test_padding_of_features() -> None:
    graph = Graph.from_edges([0], [1], 2).pad(3, 2)
    x = graph.pad_nodes({"a": np.ones((2, 2), np.float16), "b": jnp.arange(1, 3)})
    np.testing.assert_array_equal(x["a"], [[1, 1], [1, 1], [0, 0]])
    np.testing.assert_array_equal(x["b"], [1, 2, 0])
    assert isinstance(x["a"], np.ndarray)
    assert x["a"].dtype == np.float16
    np.testing.assert_array_equal(graph.pad_edges(np.ones(1)), [1, 0])


def test_padding_of_bipartite_features() -> None:
    graph = Graph.from_edges([0], [0], num_src=3, num_dst=2)
    x = graph.pad_nodes(Bipartite(np.ones(1), np.ones(1)))
    np.testing.assert_array_equal(x.src, [1, 0, 0])
    np.testing.assert_array_equal(x.dst, [1, 0])


def test_batch_puts_graphs_side_by_side() -> None:
    first = Graph.from_edges([0, 1], [1, 1], 3)
    second = Graph.from_edges([1, 5], [0, 0], 2, edge_mask=[True, False])
    third = Graph.from_edges([], [], 1)
    graph, index = batch([first, second, third])
    assert real_pairs(graph) == [(0, 1), (1, 1), (4, 3)]
    np.testing.assert_array_equal(graph.mask, [True, True, True, False])
    np.testing.assert_array_equal(index, [0, 0, 0, 1, 1, 2])
    np.testing.assert_array_equal(graph.in_degree, [0, 2, 0, 1, 0, 0])


def test_batch_of_bipartite_graphs() -> None:
    one = Graph.from_edges([0, 1], [2, 0], num_src=2, num_dst=3)
    graph, index = batch([one, one])
    assert real_pairs(graph) == [(0, 2), (1, 0), (2, 5), (3, 3)]
    assert graph.mask is None
    np.testing.assert_array_equal(index.src, [0, 0, 1, 1])
    np.testing.assert_array_equal(index.dst, [0, 0, 0, 1, 1, 1])


def test_batch_of_traced_graphs() -> None:
    first = Graph.from_edges([0, 1], [1, 1], 3)
    second = Graph.from_edges([1, 0], [0, 0], 2)
    concrete, _ = batch([first, second])
    traced, index = jax.jit(lambda *graphs: batch(graphs))(first, second)
    assert real_pairs(traced) == real_pairs(concrete)
    np.testing.assert_array_equal(traced.in_structure.indptr, concrete.in_structure.indptr)
    np.testing.assert_array_equal(index, [0, 0, 0, 1, 1])


def test_a_batch_remembers_its_graphs() -> None:
    first, none = Graph.from_edges([0, 1], [1, 1], 3), Graph.from_edges([], [], 0)
    graph, index = batch([first, none, first])
    assert (first.num_graphs, graph.num_graphs) == (1, 3)
    np.testing.assert_array_equal(index, [0, 0, 0, 2, 2, 2])
    again, index = batch([graph, first])
    assert again.num_graphs == 4
    np.testing.assert_array_equal(index, [0, 0, 0, 2, 2, 2, 3, 3, 3])
    assert repr(again) == "Graph(9 vertices, 6 edges, 4 graphs)"


@pytest.mark.parametrize("traced", [False, True])
def test_padding_of_a_batch(traced: bool) -> None:
    first = Graph.from_edges([0, 1], [1, 1], 3)

    def padded(first: Graph) -> Graph:
        return batch([first.pad(4, 3), first])[0].pad(9, 6, num_graphs=4)

    graph = (jax.jit(padded) if traced else padded)(first)
    assert graph.members is not None
    assert (graph.num_nodes, graph.num_graphs) == (9, 4)
    np.testing.assert_array_equal(graph.members.dst, [0, 0, 0, 0, 1, 1, 1, 3, 3])
    real = [True, True, True, False, True, True, True, False, False]
    np.testing.assert_array_equal(graph.members.real_dst, real)


def test_what_keeps_the_graphs_of_a_batch() -> None:
    one = Graph.from_edges([0, 1], [2, 0], num_src=2, num_dst=3)
    bipartite, index = batch([one, one])
    back = bipartite.reverse()
    assert back.num_graphs == 2
    np.testing.assert_array_equal(back.members.dst, index.src)
    np.testing.assert_array_equal(back.members.src, index.dst)
    square = Graph.from_edges([0, 1], [2, 0], 3)
    graph, _ = batch([square, square])
    for kept in (graph.reverse(), graph.with_self_loops(), graph.to_undirected()):
        assert kept.members is graph.members


def test_a_batch_passes_through_jax_export() -> None:
    square = Graph.from_edges([0, 1], [2, 0], 3)
    graph, _ = batch([square, square])
    exported = jax.export.export(jax.jit(lambda g: g.members.dst))(graph)
    again = jax.export.deserialize(exported.serialize())
    np.testing.assert_array_equal(again.call(graph), [0, 0, 0, 1, 1, 1])


def test_statistics() -> None:
    graph = Graph.from_edges(
        [0, 0, 1, 2, 0, 9], [1, 1, 1, 0, 0, 9], 5, edge_mask=[True] * 5 + [False]
    )
    found = graph.statistics()
    assert (found.num_src, found.num_dst, found.num_edges, found.num_padding) == (5, 5, 5, 1)
    assert (found.isolated, found.self_loops, found.duplicate_edges) == (2, 2, 1)
    assert (found.in_degree.min, found.in_degree.mean, found.in_degree.max) == (0, 1.0, 3)
    assert (found.in_degree.median, found.out_degree.median) == (0.0, 1.0)
    assert found.hub_share == pytest.approx(0.6)
    assert found.num_bytes == sum(leaf.nbytes for leaf in jax.tree.leaves(graph))


def test_statistics_as_text() -> None:
    graph = Graph.from_edges([0, 1, 1], [1, 1, 0], 2)
    text = str(graph.statistics()).splitlines()
    assert text[0].startswith("2 vertices, 3 edges, 0 padding edges, ")
    assert text[1:] == [
        "in-degree:   min 1  mean 1.5  median 1.5  90% 1.9  99% 1.99  max 2",
        "out-degree:  min 1  mean 1.5  median 1.5  90% 1.9  99% 1.99  max 2",
        "0 isolated vertices, 1 self loops, 0 duplicate edges",
        "66.7% of the edges at the largest hub",
    ]


def test_statistics_of_a_bipartite_graph() -> None:
    found = Graph.from_edges([0, 1], [0, 1], num_src=3, num_dst=4).statistics()
    assert (found.isolated, found.self_loops) == (3, 0)
    assert str(found).startswith("3 sources, 4 destinations, 2 edges, ")


@pytest.mark.parametrize("num_nodes", [0, 3])
def test_statistics_without_edges(num_nodes: int) -> None:
    found = Graph.from_edges([], [], num_nodes).statistics()
    assert (found.isolated, found.hub_share, found.in_degree.max) == (num_nodes, 0.0, 0)


@given(edge_lists(masked=False))
@FEW
def test_coalesce(edges: Edges) -> None:
    src, dst, group = coalesce(edges.src, edges.dst)
    pairs = list(zip(dst.tolist(), src.tolist(), strict=True))
    assert pairs == sorted(set(zip(edges.dst.tolist(), edges.src.tolist(), strict=True)))
    np.testing.assert_array_equal(src[group], edges.src)
    np.testing.assert_array_equal(dst[group], edges.dst)


@given(edge_lists(masked=False))
@FEW
def test_symmetrize(edges: Edges) -> None:
    src, dst, origin = symmetrize(edges.src, edges.dst)
    given_pairs = list(zip(edges.dst.tolist(), edges.src.tolist(), strict=True))
    both = {*given_pairs, *((v, u) for u, v in given_pairs)}
    pairs = list(zip(dst.tolist(), src.tolist(), strict=True))
    assert pairs == sorted(both)
    for pair, i in zip(pairs, origin.tolist(), strict=True):
        own = pair in given_pairs
        assert i == given_pairs.index(pair if own else pair[::-1])


@pytest.mark.parametrize("mask", [None, [True, True, True, False]])
def test_to_undirected(mask: list[bool] | None) -> None:
    graph = Graph.from_edges([0, 1, 2, 2], [1, 0, 2, 2 if mask is None else 0], 4, edge_mask=mask)
    undirected = graph.to_undirected()
    assert undirected.num_nodes == 4
    assert real_pairs(undirected) == [(1, 0), (0, 1), (2, 2)]
