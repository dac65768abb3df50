"""Compiled layers, values and gradients, against an oracle under `vmap` with `segment_sum`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit

from .cases import CASES, GRAPHS, Case, Edges, features, layer_of
from .plain import plain


def weights(outs: Any) -> list[Any]:
    rng = np.random.default_rng(7)
    return [jnp.asarray(rng.normal(size=o.shape), o.dtype) for o in outs]


def expected(case: Case, e: Edges, at: Any) -> list[Any]:
    """The oracle's outputs, as the layer gives them; 0 on padding edges."""
    count, real = len(e.src), jnp.asarray(e.real)
    data = jnp.where(real[:, None], at["data"], 0)
    outs = jax.tree.leaves(plain(case.fn, e, at["src"], at["dst"], data, at["p"]))

    def pick(x: Any, kind: str) -> Any:
        if kind == "e":
            return jnp.where(real.reshape((-1,) + (1,) * (x.ndim - 1)), x[:count], 0)
        return x[count:] if kind == "v" else x[0]

    return [pick(x, k) for x, k in zip(outs, case.kinds, strict=True)]


def got(layer: Any, e: Edges, graph: Any, at: Any) -> list[Any]:
    x = gnnjit.Bipartite(at["src"], at["dst"]) if e.bipartite else at["dst"]
    return jax.tree.leaves(layer(graph, x, at["p"], edges=at["data"]))


def compare(case: Case, e: Edges, seed: int = 0) -> None:
    at, layer, graph = features(e, seed), layer_of(case.fn), e.graph()
    if not e.bipartite:  # one array: the oracle's source gradient is part of the other
        at = {k: v for k, v in at.items() if k != "src"}

    def both(f: Any) -> Any:
        def loss(at: Any) -> Any:
            outs = f({"src": at["dst"], **at})
            return sum(jnp.vdot(w, o) for w, o in zip(weights(outs), outs, strict=True)), outs

        return jax.jit(jax.value_and_grad(loss, has_aux=True))(at)

    (_, want), want_grad = both(lambda at: expected(case, e, at))
    (_, have), have_grad = both(lambda at: got(layer, e, graph, at))
    for a, b in zip(have, want, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
    flat = jax.tree.leaves_with_path
    for (path, a), (_, b) in zip(flat(have_grad), flat(want_grad), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize("graph", ["hub", "bipartite", "padding"])
@pytest.mark.parametrize("name", CASES)
def test_layers(name, graph):
    compare(CASES[name], GRAPHS[graph])


@pytest.mark.parametrize("name", ["gat_concat", "pna", "graph_net"])
@pytest.mark.parametrize("graph", [g for g in GRAPHS if g not in ("hub", "bipartite", "padding")])
def test_graphs(name, graph):
    compare(CASES[name], GRAPHS[graph])
