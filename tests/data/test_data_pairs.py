"""Pairs of vertices, and the graph of P-GNN's paper."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gnnjit.data import caveman
from gnnjit.errors import DataError


def test_cliques_in_a_ring() -> None:
    data = caveman(communities=3, size=5, rewired=0.0)
    found = set(zip(*(np.asarray(end).tolist() for end in (data.graph.src, data.graph.dst))))  # noqa: B905
    want = {(5 * c + i, 5 * c + j) for c in range(3) for i in range(5) for j in range(i + 1, 5)}
    for clique in range(3):  # one edge of each leads to the next
        want -= {(5 * clique, 5 * clique + 1)}
        want |= {(5 * clique, (5 * clique + 5) % 15)}
    assert found == want | {(v, u) for u, v in want}
    pairs = np.concatenate([data.train, data.val, data.test])
    assert len(np.unique(pairs, axis=0)) == len(pairs) == 30
    assert (data.y[pairs[:, 0]] == data.y[pairs[:, 1]]).all()
    assert repr(data) == (
        "PairDataset(caveman: 15 vertices, 60 directed edges, 3 classes, 24 train / 3 val / 3 test "
        "pairs)"
    )


def test_rewired_edges_follow_the_seed() -> None:
    one, same, other = (caveman(rewired=0.5, seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(one.graph.src, same.graph.src)
    assert np.array_equal(one.train, same.train)
    assert not np.array_equal(one.train, other.train)
    across = one.y[np.asarray(one.graph.src)] != one.y[np.asarray(one.graph.dst)]
    assert 0.4 < across.mean() < 0.6  # half of the edges moved, 19 in 20 of them away


SMALL = caveman(communities=2, size=5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"val": SMALL.val[:0]}, "caveman: val has no pairs, expected some"),
        ({"val": SMALL.val + 50}, "caveman: val has a vertex outside 0 to 9, expected pairs of"),
        (
            {"test": np.array([[0, 9]], np.int32)},
            "caveman: test has the pair of 0 and 9, which are of two classes, expected pairs of",
        ),
        ({"y": np.zeros(10, np.int32)}, "caveman: y has one class, expected two at least"),
        ({"x": np.ones((9, 1), np.float32)}, r"caveman: x is float32\[9, 1\], expected float32"),
    ],
)
def test_parts_must_fit(changes, message) -> None:
    with pytest.raises(DataError, match=message):
        dataclasses.replace(SMALL, **changes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"communities": 1}, "caveman: got communities=1, expected at least 2"),
        ({"size": 4}, "caveman: got size=4, expected at least 5"),
        ({"rewired": 2.0}, "caveman: got rewired=2.0, expected 0 to 1"),
        ({"seed": -1}, "caveman: got seed=-1, expected at least 0"),
    ],
)
def test_numbers_out_of_range(options, message) -> None:
    with pytest.raises(DataError, match=message):
        caveman(**options)
