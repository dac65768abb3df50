"""Layers whose matrices multiply every message, in gnnjit's vocabulary and in plain JAX.

Each model has three forms of the same function of its parameters: `layer` as a user of gnnjit
writes it, `plain` with gathers, a concatenation and `jax.ops.segment_sum`, and `split`, plain too,
where what reads one endpoint alone is multiplied once per vertex.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gnnjit

Arrays = Mapping[str, Any]
Function = Callable[[Arrays, "Inputs"], Any]


@dataclasses.dataclass(frozen=True)
class Inputs:
    """A graph for gnnjit and for plain JAX, and features. Edges are sorted by destination.

    x: `[N, F]`; r: positions `[N, 3]`; a: features of edges `[E, 8]`.
    """

    graph: gnnjit.Graph
    src: jax.Array
    dst: jax.Array
    x: jax.Array
    r: jax.Array
    a: jax.Array


jax.tree_util.register_dataclass(
    Inputs, [f.name for f in dataclasses.fields(Inputs)], meta_fields=[]
)


def make(vertices: int, edges: int, width: int, seed: int = 0) -> Inputs:
    """A random graph and random features."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, vertices, (2, edges)).astype(np.int32)
    order = np.lexsort((src, dst))
    src, dst = src[order], dst[order]
    graph = gnnjit.Graph.from_edges(src, dst, num_nodes=vertices)
    x, r, a = (rng.normal(size=s).astype(np.float32) for s in
               [(vertices, width), (vertices, 3), (edges, 8)])  # fmt: skip
    return Inputs(graph, *map(jnp.asarray, (src, dst, x, r, a)))


def parameters(shapes: Mapping[str, tuple[int, ...]], seed: int = 1) -> dict[str, jax.Array]:
    """Random parameters: matrices scaled by their inputs, scales and biases small."""
    rng = np.random.default_rng(seed)
    return {
        name: jnp.asarray(rng.normal(size=s) / np.sqrt(s[0] if len(s) > 1 else 10), jnp.float32)
        for name, s in shapes.items()
    }


@dataclasses.dataclass(frozen=True)
class Model:
    """`shapes` gives the parameters' shapes for a width; the others a number to differentiate."""

    shapes: Callable[[int], dict[str, tuple[int, ...]]]
    layer: Function
    plain: Function
    split: Function


def segment_sum(x: Any, i: Inputs) -> Any:
    return jax.ops.segment_sum(x, i.dst, i.x.shape[0], indices_are_sorted=True)


def norm(x: Any, scale: Any) -> Any:
    """Layer normalisation without a bias."""
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-6) * scale


# -- EGNN ------------------------------------------------------------------------------------------
# Satorras et al., "E(n) Equivariant Graph Neural Networks" (2021), equations 3 to 6.


def _egnn_shapes(f: int) -> dict[str, tuple[int, ...]]:
    return {"in": (2 * f + 1, f), "b": (f,), "mid": (f, f), "pos": (f, f), "out": (f, 1),
            "up": (2 * f, f)}  # fmt: skip


@gnnjit.layer
def _egnn_layer(v: Any, e: Any, p: Arrays) -> Any:
    step = v["r"] - e.src["r"]
    pair = jnp.concatenate([v["x"], e.src["x"], jnp.sum(step * step, keepdims=True)])
    m = jax.nn.silu(jax.nn.silu(pair @ p["in"] + p["b"]) @ p["mid"])
    moved = v["r"] + gnnjit.mean(step * (jax.nn.silu(m @ p["pos"]) @ p["out"]))
    new = v["x"] + jax.nn.silu(jnp.concatenate([v["x"], gnnjit.sum(m)]) @ p["up"])
    return {"x": new, "r": moved}


def _egnn_end(p: Arrays, i: Inputs, step: Any, hidden: Any) -> Any:
    m = jax.nn.silu(jax.nn.silu(hidden) @ p["mid"])
    degree = jnp.maximum(segment_sum(jnp.ones_like(step[:, :1]), i), 1)
    moved = i.r + segment_sum(step * (jax.nn.silu(m @ p["pos"]) @ p["out"]), i) / degree
    new = i.x + jax.nn.silu(jnp.concatenate([i.x, segment_sum(m, i)], -1) @ p["up"])
    return jnp.square(new).mean() + jnp.square(moved).mean()


def _egnn(p: Arrays, i: Inputs) -> Any:
    out = _egnn_layer(i.graph, {"x": i.x, "r": i.r}, p)
    return jnp.square(out["x"]).mean() + jnp.square(out["r"]).mean()


def _egnn_plain(p: Arrays, i: Inputs) -> Any:
    step = i.r[i.dst] - i.r[i.src]
    distance = jnp.sum(step * step, -1, keepdims=True)
    pair = jnp.concatenate([i.x[i.dst], i.x[i.src], distance], -1)
    return _egnn_end(p, i, step, pair @ p["in"] + p["b"])


def _egnn_split(p: Arrays, i: Inputs) -> Any:
    f = i.x.shape[1]
    step = i.r[i.dst] - i.r[i.src]
    distance = jnp.sum(step * step, -1, keepdims=True)
    own, other = i.x @ p["in"][:f] + p["b"], i.x @ p["in"][f : 2 * f]
    return _egnn_end(p, i, step, own[i.dst] + other[i.src] + distance * p["in"][2 * f])


# -- GNS -------------------------------------------------------------------------------------------
# Sanchez-Gonzalez et al., "Learning to Simulate Complex Physics with Graph Networks" (2020), one
# block of the processor.


def _gns_shapes(f: int) -> dict[str, tuple[int, ...]]:
    return {"edge": (8, f), "in": (3 * f, f), "b": (f,), "out": (f, f), "scale": (f,),
            "up": (2 * f, f), "down": (f, f), "scale2": (f,)}  # fmt: skip


def _gns_vertex(p: Arrays, x: Any, total: Any) -> Any:
    hidden = jax.nn.relu(jnp.concatenate([x, total], -1) @ p["up"])
    return x + norm(hidden @ p["down"], p["scale2"])


@gnnjit.layer
def _gns_layer(v: Any, e: Any, p: Arrays) -> Any:
    message = jnp.concatenate([v, e.src, e.data]) @ p["in"] + p["b"]
    message = norm(jax.nn.relu(message) @ p["out"], p["scale"])
    return _gns_vertex(p, v, gnnjit.sum(message)), e.data + message


def _gns(p: Arrays, i: Inputs) -> Any:
    new, message = _gns_layer(i.graph, i.x, p, edges=i.a @ p["edge"])
    return jnp.square(new).mean() + jnp.square(message).mean()


def _gns_end(p: Arrays, i: Inputs, edges: Any, hidden: Any) -> Any:
    message = norm(jax.nn.relu(hidden) @ p["out"], p["scale"])
    new = _gns_vertex(p, i.x, segment_sum(message, i))
    return jnp.square(new).mean() + jnp.square(edges + message).mean()


def _gns_plain(p: Arrays, i: Inputs) -> Any:
    edges = i.a @ p["edge"]
    triple = jnp.concatenate([i.x[i.dst], i.x[i.src], edges], -1)
    return _gns_end(p, i, edges, triple @ p["in"] + p["b"])


def _gns_split(p: Arrays, i: Inputs) -> Any:
    f, edges = i.x.shape[1], i.a @ p["edge"]
    own, other = i.x @ p["in"][:f] + p["b"], i.x @ p["in"][f : 2 * f]
    return _gns_end(p, i, edges, own[i.dst] + other[i.src] + edges @ p["in"][2 * f :])


# -- SchNet ----------------------------------------------------------------------------------------
# Schutt et al., "SchNet" (2017), section 4.1: continuous-filter convolutions.

CENTRES = 20


def _schnet_shapes(f: int) -> dict[str, tuple[int, ...]]:
    return {"w": (f, f), "f1": (CENTRES, f), "b": (f,), "f2": (f, f), "o1": (f, f), "o2": (f, 1)}


def _softplus(x: Any) -> Any:
    return jax.nn.softplus(x) - jnp.log(2.0)


def _basis(step: Any) -> Any:
    distance = jnp.sqrt(jnp.sum(step * step, -1, keepdims=True) + 1e-6)
    return jnp.exp(-10 * jnp.square(distance - jnp.linspace(0, 4, CENTRES, dtype=step.dtype)))


@gnnjit.layer
def _schnet_layer(v: Any, e: Any, p: Arrays) -> Any:
    filters = _softplus(_basis(v["r"] - e.src["r"]) @ p["f1"] + p["b"]) @ p["f2"]
    return _softplus(gnnjit.sum((e.src["x"] @ p["w"]) * filters) @ p["o1"]) @ p["o2"]


def _schnet_energy(p: Arrays, i: Inputs) -> Any:
    return _schnet_layer(i.graph, {"x": i.x, "r": i.r}, p).sum()


def _schnet_energy_plain(p: Arrays, i: Inputs) -> Any:
    step = i.r[i.dst] - i.r[i.src]
    filters = _softplus(_basis(step) @ p["f1"] + p["b"]) @ p["f2"]
    total = segment_sum((i.x @ p["w"])[i.src] * filters, i)
    return (_softplus(total @ p["o1"]) @ p["o2"]).sum()


def _forces(energy: Function) -> Function:
    """A loss of forces: its gradient is one of second order."""

    def loss(p: Arrays, i: Inputs) -> Any:
        force = jax.grad(lambda r: energy(p, dataclasses.replace(i, r=r)))(i.r)
        return jnp.square(force - 1).mean()

    return loss


# -- EdgeConv --------------------------------------------------------------------------------------
# Wang et al., "Dynamic Graph CNN for Learning on Point Clouds" (2019), with a maximum.


def _edgeconv_shapes(f: int) -> dict[str, tuple[int, ...]]:
    return {"in": (2 * f, f), "b": (f,), "out": (f, f)}


@gnnjit.layer
def _edgeconv_layer(v: Any, e: Any, p: Arrays) -> Any:
    hidden = jnp.concatenate([v, e.src - v]) @ p["in"] + p["b"]
    return gnnjit.max(jax.nn.relu(hidden) @ p["out"])


def _edgeconv(p: Arrays, i: Inputs) -> Any:
    return jnp.square(_edgeconv_layer(i.graph, i.x, p)).mean()


def _edgeconv_end(p: Arrays, i: Inputs, hidden: Any) -> Any:
    message = jax.nn.relu(hidden) @ p["out"]
    top = jax.ops.segment_max(message, i.dst, i.x.shape[0], indices_are_sorted=True)
    return jnp.square(jnp.where(jnp.isfinite(top), top, 0)).mean()


def _edgeconv_plain(p: Arrays, i: Inputs) -> Any:
    own, other = i.x[i.dst], i.x[i.src]
    return _edgeconv_end(p, i, jnp.concatenate([own, other - own], -1) @ p["in"] + p["b"])


def _edgeconv_split(p: Arrays, i: Inputs) -> Any:
    f = i.x.shape[1]
    own, other = i.x @ (p["in"][:f] - p["in"][f:]) + p["b"], i.x @ p["in"][f:]
    return _edgeconv_end(p, i, own[i.dst] + other[i.src])


MODELS = {
    "egnn": Model(_egnn_shapes, _egnn, _egnn_plain, _egnn_split),
    "gns": Model(_gns_shapes, _gns, _gns_plain, _gns_split),
    "schnet": Model(_schnet_shapes, _schnet_energy, _schnet_energy_plain, _schnet_energy_plain),
    "forces": Model(
        _schnet_shapes,
        _forces(_schnet_energy),
        _forces(_schnet_energy_plain),
        _forces(_schnet_energy_plain),
    ),
    "edgeconv": Model(_edgeconv_shapes, _edgeconv, _edgeconv_plain, _edgeconv_split),
}
