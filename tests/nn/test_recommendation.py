"""LightGCN and NGCF between users and items: what their formulas, in test_modules, leave open."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gnnjit import Bipartite, Graph
from gnnjit.errors import LayerError
from gnnjit.nn import GCN, NGCF, LightGCN
from gnnjit.nn.recommender import Recommender
from gnnjit.sample import NeighborSampler

USERS, ITEMS, F = 6, 4, 3
RNG = np.random.default_rng(0)
USER, ITEM = RNG.integers(0, USERS - 1, 12), RNG.integers(0, ITEMS, 12)  # the last user has none
BETWEEN = Graph.from_edges(USER, ITEM, num_src=USERS, num_dst=ITEMS)
WHOLE = Graph.from_edges(
    np.concatenate([USER, ITEM + USERS]), np.concatenate([ITEM + USERS, USER]), USERS + ITEMS
)
X = RNG.normal(size=(USERS + ITEMS, F)).astype(np.float32)
BOTH = Bipartite(X[:USERS], X[USERS:])
MODULES = {
    "lightgcn": lambda: LightGCN(3),
    "ngcf": lambda: NGCF(F, [4, 2], normalize=True, rngs=nnx.Rngs(0)),
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_a_bipartite_graph_is_that_of_users_then_items(name: str, weighted: bool) -> None:
    module: Any = MODULES[name]()
    weight = RNG.uniform(0.5, 2, len(USER)).astype(np.float32) if weighted else None

    def loss(x: Any, whole: bool) -> Any:
        edges = np.concatenate([weight, weight]) if whole and weight is not None else weight
        out = module(WHOLE if whole else BETWEEN, x, edges=edges)
        out = out if whole else jnp.concatenate([out.src, out.dst])
        return jnp.sum(jnp.sin(out)), out

    grad = jax.grad(loss, has_aux=True)
    (by_both, got), (by_x, want) = grad(BOTH, False), grad(jnp.asarray(X), True)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    by_both = np.concatenate([by_both.src, by_both.dst])
    np.testing.assert_allclose(by_both, by_x, rtol=1e-4, atol=1e-5)


def test_weighted_degrees_between_two_vertex_sets() -> None:
    """In all modules that divide by degrees."""
    module = GCN(F, 2, self_loops=False, rngs=nnx.Rngs(0))
    weight = RNG.uniform(0.5, 2, len(USER)).astype(np.float32)
    a = np.zeros((ITEMS, USERS))
    np.add.at(a, (ITEM, USER), weight)
    degrees = np.outer(a.sum(1), a.sum(0))
    a = np.divide(a, np.sqrt(degrees), out=np.zeros_like(a), where=degrees > 0)
    got = module(BETWEEN, BOTH, edges=weight)
    np.testing.assert_allclose(got, a @ BOTH.src @ module.linear.kernel[...], rtol=1e-5, atol=1e-6)


def test_dropout_draws_for_each_side_and_layer() -> None:
    module = NGCF(F, [2, 2], dropout=0.5, rngs=nnx.Rngs(0))
    square = Graph.from_edges([0, 1, 2, 3], [0, 1, 2, 3], num_src=4, num_dst=4)
    same = jnp.tile(jnp.asarray(X[:4, :1]), (1, F))
    one, again, other = (
        module(square, Bipartite(same, same), key=jax.random.key(k)) for k in (0, 0, 1)
    )
    np.testing.assert_array_equal(one.src, again.src)
    assert (one.src != other.src).any()
    assert (one.src != one.dst).any()
    assert ((one.src == 0)[:, 3:5] != (one.src == 0)[:, 5:7]).any()
    full = NGCF(F, [2, 2], rngs=nnx.Rngs(0))(square, Bipartite(same, same))
    kept = (one.src != 0)[:, 3:5]
    np.testing.assert_allclose(one.src[:, 3:5][kept], 2 * full.src[:, 3:5][kept], rtol=1e-5)


WIDTH = "expected a whole number from 1 to 2147483647: pass an int"
MISTAKES = {
    "steps": (
        lambda: LightGCN(-1),
        "nn.LightGCN: steps is -1, expected a whole number from 0 to 2147483647: pass an int",
    ),
    "too few weights": (
        lambda: LightGCN(2, weights=[1.0, 0.5]),
        "nn.LightGCN: weights is [1.0, 0.5], expected 3 numbers, one for the embeddings and one "
        "for each step: pass a list of them",
    ),
    "a weight": (
        lambda: LightGCN(1, weights=[1.0, "half"]),  # type: ignore
        "nn.LightGCN: weights[1] is 'half', expected a finite real number: pass a float",
    ),
    "one width": (
        lambda: NGCF(F, 64, rngs=nnx.Rngs(0)),  # type: ignore
        "nn.NGCF: hidden is 64, expected the widths of the layers: pass a list, as in [64, 64, 64]",
    ),
    "a width": (
        lambda: NGCF(F, [64, 0], rngs=nnx.Rngs(0)), f"nn.NGCF: hidden[1] is 0, {WIDTH}",
    ),
    "a form": (
        lambda: NGCF(F, [2], form="mean", rngs=nnx.Rngs(0)),
        "nn.NGCF: form is 'mean', expected one of 'code', 'paper': pass one of them",
    ),
    "one array for both": (
        lambda: LightGCN(1)(BETWEEN, X[:ITEMS]),
        "nn.LightGCN: the graph has 6 sources and 4 destinations, but x is one array, expected one "
        "for each: pass gnnjit.Bipartite(src=..., dst=...)",
    ),
    "a block": (
        lambda: LightGCN(1)(NeighborSampler(WHOLE, [2]).sample([0]).graphs()[0], X),
        "LightGCN was given a block of a sampled batch, expected a whole graph: each of its steps "
        "reads what the one before computed at all vertices. Sample subgraphs instead "
        "(gnnjit.sample.ClusterSampler, WalkSampler, InducedSampler)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_messages(name: str) -> None:
    call, message = MISTAKES[name]
    with pytest.raises(LayerError) as caught:
        call()
    assert str(caught.value) == message


def test_ngcf_of_a_recommender_starts_as_means_of_neighbours():
    """With the second matrices at 0, a layer is the leaky mean over a vertex and its neighbours."""
    model = Recommender("ngcf", 6, hidden=F, layers=2, rngs=nnx.Rngs(0))
    for linear in model.layers.both:
        linear.kernel[...] = jnp.zeros_like(linear.kernel[...])
    graph = Graph.from_edges([0, 3, 1, 4, 2, 5], [3, 0, 4, 1, 5, 2], num_nodes=6)
    h = model.embedding[...]
    assert 0.05 < float(jnp.std(h)) < 0.2
    wanted = [h]
    for _ in range(2):
        h = jax.nn.leaky_relu((h + jnp.roll(h, 3, axis=0)) / 2, 0.2)
        wanted.append(h / jnp.linalg.norm(h, axis=1, keepdims=True))
    np.testing.assert_allclose(model(graph), jnp.concatenate(wanted, axis=1), rtol=2e-5, atol=1e-6)
