"""Edges said to be sorted or symmetric: checked where concrete, used where traced."""

from __future__ import annotations

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gnnjit
from gnnjit.errors import GraphError
from gnnjit.graph import Graph, symmetrize
from gnnjit.graph.sorting import _sorted_order, sort_by_xla, sort_edges
from gnnjit.lower.choose import prefer

from .strategies import Edges, edge_lists
from .test_graph import assert_same_arrays, check_graph

VERTICES, SLOTS = 6, 16
FEW = settings(max_examples=25, deadline=None)


@functools.cache
def compiled(lowering: str, end: str | None = None, symmetric: bool = False) -> Any:
    """`from_edges` of traced edges; one compilation for all that are drawn."""

    def build(src: Any, dst: Any, mask: Any) -> Graph:
        return Graph.from_edges(
            src, dst, VERTICES, edge_mask=mask, sorted_by=end, symmetric=symmetric
        )

    def run(edges: Edges) -> Graph:
        with prefer(lowering):
            return jitted(edges.src, edges.dst, edges.real)

    jitted = jax.jit(build)
    return run


def at_capacity(edges: Edges) -> Edges:
    """The same edges, with padding before, among and after them."""
    slots, real = np.full((2, SLOTS), VERTICES, np.int32), np.zeros(SLOTS, bool)
    at = np.random.default_rng(len(edges.src)).permutation(SLOTS)[: len(edges.src)]
    at.sort()
    slots[:, at], real[at] = [edges.src, edges.dst], edges.real
    return Edges(*slots, VERTICES, VERTICES, real)


def ordered(edges: Edges, end: str) -> Edges:
    """The real edges sorted by an endpoint, padding where it was."""
    src, dst, real = edges.src.copy(), edges.dst.copy(), edges.real
    order = np.argsort((src if end == "src" else dst)[real], kind="stable")
    src[real], dst[real] = src[real][order], dst[real][order]
    return Edges(src, dst, VERTICES, VERTICES, real)


def both_ways(edges: Edges, seed: int) -> Edges:
    """Every edge in both directions, in any order."""
    edges = at_capacity(edges)
    src, dst = np.concatenate([edges.src, edges.dst]), np.concatenate([edges.dst, edges.src])
    order = np.random.default_rng(seed).permutation(len(src))
    real = np.concatenate([edges.real, edges.real])
    return Edges(src[order], dst[order], VERTICES, VERTICES, real[order])


@pytest.mark.parametrize("lowering", ["cpu", "segment"])
@pytest.mark.parametrize("end", ["src", "dst"])
@given(edge_lists())
@FEW
def test_sorted_edges_give_the_same_structures(lowering: str, end: str, edges: Edges) -> None:
    edges = ordered(at_capacity(edges), end)
    found = compiled(lowering, end)(edges)
    check_graph(found, edges)
    assert_same_arrays(found, compiled(lowering)(edges))


@pytest.mark.parametrize("lowering", ["cpu", "segment"])
@given(edge_lists(), st.sampled_from(["src", "dst"]))
@FEW
def test_traced_edges_that_do_not_rise_are_sorted(lowering: str, edges: Edges, end: str) -> None:
    edges = at_capacity(edges)
    check_graph(compiled(lowering, end)(edges), edges)


@pytest.mark.parametrize("end", [None, "src", "dst"])
@given(edge_lists(), st.integers(0, 99))
@FEW
def test_symmetric_edges(end: str | None, edges: Edges, seed: int) -> None:
    """Each structure holds each edge once, in its row, beside its other endpoint."""
    edges = both_ways(edges, seed)
    edges = edges if end is None else ordered(edges, end)
    graph, plain = compiled("cpu", end, True)(edges), compiled("cpu")(edges)
    pairs = (
        (graph.in_structure, plain.in_structure, edges.dst, edges.src),
        (graph.out_structure, plain.out_structure, edges.src, edges.dst),
    )
    for found, expected, row, other in pairs:
        np.testing.assert_array_equal(found.indptr, expected.indptr)
        edge, count = np.asarray(found.edge), int(found.indptr[-1])
        assert sorted(edge.tolist()) == list(range(len(edge)))
        np.testing.assert_array_equal(found.neighbor[:count], other[edge[:count]])
        rows = np.repeat(np.arange(VERTICES), np.diff(found.indptr))
        np.testing.assert_array_equal(rows, row[edge[:count]])
        assert not edges.real[edge[count:]].any()


@gnnjit.layer
def weighted(v: jax.Array, e: Any) -> jax.Array:
    return gnnjit.sum(jnp.sin(v - 2 * e.src) * e.data)


def test_gradients_on_symmetric_edges() -> None:
    rng = np.random.default_rng(5)
    src, dst, _ = symmetrize(*rng.integers(0, 7, (2, 15)))
    order = rng.permutation(len(src))
    src, dst = src[order], dst[order]
    given = np.r_[src, 9, 0], np.r_[dst, 2, 9]  # and two that mean "no neighbour"
    x = rng.random((9, 3)).astype(np.float32)
    data = rng.random((len(src) + 2, 3)).astype(np.float32)

    def loss(x: Any, data: Any, src: Any, dst: Any) -> Any:
        graph = Graph.from_edges(src, dst, 9, symmetric=True)
        return (weighted(graph, x, edges=data) ** 2).sum()

    def plain(x: Any, data: Any) -> Any:
        terms = jnp.sin(x[dst] - 2 * x[src]) * data[:-2]
        return (jax.ops.segment_sum(terms, dst, 9) ** 2).sum()

    got = jax.jit(jax.grad(loss, argnums=(0, 1)))(x, data, *given)
    for a, b in zip(got, jax.grad(plain, argnums=(0, 1))(x, data), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def sorts(fn: Any, *args: Any) -> int:
    """Sorts of edges in the compiled program."""
    text = jax.jit(fn).lower(*args).compile().as_text()
    return len(re.findall(r" sort\(", text))


@gnnjit.layer
def energy(v: jax.Array, e: Any) -> jax.Array:
    r = v - e.src
    return gnnjit.sum(1 / (1 + jnp.sum(r * r)))


X = np.random.default_rng(0).random((6, 3)).astype(np.float32)
SRC, DST = np.array([0, 1, 1, 2, 5, 4, 6]), np.array([1, 0, 2, 1, 4, 5, 2])


def of_edges(gradient: bool, **said: Any) -> Any:
    def run(x: Any, src: Any, dst: Any) -> Any:
        total = lambda x: energy(Graph.from_edges(src, dst, 6, **said), x).sum()  # noqa: E731
        return (jax.grad(total) if gradient else total)(x)

    return run


def test_only_what_is_read_is_sorted() -> None:
    with prefer("segment"):
        assert sorts(of_edges(False), X, SRC, DST) == 1
        assert sorts(of_edges(True), X, SRC, DST) == 2
        assert sorts(of_edges(False, sorted_by="src"), X, SRC, DST) == 1


def test_one_kernel_sorts_symmetric_edges() -> None:
    pytest.importorskip("llvmlite")
    calls = []
    for said in ({}, {"symmetric": True}):
        text = jax.jit(of_edges(True, **said)).lower(X, SRC, DST).compile().as_text()
        calls.append(len(re.findall(r'custom_call_target="gnnjit_cpu_', text)))
    assert calls == [4, 3]  # two traversals, and the sorts


@pytest.mark.parametrize("said", [{}, {"sorted_by": "src"}, {"symmetric": True}])
def test_steps_of_a_simulation(said: dict) -> None:
    """Under vmap and scan, gradients as of a graph that was known."""
    src, dst = np.stack([SRC, DST, SRC]), np.stack([DST, SRC, DST])
    src, dst = np.sort(src, axis=1)[:, :6], dst[:, :6]
    if said:
        src, dst = np.tile([0, 1, 1, 2, 4, 5], (3, 1)), np.tile([1, 0, 2, 1, 5, 4], (3, 1))

    def force(x: Any, s: Any, d: Any) -> Any:
        return of_edges(True, **said)(x, s, d)

    each = [
        jax.grad(lambda x, i=i: energy(Graph.from_edges(src[i], dst[i], 6), x).sum())(X)
        for i in range(3)
    ]
    batched = jax.jit(jax.vmap(force, in_axes=(None, 0, 0)))(X, src, dst)
    scanned = jax.lax.scan(lambda c, sd: (c, force(X, *sd)), 0, (src, dst))[1]
    np.testing.assert_allclose(batched, each, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(scanned, each, rtol=1e-5, atol=1e-6)


@functools.cache
def both_sorts(rows: int, rises: bool) -> Any:
    def run(key: Any, payload: Any) -> Any:
        return sort_edges(key, payload, rows, rises), sort_by_xla(key, payload, rows, rises)

    return jax.jit(run)


@given(st.sampled_from([0, 1, 5]), st.booleans(), st.integers(0, 999), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_the_kernel_sorts_as_xla(rows: int, rises: bool, seed: int, padding: int) -> None:
    """Edges without a row, with all in one, rows that rise, with padding among them."""
    rng = np.random.default_rng(seed)
    key = rng.integers(0, rows + 1, 20).astype(np.int32)
    key[rng.random(20) < padding / 3] = rows
    if seed % 2:
        key[key < rows] = np.sort(key[key < rows])
    payload = rng.integers(0, 9, 20).astype(np.int32)
    order = np.argsort(key, kind="stable")
    start = np.searchsorted(key[order], np.arange(rows + 1))
    for found in both_sorts(rows, rises)(key, payload):
        for a, b in zip(found, (start, payload[order], order), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("rises", [False, True])
@pytest.mark.parametrize("rows", [0, 3])
def test_no_edges_to_sort(rows: int, rises: bool) -> None:
    none = np.zeros(0, np.int32)
    for found in both_sorts(rows, rises)(none, none):
        assert [x.tolist() for x in found] == [[0] * (rows + 1), [], []]


@pytest.mark.parametrize("rows", [7, 2**30])
def test_a_sort_of_pairs_where_numbers_do_not_fit_one(rows: int) -> None:
    key = jnp.asarray(np.random.default_rng(0).integers(0, 5, 40), jnp.int32)
    np.testing.assert_array_equal(_sorted_order(key, rows), np.argsort(key, stable=True))


@pytest.mark.parametrize("lowering", ["cpu", "segment"])
def test_sorts_of_batches_and_of_64_bits(lowering: str) -> None:
    key = np.random.default_rng(1).integers(0, 4, (2, 3, 9))
    with jax.enable_x64(True), prefer(lowering):
        indptr, payload, edge = jax.jit(lambda k: sort_edges(k, k + 1, 3))(key)
        assert {indptr.dtype, payload.dtype, edge.dtype} == {np.dtype(np.int64)}
    np.testing.assert_array_equal(edge, np.argsort(key, axis=-1, kind="stable"))
    np.testing.assert_array_equal(payload, np.sort(key, axis=-1) + 1)
    counts = np.stack([np.sum(key < r, axis=-1) for r in range(4)], axis=-1)
    np.testing.assert_array_equal(indptr, counts)


def test_edges_of_each_device() -> None:
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:2]), ("d",))
    spec = jax.sharding.PartitionSpec("d")

    def degrees(src: Any, dst: Any) -> Any:
        return Graph.from_edges(src[0], dst[0], 6, symmetric=True).in_degree[None]

    run = jax.jit(jax.shard_map(degrees, mesh=mesh, in_specs=(spec, spec), out_specs=spec))
    src, dst = np.stack([SRC, DST])[:, :6], np.stack([DST, SRC])[:, :6]
    got = run(src, dst)
    np.testing.assert_array_equal(got, [np.bincount(d, minlength=6) for d in dst])


RISES = [
    (
        {"sorted_by": "dst"},
        "sorted_by='dst', but dst[3] is 1 after 2: sort the edges, or leave sorted_by out",
    ),
    (
        {"sorted_by": "both"},
        "sorted_by is 'both', expected 'dst', 'src' or None: name the endpoint whose numbers rise "
        "along the edges",
    ),
    (
        {"symmetric": True},
        "symmetric=True, but 0 -> 1 is there more often than 1 -> 0: add the edges that are "
        "missing (gnnjit.graph.symmetrize), or leave symmetric out",
    ),
    (
        {"symmetric": "dst"},
        "symmetric is 'dst', expected True or False: pass True where each edge is there in both "
        "directions",
    ),
    (
        {"symmetric": True, "num_src": 4},
        "symmetric=True was given for two vertex sets, expected one: an edge between two sets has "
        "one direction; leave symmetric out",
    ),
]


@pytest.mark.parametrize(("said", "message"), RISES)
def test_what_is_said_is_checked(said: dict, message: str) -> None:
    mask = [True, True, False, True]
    with pytest.raises(GraphError) as error:
        Graph.from_edges([0, 0, 9, 1], [1, 2, 0, 1], edge_mask=mask, **said)
    assert str(error.value) == message
    fine = np.array([True, False, True])
    assert Graph.from_edges([0, 9, 1], [1, 0, 0], edge_mask=fine, symmetric=True).num_nodes == 2


def test_duplicates_have_as_many_that_go_back() -> None:
    assert Graph.from_edges([0, 1, 0, 1, 2], [1, 0, 1, 0, 2], symmetric=True).num_edges == 5
    with pytest.raises(GraphError, match="1 -> 0 is there more often than 0 -> 1"):
        Graph.from_edges([0, 1, 1], [1, 0, 0], symmetric=True)


def test_pairs_of_known_edges() -> None:
    """One of each two edges; none where there are loops, of padding or not."""
    src, dst = np.array([0, 1, 1, 2, 1, 0, 3, 2]), np.array([1, 0, 0, 1, 2, 1, 2, 3])
    pairs = Graph.from_edges(src, dst, 4, symmetric=True).pairs
    assert pairs is not None
    assert pairs.pairs is None
    assert sorted(tuple(sorted(p)) for p in np.stack([pairs.src, pairs.dst], 1).tolist()) == [
        (0, 1), (0, 1), (1, 2), (2, 3),
    ]  # fmt: skip
    check_graph(pairs, Edges(np.asarray(pairs.src), np.asarray(pairs.dst), 4, 4, None))
    assert Graph.from_edges(src, dst, 4).pairs is None
    loop = np.append(src, 2), np.append(dst, 2)
    assert Graph.from_edges(*loop, 4, symmetric=True).pairs is None
    masked = Graph.from_edges(*loop, 4, edge_mask=np.arange(9) < 8, symmetric=True)
    assert masked.pairs is not None
    assert (masked.pairs.num_edges, int(masked.pairs.mask.sum())) == (4, 4)


def test_pairs_of_changed_graphs() -> None:
    """What keeps the edges keeps their pairs; what adds some does not."""
    graph = Graph.from_edges([0, 1], [1, 0], 2, symmetric=True)
    assert graph.reverse().pairs is graph.pairs
    assert graph.with_self_loops().pairs is None
    assert graph.pad(4, 7).pairs.num_edges == 3
    assert gnnjit.graph.batch([graph, graph])[0].pairs.num_edges == 2
    plain = Graph.from_edges([0, 1], [1, 0], 2)
    assert gnnjit.graph.batch([graph, plain])[0].pairs is None
