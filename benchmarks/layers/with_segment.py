"""The layers as a careful user of JAX writes them by hand: gather, then `segment_sum`.

Careful: whatever depends on one endpoint is computed once per vertex, edges are sorted by
destination and said to be, self loops and degrees are made once, ahead.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common.workloads import Workload, with_self_loops

from layers.case import Execution
from layers.jax_case import Apply, JaxCase

SELF_LOOPS = ("gcn", "gat", "gatv2")


def _wide(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x


def _total(g: dict[str, jax.Array], values: jax.Array) -> jax.Array:
    """The sum over each row; of half precision in float32."""
    n = len(g["degree"])
    total = jax.ops.segment_sum(_wide(values), g["dst"], n, indices_are_sorted=True)
    return total.astype(values.dtype)


def _mean(g: dict[str, jax.Array], values: jax.Array) -> jax.Array:
    total = _total(g, _wide(values))
    return (total / jnp.maximum(g["degree"], 1)[:, None]).astype(values.dtype)


def _linear(g: Any, x: jax.Array, p: Any) -> jax.Array:
    return _total(g, x[g["src"]] * g["weight"][:, None].astype(x.dtype))


def _sum(g: Any, x: jax.Array, p: Any) -> jax.Array:
    return _total(g, x[g["src"]])


def _gcn(g: Any, x: jax.Array, p: Any) -> jax.Array:
    scale = jax.lax.rsqrt(g["degree"])[:, None].astype(x.dtype)
    return scale * _total(g, (scale * (x @ p["w"]))[g["src"]]) + p["b"]


def _sage(g: Any, x: jax.Array, p: Any) -> jax.Array:
    return x @ p["own"] + p["b"] + _mean(g, x[g["src"]]) @ p["neighbors"]


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
    z = (x @ p["w"]).reshape(len(x), *p["src"].shape)
    at_src, at_dst = jnp.sum(z * p["src"], -1), jnp.sum(z * p["dst"], -1)
    score = jax.nn.leaky_relu(at_src[g["src"]] + at_dst[g["dst"]], 0.2)
    return _attend(g, score, z) + p["b"]


def _gatv2(g: Any, x: jax.Array, p: Any) -> jax.Array:
    z_src = (x @ p["w_src"] + p["b_src"]).reshape(len(x), *p["a"].shape)
    z_dst = (x @ p["w_dst"] + p["b_dst"]).reshape(len(x), *p["a"].shape)
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


def _finite(x: jax.Array) -> jax.Array:
    return jnp.where(jnp.isfinite(x), x, 0)


def _pna(g: Any, x: jax.Array, p: Any) -> jax.Array:
    values, n = x[g["src"]], len(g["degree"])
    top = jax.ops.segment_max(values, g["dst"], n, indices_are_sorted=True)
    low = jax.ops.segment_min(values, g["dst"], n, indices_are_sorted=True)
    mean = _mean(g, _wide(values))
    variance = _mean(g, jnp.square(_wide(values) - mean[g["dst"]]))
    std = jnp.where(variance > 0, jnp.sqrt(jnp.where(variance > 0, variance, 1)), 0)
    parts = (_total(g, values), mean, _finite(top), _finite(low), std)
    every = jnp.concatenate([part.astype(x.dtype) for part in parts], axis=1)
    amplify = (jnp.log(g["degree"] + 1) / g["delta"])[:, None].astype(x.dtype)
    attenuate = (g["delta"] / jnp.log(jnp.maximum(g["degree"], 1) + 1))[:, None].astype(x.dtype)
    scaled = jnp.concatenate([every, every * amplify, every * attenuate], axis=1)
    return x @ p["own"] + scaled @ p["w"] + p["b"]


def _norm(x: jax.Array, scale: jax.Array, shift: jax.Array) -> jax.Array:
    wide = _wide(x)
    wide = wide - wide.mean(-1, keepdims=True)
    wide = wide * jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + 1e-5)
    return wide.astype(x.dtype) * scale + shift


def _gns(g: Any, x: Any, p: Any) -> tuple[jax.Array, jax.Array]:
    """GraphCast's newest form: the first matrix is split by hand, and applied before the gather."""
    x, edges = x
    on_edge, at_src, at_dst = jnp.split(p["e1"], 3)
    hidden = edges @ on_edge + (x @ at_src)[g["src"]] + (x @ at_dst + p["c1"])[g["dst"]]
    message = jax.nn.relu(hidden) @ p["e2"] + p["c2"]
    message = _norm(message, p["e_scale"], p["e_shift"])
    both = jnp.concatenate([x, _total(g, message)], axis=1)
    update = jax.nn.relu(both @ p["v1"] + p["b1"]) @ p["v2"] + p["b2"]
    return x + _norm(update, p["v_scale"], p["v_shift"]), edges + message


def _transformer(heads: int) -> Apply:
    def apply(g: Any, x: jax.Array, p: Any) -> jax.Array:
        shape = (len(x), heads, -1)
        query = (x @ p["query"] + p["b_query"]).reshape(shape)
        key = (x @ p["key"] + p["b_key"]).reshape(shape)
        value = (x @ p["value"] + p["b_value"]).reshape(shape)
        score = jnp.sum(query[g["dst"]] * key[g["src"]], -1) / query.shape[-1] ** 0.5
        return _attend(g, score, value) + x @ p["skip"] + p["b"]

    return apply


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
    "pna": _pna,
    "gns": _gns,
}


def build(layer: str, configuration: str, work: Workload, setting: Execution) -> JaxCase:
    """The layer on `work`."""
    apply = apply_of(layer, work.sizes.heads)
    arrays: dict[str, Any] = graph(layer, work)
    if "weight" in arrays:
        arrays["weight"] = jnp.asarray(arrays["weight"], setting.dtype)
    return JaxCase(apply, arrays, layer, work, setting)


def apply_of(layer: str, heads: int) -> Apply:
    """The function of a layer."""
    return _transformer(heads) if layer == "transformer" else APPLY[layer]


def graph(layer: str, work: Workload) -> dict[str, np.ndarray]:
    """What the functions above read."""
    src, dst = with_self_loops(work) if layer in SELF_LOOPS else (work.src, work.dst)
    degree = np.bincount(dst, minlength=work.sizes.vertices).astype(np.float32)
    found = {"src": src, "dst": dst, "degree": degree}
    if layer == "linear":
        found["weight"] = work.weight
    if layer == "pna":
        found["delta"] = np.log(degree + 1).mean(dtype=np.float64).astype(np.float32)
    return found
