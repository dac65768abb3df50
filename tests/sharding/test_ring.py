"""A ring stops where edges wait, and nowhere else."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gnnjit
from gnnjit.sharding.exchange import RUNS, StopRange, runs_of
from gnnjit.sharding.sharded_graph import ShardedGraph

from .functions import FUNCTIONS, arguments
from .graphs import Edges, assert_alike, edges, mesh

SHARDS, EACH = 8, 3


def at_distances(*distances: int) -> Edges:
    """Edges from every shard to those so far before it, but for the first; of each shard some."""
    n = SHARDS * EACH
    number = np.arange(n)
    away = [0, *distances]
    src = np.concatenate([(number + EACH * d) % n for d in away])
    dst = np.concatenate([number] * len(away))
    some = (dst > 1) | (src == dst)
    return edges(src[some], dst[some], n)


def ring(e: Edges) -> ShardedGraph:
    return gnnjit.shard(
        e.graph(), mesh(SHARDS), partition="vertices", order="given", exchange="ring"
    )


@pytest.mark.parametrize(
    ("distances", "runs"),
    [
        ([], []),
        ([1, 2, 3], [(1, 3)]),
        ([1, 7], [(1, 1), (7, 1)]),
        ([2, 5, 8], [(2, 1), (5, 1), (8, 1)]),
        ([2, 4, 6], [(2, 5)]),
        ([2, 6, 7, 11], [(2, 1), (6, 2), (11, 1)]),
        ([2, 7, 9, 13], [(2, 1), (7, 3), (13, 1)]),
        ([1, 4, 7, 10], [(1, 10)]),
    ],
)
def test_runs(distances, runs):
    assert runs_of(distances) == tuple(StopRange(*r) for r in runs)


@given(st.sets(st.integers(1, 40)))
def test_runs_stop_at_every_distance(distances):
    runs = runs_of(sorted(distances))
    stops = [d for run in runs for d in range(run.first, sum(run))]
    assert len(runs) <= RUNS
    assert stops == sorted(set(stops))
    assert distances <= set(stops)
    assert not stops or (stops[0], stops[-1]) == (min(distances), max(distances))


@pytest.mark.long
@pytest.mark.parametrize("name", ["two_layers", "graph_net", "soft"])
@pytest.mark.parametrize(
    "distances",
    [(), (1, 7), (3,), (1, 2, 7), (1, 6, 7), (1, 4, 7), (2, 4, 5, 7), (1, 2, 3, 4, 5, 6, 7)],
)
def test_values_and_gradients(distances, name):
    e = at_distances(*distances)
    sharded = ring(e)
    visited = [d for run in sharded.exchange.runs for d in range(run.first, sum(run))]
    assert set(visited) >= set(distances)
    assert_alike(FUNCTIONS[name], e, sharded, *arguments(e))


@pytest.mark.parametrize(("distances", "hops"), [((), 0), ((1,), 1), ((1, 7), 2), ((3, 6), 2)])
def test_as_many_hops_as_stops(distances, hops):
    """And in the backward pass as many for gradients, the last one home."""
    e = at_distances(*distances)
    sharded = ring(e)
    assert next(w.moved for w in sharded.report.ways if w.name == "ring") == hops * EACH
    x, *rest = arguments(e)

    def forward(x, graph):
        return FUNCTIONS["gated"](graph, x, *rest).vertex

    def backward(x, graph):
        return jax.grad(lambda x: jnp.sum(jnp.sin(forward(x, graph))))(x)

    x = sharded.put(x)
    there, both = (
        jax.jit(f).lower(x, sharded).compile().as_text().count for f in (forward, backward)
    )
    arrays = 2  # two products of features
    assert there(" collective-permute(") == arrays * hops
    assert both(" collective-permute(") == 2 * arrays * hops


def test_pointers_are_of_the_stops_alone():
    e = at_distances(1, 7)
    sharded = ring(e)
    assert sharded.in_structure.indptr.shape == (SHARDS, 3, EACH + 1)
    assert sharded.exchange.starts.shape == (SHARDS, 3)
    assert sharded.exchange.runs == (StopRange(1, 1), StopRange(7, 1))
