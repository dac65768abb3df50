"""What `gnnjit.shard` and the methods of its result refuse, word for word."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest

import gnnjit
from gnnjit.errors import GraphError, LayerError
from gnnjit.partition.partition import equal_vertices

from .graphs import GRAPHS, mesh

HUB = GRAPHS["hub"]
N = HUB.num_nodes


def shard(graph=None, axis=None, **options):
    options = {"partition": "vertices", "exchange": "halo"} | options
    return gnnjit.shard(HUB.graph() if graph is None else graph, mesh(4), axis, **options)


@pytest.fixture(scope="module")
def sharded():
    return shard(partition=np.arange(N) // 4)


MISTAKES = {
    "a list": (
        lambda: shard([0]),
        "shard() got a list, expected a gnnjit.Graph or a gnnjit.TypedGraph",
    ),
    "no mesh": (
        lambda: gnnjit.shard(HUB.graph(), 4),
        "shard() got a int as the mesh, expected a jax.sharding.Mesh: make one with "
        'jax.make_mesh((jax.device_count(),), ("shards",))',
    ),
    "traced edges": (
        lambda: jax.jit(shard)(HUB.graph()),
        "shard() got a graph of traced edges, expected concrete ones: shard the graph before jit, "
        "and pass the result to the compiled function",
    ),
    "axis": (lambda: shard(axis="rows"), "axis is 'rows', expected an axis of the mesh: shards"),
    "exchange": (
        lambda: shard(exchange="best"),
        "exchange is 'best', expected one of auto, all_gather, halo, cover, ring",
    ),
    "partition": (
        lambda: shard(partition="best"),
        "partition is 'best', expected one of auto, vertices, edges, learned, metis, a Partition, "
        "or the shard of each vertex",
    ),
    "too few vertices": (
        lambda: shard(partition=[0, 1]),
        "partition deals 2 vertices out to 4 shards, expected 13 vertices and 4 shards",
    ),
    "too many vertices": (
        lambda: shard(partition=[0] * (N + 1)),
        "partition deals 14 vertices out to 4 shards, expected 13 vertices and 4 shards",
    ),
    "too few shards": (
        lambda: shard(partition=equal_vertices(N, 3)),
        "partition deals 13 vertices out to 3 shards, expected 13 vertices and 4 shards",
    ),
    "a shard that is none": (
        lambda: shard(partition=[4] * N),
        "shard[0] is 4, expected a shard from 0 to 3: pass a larger num_shards",
    ),
    "shards that are no integers": (
        lambda: shard(partition=[0.5] * N),
        "shard has dtype float64, expected integers: pass the shard of each vertex",
    ),
    "a matrix of shards": (
        lambda: shard(partition=np.zeros((N, 2), int)),
        "shard has shape (13, 2), expected (num_nodes,): pass the shard of each vertex",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_shard(name):
    call, message = MISTAKES[name]
    with pytest.raises(GraphError) as error:
        call()
    assert str(error.value) == message


@gnnjit.layer
def layer(v, e):
    return gnnjit.sum(e.src) if e.data is None else gnnjit.sum(e.data)


WRONG_ARRAYS = {
    "put": (
        lambda g: g.put({"a": np.zeros(3), "b": np.zeros((N, 2)), "c": 1.0}),
        "x['a'] has 3 rows; x['c'] has no rows (it is a scalar), but the graph has 13 vertices: "
        "pass arrays with one row per vertex of the whole graph",
    ),
    "put_edges": (
        lambda g: g.put_edges(np.zeros(3)),
        "edges has 3 rows, but the graph has 45 edges: pass arrays with one row per edge of the "
        "whole graph",
    ),
    "get": (
        lambda g: g.get(np.zeros(3)),
        "y has 3 rows, but the graph has 16 rows on its shards: pass what graph.put(...) gave",
    ),
    "get_edges": (
        lambda g: g.get_edges(np.zeros((3, 2))),
        "y has 3 rows, but the graph has 104 slots of edges on its shards: pass what "
        "graph.put_edges(...) gave",
    ),
    "degree": (
        lambda g: g.degree("edge"),
        "degree() got 'edge', expected one of 'in', 'dst', 'out', 'src': pass 'in' for the edges "
        "that end at a vertex",
    ),
    "features of the whole graph": (
        lambda g: layer(g, np.zeros((N, 2))),
        "x has 13 rows, but the graph has 16 rows on its shards: pass what graph.put(...) gave",
    ),
    "edge data of the whole graph": (
        lambda g: layer(g, np.zeros((16, 2)), edges=np.zeros(45)),
        "edges has 45 rows, but the graph has 104 slots of edges on its shards: pass what "
        "graph.put_edges(...) gave",
    ),
}


@pytest.mark.parametrize("name", WRONG_ARRAYS)
def test_arrays(sharded, name):
    call, message = WRONG_ARRAYS[name]
    with pytest.raises(GraphError) as error:
        call(sharded)
    text = str(error.value)
    if "layer: " in text:  # which says where it stands first
        where, text = text.split("layer: ")
        assert where.startswith("test_mistakes.py:")
    assert text == message


@gnnjit.layer
def total(v, e):
    return gnnjit.sum(e.src)


def test_a_mesh_with_explicit_axes(sharded):
    x = sharded.put(np.ones((N, 2), np.float32))
    explicit = jax.make_mesh((4,), ("d",), (jax.sharding.AxisType.Explicit,))
    message = "under a mesh with explicit axes (d), expected automatic ones: use jax.set_mesh(gra"
    with jax.set_mesh(explicit), pytest.raises(LayerError, match=re.escape(message)):
        total(sharded, x)
    with jax.set_mesh(sharded.mesh):
        np.testing.assert_array_equal(total(sharded, x)[:, 0], sharded.in_degree)
