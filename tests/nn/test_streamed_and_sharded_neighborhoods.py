"""Each model over neighbourhoods that are streamed, and that are sharded, beside those in memory:
values, and gradients by parameters and features."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh
from neighborhood.naive import movies

import gnnjit
from gnnjit import neighborhood
from gnnjit.neighborhood import HDG
from gnnjit.nn import MAGNN, PGNN, JKNet, PinSage

GRAPH = gnnjit.Graph.from_edges(
    [0, 1, 2, 0, 3, 4, 5, 1, 2, 2], [1, 2, 0, 3, 4, 5, 0, 1, 3, 3], num_nodes=7
)
"""Two circles that share vertex 0, a self loop, an edge twice, an isolated vertex."""

Case = tuple[HDG, nnx.Module, Callable[..., Any], Any]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(2).normal(size=shape).astype(np.float32)


def pinsage() -> Case:
    hdg = neighborhood.random_walks(GRAPH, num_walks=4, length=3, top_k=2)
    return hdg, PinSage(4, 3, rngs=nnx.Rngs(0)), lambda m, h, x: h(x, m), normal(7, 4)


def jk_net() -> Case:
    module = JKNet(4, 3, hops=3, jump="attention", rngs=nnx.Rngs(0))
    return neighborhood.hops(GRAPH, 3), module, lambda m, h, x: m(h, x), normal(7, 4)


def p_gnn() -> Case:
    hdg = neighborhood.anchors(GRAPH, [[5, 2], [6], [0, 1, 3]])
    return hdg, PGNN(4, 3, rngs=nnx.Rngs(0)), lambda m, h, x: m(h, x), normal(7, 4)


def magnn() -> Case:
    paths = [["m", "d", "m"], ["m", "a", "m"], ["m", "a", "m", "d", "m"]]
    hdg = neighborhood.metapaths(movies(), paths, cap=5)
    module = MAGNN(
        {"m": 3, "d": 2, "a": 5}, 3, hidden=4, heads=2, types=hdg.types, paths=3, longest=5,
        semantic_features=3, rngs=nnx.Rngs(0),
    )  # fmt: skip
    x = {"m": normal(6, 3), "d": normal(3, 2), "a": normal(4, 5)}
    return hdg, module, lambda m, h, x: m(h, x), x


def streamed(hdg: HDG, x: Any) -> Any:
    return neighborhood.stream(hdg, 3), x, lambda y: y, lambda y: y


def sharded(hdg: HDG, x: Any) -> Any:
    mesh = Mesh(np.array(jax.devices()[:4]), "d")
    found = neighborhood.shard(hdg, mesh, exchange="halo")
    return found, found.put(hdg, x), found.get, found.get_features


@pytest.mark.parametrize("form", [streamed, sharded])
@pytest.mark.parametrize(
    "model", [jk_net, *(pytest.param(m, marks=pytest.mark.long) for m in (pinsage, p_gnn, magnn))]
)
def test_as_in_memory(model: Any, form: Any) -> None:
    hdg, module, run, x = model()
    graphdef, state = nnx.split(module)
    rng = np.random.default_rng(1)
    state = jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape), p.dtype), state)

    def loss(state: Any, x: Any, hdg: Any, real: Any) -> Any:
        out = run(nnx.merge(graphdef, state), hdg, x)
        return sum(jnp.sum(jnp.sin(y) * real[:, None]) for y in jax.tree.leaves(out)), out

    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    real = np.ones(hdg.num_roots, np.float32)
    (want, out), (of_state, of_x) = step(state, x, hdg, real)
    other, placed, get, get_features = form(hdg, x)
    placed_real = other.levels[-1].put(real) if form is sharded else real
    (found, got), (by_state, by_x) = step(state, placed, other, placed_real)
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
    close(found, want)
    jax.tree.map(close, get(got), out)
    jax.tree.map(close, by_state, of_state)
    jax.tree.map(close, get_features(by_x), of_x)
