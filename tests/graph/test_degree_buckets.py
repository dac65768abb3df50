"""Degree buckets: every edge in one piece, every row in one place, and tables of bounded size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnjit.graph.degree_buckets import Buckets, build_buckets, widths


def slots(buckets: Buckets, pieces: Any) -> list[int]:
    start, length = np.asarray(buckets.start), np.asarray(buckets.length)
    return [s for p in pieces for s in range(start[p], start[p] + length[p])]


def pieces_of(buckets: Buckets, row: int) -> list[int]:
    """The pieces of one row, found as a traversal finds its result."""
    total, at = len(buckets.row), int(buckets.piece_of_row[row])
    if at == total:
        return []
    if at < total:
        return [at]
    assert buckets.hubs is not None
    (whole,) = pieces_of(buckets.hubs, at - total - 1)
    return np.asarray(buckets.hub_pieces)[slots(buckets.hubs, [whole])].tolist()


@given(st.lists(st.integers(0, 40), max_size=12), st.integers(1, 9))
def test_every_row_has_its_slots_in_order(degrees, max_width):
    indptr = np.concatenate([[0], np.cumsum(degrees, dtype=np.int32)]).astype(np.int32)
    buckets = build_buckets(indptr, max_width)
    for row in range(len(degrees)):
        expected = list(range(indptr[row], indptr[row + 1]))
        assert slots(buckets, pieces_of(buckets, row)) == expected
    assert sum(n for n, _ in buckets.classes) == len(buckets.row)
    limit = np.repeat([w for _, w in buckets.classes], [n for n, _ in buckets.classes])
    assert (np.asarray(buckets.length) <= limit).all()


def test_a_large_hub_among_small_ones_makes_no_table():
    degrees = np.array([10_000] + [9] * 1000)
    buckets = build_buckets(np.concatenate([[0], np.cumsum(degrees)]).astype(np.int32), 8)
    assert buckets.hubs is not None
    assert buckets.hubs.classes == ((1000, 2), (1, 1250))
    assert buckets.hub_pieces.shape == (3250,)
    assert buckets.hubs.hubs is None


def test_no_hubs():
    assert build_buckets(np.array([0, 3, 3, 7])).hubs is None


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 100, 1024])
def test_widths_grow_to_the_limit(limit):
    table = widths(limit)
    assert table[-1] == limit
    assert (np.diff(table) > 0).all()
    assert (table[1:] <= np.ceil(table[:-1] * 2**0.25) + 1).all()
