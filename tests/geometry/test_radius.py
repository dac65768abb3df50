"""Edges from positions against every pair, in open and periodic boxes, in and outside of `jit`."""

from __future__ import annotations

import dataclasses
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gnnjit
from gnnjit.errors import GraphError
from gnnjit.geometry import NearestSearch, RadiusSearch, displacement, nearest, radius

by_distance = sys.modules["gnnjit.geometry.nearest"]


def distances(x, box=None):
    way = x[:, None].astype(np.float64) - x[None]
    if box is not None:
        sides = np.broadcast_to(np.asarray(box, np.float64), x.shape[1])
        safe = np.where(sides > 0, sides, 1)
        way -= np.where(sides > 0, safe * np.round(way / safe), 0)
    return np.sqrt((way**2).sum(axis=-1))


def pairs_of(graph):
    keep = np.ones(graph.num_edges, bool) if graph.mask is None else np.asarray(graph.mask)
    return sorted(zip(*np.stack([graph.src, graph.dst])[:, keep].tolist(), strict=True))


def within(x, cutoff, box=None, loops=False, graphs=None, mask=None):
    near = distances(x, box) <= cutoff
    near &= loops | ~np.eye(len(x), dtype=bool)
    if graphs is not None:
        near &= np.asarray(graphs)[:, None] == np.asarray(graphs)
    if mask is not None:
        near &= mask[:, None] & mask[None]
    return sorted(map(tuple, np.argwhere(near).tolist()))


def points(rng, count, dimensions, box=None):
    """No pair is so close to a radius of 0.3 that float32 could tell it otherwise."""
    while True:
        x = rng.uniform(-0.2, 1.2, (count, dimensions)).astype(np.float32)
        if not (abs(distances(x, box) - 0.3) < 1e-5).any():
            return x


@pytest.mark.parametrize(
    ("count", "dimensions", "box", "loops"),
    [
        (40, 3, (1.0, 1.0, 1.0), False), (40, 3, None, True), (30, 2, (1.0, 0.0), False),
        (30, 1, (1.0,), True), (30, 2, (0.65, 1.0), False), (1, 2, None, False),
    ],
)  # fmt: skip
def test_all_pairs(count, dimensions, box, loops):
    x = points(np.random.default_rng(count + dimensions), count, dimensions, box)
    graph = radius(x, 0.3, box=box, loops=loops)
    assert pairs_of(graph) == within(x, 0.3, box, loops)
    assert graph.mask is None
    assert (np.diff(np.asarray(graph.dst)) >= 0).all()


def test_inside_jit_with_what_was_fitted_to_other_positions():
    rng = np.random.default_rng(0)
    first, second = points(rng, 60, 3), points(rng, 60, 3)
    search = RadiusSearch.fit(first, 0.3, box=1.0, slack=1.5)
    find = jax.jit(search)
    for x in (first, second):
        found = find(x)
        assert not found.overflow
        assert found.graph.num_edges == search.num_edges
        assert pairs_of(found.graph) == within(x, 0.3, 1.0)
        assert int(found.num_found) == len(within(x, 0.3, 1.0))


def test_graphs_of_a_batch_and_padding():
    x = points(np.random.default_rng(1), 50, 2)
    graphs, mask = np.arange(50) % 3, np.arange(50) % 7 != 0
    graph = radius(x, 0.3, graph_index=graphs, mask=mask)
    assert pairs_of(graph) == within(x, 0.3, graphs=graphs, mask=mask)
    found = nearest(x, 4, graph_index=graphs, mask=mask)
    expected = [
        (int(u), v)
        for v in np.flatnonzero(mask).tolist()
        for u in sorted(
            (u for u in np.flatnonzero(mask) if graphs[u] == graphs[v] and u != v),
            key=lambda u: distances(x)[u, v],
        )[:4]
    ]
    assert pairs_of(found) == sorted(expected)


def test_a_box_that_changes():
    x = points(np.random.default_rng(2), 60, 3)
    search = RadiusSearch.fit(x, 0.3, box=1.0, slack=2)
    larger = 1.05 * x
    assert pairs_of(search(larger, box=1.05).graph) == within(larger, 0.3, 1.05)
    assert bool(jax.jit(search)(x, box=0.8).overflow)  # three cells of 0.27 do not hold 0.3
    with pytest.raises(GraphError, match="box was given to a search fitted without one"):
        RadiusSearch.fit(x, 0.3)(x, box=1.0)


@pytest.mark.parametrize("name", ["num_edges", "room"])
def test_what_does_not_fit_is_told(name):
    x = points(np.random.default_rng(3), 60, 2)
    fitted = RadiusSearch.fit(x, 0.3, slack=1)
    assert not jax.jit(fitted)(x).overflow
    small = dataclasses.replace(fitted, **{name: getattr(fitted, name) - 1})
    assert jax.jit(small)(x).overflow
    with pytest.raises(
        GraphError, match=r"these positions need more \(at least [\d,]+ edges\): fit"
    ):
        small(x)


def test_vertices_at_the_radius_and_far_away():
    line = np.array([[0.0], [0.5], [1.0], [1e6]], np.float32)
    assert pairs_of(radius(line, 0.5)) == [(0, 1), (1, 0), (1, 2), (2, 1)]
    grid = np.stack(np.meshgrid(*[np.arange(6.0, dtype=np.float32)] * 2), -1).reshape(-1, 2)
    assert radius(grid, 1.0, box=6.0).num_edges == 36 * 4


def test_forces_of_a_layer_through_a_search():
    """A step of molecular dynamics: edges found in jit, energy of a layer, its gradient."""
    x = jnp.asarray(points(np.random.default_rng(4), 40, 3))
    search = RadiusSearch.fit(x, 0.3, box=1.0)

    @gnnjit.layer
    def energy(v, e):
        return gnnjit.sum(jnp.square(0.09 - jnp.square(displacement(v, e.src, 1.0)).sum()))

    forces = jax.jit(jax.grad(lambda x: energy(search(x).graph, x).sum()))(x)

    near = np.array(within(np.asarray(x), 0.3, 1.0))

    def plain(x):
        way = displacement(x[near[:, 1]], x[near[:, 0]], 1.0)
        return jnp.square(0.09 - jnp.square(way).sum(axis=-1)).sum()

    np.testing.assert_allclose(forces, jax.grad(plain)(x), atol=1e-5)


@given(st.integers(0, 2**32 - 1), st.integers(2, 30), st.sampled_from([None, 1.0]), st.booleans())
def test_nearest(seed, count, box, loops):
    rng = np.random.default_rng(seed)
    x = rng.uniform(size=(count, 2)).astype(np.float32)
    k = int(rng.integers(1, count))
    graph = nearest(x, k, box=box, loops=loops)
    away = distances(x, box) + (0 if loops else np.diag(np.full(count, np.inf)))
    found = away[np.asarray(graph.dst), np.asarray(graph.src)].reshape(count, k)
    np.testing.assert_allclose(found, np.sort(away, axis=1)[:, :k], rtol=1e-3, atol=1e-6)
    assert len(set(pairs_of(graph))) == count * k


def test_equally_near_vertices_come_by_number():
    grid = np.stack(np.meshgrid(*[np.arange(4.0)] * 2), -1).reshape(-1, 2).astype(np.float32)
    graph = jax.jit(lambda x: nearest(x, 3, box=4.0))(grid)
    assert np.asarray(graph.src).reshape(16, 3)[0].tolist() == [1, 3, 4]


X = np.zeros((3, 2), np.float32)
CORNERS = np.array([[0, 0], [0.5, 0.5]], np.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: radius(X, 0.0), "cutoff is 0.0, expected a number > 0"),
        (lambda: radius(X, 1.0, box=1.5), "cutoff is 1 in a periodic box with a side of 1.5"),
        (lambda: radius(X, 1.0, box=[1, 2, 3]), r"box is \[1, 2, 3\], expected a side, or"),
        (
            lambda: radius(X, 1.0, box=np.eye(2)),
            "pass the sides of an orthogonal box; triclinic boxes are not known here",
        ),
        (lambda: radius(X[0], 1.0), r"positions are float32 of shape \(2,\), expected floats"),
        (lambda: radius(X.astype(int), 1.0), "positions are int32 of shape"),
        (lambda: radius(X * np.nan, 1.0), r"position 0 is \[nan, nan\], expected finite numbers"),
        (lambda: radius(X, 1.0, graph_index=[0, 1]), "graph_index is int64 of shape"),
        (lambda: RadiusSearch.fit(X, 1.0, slack=0.5), "slack is 0.5, expected a number >= 1"),
        (lambda: RadiusSearch.fit(X, 1.0)(X[:, :1]), "positions have 1 dimensions, expected 2"),
        (lambda: nearest(X, 3), "k is 3, expected 1 to 2, the neighbours that a vertex of 3"),
        (lambda: jax.jit(lambda x: radius(x, 1.0))(X), "called on traced positions"),
        (lambda: jax.jit(lambda x: NearestSearch.fit(x, 1))(X), "NearestSearch.fit was called on"),
        (lambda: NearestSearch.fit(X, 1)(X[:, :1]), "positions have 1 dimensions, expected 2"),
        (
            lambda: NearestSearch.fit(CORNERS, 1, box=1.0),
            "the 1 nearest of some vertex are further away than half of a periodic side",
        ),
    ],
)  # fmt: skip
def test_errors(call, message):
    with pytest.raises(GraphError, match=message):
        call()


def test_no_vertices():
    assert radius(np.zeros((0, 3), np.float32), 1.0).num_edges == 0


@pytest.mark.parametrize(
    ("box", "loops", "spread"),
    [
        pytest.param(None, False, 1, marks=pytest.mark.long),
        (1.0, True, 1),
        pytest.param((1.0, 0.0), False, 1, marks=pytest.mark.long),
        (None, False, 9),
    ],
)
def test_nearest_in_cells_are_those_of_every_pair(monkeypatch, box, loops, spread):
    """Also with a few that lie far from all others."""
    rng = np.random.default_rng(5)
    x = np.concatenate([rng.uniform(0, 1, (120, 2)), rng.uniform(0, spread, (2, 2))])
    x = x.astype(np.float32)
    graphs, mask = np.arange(122) % 2, np.arange(122) % 9 != 0
    for more in ({}, {"graph_index": graphs, "mask": mask}):
        every = nearest(x, 3, box=box, loops=loops, **more)
        monkeypatch.setattr(by_distance, "MANY", 0)
        in_cells = nearest(x, 3, box=box, loops=loops, **more)
        monkeypatch.undo()
        assert pairs_of(in_cells) == pairs_of(every)
        np.testing.assert_array_equal(in_cells.dst, every.dst)


def test_nearest_inside_jit_with_what_was_fitted_to_other_positions():
    rng = np.random.default_rng(6)
    x = rng.uniform(0, 1, (150, 2)).astype(np.float32)
    search = NearestSearch.fit(x, 3, box=1.0, slack=2)
    find = jax.jit(search)
    moved = (x + rng.normal(0, 0.01, x.shape).astype(np.float32)) % 1
    found = find(moved)
    assert not found.overflow
    assert int(found.num_found) == 450
    np.testing.assert_array_equal(found.graph.src, nearest(moved, 3, box=1.0).src)
    crowded = 0.1 * moved
    assert find(crowded).overflow
    with pytest.raises(
        GraphError, match=r"particles in a row of cells, and these positions need more \("
    ):
        search(crowded)


def test_equally_near_vertices_in_cells_come_by_number(monkeypatch):
    grid = np.stack(np.meshgrid(*[np.arange(6.0)] * 2), -1).reshape(-1, 2).astype(np.float32)
    grid = grid[np.random.default_rng(0).permutation(36)]
    every = nearest(grid, 3, box=6.0)
    monkeypatch.setattr(by_distance, "MANY", 0)
    np.testing.assert_array_equal(nearest(grid, 3, box=6.0).src, every.src)
