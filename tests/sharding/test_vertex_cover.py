"""What travels between shards: the fewest rows and sums that cover all edges."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnjit.sharding.send_blocks import HaloLayout, traffic
from gnnjit.sharding.vertex_cover import Covered, Ends, rows_that_travel

pairs = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=14)


def smallest(edges: Sequence[tuple[int, int]]) -> int:
    """The size of the smallest cover, found by trying all."""
    some = [
        (rows, sums)
        for n in range(7)
        for rows in itertools.combinations(range(6), n)
        for m in range(7)
        for sums in itertools.combinations(range(6), m)
        if all(a in rows or b in sums for a, b in edges)
    ]
    return min(len(rows) + len(sums) for rows, sums in some)


@given(pairs)
def test_the_cover_is_the_smallest(edges: list[tuple[int, int]]) -> None:
    row, total = np.asarray(edges, np.int64).reshape(-1, 2).T
    by_row = rows_that_travel(row, total)
    assert len(set(row[by_row])) + len(set(total[~by_row])) == smallest(edges)


def test_a_hub_sends_one_row_and_gets_one_sum() -> None:
    """Shard 0 has a hub that shard 1 reads and feeds, over ten edges each way."""
    ten, zeros, ones = np.arange(10), np.zeros(10, int), np.ones(10, int)
    ends = Ends(
        np.concatenate([zeros, ones]),
        np.concatenate([zeros, ten]),
        np.concatenate([ones, zeros]),
        np.concatenate([ten, zeros]),
    )
    covered = Covered(ends, num_shards=2, src_rows=10, dst_rows=10)
    assert (covered.rows.rows, covered.sums.rows) == (1, 1)
    # The sum is made where its edges' sources are.
    assert covered.computed_at.tolist() == [1] * 20


def test_edges_within_a_shard_stay() -> None:
    shard = np.asarray([0, 1, 1])
    covered = Covered(Ends(shard, shard, shard, shard), num_shards=2, src_rows=2, dst_rows=2)
    assert (covered.rows.total, covered.sums.total) == (0, 0)
    assert covered.computed_at.tolist() == [0, 1, 1]


def blocks_of(counts: np.ndarray, num_rows: int) -> HaloLayout:
    """Where shard p uses the first `counts[q, p]` rows of shard q."""
    shards = len(counts)

    def used(p: int) -> np.ndarray:
        found = [q * num_rows + np.arange(counts[q, p]) for q in range(shards)]
        return np.concatenate(found)

    return HaloLayout(shards, num_rows, used, traffic(shards, num_rows, used))


def test_pairs_of_shards_that_exchange_much_have_blocks_of_their_own() -> None:
    counts = np.full((4, 4), 10)
    np.fill_diagonal(counts, 0)
    counts[1, 0] = 1000
    found = blocks_of(counts, 1000)
    assert [(b.distance, b.height, b.readers) for b in found.blocks] == [
        (1, 10, (0, 1, 2, 3)),
        (1, 990, (0,)),
        (2, 10, (0, 1, 2, 3)),
        (3, 10, (0, 1, 2, 3)),
    ]
    assert found.moved == found.rows == counts.sum()


def test_equal_blocks_go_at_once() -> None:
    counts = np.full((8, 8), 100)
    np.fill_diagonal(counts, 0)
    found = blocks_of(counts, 100)
    assert found.at_once
    assert {b.height for b in found.blocks} == {100}


@pytest.mark.parametrize("seed", range(8))
def test_every_row_has_its_place(seed: int) -> None:
    """Exchanged block by block, every row is where the shard that uses it looks it up."""
    rng = np.random.default_rng(seed)
    shards, rows = 5, 300
    counts = (rows * rng.random((shards, shards)) ** 3).astype(int)
    np.fill_diagonal(counts, 0)
    found = blocks_of(counts, rows)
    parts = [found.part(p, np.int32) for p in range(shards)]
    for p in range(shards):
        table = np.full((found.total, 2), -1)
        for k, block in enumerate(found.blocks):
            q = block.distance if found.at_once else (p + block.distance) % shards
            height = block.height
            begin = parts[q].origins[0][p if found.at_once else k]
            rows_sent = np.stack([np.full(height, q), parts[q].send[0][begin : begin + height]], 1)
            if p not in block.readers:
                rows_sent = np.zeros_like(rows_sent)
            begin = parts[p].places[0][k]
            table[begin : begin + height] = rows_sent
        for q in set(range(shards)) - {p}:
            place = found.place(p, q * rows + np.arange(counts[q, p])) - rows
            assert table[place].tolist() == [[q, row] for row in range(counts[q, p])]


def test_a_table_is_as_long_as_what_is_read() -> None:
    """And at most one block more, however many blocks there are."""
    counts = np.full((6, 6), 10)
    np.fill_diagonal(counts, 0)
    counts[0, 1] = counts[2, 5] = counts[5, 3] = 1000
    found = blocks_of(counts, 1000)
    assert 1040 <= found.total <= 1040 + 990
    assert sum(b.height for b in found.blocks) == 3 * 1000 + 2 * 10
