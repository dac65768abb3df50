"""What a process plans from edges that pass by is what all of them at once give for its shards."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnjit.partition.partition import Partition
from gnnjit.sharding.build import ShardPlan, plan
from gnnjit.sharding.build_streamed import streamed_plan


def blocks(src, dst, size):
    return [(src[i : i + size], dst[i : i + size]) for i in range(0, len(src), size)]


def streamed(whole: ShardPlan, src, dst, mine, size: int = 7) -> ShardPlan:
    """The plan of the process that makes the shards `mine`; others counted the rest."""
    theirs = whole.traffic().copy()
    theirs[mine] = 0
    return streamed_plan(
        blocks(src, dst, size),
        whole.dealt.partition,
        mine,
        vertex=lambda start, stop: np.arange(start, stop),
        summed=lambda rows: rows + theirs,
    )


@st.composite
def cut_graphs(draw):
    nodes, shards = draw(st.integers(1, 30)), draw(st.integers(1, 11))
    edges = draw(st.integers(0, 60))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    src, dst = rng.integers(0, nodes, (2, edges)).astype(np.int32)
    bounds = np.concatenate([[0], np.sort(rng.integers(0, nodes + 1, shards - 1)), [nodes]])
    mine = sorted(draw(st.sets(st.integers(0, shards - 1), min_size=1)))
    return src, dst, Partition(np.arange(nodes), bounds, "given"), mine


@given(cut_graphs())
def test_as_all_edges_at_once(case):
    src, dst, partition, mine = case
    whole = plan(src, dst, partition)
    part = streamed(whole, src, dst, mine)
    assert part.num_edges == len(src)
    assert np.array_equal(part.between, whole.between)
    assert np.array_equal(part.counts, whole.counts)
    assert np.array_equal(part.traffic(), whole.traffic())
    for p in mine:
        for name in ("shard", "src", "dst", "number"):
            assert np.array_equal(getattr(part.edges(p), name), getattr(whole.edges(p), name))
        assert np.array_equal(part.used(p), whole.used(p))
        assert np.array_equal(part.vertex(p), whole.vertex(p))
        assert np.array_equal(part.out_degree(p), whole.out_degree(p))
        ours, theirs = part.halo.part(p, np.int32), whole.halo.part(p, np.int32)
        assert np.array_equal(ours.send, theirs.send)
        assert np.array_equal(ours.returned.indptr, theirs.returned.indptr)
        for q in set(range(partition.num_shards)) - {p}:
            assert np.array_equal(part.sent(p, q), whole.sent(p, q))


def test_the_edges_of_others_are_not_kept():
    src, dst = np.random.default_rng(0).integers(0, 40, (2, 400)).astype(np.int32)
    whole = plan(src, dst, Partition(np.arange(40), np.arange(0, 41, 10), "given"))
    part = streamed(whole, src, dst, [2])
    assert len(part.edges(2)) == np.count_nonzero((dst >= 20) & (dst < 30))
    with pytest.raises(KeyError):
        part.edges(1)
