"""Classifiers, recipes, and the shape of their parameter trees."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from gnnjit import Graph, neighborhood
from gnnjit.nn.recipes import MODELS, RECIPES, Recipe, build, build_graph, recipe_for

from . import formulas

GRAPH = Graph.from_edges(*formulas.random_edges(0), formulas.NUM_NODES)
X = jnp.asarray(np.random.default_rng(0).normal(size=(formulas.NUM_NODES, 6)), jnp.float32)
SIZES = {"in_features": 6, "hidden": 4, "num_classes": 3, "heads": 2, "dropout": 0.5}


def finite(tree: object) -> bool:
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree))


@pytest.mark.long
@pytest.mark.parametrize(("model", "layers"), [*((m, 2) for m in MODELS), ("gcn", 1), ("ggnn", 1)])
def test_vertex_classifier(model: str, layers: int) -> None:
    net = build(model, layers=layers, rngs=nnx.Rngs(0), **SIZES)
    plain = net(GRAPH, X)
    assert plain.shape == (formulas.NUM_NODES, 3)
    assert finite(plain)

    @nnx.jit
    def step(net: nnx.Module) -> tuple[jax.Array, nnx.State]:
        return nnx.value_and_grad(lambda n: jnp.sum(n(GRAPH, X, key=jax.random.key(0)) ** 2))(net)

    loss, gradient = step(net)
    assert finite((loss, gradient))
    assert loss != jnp.sum(plain**2)


@pytest.mark.long
@pytest.mark.parametrize("model", MODELS)
def test_graph_classifier_ignores_padding(model: str) -> None:
    net = build_graph(model, layers=2, rngs=nnx.Rngs(0), **{**SIZES, "dropout": 0.0})
    index = jnp.asarray([0] * 7 + [1] * 2)
    padded = GRAPH.pad(formulas.NUM_NODES + 4, GRAPH.num_edges + 6)
    noise = jnp.concatenate([X, jnp.full((4, 6), 7.0)])
    far = jnp.concatenate([index, jnp.full(4, 2)])
    for key in (jax.random.key(0), None):
        got = net(padded, noise, far, 2, key=key)
        want = net(GRAPH, X, index, 2, key=key)
        assert got.shape == (2, 3)
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


def test_readout_mean() -> None:
    net = build_graph("gcn", layers=1, readout="mean", rngs=nnx.Rngs(0), **SIZES)
    twice = Graph.from_edges([0, 1], [1, 0], 2)
    once = Graph.from_edges([0], [0], 1)
    x = jnp.ones((2, 6))
    a = net(twice, x, jnp.zeros(2, int), 1)
    b = net(once, x[:1], jnp.zeros(1, int), 1)
    np.testing.assert_allclose(a, b, rtol=1e-5)


def test_parameter_tree_of_gat() -> None:
    net = build("gat", layers=2, rngs=nnx.Rngs(0), **SIZES)
    got = jax.tree.map(jnp.shape, nnx.to_pure_dict(nnx.state(net, nnx.Param)))["layers"]
    assert got == {
        0: {
            "linear": {"kernel": (6, 8)},
            "attend_src": (2, 4),
            "attend_dst": (2, 4),
            "bias": (8,),
        },
        1: {
            "linear": {"kernel": (8, 3)},
            "attend_src": (1, 3),
            "attend_dst": (1, 3),
            "bias": (3,),
        },
    }


@pytest.mark.parametrize(("decay", "layers"), [("first", {0}), ("all", {0, 1})])
def test_weight_decay_acts_on(decay: str, layers: set[int]) -> None:
    recipe = Recipe("gcn", decay=decay, weight_decay=0.5)
    net = recipe.build(6, 3, nnx.Rngs(0))
    params = nnx.state(net, nnx.Param)
    optimizer = recipe.optimizer()
    zeros = jax.tree.map(jnp.zeros_like, params)
    updates, _ = optimizer.update(zeros, optimizer.init(params), params)
    moved = {p for p, leaf in nnx.to_flat_state(updates) if np.abs(leaf[...]).max() > 0}
    assert moved == {("layers", i, "linear", "kernel") for i in layers}


@pytest.mark.parametrize("pair", [p for p in RECIPES if RECIPES[p].task in ("vertex", "graph")])
def test_recipes_build(pair: tuple[str, str]) -> None:
    recipe = RECIPES[pair]
    net = recipe.build(6, 3, nnx.Rngs(0))
    if recipe.task == "vertex":
        graph = neighborhood.hops(GRAPH, recipe.layers) if recipe.model == "jknet" else GRAPH
        assert net(graph, X).shape == (formulas.NUM_NODES, 3)
    else:
        assert net(GRAPH, X, jnp.zeros(formulas.NUM_NODES, int), 1).shape == (1, 3)
    assert isinstance(recipe.optimizer(), optax.GradientTransformation)
    assert recipe_for(*pair) is recipe


def test_recipe_for_any_pair() -> None:
    assert recipe_for("karate", "gatv2").model == "gatv2"


def test_unknown_model() -> None:
    with pytest.raises(ValueError, match="unknown model 'gnc', expected one of: gcn, sage"):
        build("gnc", layers=1, rngs=nnx.Rngs(0), **SIZES)


def test_unknown_readout() -> None:
    with pytest.raises(ValueError, match="readout must be sum or mean, got 'max'"):
        build_graph("gin", layers=1, readout="max", rngs=nnx.Rngs(0), **SIZES)


def test_recipes_of_links_build_no_classifier() -> None:
    with pytest.raises(ValueError, match=r"^a recipe of the task 'link' builds no classifier"):
        RECIPES["fb15k-237", "rgcn"].build(6, 3, nnx.Rngs(0))
