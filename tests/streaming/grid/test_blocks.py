"""Edge chunks in a vertex store: the same as those of the grid in memory, in bounded memory."""

from __future__ import annotations

import re
import tracemalloc

import numpy as np
import pytest
from graph.strategies import Edges, edge_lists
from hypothesis import given
from hypothesis import strategies as st
from store.stores import everything

from gnnjit.errors import GraphError, StoreError
from gnnjit.store.disk import DiskStore
from gnnjit.store.memory import HostStore
from gnnjit.streaming.grid import build_blocks
from gnnjit.streaming.grid.blocks import ARRAYS, EdgeBlocks, LoadedChunk, own_blocks, shared_sizes
from gnnjit.streaming.grid.build_blocks import ENDS
from gnnjit.streaming.grid.edge_grid import EdgeGrid

pytestmark = pytest.mark.once

NONE = np.zeros(0, np.int32)


def blocks_of(src, dst, size: int = 5):
    """A source of edges: a fresh iterator of blocks of `size` edges a call."""

    def edges():
        for at in range(0, len(src), size):
            yield src[at : at + size], dst[at : at + size]

    return edges


def check_blocks(blocks: EdgeBlocks, src, dst, num_nodes: int) -> None:
    """Against the grid in memory, and the degrees against a plain count."""
    grid = EdgeGrid.of(src, dst, num_nodes, bounds=blocks.bounds)
    sizes = (blocks.num_nodes, blocks.num_edges, blocks.num_parts)
    assert sizes == (num_nodes, len(src), grid.num_parts)
    assert blocks.counts.tolist() == grid.counts.tolist()
    for i in range(grid.num_parts):
        for j in range(grid.num_parts):
            check_chunk(blocks, grid, i, j)
    for array, ends in ((blocks.in_degree, dst), (blocks.out_degree, src)):
        degree = everything(blocks.store, array)
        assert degree.tolist() == np.bincount(ends, minlength=num_nodes).tolist()
    kinds = {str(blocks.store.info(f"{blocks.name}.{part}").dtype) for part in ARRAYS}
    assert kinds == {"int32"}
    assert all(blocks.store.info(f"{blocks.name}.{part}").sealed for part in ARRAYS)


def rows_of(chunk: LoadedChunk) -> np.ndarray:
    return np.repeat(np.arange(len(chunk.indptr) - 1), np.diff(chunk.indptr))


def check_chunk(blocks: EdgeBlocks, grid: EdgeGrid, i: int, j: int) -> None:
    chunk = grid.chunk(i, j)
    assert blocks.numbers(i, j).tolist() == chunk.edge.tolist()
    start, stop = blocks.edge_range(i, j)
    assert grid.edge[start:stop].tolist() == chunk.edge.tolist()
    assert stop - start == chunk.num_edges
    forward, backward = blocks.load(i, j, "dst"), blocks.load(i, j, "src")
    order = chunk.by_source
    expected = [
        (forward, chunk.dst, chunk.src, np.arange(chunk.num_edges), chunk.num_dst),
        (backward, chunk.src[order], chunk.dst[order], order, chunk.num_src),
    ]
    for found, row, neighbor, position, rows in expected:
        assert rows_of(found).tolist() == row.tolist()
        assert found.neighbor.tolist() == neighbor.tolist()
        assert found.position.tolist() == position.tolist()
        assert found.indptr.tolist() == np.searchsorted(row, np.arange(rows + 1)).tolist()
        arrays = (found.neighbor, found.position, found.indptr)
        assert {array.dtype for array in arrays} == {np.dtype(np.int32)}
    assert blocks.used(i, j, "dst").tolist() == chunk.used_sources.tolist()
    assert blocks.used(i, j, "src").tolist() == chunk.used_destinations.tolist()
    assert blocks.used_counts("dst")[i, j] == len(chunk.used_sources)
    assert blocks.used_counts("src")[i, j] == len(chunk.used_destinations)


def plain(src, dst, bounds, i: int, j: int) -> list[tuple[int, int, int]]:
    """(destination, source, original number) of the edges of one chunk, in order."""
    ends = zip(dst.tolist(), src.tolist(), strict=True)
    return sorted(
        (d - bounds[j], s - bounds[i], e)
        for e, (d, s) in enumerate(ends)
        if bounds[i] <= s < bounds[i + 1] and bounds[j] <= d < bounds[j + 1]
    )


@given(
    edges=edge_lists(masked=False),
    inner=st.lists(st.integers(0, 6), max_size=4),
    size=st.integers(1, 13),
    memory=st.sampled_from([1, 100, 200, 400, 10_000]),
)
def test_uneven_bounds_and_any_memory(edges: Edges, inner, size, memory):
    bounds = [0, *sorted(min(b, edges.num_src) for b in inner), edges.num_src]
    source = blocks_of(edges.src, edges.dst, size)
    built = EdgeBlocks.build(HostStore(), "g", source, edges.num_src, bounds=bounds, memory=memory)
    assert built.bounds.tolist() == bounds
    check_blocks(built, edges.src, edges.dst, edges.num_src)


@given(edges=edge_lists(masked=False), parts=st.integers(1, 7))
def test_a_plain_loop(edges: Edges, parts):
    source = blocks_of(edges.src, edges.dst)
    built = EdgeBlocks.build(HostStore(), "g", source, edges.num_src, parts=parts)
    bounds = built.bounds.tolist()
    for i in range(parts):
        for j in range(parts):
            expected = plain(edges.src, edges.dst, bounds, i, j)
            chunk = built.load(i, j, "dst")
            found = zip(rows_of(chunk), chunk.neighbor, built.numbers(i, j), strict=True)
            assert list(found) == expected
            backward = built.load(i, j, "src")
            edge_data = built.numbers(i, j)[backward.position]
            found = zip(backward.neighbor, rows_of(backward), edge_data, strict=True)
            assert list(found) == sorted(expected, key=lambda edge: (edge[1], edge[0], edge[2]))


@pytest.mark.parametrize("parts", [7, 30])
@pytest.mark.parametrize("memory", [1000, 20_000, 1 << 20])
def test_a_larger_graph_in_both_stores(store, memory, parts):
    """Skewed: some chunks have hundreds of edges, some few, and wait until the end. In few parts
    the ends of the rows are stored too."""
    src, dst = (np.random.default_rng(0).random((2, 6000)) ** 4 * 300).astype(np.int64)
    built = EdgeBlocks.build(store, "g", blocks_of(src, dst, 700), 300, parts=parts, memory=memory)
    check_blocks(built, src, dst, 300)
    check_blocks(EdgeBlocks.open(store, "g"), src, dst, 300)
    assert [f"g.{part}" in store.names() for part in ENDS] == [parts == 7] * 2
    assert store.read("g.complete", 0, 1).tolist() == [2 if parts == 7 else 1]
    built.drop()
    assert store.names() == ()


@pytest.mark.parametrize("parts", [1, 3])
def test_a_chunk_with_more_rows_and_slots_than_it_has(parts):
    src, dst = np.random.default_rng(3).integers(0, 9, (2, 25))
    built = EdgeBlocks.build(HostStore(), "g", blocks_of(src, dst), 9, parts=parts)
    for by in ("dst", "src"):
        plain = built.load(0, 0, by)
        chunk = built.load(0, 0, by, rows=12, slots=64)
        count = int(built.counts[0, 0])
        assert chunk.indptr.tolist() == [*plain.indptr, *[count] * (12 - 9 // parts)]
        assert chunk.neighbor.tolist() == [*plain.neighbor, *[0] * (64 - count)]
        assert chunk.position.tolist() == plain.position.tolist()
        less = built.load(0, 0, by, rows=1, slots=1)
        assert less.indptr.tolist() == plain.indptr.tolist()
        assert less.neighbor.tolist() == plain.neighbor.tolist()


@pytest.mark.parametrize("last", [9_999, 10_000, 999_999])
def test_bounds_between_the_entries_of_the_table(last):
    """2**20 vertices are looked up 32 at a time."""
    num_nodes = 1 << 20
    bounds = [0, 1, 31, 32, 32, 33, 5000, last, last + 1, num_nodes]
    near = [b + k for b in bounds for k in (-1, 0, 1) if 0 <= b + k < num_nodes]
    src, dst = np.random.default_rng(1).choice(near, (2, 400))
    source = blocks_of(src, dst, 90)
    built = EdgeBlocks.build(HostStore(), "g", source, num_nodes, bounds=bounds)
    check_blocks(built, src, dst, num_nodes)


def test_a_chunk_begins_past_32_bits():
    last = 3_000_000_000
    bounds = np.array([0, 2, 2**31, last - 3, last])
    counts = build_blocks.count(blocks_of([last - 1, 0], [1, last - 3]), bounds, 1 << 20)
    assert np.argwhere(counts).tolist() == [[0, 3], [3, 0]]


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int8, np.uint8])
def test_any_integers(dtype):
    src, dst = np.random.default_rng(2).integers(0, 100, (2, 90))
    source = blocks_of(src.astype(dtype), dst.astype(dtype))
    check_blocks(EdgeBlocks.build(HostStore(), "g", source, 100, parts=3), src, dst, 100)


def test_duplicates_and_self_loops_keep_their_order(store):
    src = np.array([1] * 50 + [0] * 50)
    built = EdgeBlocks.build(store, "g", blocks_of(src, src), 2, parts=1, memory=500)
    check_blocks(built, src, src, 2)
    assert built.numbers(0, 0).tolist() == [*range(50, 100), *range(50)]


@pytest.mark.parametrize("num_nodes", [0, 5])
def test_no_edges(store, num_nodes):
    built = EdgeBlocks.build(store, "g", lambda: iter([]), num_nodes, parts=3)
    check_blocks(built, NONE, NONE, num_nodes)
    check_blocks(EdgeBlocks.open(store, "g"), NONE, NONE, num_nodes)


def test_empty_blocks_and_lists():
    built = EdgeBlocks.build(
        HostStore(), "g", lambda: [([], []), ([0, 1], [1, 1]), ([], [])], 2, parts=2
    )
    check_blocks(built, np.array([0, 1]), np.array([1, 1]), 2)


def test_two_graphs_in_a_store(store):
    first = EdgeBlocks.build(store, "a", blocks_of([0], [1]), 2, parts=1)
    second = EdgeBlocks.build(store, "a.b", blocks_of([1], [0]), 2, parts=1)
    check_blocks(first, np.array([0]), np.array([1]), 2)
    first.drop()
    check_blocks(second, np.array([1]), np.array([0]), 2)
    second.drop()
    assert store.names() == ()


def test_building_again_replaces(store):
    EdgeBlocks.build(store, "g", blocks_of([0, 1], [1, 1]), 3, parts=3)
    EdgeBlocks.build(store, "g", blocks_of([2], [0]), 3, parts=1)
    check_blocks(EdgeBlocks.open(store, "g"), np.array([2]), np.array([0]), 3)


def test_edges_that_are_not_valid_leave_what_was_there(store):
    EdgeBlocks.build(store, "g", blocks_of([2], [0]), 3, parts=2)
    with pytest.raises(GraphError, match=r"^src of edge 0 is 3"):
        EdgeBlocks.build(store, "g", blocks_of([3], [0]), 3, parts=2)
    check_blocks(EdgeBlocks.open(store, "g"), np.array([2]), np.array([0]), 3)


def test_what_is_watched():
    told: list[tuple[int, int]] = []
    src, dst = np.random.default_rng(4).integers(0, 20, (2, 100))
    EdgeBlocks.build(
        HostStore(), "g", blocks_of(src, dst), 20, parts=2, watch=lambda *edges: told.append(edges)
    )
    done = [d for d, _ in told]
    assert {total for _, total in told} == {300}
    assert done == sorted(done)
    assert done[-1] == 300
    assert {100, 200} <= set(done)


# Crashes.

STOPPED = (
    "the edge blocks 'g' are not complete, their build has stopped: call EdgeBlocks.build again, "
    "which starts over"
)


@pytest.mark.parametrize("before", [False, True])
def test_a_crash_in_the_second_pass(tmp_path, before):
    src, dst = np.random.default_rng(5).integers(0, 30, (2, 400))
    good = blocks_of(src, dst, 50)
    passes = []

    def crashing():
        passes.append(len(passes))
        for number, block in enumerate(good()):
            if passes[-1] == 1 and number == 4:
                raise KeyboardInterrupt
            yield block

    with DiskStore.create(tmp_path / "store") as store:
        if before:
            EdgeBlocks.build(store, "g", blocks_of([0], [1]), 30, parts=2)
        with pytest.raises(KeyboardInterrupt):
            EdgeBlocks.build(store, "g", crashing, 30, parts=3, memory=4000)
        with pytest.raises(StoreError, match=f"^{re.escape(STOPPED)}$"):
            EdgeBlocks.open(store, "g")
    with DiskStore.open(tmp_path / "store") as store:
        with pytest.raises(StoreError, match=f"^{re.escape(STOPPED)}$"):
            EdgeBlocks.open(store, "g")
        EdgeBlocks.build(store, "g", good, 30, parts=3, memory=4000)
    with DiskStore.open(tmp_path / "store") as store:
        check_blocks(EdgeBlocks.open(store, "g"), src, dst, 30)


def test_a_crash_at_every_call_of_the_store(tmp_path):
    """Whichever call is the last, the blocks are complete or are refused, and can be built."""
    source = blocks_of(np.array([0, 1, 2, 2]), np.array([1, 1, 0, 2]), 2)
    calls, last = 0, None

    class Stops(HostStore):
        def _step(self):
            nonlocal calls
            calls += 1
            if calls == last:
                raise KeyboardInterrupt

        def add(self, *args, **options):
            self._step()
            super().add(*args, **options)

        def write(self, *args):
            self._step()
            super().write(*args)

        def seal(self, name):
            self._step()
            super().seal(name)

        def drop(self, name):
            self._step()
            super().drop(name)

    def build_twice(store):
        EdgeBlocks.build(store, "g", source, 3, parts=2)
        EdgeBlocks.build(store, "g", source, 3, parts=2)

    build_twice(Stops())
    total = calls
    refused = 0
    for stop in range(1, total):
        store, calls, last = Stops(), 0, stop
        with pytest.raises(KeyboardInterrupt):
            build_twice(store)
        try:
            found = EdgeBlocks.open(store, "g")
        except StoreError:
            refused += 1
            found = EdgeBlocks.build(store, "g", source, 3, parts=2)
        check_blocks(found, np.array([0, 1, 2, 2]), np.array([1, 1, 0, 2]), 3)
    # All but the first call of the second build, before which the first is complete.
    assert refused == total - 2


def test_an_array_that_is_gone(store):
    EdgeBlocks.build(store, "g", blocks_of([0], [1]), 2, parts=1)
    store.drop("g.out.row")
    with pytest.raises(StoreError, match=f"^{re.escape(STOPPED)}$"):
        EdgeBlocks.open(store, "g")
    EdgeBlocks.build(store, "g", blocks_of([0] * 9, [1] * 9), 2, parts=1)
    store.drop("g.out.ends")
    with pytest.raises(StoreError, match=f"^{re.escape(STOPPED)}$"):
        EdgeBlocks.open(store, "g")


def test_another_format(store):
    EdgeBlocks.build(store, "g", blocks_of([0], [1]), 2, parts=1)
    store.unseal("g.complete")
    store.write("g.complete", 0, np.array([7], np.int32))
    store.seal("g.complete")
    message = (
        "the edge blocks 'g' have the format [7], expected [1] or [2]: call EdgeBlocks.build "
        "again, which starts over"
    )
    with pytest.raises(StoreError, match=f"^{re.escape(message)}$"):
        EdgeBlocks.open(store, "g")


def test_nothing_to_open(store):
    message = "the store has no edge blocks 'g': make them with EdgeBlocks.build"
    with pytest.raises(StoreError, match=f"^{re.escape(message)}$"):
        EdgeBlocks.open(store, "g")


# Memory.


@pytest.mark.parametrize("parts", [1, 8])
def test_memory_is_bounded(tmp_path, parts):
    """4 M edges take 96 MB in the store; what is held at once is far less."""
    num_edges, num_nodes, memory, size = 4_000_000, 200_000, 16 << 20, 250_000

    def edges():
        random = np.random.default_rng(6)
        for _ in range(0, num_edges, size):
            yield random.integers(0, num_nodes, (2, size), np.int32)

    with DiskStore.create(tmp_path / "store") as store:
        tracemalloc.start()
        try:
            built = EdgeBlocks.build(store, "g", edges, num_nodes, parts=parts, memory=memory)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        given = 2 * 4 * size
        largest = 33 * int(built.counts.max()) + 16 * -(-num_nodes // parts)
        assert built.num_edges == num_edges
        assert peak < max(memory, largest) + given


# What is refused.


@pytest.mark.parametrize(
    ("src", "dst", "message"),
    [
        ([0, 1, 4], [0, 0, 0], "src of edge 6 is 4, expected a vertex from 0 to 3 (num_nodes=4)"),
        ([0, 1, 1], [0, -1, 9], "dst of edge 5 is -1, expected a vertex from 0 to 3 (num_nodes=4)"),
    ],
)
def test_endpoints_that_are_no_vertices(src, dst, message):
    message += ": number the vertices from 0, leave padding edges out, or pass a larger num_nodes"
    with pytest.raises(GraphError, match=f"^{re.escape(message)}$"):
        EdgeBlocks.build(HostStore(), "g", lambda: [([0] * 4, [3] * 4), (src, dst)], 4, parts=2)


def test_edges_without_vertices():
    with pytest.raises(GraphError, match=r"^src of edge 0 is 0, expected no edges \(num_nodes=0\)"):
        EdgeBlocks.build(HostStore(), "g", blocks_of([0], [0]), 0, parts=2)


@pytest.mark.parametrize(
    ("src", "dst", "message"),
    [
        ([0.5], [0], r"src\[0\] is 0.5, expected vertex numbers"),
        ([0], [[0]], r"dst has shape \(1, 1\), expected one vertex per edge"),
        ([0, 1], [0], "src has 2 entries and dst has 1, expected one of each per edge"),
    ],
)
def test_blocks_that_are_no_edges(src, dst, message):
    with pytest.raises(GraphError, match=f"^{message}"):
        EdgeBlocks.build(HostStore(), "g", lambda: [(src, dst)], 4, parts=2)


def test_more_edges_than_have_numbers():
    most = np.broadcast_to(np.int32(0), 2**31)
    message = (
        "there are 2147483648 edges or more, expected at most 2147483647, which have 32-bit "
        "numbers: split the graph"
    )
    with pytest.raises(GraphError, match=f"^{re.escape(message)}$"):
        EdgeBlocks.build(HostStore(), "g", lambda: [(most, most)], 4, parts=2)


CHANGED = (
    "edges() gave other edges in its second pass than in its first (of 3): each call must give "
    "the same ones, from a new iterator"
)


@pytest.mark.parametrize(
    "second",
    [
        pytest.param([], id="none"),
        pytest.param([([0, 1], [0, 1])], id="fewer"),
        pytest.param([([0, 1, 1, 1], [0, 1, 1, 1])], id="more"),
        pytest.param([([0, 1, 0], [0, 1, 1])], id="elsewhere"),
    ],
)
@pytest.mark.parametrize("memory", [1, 10_000])
def test_other_edges_in_the_second_pass(second, memory):
    passes = iter([[([0, 1, 1], [0, 1, 1])], second])
    store = HostStore()
    with pytest.raises(GraphError, match=f"^{re.escape(CHANGED)}$"):
        EdgeBlocks.build(store, "g", lambda: next(passes), 2, parts=2, memory=memory)
    with pytest.raises(StoreError, match=f"^{re.escape(STOPPED)}$"):
        EdgeBlocks.open(store, "g")


def test_an_iterator_is_no_source():
    once = blocks_of([0, 1, 1], [0, 1, 1])()
    with pytest.raises(GraphError, match=f"^{re.escape(CHANGED)}$"):
        EdgeBlocks.build(HostStore(), "g", lambda: once, 2, parts=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "neither of parts and bounds came"),
        ({"parts": 0}, "parts is 0, expected a whole number, 1 or more"),
        ({"bounds": [0, 3]}, r"bounds is \[0, 3\], expected numbers that ascend from 0 to 4"),
        ({"parts": 2, "memory": 0}, "memory is 0, expected a whole number, 1 or more"),
    ],
)
def test_sizes_are_checked(options, message):
    with pytest.raises(GraphError, match=f"^{message}"):
        EdgeBlocks.build(HostStore(), "g", blocks_of([0], [0]), 4, **options)


@pytest.mark.parametrize("chunk", [(-1, 0), (2, 0), (0, -1), (0, 2)])
def test_chunks_that_do_not_exist(chunk):
    built = EdgeBlocks.build(HostStore(), "g", blocks_of([0], [0]), 4, parts=2)
    message = (
        f"the chunk is {chunk}, expected numbers from 0 to 1: there are 2 x 2 chunks, so pass one "
        "of them"
    )
    calls = (
        lambda: built.load(*chunk, "dst"),
        lambda: built.numbers(*chunk),
        lambda: built.edge_range(*chunk),
        lambda: built.used(*chunk, "src"),
    )
    for call in calls:
        with pytest.raises(GraphError, match=f"^{re.escape(message)}$"):
            call()


def test_orders_that_do_not_exist():
    built = EdgeBlocks.build(HostStore(), "g", blocks_of([0], [0]), 4, parts=2)
    by: str = "column"
    for call in (built.used_counts, lambda by: built.load(0, 0, by)):
        with pytest.raises(
            GraphError, match=r"^by is 'column', expected \"dst\" or \"src\": pass one of these$"
        ):
            call(by)  # pyright: ignore


@given(st.lists(st.integers(0, 1 << 20), min_size=1, max_size=16))
def test_sizes_that_chunks_share(counts):
    found = shared_sizes(np.array(counts).reshape(-1, 1)).ravel()
    assert (found >= counts).all()
    assert (found % 64 == 0).all()
    assert (found <= np.maximum(64, 2 * np.array(counts) + 126)).all()
    exact = np.maximum(1, -(-np.array(counts) // 64)) * 64
    assert found.sum() <= 1.04 * exact.sum()
    assert len({*found.tolist()}) <= len({*exact.tolist()})


def test_chunks_of_about_a_size_share_it():
    counts = np.array([[10_000, 9_900], [3_000, 0]])
    np.testing.assert_array_equal(shared_sizes(counts), [[10_048, 10_048], [3_008, 64]])


@pytest.mark.parametrize(
    ("edges", "processes", "expected"),
    [
        ([10, 10, 10, 10], 2, [(0, 2), (2, 4)]),
        ([30, 1, 1, 1], 2, [(0, 1), (1, 4)]),
        ([1, 1, 30], 3, [(0, 1), (1, 2), (2, 3)]),
        ([100, 1, 1], 3, [(0, 1), (1, 2), (2, 3)]),
        ([0, 0, 0], 2, [(0, 2), (2, 3)]),
        ([5], 3, None),
        ([4, 9, 2, 7, 7, 1, 3], 3, None),
    ],
)
def test_own_blocks(edges, processes, expected):
    found = own_blocks(np.diag(edges), np.ones(len(edges), int), processes)
    assert len(found) == processes
    assert [block for blocks in found for block in blocks] == [*range(len(edges))]
    if len(edges) >= processes:
        assert all(found)
    if expected is not None:
        assert [(blocks.start, blocks.stop) for blocks in found] == expected
