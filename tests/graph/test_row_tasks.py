"""Rows as tasks of GPU programs: every edge exactly once, hubs in pieces."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gnnjit import Graph
from gnnjit.graph.row_tasks import build_tasks, make_tasks

DEGREES = st.lists(st.sampled_from([0, 1, 2, 5, 9, 30]), max_size=12)


@given(DEGREES, st.integers(0, 6), st.integers(1, 12))
def test_every_slot_of_every_row_once(degrees, short, piece):
    piece = max(piece, short)
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int32)
    tasks = build_tasks(indptr, short, piece)
    seen = np.zeros(int(indptr[-1]), int)
    owner = np.repeat(np.arange(len(degrees)), degrees)
    whole = []
    for some in (tasks.long, tasks.short):
        pieces = some.piece if some.piece is not None else np.full(len(some.row), -1)
        for row, start, length, number in zip(
            some.row, some.start, some.length, pieces, strict=True
        ):
            seen[int(start) : int(start + length)] += 1
            assert (owner[int(start) : int(start + length)] == int(row)).all()
            assert length <= piece
            if number < 0:
                whole.append(int(row))
    assert (seen == 1).all()
    assert sorted([*whole, *np.asarray(tasks.hubs.row)]) == list(range(len(degrees)))
    assert (np.asarray(tasks.short.length) <= short).all()
    assert tasks.pieces == int(np.sum(tasks.hubs.length))


@given(DEGREES)
def test_pieces_of_a_hub_follow_one_another(degrees):
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int32)
    tasks = build_tasks(indptr, 0, 4)
    for row, first, count in zip(tasks.hubs.row, tasks.hubs.start, tasks.hubs.length, strict=True):
        assert count == -(-degrees[int(row)] // 4)
        assert tasks.long.piece is not None
        at = np.isin(tasks.long.piece, np.arange(int(first), int(first + count)))
        assert (np.asarray(tasks.long.row)[at] == int(row)).all()


def test_a_graph_has_them_where_a_kernel_wants_them():
    indptr = np.array([0, 1, 3], np.int32)
    assert make_tasks(indptr, wanted=False) is None
    assert make_tasks(indptr, wanted=True) is not None
    graph = Graph.from_edges([0, 1], [1, 0], 2)
    assert graph.pad(4, 4).in_structure.tasks is None
