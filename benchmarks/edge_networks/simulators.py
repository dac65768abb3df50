"""Networks that predict a simulation's next step: edges and vertices out, residuals on both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import gnnjit
from edge_networks.network import (
    BLOCKS,
    Arrays,
    Block,
    Inputs,
    Network,
    Shapes,
    norm,
    product,
    segment_sum,
)


def _shapes(f: int) -> Shapes:
    return {"in": (3 * f, f), "b": (f,), "out": (f, f), "scale": (f,), "up": (2 * f, f),
            "down": (f, f), "scale2": (f,)}  # fmt: skip


def _forms(act: Callable[[Any], Any]) -> tuple[Block, Block, Block]:
    """The block with one hidden layer in both networks: with gnnjit, plain, and split."""

    def vertex(p: Arrays, x: Any, total: Any) -> Any:
        hidden = act(jnp.concatenate([x, total], -1) @ p["up"])
        return x + norm(hidden @ p["down"], p["scale2"])

    @gnnjit.layer
    def step(v: Any, e: Any, p: Arrays) -> Any:
        message = act(jnp.concatenate([v, e.src, e.data]) @ p["in"] + p["b"])
        message = norm(message @ p["out"], p["scale"])
        return {"x": vertex(p, v, gnnjit.sum(message)), "e": e.data + message}

    def layer(p: Arrays, state: Arrays, i: Inputs) -> dict[str, Any]:
        return step(i.graph, state["x"], p, edges=state["e"])

    def end(p: Arrays, state: Arrays, i: Inputs, hidden: Any) -> dict[str, Any]:
        message = norm(act(hidden) @ p["out"], p["scale"])
        total = segment_sum(message, i)
        return {"x": vertex(p, state["x"], total), "e": state["e"] + message}

    def plain(p: Arrays, state: Arrays, i: Inputs) -> dict[str, Any]:
        x = state["x"]
        triple = jnp.concatenate([x[i.dst], x[i.src], state["e"]], -1)
        return end(p, state, i, triple @ p["in"] + p["b"])

    def split(p: Arrays, state: Arrays, i: Inputs) -> dict[str, Any]:
        x = state["x"]
        f = x.shape[1]
        own, other = x @ p["in"][:f] + p["b"], x @ p["in"][f : 2 * f]
        return end(p, state, i, own[i.dst] + other[i.src] + state["e"] @ p["in"][2 * f :])

    return layer, plain, split


def _flops(n: int, e: int, f: int) -> float:
    """Vertices: both endpoints' parts of the first product, and the network of vertices. Edges:
    the edge's part, and the second product."""
    return BLOCKS * (product(n, 5 * f, f) + product(e, 2 * f, f))


def _network(act: Callable[[Any], Any], **options: Any) -> Network:
    layer, plain, split = _forms(act)
    return Network(
        _shapes, lambda f: {"x": (f,)}, layer, plain, split, _flops, edge=lambda f: {"e": (f,)},
        **options,
    )  # fmt: skip


GNS = _network(jax.nn.relu)
"""Sanchez-Gonzalez et al., "Learning to Simulate Complex Physics with Graph Networks" (2020), one
block of the processor."""

GRAPHCAST = _network(jax.nn.silu, dtype=jnp.bfloat16, tolerance=5e-2)
"""Lam et al., "GraphCast" (2023), a step of the processor: swish; bfloat16, sums in float32."""
