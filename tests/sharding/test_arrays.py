"""The user's arrays on the shards, and back."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit

from .graphs import EXCHANGES, GRAPHS, assert_same

HUB = GRAPHS["hub"]


def tree(count: int) -> dict:
    rng = np.random.default_rng(0)
    return {
        "features": rng.normal(size=(count, 2, 3)).astype(np.float32),
        "half": np.asarray(jnp.asarray(rng.normal(size=(count, 2)), jnp.bfloat16)),
        "labels": (rng.integers(-9, 9, count).astype(np.int32), rng.random(count) < 0.5),
        "scalar": rng.normal(size=count).astype(np.float32),
        "nothing": np.zeros((count, 0), np.float32),
        "none": None,
    }


def assert_equal(got, want) -> None:
    assert_same(got, want, rtol=0, atol=0)


@pytest.fixture(params=EXCHANGES)
def sharded(request):
    return HUB.shard(4, request.param, "at random")


def test_there_and_back(sharded):
    vertices, edges = tree(HUB.num_nodes), tree(len(HUB.src))
    there = sharded.put(vertices), sharded.put_edges(edges)
    assert all(x.sharding == sharded.sharding for x in jax.tree.leaves(there))
    assert_equal((sharded.get(there[0]), sharded.get_edges(there[1])), (vertices, edges))


def test_there_and_back_inside_a_compiled_function(sharded):
    vertices, edges = tree(HUB.num_nodes), tree(len(HUB.src))
    there = jax.jit(lambda g, x, d: (g.put(x), g.put_edges(d)))(sharded, vertices, edges)
    assert_equal(
        jax.device_get(there), jax.device_get((sharded.put(vertices), sharded.put_edges(edges)))
    )
    back = jax.jit(lambda g, x, d: (g.get(x), g.get_edges(d)))(sharded, *there)
    assert_equal(jax.device_get(back), (vertices, edges))


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("name", ["no edges", "fewer vertices than devices"])
def test_few_elements(name, exchange):
    e = GRAPHS[name]
    sharded = e.shard(8, exchange)
    vertices, edges = tree(e.num_nodes), tree(len(e.src))
    traced = jax.jit(lambda g, x, d: (g.put(x), g.put_edges(d)))(sharded, vertices, edges)
    for x, d in (traced, (sharded.put(vertices), sharded.put_edges(edges))):
        assert_equal((sharded.get(x), sharded.get_edges(d)), (vertices, edges))


def test_padding_is_zero(sharded):
    ones = sharded.put(np.ones(HUB.num_nodes)), sharded.put_edges(np.ones(len(HUB.src)))
    np.testing.assert_array_equal(ones[0] != 0, sharded.vertex_mask)
    np.testing.assert_array_equal(ones[1] != 0, sharded.mask)
    assert sharded.vertex_mask.sum() == HUB.num_nodes
    assert sharded.mask.sum() == len(HUB.src)


@pytest.mark.parametrize("space", ["in", "out"])
def test_degrees(sharded, space):
    want = np.bincount({"in": HUB.dst, "out": HUB.src}[space], minlength=HUB.num_nodes)
    np.testing.assert_array_equal(sharded.get(sharded.degree(space)), want)
    assert sharded.degree(space)[~sharded.vertex_mask].sum() == 0


def test_numbers(sharded):
    np.testing.assert_array_equal(sharded.get(sharded.numbers("dst")), np.arange(HUB.num_nodes))
    np.testing.assert_array_equal(
        sharded.get_edges(sharded.numbers("edge")), np.arange(len(HUB.src))
    )


def test_gradients_through_put(sharded):
    x = np.random.default_rng(0).normal(size=HUB.num_nodes).astype(np.float32)
    got = jax.grad(lambda x: jnp.sum(jnp.sin(sharded.put(x))))(x)
    np.testing.assert_allclose(got, np.cos(x), rtol=1e-6)


def test_it_is_a_pytree(sharded):
    leaves, treedef = jax.tree.flatten(sharded)
    again = jax.tree.unflatten(treedef, leaves)
    assert (again.num_nodes, again.mesh) == (HUB.num_nodes, sharded.mesh)
    assert all(leaf.sharding == sharded.sharding for leaf in leaves)


def test_a_graph_that_is_captured():
    """Nothing among the arguments says what devices there are."""
    sharded = HUB.shard(4, "halo")
    x = sharded.put(np.ones((HUB.num_nodes, 3), np.float32))

    @gnnjit.layer
    def layer(v, e, w):
        return gnnjit.sum(e.src) * w

    loss, gradient = jax.jit(jax.value_and_grad(lambda w: layer(sharded, x, w).sum()))(2.0)
    assert loss == 2 * gradient == 2 * 3 * len(HUB.src)
