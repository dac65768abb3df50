"""A fold over the edges of a vertex on shards is that of one device, in value and gradient."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit.errors import LayerError

from .graphs import assert_same, mesh

F, N, E = 3, 13, 50


def graph() -> gnnjit.Graph:
    src, dst = np.random.default_rng(0).integers(0, N - 1, (2, E))
    return gnnjit.Graph.from_edges(src, np.minimum(dst, 7), N)  # a hub, and some without edges


@gnnjit.layer
def gru(v: Any, e: Any, w: Any) -> Any:
    def step(h: Any, message: Any) -> Any:
        gate = jax.nn.sigmoid(h @ w["gate"] + message["z"])
        return gate * h + (1 - gate) * jnp.tanh(message["z"] * message["d"] + v)

    d, order = e.data
    return gnnjit.fold(step, v, {"z": e.src @ w["in"], "d": d}, order=order)


def value_and_gradients(graph: Any, args: Any, weight: Any) -> Any:
    def loss(args: Any) -> Any:
        x, d, w, order = args
        out = gru(graph, x, w, edges=(d, order))
        return jnp.sum(jnp.cos(out) * weight), out

    (x, d, w, _), out = jax.grad(loss, has_aux=True)(args)
    return x, d, w, out


@pytest.mark.parametrize(
    "exchange",
    ["halo", *(pytest.param(x, marks=pytest.mark.long) for x in ("all_gather", "cover"))],
)
def test_folds(exchange: str) -> None:
    rng, g = np.random.default_rng(1), graph()
    x, d, order, weight = (np.float32(rng.normal(size=n)) for n in ((N, F), (E, F), E, (N, 1)))
    w = {name: np.float32(rng.normal(size=(F, F))) for name in ("gate", "in")}
    s = gnnjit.shard(g, mesh(3), exchange=exchange)
    run = jax.jit(value_and_gradients)
    rows = s.put(x), s.put_edges(d), w, s.put_edges(order)
    dx, dd, dw, out = run(s, rows, s.put(weight))
    want = jax.tree.map(np.asarray, run(g, (x, d, w, order), weight))
    assert_same((s.get(dx), s.get_edges(dd), jax.tree.map(np.asarray, dw), s.get(out)), want)


@pytest.mark.parametrize(
    ("options", "exchange", "message"),
    [
        (
            {"over": "out"},
            "halo",
            r'fold with over="out" on a sharded graph, .* the reversed graph',
        ),
        ({}, "ring", r"sharded with exchange='ring', expected another .* with exchange='halo'"),
    ],
)
def test_what_is_refused(options: Any, exchange: str, message: str) -> None:
    s = gnnjit.shard(graph(), mesh(2), exchange=exchange)
    start = jnp.zeros(F)
    layer = gnnjit.layer(lambda v, e: gnnjit.fold(lambda h, z: h + z, start, e.src * v, **options))
    with pytest.raises(LayerError, match=message):
        layer(s, s.put(np.ones((N, F), np.float32)))
