"""Values and gradients on shards are those of one device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit.partition.partition import equal_edges

from .functions import FUNCTIONS, MODULES, F, arguments, of_module
from .graphs import EXCHANGES, GRAPHS, PARTITIONS, assert_alike, assert_same, mesh

HUB = GRAPHS["hub"]


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name, exchange):
    sharded = HUB.shard(4, exchange, "at random")
    assert_alike(FUNCTIONS[name], HUB, sharded, *arguments(HUB))


@pytest.mark.long
@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("name", MODULES)
def test_modules(name, exchange):
    fn, params = of_module(name)
    x, d, _ = arguments(HUB)
    assert_alike(fn, HUB, HUB.shard(3, exchange, "at random"), x, d, params)


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("shards", [1, 2, 8])
def test_numbers_of_shards(shards, exchange):
    sharded = HUB.shard(shards, exchange, "edges")
    assert_alike(FUNCTIONS["two_layers"], HUB, sharded, *arguments(HUB))


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("partition", PARTITIONS)
def test_partitions(partition, exchange):
    sharded = GRAPHS["isolated"].shard(4, exchange, partition)
    assert_alike(FUNCTIONS["soft"], GRAPHS["isolated"], sharded, *arguments(GRAPHS["isolated"]))


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("name", [name for name in GRAPHS if name != "hub"])
def test_graphs(name, exchange):
    e = GRAPHS[name]
    assert_alike(FUNCTIONS["graph_net"], e, e.shard(4, exchange), *arguments(e))


def test_a_partition_object():
    partition = equal_edges(np.bincount(HUB.dst, minlength=HUB.num_nodes), 4)
    sharded = gnnjit.shard(HUB.graph(), mesh(4), partition=partition, exchange="halo")
    assert_alike(FUNCTIONS["gated"], HUB, sharded, *arguments(HUB))


def test_the_empty_graph():
    graph = gnnjit.Graph.from_edges([], [], 0)
    sharded = gnnjit.shard(graph, mesh(2), partition="vertices", exchange="halo")
    layer = gnnjit.layer(lambda v, e: gnnjit.sum(e.src))
    assert sharded.get(layer(sharded, sharded.put(np.zeros((0, F))))).shape == (0, F)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_whole_numbers(exchange):
    @gnnjit.layer
    def layer(v, e):
        i, b = e.src["i"], e.src["b"]
        vertex = gnnjit.max(i), gnnjit.min(i), gnnjit.sum(i), gnnjit.max(b), gnnjit.degree()
        return vertex, i + v["i"]

    rng = np.random.default_rng(0)
    x = {
        "i": rng.integers(-9, 9, HUB.num_nodes).astype(np.int32),
        "b": rng.random(HUB.num_nodes) < 0.5,
    }
    sharded = HUB.shard(4, exchange, "at random")
    vertex, edge = layer(sharded, sharded.put(x))
    want = jax.tree.map(np.asarray, layer(HUB.graph(), x))
    assert_same((sharded.get(vertex), sharded.get_edges(edge)), want)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_half_precision(exchange):
    x, _, p = jax.tree.map(lambda a: jnp.asarray(a, jnp.bfloat16), arguments(HUB))
    sharded = HUB.shard(4, exchange, "at random")
    got = sharded.get(FUNCTIONS["gated"](sharded, sharded.put(x), None, p).vertex)
    want = FUNCTIONS["gated"](HUB.graph(), x, None, p).vertex
    assert_same(got, np.asarray(want), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("axis", ["a", "b"])
def test_one_axis_of_a_mesh_with_two(axis, exchange):
    devices = mesh(8).devices.reshape(4, 2)
    both = jax.sharding.Mesh(devices, ("a", "b"))
    sharded = gnnjit.shard(HUB.graph(), both, axis, partition="vertices", exchange=exchange)
    assert_alike(FUNCTIONS["gated"], HUB, sharded, *arguments(HUB))


@pytest.mark.parametrize("axis_type", list(jax.sharding.AxisType))
def test_meshes_of_any_axis_type(axis_type):
    typed = jax.make_mesh((4,), ("x",), axis_types=(axis_type,), devices=mesh(4).devices)
    sharded = gnnjit.shard(HUB.graph(), typed, partition="vertices", exchange="halo")
    assert_alike(FUNCTIONS["gated"], HUB, sharded, *arguments(HUB))


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_edges_that_are_padding(exchange):
    """They keep their places in arrays, and the others their numbers."""
    mask = np.array([1, 0, 1, 0, 1, 1], bool)
    graph = gnnjit.Graph.from_edges([0, 9, 1, -1, 2, 2], [1, 0, 1, 77, 0, 1], 4, edge_mask=mask)
    sharded = gnnjit.shard(graph, mesh(3), partition="vertices", exchange=exchange)

    @gnnjit.layer
    def layer(v, e, key):
        return gnnjit.sum(gnnjit.dropout(e.src * e.data, 0.5, key)), e.src * e.data

    rng = np.random.default_rng(0)
    x, d = (rng.normal(size=(n, 8)).astype(np.float32) for n in (4, 6))
    d[~mask] = np.nan
    key = jax.random.key(0)
    vertex, edge = layer(sharded, sharded.put(x), key, edges=sharded.put_edges(d))
    want = jax.tree.map(np.asarray, layer(graph, x, key, edges=d))
    assert_same((sharded.get(vertex), sharded.get_edges(edge)), want)
