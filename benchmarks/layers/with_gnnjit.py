"""The layers as gnnjit's users have them: `gnnjit.nn`, or a few lines of its vocabulary."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common.workloads import Workload, parameters
from flax import nnx

import gnnjit
import gnnjit.nn
from gnnjit.lower import choose
from layers.case import Execution
from layers.jax_case import Apply, JaxCase


@gnnjit.layer
def _linear(v: Any, e: Any) -> jax.Array:
    return gnnjit.sum(e.data * e.src)


@gnnjit.layer
def _sum(v: Any, e: Any) -> jax.Array:
    return gnnjit.sum(e.src)


@gnnjit.layer
def _res_gated(v: jax.Array, e: Any, p: dict[str, jax.Array]) -> jax.Array:
    """Bresson & Laurent (2017), equation 11, as in PyG."""
    gate = jax.nn.sigmoid(v @ p["key"] + p["b_key"] + e.src @ p["query"] + p["b_query"])
    return gnnjit.sum(gate * (e.src @ p["value"] + p["b_value"])) + v @ p["skip"] + p["b"]


@gnnjit.layer
def _pna(v: jax.Array, e: Any, p: dict[str, jax.Array], delta: jax.Array) -> jax.Array:
    """Corso et al., "Principal Neighbourhood Aggregation" (2020), equation 7, and the sum."""
    reductions = (gnnjit.sum, gnnjit.mean, gnnjit.max, gnnjit.min, gnnjit.std)
    every = jnp.concatenate([reduce(e.src) for reduce in reductions])
    degree = gnnjit.degree().astype(delta.dtype)
    amplify = (jnp.log(degree + 1) / delta).astype(v.dtype)
    attenuate = (delta / jnp.log(jnp.maximum(degree, 1) + 1)).astype(v.dtype)
    scaled = jnp.concatenate([every, every * amplify, every * attenuate])
    return v @ p["own"] + scaled @ p["w"] + p["b"]


def _norm(x: jax.Array, scale: jax.Array, shift: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x
    wide = wide - wide.mean()
    wide = wide * jax.lax.rsqrt(jnp.square(wide).mean() + 1e-5)
    return wide.astype(x.dtype) * scale + shift


@gnnjit.layer
def _gns(v: jax.Array, e: Any, p: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Sanchez-Gonzalez et al. (2020), section 3.2, as in GraphCast: vertices and edges out."""
    hidden = jnp.concatenate([e.data, e.src, e.dst]) @ p["e1"] + p["c1"]
    message = jax.nn.relu(hidden) @ p["e2"] + p["c2"]
    message = _norm(message, p["e_scale"], p["e_shift"])
    both = jnp.concatenate([v, gnnjit.sum(message)])
    update = jax.nn.relu(both @ p["v1"] + p["b1"]) @ p["v2"] + p["b2"]
    return v + _norm(update, p["v_scale"], p["v_shift"]), e.data + message


def _transformer(heads: int) -> Callable[..., Any]:
    @gnnjit.layer
    def layer(v: jax.Array, e: Any, p: dict[str, jax.Array]) -> jax.Array:
        """Shi et al. (2021), equations 3 and 4 without the gate, as PyG's `TransformerConv`."""
        query = (v @ p["query"] + p["b_query"]).reshape(heads, -1)
        key = (e.src @ p["key"] + p["b_key"]).reshape(heads, -1)
        value = (e.src @ p["value"] + p["b_value"]).reshape(heads, -1)
        weight = gnnjit.softmax(jnp.sum(query * key, -1) / query.shape[-1] ** 0.5)
        return gnnjit.sum(weight[:, None] * value).reshape(-1) + v @ p["skip"] + p["b"]

    return layer


class _Module:
    """A layer of `gnnjit.nn` on given parameters: `places` has the path of each."""

    def __init__(self, make: Callable[[int, Any], nnx.Module], places: Mapping[str, str]) -> None:
        self._make = make
        self._places = {name: tuple(path.split(".")) for name, path in places.items()}

    def __call__(self, graph: Any, x: jax.Array, p: dict[str, jax.Array]) -> jax.Array:
        return self.made(x.shape[1], p)(graph, x, p)

    def made(self, width: int, like: Any) -> Apply:
        """The layer for parameters of these shapes: a user makes a module before `jax.jit`."""
        graph_def, state = nnx.split(self._make(width, like))
        variables = dict(nnx.to_flat_state(state))

        def apply(graph: Any, x: jax.Array, p: dict[str, jax.Array]) -> jax.Array:
            given = {path: nnx.Param(p[name]) for name, path in self._places.items()}
            module: Any = nnx.merge(graph_def, nnx.from_flat_state(variables | given))
            return module(graph, x)

        return apply


def _heads(kind: Any, scores: str) -> Callable[[int, Any], nnx.Module]:
    """`scores` names a parameter of shape `[H, D]`."""

    def make(f: int, p: Any) -> nnx.Module:
        heads, width = p[scores].shape
        return kind(f, width, heads=heads, rngs=nnx.Rngs(0))

    return make


def _plain(kind: Any) -> Callable[[int, Any], nnx.Module]:
    return lambda f, p: kind(f, f, rngs=nnx.Rngs(0))


APPLY: dict[str, Apply] = {
    "linear": lambda g, x, p: _linear(g[0], x, edges=g[1]),
    "sum": lambda g, x, p: _sum(g, x),
    "resgated": lambda g, x, p: _res_gated(g, x, p),
    "pna": lambda g, x, p: _pna(g[0], x, p, g[1]),
    "gns": lambda g, x, p: _gns(g, x[0], p, edges=x[1]),
    "gcn": _Module(_plain(gnnjit.nn.GCN), {"w": "linear.kernel", "b": "bias"}),
    "sage": _Module(
        _plain(gnnjit.nn.SAGE),
        {"own": "own.kernel", "b": "own.bias", "neighbors": "neighbors.kernel"},
    ),
    "gin": _Module(
        lambda f, p: gnnjit.nn.GIN(f, f, f, rngs=nnx.Rngs(0)),
        {"w1": "hidden.kernel", "b1": "hidden.bias", "w2": "out.kernel", "b2": "out.bias"},
    ),
    "gat": _Module(
        _heads(gnnjit.nn.GAT, "src"),
        {"w": "linear.kernel", "src": "attend_src", "dst": "attend_dst", "b": "bias"},
    ),
    "gatv2": _Module(
        _heads(gnnjit.nn.GATv2, "a"),
        {
            "w_src": "src.kernel", "b_src": "src.bias", "w_dst": "dst.kernel",
            "b_dst": "dst.bias", "a": "attention", "b": "bias",
        },
    ),
    "gatedgcn": _Module(
        _plain(gnnjit.nn.GatedGCN),
        {"dst": "gate_dst.kernel", "src": "gate_src.kernel", "w": "linear.kernel"},
    ),
}  # fmt: skip


class _Preferring(JaxCase):
    """A case that is held to one lowering."""

    def context(self) -> contextlib.AbstractContextManager[Any]:
        return choose.prefer("bucketed")


def build(layer: str, configuration: str, work: Workload, setting: Execution) -> JaxCase:
    """The layer on `work`, its graph sorted and on the device."""
    graph: Any = gnnjit.Graph.from_edges(work.src, work.dst, work.sizes.vertices)
    if layer == "linear":
        graph = (graph, jnp.asarray(work.weight, setting.dtype))
    if layer == "pna":
        degree = np.bincount(work.dst, minlength=work.sizes.vertices)
        graph = (graph, np.log(degree + 1.0).mean().astype(np.float32))
    layer_of = APPLY.get(layer)
    if layer == "transformer":
        transformer = _transformer(work.sizes.heads)
        layer_of = lambda g, x, p: transformer(g, x, p)  # noqa: E731
    assert layer_of is not None
    if isinstance(layer_of, _Module):
        layer_of = layer_of.made(work.sizes.features, parameters(layer, work.sizes))
    case = _Preferring if configuration == "bucketed" else JaxCase
    return case(layer_of, graph, layer, work, setting)
