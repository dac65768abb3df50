"""Rebalancing: what moves, when nothing does, and which plan is taken."""

from __future__ import annotations

import re

import numpy as np
import pytest
from graph.strategies import edge_lists
from hypothesis import given
from hypothesis import strategies as st

from gnnjit.errors import GraphError
from gnnjit.partition import migrate as rebalance_module
from gnnjit.partition.migrate import measured_costs, rebalance
from gnnjit.partition.partition import Partition, balanced, cut_edges, equal_vertices, imbalance

pytestmark = pytest.mark.once


def cliques(count: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Complete graphs of consecutive numbers, none of which is joined to another."""
    pairs = [(c * size + i, c * size + j) for c in range(count) for i in range(size)
             for j in range(i)]  # fmt: skip
    src, dst = np.array(pairs).T
    return src, dst


@given(edge_lists(masked=False), st.integers(1, 4), st.integers(0, 99), st.sampled_from([1.0, 1.3]))
def test_never_worse_and_always_a_partition(edges, parts, seed, threshold):
    rng = np.random.default_rng(seed)
    n = edges.num_src
    before = Partition.of_assignment(rng.integers(0, parts, n), parts, order=rng.permutation(n))
    cost = rng.integers(0, 5, n).astype(float)
    after = rebalance(edges.src, edges.dst, before, cost, threshold, plans=3, seed=seed)
    again = rebalance(edges.src, edges.dst, before, cost, threshold, plans=3, seed=seed)
    assert sorted(after.order.tolist()) == list(range(n))
    assert after.num_shards == parts
    assert after.order.tolist() == again.order.tolist()
    assert after.bounds.tolist() == again.bounds.tolist()
    now = imbalance(cost, before)
    if now <= threshold:
        assert after is before
    else:
        assert after is before or imbalance(cost, after) < now
        anew = imbalance(cost, balanced(cost, parts, before.order))
        assert imbalance(cost, after) <= max(threshold, anew)


@pytest.mark.parametrize("threshold", [1.5, np.inf])
def test_unchanged_up_to_the_threshold(threshold):
    before = Partition.of_assignment([0, 0, 0, 1], 2)
    assert rebalance([0], [1], before, np.ones(4), threshold) is before


def test_a_clique_moves_as_a_whole():
    """Three of four cliques are in shard 0. Cut by number it is in the midst of none; the numbers
    are shuffled, so that only a search finds the cliques."""
    names = np.random.default_rng(0).permutation(32)
    src, dst = (names[ends] for ends in cliques(4, 8))
    shard = np.zeros(32, int)
    shard[names[24:]] = 1
    before = Partition.of_assignment(shard, 2)
    after = rebalance(src, dst, before, np.ones(32))
    assert after.method == "rebalanced"
    assert imbalance(np.ones(32), after) == 1
    assert cut_edges(src, dst, after) == 0
    assert cut_edges(src, dst, equal_vertices(32, 2)) > 0


def test_candidates_prefer_the_shard_of_their_neighbours():
    """Shard 0 is a star of leaves, each joined to two vertices of shard 1 or of shard 2."""
    leaves, hub = np.arange(8), 8
    homes = np.where(leaves % 2 == 0, 9, 11)
    src = np.concatenate([leaves, leaves, leaves])
    dst = np.concatenate([np.full(8, hub), homes, homes + 1])
    before = Partition.of_assignment([0] * 9 + [1, 1, 2, 2], 3)
    after = rebalance(src, dst, before, np.ones(13), threshold=1.2).assignment()
    moved = np.flatnonzero(after[:8] != 0)
    assert len(moved) >= 4
    assert (after[moved] == np.where(moved % 2 == 0, 1, 2)).all()


def test_a_hub_stays_and_the_others_leave():
    cost = np.array([10.0, 1, 1, 1, 1, 1])
    before = Partition.of_assignment([0, 0, 0, 0, 1, 1], 2)
    after = rebalance([1, 2, 3, 4], [0, 0, 0, 5], before, cost)
    assert after.totals(cost).tolist() == [10, 5]


def test_shards_that_fall_apart_into_many_parts():
    n = 200
    before = Partition.of_assignment(np.repeat([0, 1], [150, 50]), 2)
    after = rebalance(np.arange(n), np.arange(n), before, np.ones(n))
    assert imbalance(np.ones(n), after) <= 1.1


def test_one_plan_cuts_anew(monkeypatch):
    src, dst = np.arange(19), np.arange(1, 20)
    before = Partition.of_assignment(np.repeat([0, 1], [16, 4]), 2)
    after = rebalance(src, dst, before, np.ones(20), plans=0)
    assert after.sizes.tolist() == [10, 10]
    assert after.order.tolist() == list(range(20))
    assert after.method == "rebalanced"


def test_fewest_cut_edges_among_those_within_the_threshold(monkeypatch):
    src, dst = np.arange(7), np.arange(1, 8)
    plans = [
        Partition.of_assignment(shard, 2, "rebalanced")
        for shard in ([0, 1] * 4, [0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1, 1, 1], [0] * 8)
    ]
    monkeypatch.setattr(rebalance_module, "_plans", lambda *args: iter(plans))
    before = Partition.of_assignment([0] * 7 + [1], 2)
    assert rebalance(src, dst, before, np.ones(8), 1.3) is plans[1]
    assert rebalance(src, dst, before, np.ones(8), 1.1) is plans[2]
    monkeypatch.setattr(rebalance_module, "_plans", lambda *args: iter(plans[1::2]))
    assert rebalance(src, dst, before, np.ones(8), 1.1) is plans[1]
    monkeypatch.setattr(rebalance_module, "_plans", lambda *args: iter(plans[3:]))
    assert rebalance(src, dst, before, np.ones(8), 1.1) is before


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        (
            {"threshold": 0.9},
            "threshold is 0.9, expected 1 or more: pass the largest allowed cost of a shard over "
            "the mean",
        ),
        (
            {"threshold": np.nan},
            "threshold is nan, expected 1 or more: pass the largest allowed cost of a shard over "
            "the mean",
        ),
        ({"plans": -1}, "plans is -1, expected a whole number, 0 or more: pass such an int"),
        ({"seed": 0.5}, "seed is 0.5, expected a whole number, 0 or more: pass such an int"),
        (
            {"cost": [1, 1]},
            "cost has shape (2,), expected (3,), one number per vertex: pass what each vertex "
            "costs",
        ),
        (
            {"cost": [1, -1, 1]},
            "cost[1] is -1.0, expected a finite number >= 0: no vertex takes less than nothing",
        ),
        (
            {"src": [-1]},
            "src[0] is -1, expected a vertex from 0 to 2 (num_nodes=3): negative indices do not "
            "count from the end; mark padding with edge_mask=",
        ),
    ],
)
def test_messages(given_, message):
    args = {"src": [0], "dst": [1], "partition": equal_vertices(3, 2), "cost": [1, 1, 1], **given_}
    with pytest.raises(GraphError, match=f"^{re.escape(message)}$"):
        rebalance(**args)


def test_measured_costs_sum_up_to_what_was_measured():
    before = Partition.of_assignment([0, 0, 1, 1, 2, 2], 4)
    found = measured_costs([1, 3, 0, 0, 1, 1], before, [8.0, 3.0, 1.0, 0.5])
    assert found.tolist() == [2, 6, 1.5, 1.5, 0.5, 0.5]
    assert measured_costs([], equal_vertices(0, 2), [1, 1]).tolist() == []


def test_measured_costs_of_other_shards():
    message = (
        "seconds has shape (1,), expected (2,), one number per shard: pass what each shard costs"
    )
    with pytest.raises(GraphError, match=f"^{re.escape(message)}$"):
        measured_costs([1, 1, 1], equal_vertices(3, 2), [1.0])
