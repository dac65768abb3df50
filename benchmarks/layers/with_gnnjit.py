"""The layers as gnnjit's users have them: `gnnjit.nn`, or a few lines of its vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
from flax import nnx
from workloads import HEADS, Workload, parameters

import gnnjit
import gnnjit.nn
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


def _module(make: Callable[[int], nnx.Module], places: Mapping[str, str]) -> Apply:
    """A module whose variables are set: `places` has the path of each parameter."""

    def apply(graph: Any, x: jax.Array, p: dict[str, jax.Array]) -> jax.Array:
        module: Any = make(x.shape[1])
        for name, path in places.items():
            owner = module
            *above, last = path.split(".")
            for part in above:
                owner = getattr(owner, part)
            getattr(owner, last)[...] = p[name]
        return module(graph, x)

    return apply


def _heads(kind: Any) -> Callable[[int], nnx.Module]:
    return lambda f: kind(f, f // HEADS, heads=HEADS, rngs=nnx.Rngs(0))


def _plain(kind: Any) -> Callable[[int], nnx.Module]:
    return lambda f: kind(f, f, rngs=nnx.Rngs(0))


APPLY: dict[str, Apply] = {
    "linear": lambda g, x, p: _linear(g[0], x, edges=g[1]),
    "sum": lambda g, x, p: _sum(g, x),
    "resgated": lambda g, x, p: _res_gated(g, x, p),
    "gcn": _module(_plain(gnnjit.nn.GCN), {"w": "linear.kernel", "b": "bias"}),
    "sage": _module(
        _plain(gnnjit.nn.SAGE),
        {"own": "own.kernel", "b": "own.bias", "neighbors": "neighbors.kernel"},
    ),
    "gin": _module(
        lambda f: gnnjit.nn.GIN(f, f, f, rngs=nnx.Rngs(0)),
        {"w1": "hidden.kernel", "b1": "hidden.bias", "w2": "out.kernel", "b2": "out.bias"},
    ),
    "gat": _module(
        _heads(gnnjit.nn.GAT),
        {"w": "linear.kernel", "src": "attend_src", "dst": "attend_dst", "b": "bias"},
    ),
    "gatv2": _module(
        _heads(gnnjit.nn.GATv2),
        {
            "w_src": "src.kernel", "b_src": "src.bias", "w_dst": "dst.kernel",
            "b_dst": "dst.bias", "a": "attention", "b": "bias",
        },
    ),
    "gatedgcn": _module(
        _plain(gnnjit.nn.GatedGCN),
        {"dst": "gate_dst.kernel", "src": "gate_src.kernel", "w": "linear.kernel"},
    ),
}  # fmt: skip


def build(layer: str, configuration: str, work: Workload, threads: int) -> JaxCase:
    """The layer on `work`, its graph sorted and on the device."""
    graph: Any = gnnjit.Graph.from_edges(work.src, work.dst, work.sizes.vertices)
    if layer == "linear":
        graph = (graph, work.weight)
    return JaxCase(APPLY[layer], graph, work.x, parameters(layer, work.sizes), work.cotangent)
