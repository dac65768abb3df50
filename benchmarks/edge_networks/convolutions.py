"""NNConv, a matrix for each edge, and EdgeConv, a maximum over edges."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import gnnjit
from edge_networks.network import (
    BLOCKS,
    EDGE_DATA,
    Arrays,
    Inputs,
    Network,
    Shapes,
    product,
    segment_mean,
)

# -- NNConv ----------------------------------------------------------------------------------------
# Gilmer et al., "Neural Message Passing for Quantum Chemistry" (2017), section 5: edge networks.
# As in PyG's NNConv: a mean, and a matrix for the vertex itself.

HIDDEN = 32


def _nnconv_shapes(f: int) -> Shapes:
    return {"n1": (EDGE_DATA, HIDDEN), "b1": (HIDDEN,), "n2": (HIDDEN, f * f), "b2": (f * f,),
            "root": (f, f), "b": (f,)}  # fmt: skip


@gnnjit.layer
def _nnconv_step(v: Any, e: Any, p: Arrays) -> Any:
    f = v.shape[0]
    matrix = (jax.nn.relu(e.data @ p["n1"] + p["b1"]) @ p["n2"] + p["b2"]).reshape(f, f)
    return jax.nn.relu(v @ p["root"] + gnnjit.mean(e.src @ matrix) + p["b"])


def _nnconv_layer(p: Arrays, state: Arrays, i: Inputs) -> dict[str, Any]:
    return {"x": _nnconv_step(i.graph, state["x"], p, edges=i.a)}


def _nnconv_end(p: Arrays, x: Any, message: Any, i: Inputs) -> dict[str, Any]:
    return {"x": jax.nn.relu(x @ p["root"] + segment_mean(message, i) + p["b"])}


def _nnconv_plain(p: Arrays, state: Arrays, i: Inputs) -> dict[str, Any]:
    x = state["x"]
    f = x.shape[1]
    matrix = (jax.nn.relu(i.a @ p["n1"] + p["b1"]) @ p["n2"] + p["b2"]).reshape(-1, f, f)
    return _nnconv_end(p, x, jnp.einsum("ei,eio->eo", x[i.src], matrix), i)


def _nnconv_split(p: Arrays, state: Arrays, i: Inputs) -> dict[str, Any]:
    """Vertices times each of the matrices that an edge mixes."""
    x = state["x"]
    f = x.shape[1]
    hidden = jax.nn.relu(i.a @ p["n1"] + p["b1"])
    parts = jnp.einsum("ni,kio->nko", x, p["n2"].reshape(HIDDEN, f, f))
    fixed = x @ p["b2"].reshape(f, f)
    message = jnp.einsum("ek,eko->eo", hidden, parts[i.src]) + fixed[i.src]
    return _nnconv_end(p, x, message, i)


def _nnconv_flops(n: int, e: int, f: int) -> float:
    """Vertices: times the hidden layer's matrices, the fixed one, and their own. Edges: the hidden
    layer, whose operand is data, and the mixture."""
    vertices = product(n, f, (HIDDEN + 2) * f)
    return BLOCKS * (vertices + product(e, EDGE_DATA, HIDDEN, times=2) + product(e, HIDDEN, f))


# -- EdgeConv --------------------------------------------------------------------------------------
# Wang et al., "Dynamic Graph CNN for Learning on Point Clouds" (2019), with a maximum.


def _edgeconv_shapes(f: int) -> Shapes:
    return {"in": (2 * f, f), "b": (f,), "out": (f, f)}


@gnnjit.layer
def _edgeconv_step(v: Any, e: Any, p: Arrays) -> Any:
    hidden = jnp.concatenate([v, e.src - v]) @ p["in"] + p["b"]
    return gnnjit.max(jax.nn.relu(hidden) @ p["out"])


def _edgeconv_layer(p: Arrays, state: Arrays, i: Inputs) -> dict[str, Any]:
    return {"x": _edgeconv_step(i.graph, state["x"], p)}


def _edgeconv_end(p: Arrays, i: Inputs, hidden: Any) -> dict[str, Any]:
    message = jax.nn.relu(hidden) @ p["out"]
    top = jax.ops.segment_max(message, i.dst, len(i.r), indices_are_sorted=True)
    return {"x": jnp.where(jnp.isfinite(top), top, 0)}


def _edgeconv_plain(p: Arrays, state: Arrays, i: Inputs) -> dict[str, Any]:
    own, other = state["x"][i.dst], state["x"][i.src]
    return _edgeconv_end(p, i, jnp.concatenate([own, other - own], -1) @ p["in"] + p["b"])


def _edgeconv_split(p: Arrays, state: Arrays, i: Inputs) -> dict[str, Any]:
    x = state["x"]
    f = x.shape[1]
    own, other = x @ (p["in"][:f] - p["in"][f:]) + p["b"], x @ p["in"][f:]
    return _edgeconv_end(p, i, own[i.dst] + other[i.src])


def _edgeconv_flops(n: int, e: int, f: int) -> float:
    """Vertices: both endpoints' parts of the first product. Edges: the second."""
    return BLOCKS * (product(n, 2 * f, f) + product(e, f, f))


NNCONV = Network(
    _nnconv_shapes, lambda f: {"x": (f,)}, _nnconv_layer, _nnconv_plain, _nnconv_split,
    _nnconv_flops, narrower=8,
)  # fmt: skip
EDGECONV = Network(
    _edgeconv_shapes, lambda f: {"x": (f,)}, _edgeconv_layer, _edgeconv_plain, _edgeconv_split,
    _edgeconv_flops, tolerance=1e-2,
)  # fmt: skip
"""Its gradient jumps where two edges attain the maximum. Forms round differently, and gnnjit shares
it among edges within rounding of the maximum (gnnjit/design/0004-ties-of-max.md)."""
