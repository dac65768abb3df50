"""The edge grid: every edge in one chunk, in order, and what is told of the chunks."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from graph.strategies import Edges, edge_lists
from hypothesis import given
from hypothesis import strategies as st

from gnnjit.errors import GraphError
from gnnjit.partition.locality import order_vertices
from gnnjit.streaming.grid.edge_grid import MAX_NODES, SHADES, Chunk, EdgeGrid, cut

pytestmark = pytest.mark.once

NONE = np.zeros(0, np.int32)


def plain(edges: Edges, bounds: np.ndarray, i: int, j: int) -> list[tuple[int, int, int]]:
    """(destination, source, original number) of the edges of one chunk, in order."""
    found = []
    for e, (s, d) in enumerate(zip(edges.src.tolist(), edges.dst.tolist(), strict=True)):
        if bounds[i] <= s < bounds[i + 1] and bounds[j] <= d < bounds[j + 1]:
            found.append((d - int(bounds[j]), s - int(bounds[i]), e))
    return sorted(found)


def check_chunk(chunk: Chunk, expected: list[tuple[int, int, int]]) -> None:
    dst, src, edge = chunk.dst.tolist(), chunk.src.tolist(), chunk.edge.tolist()
    assert list(zip(dst, src, edge, strict=True)) == expected
    assert all(0 <= d < chunk.num_dst and 0 <= s < chunk.num_src for d, s, _ in expected)
    assert chunk.num_edges == len(expected)
    backward = [expected[k] for k in chunk.by_source]
    assert backward == sorted(expected, key=lambda x: (x[1], x[0], x[2]))
    assert chunk.used_sources.tolist() == sorted({s for _, s, _ in expected})
    assert chunk.used_destinations.tolist() == sorted({d for d, _, _ in expected})
    assert chunk.used_sources.dtype == chunk.used_destinations.dtype == np.int32


def check_grid(grid: EdgeGrid, edges: Edges) -> None:
    assert grid.src.dtype == grid.dst.dtype == np.int32
    assert grid.edge.dtype == grid.offsets.dtype == grid.bounds.dtype == np.int64
    assert (grid.num_nodes, grid.num_edges) == (edges.num_src, len(edges.src))
    assert sorted(grid.edge.tolist()) == list(range(len(edges.src)))
    size = np.diff(grid.bounds)
    in_order = []
    for j in range(grid.num_parts):
        for i in range(grid.num_parts):
            chunk, expected = grid.chunk(i, j), plain(edges, grid.bounds, i, j)
            check_chunk(chunk, expected)
            assert (chunk.row, chunk.column) == (i, j)
            assert (chunk.num_src, chunk.num_dst) == (size[i], size[j])
            assert grid.counts[i, j] == len(expected)
            used = len({s for _, s, _ in expected})
            assert grid.used_fraction[i, j] == (used / size[i] if used else 0)
            in_order += [e for _, _, e in expected]
    assert grid.edge.tolist() == in_order


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
@given(edges=edge_lists(masked=False))
def test_the_grid_is_that_of_a_plain_loop(parts, edges):
    grid = EdgeGrid.of(edges.src, edges.dst, edges.num_src, parts)
    assert grid.bounds.tolist() == cut(edges.num_src, parts).tolist()
    check_grid(grid, edges)


@given(edge_lists(masked=False), st.lists(st.integers(0, 6), max_size=4))
def test_bounds_of_the_user(edges, inner):
    bounds = [0, *sorted(min(b, edges.num_src) for b in inner), edges.num_src]
    grid = EdgeGrid.of(edges.src, edges.dst, edges.num_src, bounds=bounds)
    assert grid.bounds.tolist() == bounds
    check_grid(grid, edges)


def test_a_larger_graph():
    src, dst = np.random.default_rng(0).integers(0, 100, (2, 2000))
    check_grid(EdgeGrid.of(src, dst, 100, 7), Edges(src, dst, 100, 100, None))


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int8])
def test_endpoints_and_data_come_back(dtype):
    src, dst = np.random.default_rng(2).integers(0, 20, (2, 90))
    grid = EdgeGrid.of(src.astype(dtype), dst.astype(dtype), 20, 3)
    data = np.random.default_rng(3).normal(size=(90, 2))
    returned = np.full_like(data, np.nan)
    for chunk in grid.columns():
        assert (chunk.src + grid.bounds[chunk.row]).tolist() == src[chunk.edge].tolist()
        assert (chunk.dst + grid.bounds[chunk.column]).tolist() == dst[chunk.edge].tolist()
        returned[chunk.edge] = data[grid.edge][grid.offsets[chunk.column, chunk.row] :][
            : chunk.num_edges
        ]
    assert (returned == data).all()


def test_duplicates_keep_their_order():
    chunk = EdgeGrid.of([1] * 50, [0] * 50, 2, 1).chunk(0, 0)
    assert chunk.edge.tolist() == chunk.by_source.tolist() == list(range(50))


def test_very_uneven_bounds_of_many_vertices():
    """The key of the sort comes near its limit, and must not overflow."""
    last = MAX_NODES - 1
    bounds = [0, 1, 2**31 - 1, 2**31, last, MAX_NODES]
    src = np.array([last, 0, last - 1, 2**31 - 2, last, 5])
    dst = np.array([last, last, 2**31, last, 0, last - 1])
    grid = EdgeGrid.of(src, dst, MAX_NODES, bounds=bounds)
    #   (row, column): (4, 4), (0, 4), (3, 3), (1, 4), (4, 0), (1, 3)
    assert grid.edge.tolist() == [4, 5, 2, 1, 3, 0]
    assert grid.chunk(3, 3).src.tolist() == [last - 1 - 2**31]


def test_no_vertices():
    grid = EdgeGrid.of(NONE, NONE, 0, 3)
    assert grid.bounds.tolist() == [0, 0, 0, 0]
    assert grid.counts.tolist() == [[0] * 3] * 3
    assert grid.used_fraction.tolist() == [[0.0] * 3] * 3
    assert [c.num_edges for c in grid.rows()] == [0] * 9


def test_chunks_are_views():
    grid = EdgeGrid.of([0, 1, 2], [2, 1, 0], 3, 2)
    chunk = grid.chunk(1, 0)
    assert np.shares_memory(chunk.src, grid.src)
    assert np.shares_memory(chunk.dst, grid.dst)
    assert np.shares_memory(chunk.edge, grid.edge)


def test_the_order_by_source_is_made_once_and_only_when_asked_for():
    chunk = EdgeGrid.of([2, 0], [0, 1], 3, 1).chunk(0, 0)
    assert "by_source" not in vars(chunk)
    assert chunk.by_source is chunk.by_source
    assert chunk.by_source.tolist() == [1, 0]


def test_a_grid_is_frozen():
    grid = EdgeGrid.of([0], [0], 1, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        grid.edge = NONE  # pyright: ignore
    with pytest.raises(dataclasses.FrozenInstanceError):
        grid.chunk(0, 0).src = NONE  # pyright: ignore


def test_forward_by_column_and_backward_by_row():
    grid = EdgeGrid.of(NONE, NONE, 4, 2)
    assert [(c.row, c.column) for c in grid.columns()] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert [(c.row, c.column) for c in grid.rows()] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [(c.row, c.column) for c in grid.columns(1)] == [(0, 1), (1, 1)]
    assert [(c.row, c.column) for c in grid.rows(1)] == [(1, 0), (1, 1)]


@given(st.integers(0, 50), st.integers(1, 60))
def test_a_cut_is_even(num_nodes, parts):
    bounds = cut(num_nodes, parts)
    size = np.diff(bounds)
    assert bounds.dtype == np.int64
    assert (len(size), bounds[0], bounds[-1]) == (parts, 0, num_nodes)
    assert size.min() >= 0
    assert size.max() - size.min() <= 1


def test_counts_imbalance_and_used_fraction():
    grid = EdgeGrid.of([0, 0, 1, 3, 2], [0, 1, 1, 3, 0], 4, 2)
    assert grid.counts.tolist() == [[3, 0], [1, 1]]
    assert grid.imbalance == 4 / 2.5
    assert grid.used_fraction.tolist() == [[1.0, 0.0], [0.5, 0.5]]


def test_imbalance_at_its_ends():
    assert EdgeGrid.of(NONE, NONE, 4, 2).imbalance == 1
    assert EdgeGrid.of([0, 1, 2, 3], [0, 1, 2, 3], 4, 4).imbalance == 1
    assert EdgeGrid.of([0, 1, 2, 3], [0, 0, 0, 0], 4, 4).imbalance == 4


def test_a_heat_map():
    src = [0] * 100 + [2] * 12 + [4] * 11 + [5]
    dst = [0] * 100 + [3] * 12 + [4] * 11 + [0]
    assert EdgeGrid.of(src, dst, 6, 3).heat_map() == (
        "@  \n"
        " : \n"
        ". .\n"
        "P = 3, 124 edges, largest chunk 100, 5 empty chunks; rows: sources, columns: destinations"
    )


def test_every_shade():
    src = np.repeat(np.arange(10), np.arange(10))
    picture = EdgeGrid.of(src, np.zeros_like(src), 10, 10).heat_map().splitlines()
    assert "".join(line[0] for line in picture[:10]) == SHADES


def test_one_edge_of_very_many_is_seen():
    src = np.r_[np.zeros(10_000, int), 1]
    assert EdgeGrid.of(src, src, 2, 2).heat_map().startswith("@ \n .\n")


def test_heat_maps_of_nothing():
    assert EdgeGrid.of(NONE, NONE, 2, 2).heat_map() == (
        "  \n  \n"
        "P = 2, 0 edges, largest chunk 0, 4 empty chunks; rows: sources, columns: destinations"
    )


@pytest.mark.parametrize("parts", [64, 65, 130])
def test_heat_maps_of_large_grids_are_summed(parts):
    vertices = np.arange(parts)
    *lines, legend = EdgeGrid.of(vertices, vertices, parts, parts).heat_map().splitlines()
    assert len(lines) == 64
    assert {len(line) for line in lines} == {64}
    for k, line in enumerate(lines):
        assert line.strip() == line[k]
        assert line[k] in SHADES[1:]
    summed = "" if parts == 64 else " (summed to 64 x 64 here)"
    assert legend.startswith(f"P = {parts}{summed}, {parts} edges, largest chunk 1, ")


def test_an_ordering_gathers_the_edges_on_the_diagonal():
    names = np.random.default_rng(0).permutation(400)
    src, dst = names[:-1], names[1:]
    rank = order_vertices(src, dst, 400, method="rcm").rank
    ordered = EdgeGrid.of(rank[src], rank[dst], 400, 4)
    given = EdgeGrid.of(src, dst, 400, 4)
    assert ordered.counts.trace() == 399 - 3
    assert given.counts.trace() < 200


def test_bounds_or_parts():
    for arguments, came in (({}, "neither"), ({"parts": 2, "bounds": [0, 4]}, "both")):
        message = (
            f"{came} of parts and bounds came, expected one of them: pass parts=P for chunks of "
            "equal size, or the bounds= of your own"
        )
        with pytest.raises(GraphError, match=f"^{re.escape(message)}$"):
            EdgeGrid.of(NONE, NONE, 4, **arguments)


@pytest.mark.parametrize(
    ("bounds", "came"),
    [
        ([0.0, 4.0], "dtype float64 and shape (2,)"),
        ([4], "dtype int64 and shape (1,)"),
        ([[0, 4]], "dtype int64 and shape (1, 2)"),
    ],
)
def test_bounds_of_another_kind(bounds, came):
    message = (
        f"bounds has {came}, expected integers of shape (P + 1,) with P >= 1: pass the first "
        "vertex of each chunk, and then 4"
    )
    with pytest.raises(GraphError, match=f"^{re.escape(message)}$"):
        EdgeGrid.of(NONE, NONE, 4, bounds=bounds)


@pytest.mark.parametrize("bounds", [[1, 4], [0, 3], [0, 3, 2, 4], [0, 5, 4], [0, -1, 4]])
def test_bounds_that_do_not_ascend_to_the_end(bounds):
    message = (
        f"bounds is {bounds}, expected numbers that ascend from 0 to 4: pass the first vertex of "
        "each chunk, and then 4"
    )
    with pytest.raises(GraphError, match=f"^{re.escape(message)}$"):
        EdgeGrid.of(NONE, NONE, 4, bounds=bounds)


def test_more_vertices_than_a_chunk_can_number():
    with pytest.raises(
        GraphError,
        match=r"^the largest chunk has 2147483648 vertices, expected at most 2147483647 for 32-bit "
        r"indices: cut into more parts$",
    ):
        EdgeGrid.of(NONE, NONE, 2**31, 1)
    assert EdgeGrid.of(NONE, NONE, 2**31, 2).num_nodes == 2**31


def test_more_vertices_than_can_be_sorted():
    with pytest.raises(
        GraphError,
        match=r"^num_nodes is 3037000500, expected at most 3037000499, so that the cells of the "
        r"matrix have 64-bit numbers: split the graph$",
    ):
        EdgeGrid.of(NONE, NONE, MAX_NODES + 1, 4)


@pytest.mark.parametrize("number", [-1, 2])
def test_chunks_that_do_not_exist(number):
    grid = EdgeGrid.of(NONE, NONE, 4, 2)
    calls = [
        ("row", lambda: grid.chunk(number, 0)),
        ("column", lambda: grid.chunk(0, number)),
        ("row", lambda: grid.rows(number)),
        ("column", lambda: grid.columns(number)),
    ]
    for what, call in calls:
        message = (
            f"{what} is {number}, expected one from 0 to 1: the grid has 2 x 2 chunks, so pass "
            "one of them"
        )
        with pytest.raises(GraphError, match=f"^{re.escape(message)}$"):
            call()


def test_edges_and_sizes_are_checked():
    with pytest.raises(GraphError, match=r"^dst\[0\] is 4, expected a vertex from 0 to 3 "):
        EdgeGrid.of([0], [4], 4, 2)
    with pytest.raises(GraphError, match=r"^parts is 0, expected a whole number, 1 or more: "):
        EdgeGrid.of([0], [3], 4, 0)
    with pytest.raises(GraphError, match=r"^parts is 0, expected a whole number, 1 or more: "):
        cut(4, 0)
    with pytest.raises(GraphError, match=r"^num_nodes is -1, expected a whole number, 0 or more: "):
        cut(-1, 2)
