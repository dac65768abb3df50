"""The linen twins compute what the nnx modules do, with the same parameters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import gnnjit
from gnnjit import Graph, nn
from gnnjit.nn import linen as twins

from . import formulas

SRC, DST = formulas.random_edges(0)
GRAPH = Graph.from_edges(SRC, DST, formulas.NUM_NODES)
X = jnp.asarray(np.random.default_rng(0).integers(-3, 4, (formulas.NUM_NODES, 5)), jnp.float32)

PAIRS = {
    "gcn": (twins.GCN(4), nn.GCN(5, 4, rngs=nnx.Rngs(0)), formulas.gcn),
    "sage": (
        twins.SAGE(4, "max"),
        nn.SAGE(5, 4, aggregator="max", rngs=nnx.Rngs(0)),
        formulas.sage,
    ),
    "gat": (twins.GAT(4, heads=2), nn.GAT(5, 4, heads=2, rngs=nnx.Rngs(0)), formulas.gat),
    "gin": (
        twins.GIN(3, 4, train_eps=True),
        nn.GIN(5, 3, 4, train_eps=True, rngs=nnx.Rngs(0)),
        formulas.gin,
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("name", PAIRS)
def test_twin(name: str, jit: bool) -> None:
    twin, module, formula = PAIRS[name]
    init, apply = (jax.jit(twin.init), jax.jit(twin.apply)) if jit else (twin.init, twin.apply)
    variables = init(jax.random.key(1), GRAPH, X)
    assert list(variables) == ["params"]
    params = variables["params"][name]
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(
        jnp.shape, nnx.to_pure_dict(nnx.state(module, nnx.Param))
    )
    state = nnx.state(module, nnx.Param)
    nnx.replace_by_pure_dict(state, params)
    nnx.update(module, state)
    got = apply(variables, GRAPH, X)
    np.testing.assert_allclose(got, formula(module, SRC, DST, X), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", PAIRS)
def test_gradient(name: str) -> None:
    twin = PAIRS[name][0]
    variables = twin.init(jax.random.key(1), GRAPH, X)
    gradient = jax.grad(lambda v: jnp.sum(twin.apply(v, GRAPH, X) ** 2))(variables)
    assert jax.tree.map(jnp.shape, gradient) == jax.tree.map(jnp.shape, variables)
    assert any(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradient))


def test_dropout_of_attention_needs_a_key() -> None:
    twin = twins.GAT(4, dropout=0.5)
    variables = twin.init(jax.random.key(1), GRAPH, X)
    plain = twin.apply(variables, GRAPH, X)
    dropped: Any = twin.apply(variables, GRAPH, X, key=jax.random.key(2))
    assert (plain != dropped).any()


WITH_EDGES = {
    "gcn": (twins.GCN(4), formulas.gcn, ()),
    "sage": (twins.SAGE(4), formulas.sage, ()),
    "gat": (twins.GAT(4, edge_features=2), formulas.gat, (2,)),
    "gin": (twins.GIN(3, 4, edge_features=2), formulas.gin, (2,)),
}


@pytest.mark.parametrize("name", WITH_EDGES)
def test_edge_features(name: str) -> None:
    twin, formula, shape = WITH_EDGES[name]
    data = jnp.asarray(np.random.default_rng(1).uniform(1, 2, (len(SRC), *shape)), jnp.float32)
    variables = twin.init(jax.random.key(1), GRAPH, X, edges=data)
    module = {
        "gcn": lambda: nn.GCN(5, 4, rngs=nnx.Rngs(0)),
        "sage": lambda: nn.SAGE(5, 4, rngs=nnx.Rngs(0)),
        "gat": lambda: nn.GAT(5, 4, edge_features=2, rngs=nnx.Rngs(0)),
        "gin": lambda: nn.GIN(5, 3, 4, edge_features=2, rngs=nnx.Rngs(0)),
    }[name]()
    state = nnx.state(module, nnx.Param)
    nnx.replace_by_pure_dict(state, variables["params"][name])
    nnx.update(module, state)
    got = twin.apply(variables, GRAPH, X, edges=data)
    np.testing.assert_allclose(got, formula(module, SRC, DST, X, data), rtol=1e-4, atol=1e-4)


class _Own(linen.Module):
    """A user's linen module with a layer method."""

    def setup(self) -> None:
        self.dense = linen.Dense(4)

    @gnnjit.layer
    def __call__(self, v: Any, e: Any) -> jax.Array:
        return gnnjit.sum(self.dense(e.src))


def test_submodules_of_setup_are_made_in_init() -> None:
    variables = _Own().init(jax.random.key(0), GRAPH, X)
    kernel = variables["params"]["dense"]["kernel"]
    want = formulas.total((X @ kernel)[SRC], DST)
    np.testing.assert_allclose(_Own().apply(variables, GRAPH, X), want, rtol=1e-4, atol=1e-5)
