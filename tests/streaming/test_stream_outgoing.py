"""Reductions over outgoing edges of a streamed graph give what they give in memory."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit

from .functions import PerEdge, PerVertex, assert_same, in_memory, in_parts, random_edges

F = 3
EDGES = random_edges(40, 160)


@gnnjit.layer
def block(v: Any, e: Any, p: Any) -> Any:
    edge = jnp.tanh(jnp.concatenate([e.data, e.src, v]) @ p)
    weight = gnnjit.softmax(edge, over="out")
    out = gnnjit.mean(edge, over="out") * v + gnnjit.sum(weight * edge)
    return out + gnnjit.max(edge, over="out") + gnnjit.degree(over="out")


def values(graph: Any, x: Any, d: Any, p: Any) -> Any:
    return block(graph, x, p, edges=d)


def gradients(graph: Any, x: Any, d: Any, p: Any) -> Any:
    return jax.grad(lambda *xs: jnp.sum(jnp.cos(values(graph, *xs))), (0, 1, 2))(x, d, p)


@pytest.mark.parametrize("fn", [values, gradients])
@pytest.mark.parametrize("parts", [1, 3])
def test_a_block_with_sent_edges(fn: Any, parts: int) -> None:
    rng = np.random.default_rng(0)
    x, d, p = (np.float32(rng.normal(size=(n, F))) for n in (40, len(EDGES.src), 3 * F))
    args = PerVertex(x), PerEdge(d), p
    assert_same(in_parts(fn, EDGES, *args, parts=parts), in_memory(fn, EDGES, *args), 1e-4, 1e-4)


def test_products_are_streamed() -> None:
    x = np.random.default_rng(0).normal(size=(40, F)).astype(np.float32)

    def value(graph: Any, x: Any) -> Any:
        layer = gnnjit.layer(lambda v, e: gnnjit.prod(1 + e.src * v) + gnnjit.all(e.src < 2))
        return layer(graph, x)

    args = (PerVertex(x),)
    assert_same(in_parts(value, EDGES, *args, parts=3), in_memory(value, EDGES, *args), 1e-4, 1e-4)


@pytest.mark.parametrize("word", ["fold", "median"])
def test_what_takes_edges_in_turn(word: str) -> None:
    words = {
        "fold": lambda v, e: gnnjit.fold(lambda s, z: s + z, v, e.src),
        "median": lambda v, e: gnnjit.median(e.src),
    }
    layer = gnnjit.layer(words[word])
    args = (PerVertex(np.ones((40, F), np.float32)),)
    with pytest.raises(gnnjit.errors.GnnjitError, match="on a streamed graph"):
        in_parts(lambda graph, x: layer(graph, x), EDGES, *args, parts=3)
