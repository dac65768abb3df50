"""The counting sorts of large graphs against stable sorts of NumPy."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gnnjit.graph import Graph, host_sort, hosting
from gnnjit.shapes import HostArray

from .strategies import Edges, edge_lists, make
from .test_graph import check_graph

FEW = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

KEYS = {
    "random": lambda rng, n, e: rng.integers(0, n, e),
    "sorted": lambda rng, n, e: np.sort(rng.integers(0, n, e)),
    "falling": lambda rng, n, e: np.sort(rng.integers(0, n, e))[::-1],
    "one row": lambda rng, n, e: np.full(e, n // 2),
    "a hub": lambda rng, n, e: np.where(rng.random(e) < 0.7, n - 1, rng.integers(0, n, e)),
    "the last row": lambda rng, n, e: np.full(e, n - 1),
    "few rows": lambda rng, n, e: rng.integers(0, min(n, 3), e),
}


@pytest.fixture
def all_by_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small graphs are sorted as large ones are."""
    monkeypatch.setattr(host_sort, "LEAST", 1)


def check_sort(key: HostArray, payload: HostArray, num_keys: int, threads: int) -> None:
    indptr, by_slot, edge = host_sort._sort(key, payload, num_keys, threads)
    order = np.argsort(key, kind="stable")
    np.testing.assert_array_equal(edge, order)
    np.testing.assert_array_equal(by_slot, payload[order])
    starts = np.concatenate([[0], np.cumsum(np.bincount(key, minlength=num_keys))])
    np.testing.assert_array_equal(indptr, starts)
    small = host_sort.counting_sort(key, payload, num_keys)
    assert [a.dtype for a in (indptr, by_slot, edge)] == [a.dtype for a in small]


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32])
@pytest.mark.parametrize("kind", KEYS)
def test_few_edges_are_sorted_as_many_are(
    kind: str, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in (0, 1, 999):
        rng = np.random.default_rng(size)
        key = KEYS[kind](rng, 70, size).astype(dtype)
        payload = rng.integers(0, 1 << 30, size, np.int32)
        few = host_sort.counting_sort(key, payload, 70)
        with monkeypatch.context() as patch:
            patch.setattr(host_sort, "FEW", 0)
            many = host_sort.counting_sort(key, payload, 70)
        for a, b in zip(few, many, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("num_keys", [1, 2, 511, 512, 513, 5000, 300_000])
@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.usefixtures("all_by_code")
def test_rows_in_order(kind: str, num_keys: int, threads: int) -> None:
    rng = np.random.default_rng(num_keys)
    key = KEYS[kind](rng, num_keys, 2003).astype(np.int32)
    check_sort(key, rng.integers(0, 1 << 30, 2003, np.int32), num_keys, threads)


@pytest.mark.parametrize("payload", [np.int32, np.int64, np.float32, np.float64, np.int16])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32])
@pytest.mark.usefixtures("all_by_code")
def test_types(dtype: type, payload: type) -> None:
    rng = np.random.default_rng(0)
    key = rng.integers(0, 700, 1500).astype(dtype)
    check_sort(key, (1000 * rng.random(1500)).astype(payload), 700, 2)


@given(
    key=st.lists(st.integers(0, 40), max_size=60),
    more=st.integers(0, 1200),
    threads=st.integers(1, 5),
)
@FEW
@pytest.mark.usefixtures("all_by_code")
def test_any_rows(key: list[int], more: int, threads: int) -> None:
    """`more`: rows without edges at the end; a few edges have fewer than a thread."""
    rows = np.array(key, np.int32)
    check_sort(rows, rows[::-1].copy(), 41 + more, threads)


@pytest.mark.usefixtures("all_by_code")
def test_arrays_that_lie_elsewhere() -> None:
    """Every other entry, read-only, not aligned."""
    rng = np.random.default_rng(0)
    key = rng.integers(0, 30, 400).astype(np.int32)[::2]
    memory = np.zeros(801, np.uint8)
    payload = memory[1:].view(np.int32)
    payload[:] = rng.integers(0, 99, 200)
    payload.flags.writeable = False
    check_sort(key, payload, 30, 2)


@given(edge_lists())
@FEW
@pytest.mark.usefixtures("all_by_code")
def test_graphs(edges: Edges) -> None:
    check_graph(make(edges), edges)


@given(edge_lists(bipartite=True))
@FEW
@pytest.mark.usefixtures("all_by_code")
def test_bipartite_graphs(edges: Edges) -> None:
    check_graph(make(edges, bipartite=True), edges)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32])
def test_a_large_graph_is_the_same_with_and_without_code(
    dtype: type, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    size = host_sort.LEAST + 1234
    src, dst = rng.integers(0, 30_000, (2, size)).astype(dtype)
    mask = rng.random(size) < 0.9 if masked else None
    large = Graph.from_edges(src, dst, 31_000, edge_mask=mask)
    monkeypatch.setattr(host_sort, "sort_code", None)
    plain = Graph.from_edges(src, dst, 31_000, edge_mask=mask)
    for a, b in zip(jax.tree.leaves(large), jax.tree.leaves(plain), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_a_graph_has_its_own_memory() -> None:
    """Arrays are taken over without a copy; the user's are not among them."""
    src, dst = np.arange(host_sort.LEAST, dtype=np.int32) % 99, np.zeros(host_sort.LEAST, np.int32)
    graph = Graph.from_edges(src, dst, 99)
    src[:] = 7
    np.testing.assert_array_equal(graph.src, np.arange(host_sort.LEAST) % 99)
    assert int(graph.out_degree[0]) == -(-host_sort.LEAST // 99)


def test_arrays_that_a_device_takes_over() -> None:
    ours = hosting.copied(np.arange(1000, dtype=np.int64), np.int32)
    array = jax.device_put(ours)
    assert array.unsafe_buffer_pointer() == ours.ctypes.data
