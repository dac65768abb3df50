"""The layers as a careful user of JAX writes them by hand: gather, then `segment_sum`.

Careful: whatever depends on one endpoint is computed once per vertex, edges are sorted by
destination and said to be, self loops and degrees are made once, ahead.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from workloads import HEADS, Workload, parameters, with_self_loops

from layers.jax_case import Apply, JaxCase

SELF_LOOPS = ("gcn", "gat", "gatv2")


def _total(g: dict[str, jax.Array], values: jax.Array) -> jax.Array:
    return jax.ops.segment_sum(values, g["dst"], len(g["degree"]), indices_are_sorted=True)


def _linear(g: Any, x: jax.Array, p: Any) -> jax.Array:
    return _total(g, x[g["src"]] * g["weight"][:, None])


def _sum(g: Any, x: jax.Array, p: Any) -> jax.Array:
    return _total(g, x[g["src"]])


def _gcn(g: Any, x: jax.Array, p: Any) -> jax.Array:
    scale = jax.lax.rsqrt(g["degree"])[:, None]
    return scale * _total(g, (scale * (x @ p["w"]))[g["src"]]) + p["b"]


def _sage(g: Any, x: jax.Array, p: Any) -> jax.Array:
    mean = _total(g, x[g["src"]]) / jnp.maximum(g["degree"], 1)[:, None]
    return x @ p["own"] + p["b"] + mean @ p["neighbors"]


def _gin(g: Any, x: jax.Array, p: Any) -> jax.Array:
    hidden = (x + _total(g, x[g["src"]])) @ p["w1"] + p["b1"]
    return jax.nn.relu(hidden) @ p["w2"] + p["b2"]


def _attend(g: Any, score: jax.Array, value: jax.Array) -> jax.Array:
    """`score: [E, H]`, `value: [N, H, D]`; as in `jraph.segment_softmax`."""
    n = len(g["degree"])
    top = jax.ops.segment_max(score, g["dst"], n, indices_are_sorted=True)
    raised = jnp.exp(score - jax.lax.stop_gradient(top)[g["dst"]])
    weight = raised / _total(g, raised)[g["dst"]]
    return _total(g, weight[:, :, None] * value[g["src"]]).reshape(n, -1)


def _gat(g: Any, x: jax.Array, p: Any) -> jax.Array:
    z = (x @ p["w"]).reshape(len(x), HEADS, -1)
    at_src, at_dst = jnp.sum(z * p["src"], -1), jnp.sum(z * p["dst"], -1)
    score = jax.nn.leaky_relu(at_src[g["src"]] + at_dst[g["dst"]], 0.2)
    return _attend(g, score, z) + p["b"]


def _gatv2(g: Any, x: jax.Array, p: Any) -> jax.Array:
    z_src = (x @ p["w_src"] + p["b_src"]).reshape(len(x), HEADS, -1)
    z_dst = (x @ p["w_dst"] + p["b_dst"]).reshape(len(x), HEADS, -1)
    hidden = jax.nn.leaky_relu(z_src[g["src"]] + z_dst[g["dst"]], 0.2)
    return _attend(g, jnp.sum(hidden * p["a"], -1), z_src) + p["b"]


def _gated_gcn(g: Any, x: jax.Array, p: Any) -> jax.Array:
    gate = jax.nn.sigmoid((x @ p["dst"])[g["dst"]] + (x @ p["src"])[g["src"]])
    return _total(g, gate * x[g["src"]]) @ p["w"]


def _res_gated(g: Any, x: jax.Array, p: Any) -> jax.Array:
    key, query = x @ p["key"] + p["b_key"], x @ p["query"] + p["b_query"]
    value = x @ p["value"] + p["b_value"]
    gate = jax.nn.sigmoid(key[g["dst"]] + query[g["src"]])
    return _total(g, gate * value[g["src"]]) + x @ p["skip"] + p["b"]


APPLY: dict[str, Apply] = {
    "linear": _linear,
    "sum": _sum,
    "gcn": _gcn,
    "sage": _sage,
    "gin": _gin,
    "gat": _gat,
    "gatv2": _gatv2,
    "gatedgcn": _gated_gcn,
    "resgated": _res_gated,
}


def build(layer: str, configuration: str, work: Workload, threads: int) -> JaxCase:
    """The layer on `work`."""
    src, dst = with_self_loops(work) if layer in SELF_LOOPS else (work.src, work.dst)
    degree = np.bincount(dst, minlength=work.sizes.vertices).astype(np.float32)
    graph = {"src": src, "dst": dst, "degree": degree}
    if layer == "linear":
        graph["weight"] = work.weight
    return JaxCase(APPLY[layer], graph, work.x, parameters(layer, work.sizes), work.cotangent)
