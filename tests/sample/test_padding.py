"""The shapes that batches are padded to."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnjit.data import open_dataset
from gnnjit.errors import SampleError
from gnnjit.graph import Graph, batch
from gnnjit.sample import NeighborSampler, Shapes, plan_graph_shapes, plan_shapes
from gnnjit.sample.padding import _best_cuts, rounded_up

histograms = st.integers(1, 3).flatmap(
    lambda d: st.lists(st.tuples(*[st.integers(0, 40)] * d), min_size=1, max_size=7)
)


def work_of_all_cuts(sizes, chance, cost, count):
    """The least expected work over every way to cut the rows into groups, one by one."""
    rows = len(sizes)
    for groups in range(1, min(count, rows) + 1):
        for cuts in itertools.combinations(range(1, rows), groups - 1):
            bounds = itertools.pairwise([0, *cuts, rows])
            yield sum(sizes[a:b].max(axis=0) @ cost * chance[a:b].sum() for a, b in bounds)


@given(histograms, st.integers(1, 5), st.data())
def test_dynamic_programming_finds_the_best_cuts(histogram, count, data):
    sizes = np.array(histogram)
    whole = st.lists(st.integers(1, 4), min_size=len(sizes), max_size=len(sizes))
    chance = np.array(data.draw(whole), float)
    cost = np.arange(1.0, sizes.shape[1] + 1)
    expected, stops = _best_cuts(sizes, chance, cost, count)
    assert expected == min(work_of_all_cuts(sizes, chance, cost, count))
    bounds = list(itertools.pairwise([0, *stops]))
    assert len(bounds) <= count
    assert stops[-1] == len(sizes)
    assert expected == sum(sizes[a:b].max(axis=0) @ cost * chance[a:b].sum() for a, b in bounds)


@given(histograms, st.integers(1, 5))
def test_every_sampled_batch_fits(histogram, count):
    shapes = plan_shapes(np.array(histogram), count)
    assert 1 <= len(shapes) <= count
    for sizes in histogram:
        index = shapes.choose(sizes)
        assert index is not None
        assert all(s <= t for s, t in zip(sizes, shapes[index], strict=True))


@given(histograms, st.integers(1, 5))
def test_the_cheapest_shape_that_fits_is_chosen(histogram, count):
    shapes = plan_shapes(np.array(histogram), count)
    for sizes in histogram:
        fitting = [
            i
            for i, shape in enumerate(shapes.shapes)
            if all(s <= t for s, t in zip(sizes, shape, strict=True))
        ]
        index = shapes.choose(sizes)
        assert index in fitting
        assert shapes.work(shapes[index]) == min(shapes.work(shapes[i]) for i in fitting)


def test_a_batch_that_is_too_large_fits_nowhere():
    shapes = Shapes(((8, 100), (16, 50)), (1.0, 1.0))
    assert shapes.choose((8, 100)) == shapes.shapes.index((8, 100))
    assert shapes.choose((9, 50)) == shapes.shapes.index((16, 50))
    assert shapes.choose((9, 51)) is None


def test_more_shapes_than_batches_are_as_many_as_batches():
    shapes = plan_shapes(np.array([[80, 800], [160, 1600]]), 7, head_room=False)
    assert shapes.shapes == ((80, 800), (160, 1600))


def test_sizes_that_do_not_grow_together_are_ordered_by_a_dimension():
    """Two kinds of batches of the same work: in order of work they would be mixed."""
    rng = np.random.default_rng(0)
    some = rng.integers(0, 8, 60)
    flat, deep = np.stack([900 + some, 100 - some], 1), np.stack([100 - some, 900 + some], 1)
    histogram = rng.permutation(np.concatenate([flat, deep]))
    shapes = plan_shapes(histogram, 2, cost=(1.0, 1.0), head_room=False)
    assert shapes.padding(histogram).work < 2


def test_weights_count_as_repeated_batches():
    histogram = np.array([[100, 10], [200, 20], [300, 30], [1000, 90]])
    weights = [1, 5, 1, 2]
    repeated = np.repeat(histogram, weights, axis=0)
    kwargs = {"count": 2, "head_room": False}
    by_weight = plan_shapes(histogram, weights=weights, **kwargs)
    assert by_weight == plan_shapes(repeated, **kwargs)
    assert by_weight.padding(histogram, weights).work == pytest.approx(
        by_weight.padding(repeated).work
    )


def test_head_room_is_rarely_exceeded_and_ends_at_the_limits():
    rng = np.random.default_rng(0)
    draws = rng.normal([1000, 9000], [40, 90], (20_000, 2)).astype(int)
    shapes = plan_shapes(draws[:128], 4)
    assert shapes.padding(draws[128:]).exceeding < 0.05
    limits = tuple(draws[:128].max(axis=0) + 8)
    assert plan_shapes(draws[:128], 4, limits=limits)[-1] <= rounded_up(limits)


def test_padding_of_batches_of_a_power_law_graph_is_small():
    data = open_dataset("communities", num_nodes=20_000, num_features=1)
    sampler = NeighborSampler(data.graph, (15, 10))
    rng = np.random.default_rng(0)
    histogram = [
        sampler.sample(rng.choice(20_000, 256 if i % 8 else 90, replace=False), i).sizes
        for i in range(160)
    ]
    shapes = plan_shapes(histogram[:80], 4)
    padding = shapes.padding(histogram[80:])
    assert len(shapes) == 4
    assert padding.work < 15
    assert max(padding.dimensions) < 15
    assert padding.exceeding == 0


def test_batches_of_small_graphs():
    rng = np.random.default_rng(0)
    nodes = rng.integers(2, 40, 300)
    edges = rng.integers(0, 4, 300) * nodes
    shapes = plan_graph_shapes(nodes, edges, 32, 4)
    chosen = rng.permutation(300)[:32]
    index = shapes.choose((nodes[chosen].sum(), edges[chosen].sum()))
    assert index is not None
    rings = [np.arange(n) for n in nodes[chosen]]
    union, _ = batch(
        [
            Graph.from_edges(np.resize(r, e), np.resize(np.roll(r, 1), e), len(r))
            for r, e in zip(rings, edges[chosen], strict=True)
        ]
    )
    padded = union.pad(*shapes[index])
    assert (padded.num_nodes, padded.num_edges) == shapes[index]
    whole = plan_graph_shapes(nodes, edges, 1000, 4)
    assert whole.choose((nodes.sum(), edges.sum())) is not None
    assert len(whole) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: plan_shapes(np.zeros((0, 2), int)),
            "plan_shapes: histogram is int64 of shape (0, 2), expected whole numbers >= 0 of shape "
            "[batches, dimensions], at least one batch",
        ),
        (lambda: plan_shapes([[1, 2]], 0), "plan_shapes: count is 0, expected at least 1 shape"),
        (lambda: plan_shapes([[1, 2]], cost=[1.0]), "cost is [1.0], expected 2 finite numbers"),
        (lambda: plan_shapes([[1, 2]], weights=[0]), "weights have shape (1,), expected (1,)"),
        (
            lambda: plan_graph_shapes([1, 2], [1], 4),
            "node_counts and edge_counts have 2 and 1 entries",
        ),
        (lambda: plan_graph_shapes([1], [1], 0), "batch_size is 0, expected at least 1"),
        (lambda: plan_graph_shapes([1.5], [1], 1), "node_counts is float64 of shape (1,)"),
        (
            lambda: plan_shapes([[1, 2]]).choose((1, 2, 3)),
            "Shapes.choose: sizes are (1, 2, 3), expected 2 numbers as in",
        ),
        (lambda: Shapes((), (1.0,)), "Shapes: shapes are () with 1 costs"),
    ],
)  # fmt: skip
def test_bad_input(call, message):
    with pytest.raises(SampleError, match=re.escape(message)):
        call()
