"""Layers for tests of shards, as functions `fn(graph, x, d, p) -> Out` of features, edge data and
parameters."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import gnnjit
from gnnjit.nn import GAT, GCN, GIN, SAGE, GatedGCN

from .graphs import Edges, Out

F = 3


def arguments(e: Edges, seed: int = 0) -> tuple[Any, Any, Any]:
    """`x`, `d` and `p` for the functions below."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    p = {"w": draw(F, 4), "u": draw(F, 4), "c": draw(3 * F, 4)}
    return draw(e.num_nodes, F), draw(len(e.src), F), p


@gnnjit.layer
def _gated(v: Any, e: Any, p: Any) -> Any:
    gate = jax.nn.sigmoid(e.src @ p["w"] + v @ p["u"])
    return gnnjit.sum(gate * (e.src @ p["u"]))


def gated(graph: Any, x: Any, d: Any, p: Any) -> Out:
    return Out(vertex=_gated(graph, x, p))


@gnnjit.layer
def _graph_net(v: Any, e: Any, p: Any) -> Any:
    edge = jax.nn.silu(jnp.concatenate([e.src, e.dst, e.data]) @ p["c"])
    return edge, jnp.concatenate([v @ p["w"], gnnjit.sum(edge)]), p["w"] * 2


def graph_net(graph: Any, x: Any, d: Any, p: Any) -> Out:
    edge, vertex, shared = _graph_net(graph, x, p, edges=d)
    return Out(vertex, edge, shared)


@gnnjit.layer
def _endpoints(v: Any, e: Any, p: Any) -> Any:
    return jnp.tanh(e.dst), (e.src, e.src * v, e.data, 0 * e.data + p["w"][0, 0])


def endpoints(graph: Any, x: Any, d: Any, p: Any) -> Out:
    """Edge values of every space they may be computed in."""
    vertex, edge = _endpoints(graph, x, p, edges=d)
    return Out(vertex, edge)


@gnnjit.layer
def _extremes(v: Any, e: Any, p: Any) -> Any:
    near, far = gnnjit.min(jnp.tanh(e.dst - e.src) @ p["w"]), gnnjit.max(e.src @ p["w"])
    return far - near, gnnjit.max(e.src * e.data, initial=0.5)


def extremes(graph: Any, x: Any, d: Any, p: Any) -> Out:
    return Out(vertex=_extremes(graph, x, p, edges=d))


@gnnjit.layer
def _moments(v: Any, e: Any, p: Any) -> Any:
    m = e.src @ p["w"] + v @ p["u"]
    scale = jnp.log(gnnjit.degree() + 1.0)
    return jnp.concatenate([gnnjit.mean(m), gnnjit.std(m), gnnjit.var(e.src @ p["w"])]) * scale


def moments(graph: Any, x: Any, d: Any, p: Any) -> Out:
    return Out(vertex=_moments(graph, x, p))


@gnnjit.layer
def _soft(v: Any, e: Any, p: Any) -> Any:
    weight = gnnjit.softmax(e.data)
    return gnnjit.logsumexp(e.src * v, initial=-2.0) + gnnjit.sum(weight * e.src), weight


def soft(graph: Any, x: Any, d: Any, p: Any) -> Out:
    vertex, edge = _soft(graph, x, p, edges=d)
    return Out(vertex, edge)


@gnnjit.layer
def _attention(v: Any, e: Any, p: Any) -> Any:
    z = e.src @ p["w"]
    score = jnp.tanh(z @ p["u"][0] + (v @ p["w"]) @ p["u"][1])
    return gnnjit.sum(gnnjit.softmax(score) * z) + gnnjit.max(score)


def two_layers(graph: Any, x: Any, d: Any, p: Any) -> Out:
    """With matrices between them, of rows that are padding too."""
    h = jax.nn.elu(_attention(graph, x, p) @ p["u"].T + x)
    return Out(vertex=_attention(graph, h, p))


@gnnjit.layer
def _vectors(v: Any, e: Any, p: Any) -> Any:
    return gnnjit.sum(jnp.outer(e.data, e.src)) @ p["w"] + jnp.outer(v, v) @ p["u"]


def vectors(graph: Any, x: Any, d: Any, p: Any) -> Out:
    """A matrix on each of several rows of a vertex."""
    return Out(vertex=_vectors(graph, x, p, edges=d))


FUNCTIONS = {
    f.__name__: f
    for f in (gated, graph_net, endpoints, extremes, moments, soft, two_layers, vectors)
}

MODULES = {
    "gcn": lambda r: GCN(F, F, rngs=r),
    "gcn weighted": lambda r: GCN(F, F, rngs=r),
    "sage": lambda r: SAGE(F, F, rngs=r),
    "sage pool": lambda r: SAGE(F, F, aggregator="pool", rngs=r),
    "gat": lambda r: GAT(F, 2, heads=2, rngs=r),
    "gated": lambda r: GatedGCN(F, F, rngs=r),
    "gin": lambda r: GIN(F, F, F, train_eps=True, rngs=r),
}


@functools.cache
def of_module(name: str) -> tuple[Any, Any]:
    """A module as a function, and its parameters."""
    definition, params, rest = nnx.split(MODULES[name](nnx.Rngs(0)), nnx.Param, ...)

    def fn(graph: Any, x: Any, d: Any, p: Any) -> Out:
        options = {"edges": jnp.square(d[:, 0])} if name == "gcn weighted" else {}
        return Out(vertex=nnx.merge(definition, p, rest)(graph, x, **options))

    return fn, params
