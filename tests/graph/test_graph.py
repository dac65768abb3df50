"""`Graph.from_edges` against brute force, and traced against concrete."""

from __future__ import annotations

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from gnnjit.errors import GraphError
from gnnjit.graph import Bipartite, Graph, Structure, structure

from .strategies import Edges, edge_lists, make

FEW = settings(max_examples=40, deadline=None)


def rows_by_brute_force(found: Structure) -> list[list[tuple[int, int]]]:
    """(neighbor, edge) of each row's slots."""
    indptr, neighbor, edge = (
        np.asarray(a).tolist() for a in (found.indptr, found.neighbor, found.edge)
    )
    slots = list(zip(neighbor, edge, strict=True))
    return [slots[a:b] for a, b in itertools.pairwise(indptr)]


def check_structure(
    found: Structure, row: np.ndarray, other: np.ndarray, real: np.ndarray, num_rows: int
) -> None:
    expected = [
        [(int(other[i]), i) for i in range(len(row)) if real[i] and row[i] == r]
        for r in range(num_rows)
    ]
    assert rows_by_brute_force(found) == expected
    assert sorted(np.asarray(found.edge).tolist()) == list(range(len(row)))
    padding = slice(int(found.indptr[-1]), None)
    assert not np.asarray(found.neighbor)[padding].any()
    assert not real[np.asarray(found.edge)[padding]].any()


def check_graph(graph: Graph, edges: Edges) -> None:
    real = edges.real
    np.testing.assert_array_equal(graph.src, np.where(real, edges.src, 0))
    np.testing.assert_array_equal(graph.dst, np.where(real, edges.dst, 0))
    check_structure(graph.in_structure, edges.dst, edges.src, real, edges.num_dst)
    check_structure(graph.out_structure, edges.src, edges.dst, real, edges.num_src)
    assert (graph.num_src, graph.num_dst) == (edges.num_src, edges.num_dst)
    assert graph.num_edges == len(edges.src)


def assert_same_arrays(a: Graph, b: Graph) -> None:
    """Equal in all but buckets and `dropped`, which only one of concrete and traced has."""
    for name in ("src", "dst", "num_src", "num_dst", "num_edges", "bipartite"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    for name in ("in_structure", "out_structure"):
        for part in ("indptr", "neighbor", "edge"):
            x, y = getattr(getattr(a, name), part), getattr(getattr(b, name), part)
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)


@given(edge_lists())
@FEW
def test_structures_match_brute_force(edges: Edges) -> None:
    check_graph(make(edges), edges)


@given(edge_lists(bipartite=True))
@FEW
def test_bipartite_structures_match_brute_force(edges: Edges) -> None:
    graph = make(edges, bipartite=True)
    assert graph.bipartite
    check_graph(graph, edges)


@given(edge_lists())
@settings(max_examples=25, deadline=None)
def test_traced_equals_concrete(edges: Edges) -> None:
    concrete = make(edges)
    mask = edges.real

    @jax.jit
    def build(src: jax.Array, dst: jax.Array, mask: jax.Array) -> Graph:
        return Graph.from_edges(src, dst, edges.num_src, edge_mask=mask)

    traced = build(edges.src, edges.dst, mask)
    check_graph(traced, edges)
    assert_same_arrays(traced, concrete)
    np.testing.assert_array_equal(traced.mask, mask)
    assert int(traced.num_dropped()) == 0
    assert traced.in_structure.buckets is None


def test_traced_edges_out_of_range_become_padding() -> None:
    src, dst = np.array([0, 1, 3, -1, 2, 3]), np.array([1, 4, 3, 0, 2, 3])
    mask = np.array([1, 1, 1, 1, 1, 0], bool)
    build = jax.jit(lambda s, d, m: Graph.from_edges(s, d, 3, edge_mask=m))
    graph = build(src, dst, mask)
    np.testing.assert_array_equal(graph.mask, [True, False, False, False, True, False])
    assert int(graph.num_dropped()) == 3
    check_graph(graph, Edges(src, dst, 3, 3, np.asarray(graph.mask)))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "uint32"])
def test_traced_narrow_and_unsigned_indices(dtype: str) -> None:
    src, dst = np.array([0, 100], dtype), np.array([120, 1], dtype)
    graph = jax.jit(lambda s, d: Graph.from_edges(s, d, 300))(src, dst)
    assert graph.src.dtype == jnp.int32
    np.testing.assert_array_equal(graph.src, [0, 100])
    assert int(graph.num_dropped()) == 0


def test_traced_unsigned_marker_above_int32_is_dropped() -> None:
    src = np.array([0, 2**32 - 1], np.uint32)
    graph = jax.jit(lambda s: Graph.from_edges(s, s, 2))(src)
    np.testing.assert_array_equal(graph.mask, [True, False])


def test_vmap_builds_each_graph() -> None:
    src, dst = np.array([[0, 1, 2], [2, 2, 3]]), np.array([[1, 1, 0], [0, 1, 0]])
    graphs = jax.vmap(lambda s, d: Graph.from_edges(s, d, 3))(src, dst)
    for i in range(2):
        one = jax.tree.map(lambda a, i=i: a[i], graphs)
        check_graph(one, Edges(src[i], dst[i], 3, 3, (src[i] < 3) & (dst[i] < 3)))


def test_scan_builds_a_graph_each_step() -> None:
    src, dst = np.array([[0, 1, 2], [2, 2, 1]]), np.array([[1, 1, 0], [0, 1, 0]])

    def step(total: jax.Array, edges: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        graph = Graph.from_edges(*edges, num_nodes=3)
        return total + graph.in_degree, graph.in_degree

    total, degrees = jax.lax.scan(step, jnp.zeros(3, jnp.int32), (src, dst))
    np.testing.assert_array_equal(degrees, [[1, 2, 0], [2, 1, 0]])
    np.testing.assert_array_equal(total, [3, 3, 0])


def test_concrete_edges_inside_jit() -> None:
    @jax.jit
    def degrees(scale: jax.Array) -> jax.Array:
        return scale * Graph.from_edges([0, 0, 1], [1, 2, 2], 3).in_degree

    np.testing.assert_array_equal(degrees(2), [0, 2, 4])


@pytest.mark.parametrize("kind", [list, tuple, np.asarray, jnp.asarray])
def test_every_kind_of_array(kind) -> None:
    graph = Graph.from_edges(kind([0, 1]), kind([1, 2]))
    assert graph.num_nodes == 3
    assert graph.mask is None
    np.testing.assert_array_equal(graph.in_degree, [0, 1, 1])


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({}, (6, 6, False)),
        ({"num_nodes": 9}, (9, 9, False)),
        ({"num_src": 4}, (4, 6, True)),
        ({"num_dst": 7}, (3, 7, True)),
        ({"num_src": np.int64(4), "num_dst": np.int32(8)}, (4, 8, True)),
    ],
)
def test_counts_are_inferred_when_left_out(sizes: dict, expected: tuple) -> None:
    graph = Graph.from_edges([0, 2], [5, 1], **sizes)
    assert (graph.num_src, graph.num_dst, graph.bipartite) == expected


def test_masked_edges_do_not_count_for_the_inferred_size() -> None:
    graph = Graph.from_edges([0, 50], [1, 60], edge_mask=[True, False])
    assert graph.num_nodes == 2
    np.testing.assert_array_equal(graph.mask, [True, False])


@pytest.mark.parametrize("num_nodes", [None, 0, 1, 3])
def test_no_edges(num_nodes: int | None) -> None:
    graph = Graph.from_edges([], [], num_nodes)
    assert graph.num_nodes == (num_nodes or 0)
    assert graph.num_edges == 0
    np.testing.assert_array_equal(graph.in_structure.indptr, np.zeros((num_nodes or 0) + 1))
    assert graph.gcn_norm().shape == (0,)


def test_all_edges_masked() -> None:
    graph = Graph.from_edges([7, 8], [9, -3], 1, edge_mask=[False, False])
    np.testing.assert_array_equal(graph.in_structure.indptr, [0, 0])
    np.testing.assert_array_equal(graph.src, [0, 0])


def test_mask_of_true_stays_so_that_the_tree_has_one_form() -> None:
    some = Graph.from_edges([0], [0], 1, edge_mask=[True])
    none = Graph.from_edges([0], [0], 1, edge_mask=[False])
    assert some.mask is not None
    assert none.mask is not None


def test_later_changes_of_the_input_do_not_reach_the_graph() -> None:
    src, dst = np.zeros(1000, np.int32), np.zeros(1000, np.int32)
    mask = np.ones(1000, bool)
    graph = Graph.from_edges(src, dst, 2, edge_mask=mask)
    src[:], dst[:], mask[:] = 1, 1, False
    assert not np.asarray(graph.src).any()
    assert not np.asarray(graph.dst).any()
    assert np.asarray(graph.mask).all()


def test_leaves_are_device_arrays_of_int32() -> None:
    graph = Graph.from_edges(np.array([0, 1], np.int64), np.array([1, 1], np.uint8))
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(graph))
    index = [graph.src, graph.dst, graph.in_structure.indptr, graph.in_structure.edge]
    assert {a.dtype for a in index} == {np.dtype(np.int32)}


def test_graph_is_a_pytree_with_static_sizes() -> None:
    graph = Graph.from_edges([0, 1], [1, 0])
    leaves, tree = jax.tree.flatten(graph)
    again = jax.tree.unflatten(tree, leaves)
    assert_same_arrays(graph, again)
    assert jax.jit(lambda g: g.in_degree * g.num_nodes)(graph).tolist() == [2, 2]


def test_graph_is_frozen() -> None:
    graph = Graph.from_edges([0], [0])
    with pytest.raises(dataclasses.FrozenInstanceError):
        graph.num_src = 3


@given(edge_lists(bipartite=True))
@FEW
def test_reverse_is_the_graph_of_the_swapped_edges(edges: Edges) -> None:
    graph = make(edges, bipartite=True)
    swapped = Edges(edges.dst, edges.src, edges.num_dst, edges.num_src, edges.mask)
    assert_same_arrays(graph.reverse(), make(swapped, bipartite=True))
    assert graph.reverse().in_structure is graph.out_structure
    assert_same_arrays(graph.reverse().reverse(), graph)


def test_structure_is_named_by_a_space() -> None:
    graph = Graph.from_edges([0, 1], [1, 1])
    assert graph.structure("dst") is graph.in_structure
    assert graph.structure("src") is graph.out_structure
    message = r"structure\(\) got 'edge', expected 'src' or 'dst': name the endpoint"
    with pytest.raises(GraphError, match=message):
        graph.structure("edge")


def test_bipartite_features_are_a_pytree() -> None:
    pair = Bipartite(src={"a": jnp.ones(2)}, dst=None)
    doubled = jax.tree.map(lambda a: 2 * a, pair)
    assert doubled.dst is None
    np.testing.assert_array_equal(doubled.src["a"], [2, 2])


@pytest.mark.parametrize(
    ("graph", "text"),
    [
        (Graph.from_edges([0, 1], [1, 2]), "Graph(3 vertices, 2 edges)"),
        (Graph.from_edges([0], [1], edge_mask=[True]), "Graph(2 vertices, 1 edges, padded)"),
        (
            Graph.from_edges([0], [1], num_src=4, num_dst=2),
            "Graph(4 sources, 2 destinations, 1 edges)",
        ),
    ],
)
def test_repr(graph: Graph, text: str) -> None:
    assert repr(graph) == text


def test_int64_indices_where_a_count_needs_them() -> None:
    with jax.enable_x64(True):
        count = 2**31
        build = jax.eval_shape(
            lambda s, d: Graph.from_edges(s, d, num_src=count, num_dst=3),
            *[jax.ShapeDtypeStruct((4,), jnp.int64)] * 2,
        )
    assert build.src.dtype == jnp.int64
    assert build.in_structure.edge.dtype == jnp.int64
    assert build.out_structure.indptr.shape == (count + 1,)


def test_num_nodes_of_a_bipartite_graph() -> None:
    graph = Graph.from_edges([0], [1], num_src=4, num_dst=2)
    with pytest.raises(GraphError) as error:
        _ = graph.num_nodes
    assert str(error.value) == (
        "num_nodes asked of a bipartite graph with 4 sources and 2 destinations, expected one "
        "vertex set: use num_src or num_dst"
    )


def test_buckets_are_made_of_concrete_edges_only(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def make_buckets(indptr: np.ndarray) -> jax.Array:
        seen.append(indptr.tolist())
        return jnp.asarray(indptr)

    monkeypatch.setattr(structure, "make_buckets", make_buckets)
    graph = Graph.from_edges([0, 1, 2, 7], [1, 1, 0, 7], 3, edge_mask=[True, True, True, False])
    assert seen == [[0, 1, 3, 3], [0, 1, 2, 3]]
    assert graph.reverse().in_structure.buckets.tolist() == seen[1]
    padded = graph.pad(5, 6)
    assert padded.in_structure.buckets is None
    assert padded.out_structure.buckets is None
    traced = jax.jit(lambda s: Graph.from_edges(s, s, 3))(np.array([0, 1]))
    assert traced.in_structure.buckets is None
    assert len(seen) == 2
