"""Networks of molecules, whose edges read the positions of atoms."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gnnjit
from edge_networks.network import (
    BLOCKS,
    CENTRES,
    Arrays,
    Inputs,
    Network,
    Shapes,
    basis,
    length,
    product,
    segment_mean,
    segment_sum,
    sum_both_ways,
)

silu = jax.nn.silu

# -- EGNN ------------------------------------------------------------------------------------------
# Satorras et al., "E(n) Equivariant Graph Neural Networks" (2021), equations 3 to 6.


def _egnn_shapes(f: int) -> Shapes:
    return {"in": (2 * f + 1, f), "b": (f,), "mid": (f, f), "pos": (f, f), "out": (f, 1),
            "up": (2 * f, f)}  # fmt: skip


@gnnjit.layer
def _egnn_step(v: Any, e: Any, p: Arrays) -> Any:
    step = v["r"] - e.src["r"]
    pair = jnp.concatenate([v["x"], e.src["x"], jnp.sum(step * step, keepdims=True)])
    m = silu(silu(pair @ p["in"] + p["b"]) @ p["mid"])
    moved = v["r"] + gnnjit.mean(step * (silu(m @ p["pos"]) @ p["out"]))
    new = v["x"] + silu(jnp.concatenate([v["x"], gnnjit.sum(m)]) @ p["up"])
    return {"x": new, "r": moved}


def _egnn_layer(p: Arrays, state: Arrays, i: Inputs) -> dict[str, Any]:
    return _egnn_step(i.graph, state, p)


def _egnn_end(p: Arrays, state: Arrays, i: Inputs, step: Any, hidden: Any) -> dict[str, Any]:
    x, r = state["x"], state["r"]
    m = silu(silu(hidden) @ p["mid"])
    moved = r + segment_mean(step * (silu(m @ p["pos"]) @ p["out"]), i)
    new = x + silu(jnp.concatenate([x, segment_sum(m, i)], -1) @ p["up"])
    return {"x": new, "r": moved}


def _egnn_plain(p: Arrays, state: Arrays, i: Inputs) -> dict[str, Any]:
    x, r = state["x"], state["r"]
    step = r[i.dst] - r[i.src]
    distance = jnp.sum(step * step, -1, keepdims=True)
    pair = jnp.concatenate([x[i.dst], x[i.src], distance], -1)
    return _egnn_end(p, state, i, step, pair @ p["in"] + p["b"])


def _egnn_split(p: Arrays, state: Arrays, i: Inputs) -> dict[str, Any]:
    x, r = state["x"], state["r"]
    f = x.shape[1]
    step = r[i.dst] - r[i.src]
    distance = jnp.sum(step * step, -1, keepdims=True)
    own, other = x @ p["in"][:f] + p["b"], x @ p["in"][f : 2 * f]
    return _egnn_end(p, state, i, step, own[i.dst] + other[i.src] + distance * p["in"][2 * f])


def _egnn_flops(n: int, e: int, f: int) -> float:
    """Vertices: both endpoints' parts of the first product, and the update. Edges: two products of
    F x F, the factor of the step, and the distance's part of the first product."""
    return BLOCKS * (product(n, 4 * f, f) + product(e, 2 * f + 2, f))


# -- SchNet ----------------------------------------------------------------------------------------
# Schutt et al., "SchNet" (2017), section 4.1: continuous-filter convolutions.


def softplus(x: Any) -> Any:
    """Shifted, so that it is 0 at 0."""
    return jax.nn.softplus(x) - jnp.log(2.0)


def _schnet_shapes(f: int) -> Shapes:
    return {"w": (f, f), "f1": (CENTRES, f), "b": (f,), "f2": (f, f), "o1": (f, f), "o2": (f, f)}


def schnet_filters(p: Arrays, step: Any) -> Any:
    return softplus(basis(length(step)) @ p["f1"] + p["b"]) @ p["f2"]


def schnet_update(v: Any, e: Any, p: Arrays) -> Any:
    """What an interaction adds to a vertex, inside a layer."""
    filters = schnet_filters(p, v["r"] - e.src["r"])
    return softplus(gnnjit.sum((e.src["x"] @ p["w"]) * filters) @ p["o1"]) @ p["o2"]


def schnet_update_plain(p: Arrays, x: Any, i: Inputs) -> Any:
    """The same in plain JAX. It is split already: the product with `w` reads one endpoint."""
    filters = schnet_filters(p, i.r[i.dst] - i.r[i.src])
    total = segment_sum((x @ p["w"])[i.src] * filters, i)
    return softplus(total @ p["o1"]) @ p["o2"]


@gnnjit.layer
def _schnet_step(v: Any, e: Any, p: Arrays) -> Any:
    return v["x"] + schnet_update(v, e, p)


def _schnet_split(p: Arrays, state: Arrays, i: Inputs) -> dict[str, Any]:
    """Filters once for each pair."""
    filters = schnet_filters(p, i.r[i.pair_dst] - i.r[i.pair_src])
    x, w = state["x"], state["x"] @ p["w"]
    total = sum_both_ways(lambda u, v, sign: w[u] * filters, i)
    return {"x": x + softplus(total @ p["o1"]) @ p["o2"]}


def _schnet_layer(p: Arrays, state: Arrays, i: Inputs) -> dict[str, Any]:
    return {"x": _schnet_step(i.graph, {"x": state["x"], "r": i.r}, p)}


def _schnet_plain(p: Arrays, state: Arrays, i: Inputs) -> dict[str, Any]:
    return {"x": state["x"] + schnet_update_plain(p, state["x"], i)}


def _schnet_end_shapes(f: int) -> Shapes:
    return {"e1": (f, max(f // 2, 1)), "e2": (max(f // 2, 1), 1)}


def _schnet_energy(p: Arrays, state: Arrays) -> Any:
    return (softplus(state["x"] @ p["e1"]) @ p["e2"]).sum()


def _forces_flops(n: int, e: int, f: int) -> float:
    """Filters are those of pairs."""
    return _directed_flops(n, e // 2, f)


def _directed_flops(n: int, e: int, f: int) -> float:
    """Each product once forward and once for the forces, and twice as many for the gradient: 6.
    3 for the first block's `w`, which no position reaches, and 5 for the first of the filters',
    whose gradient to the positions is not asked for at the end."""
    vertices = product(n, 3 * f, f, times=6) * BLOCKS - product(n, f, f, times=3)
    edges = BLOCKS * (product(e, f, f, times=6) + product(e, CENTRES, f, times=5))
    return vertices + edges + product(n, f + 1, f // 2, times=6)


# -- PaiNN -----------------------------------------------------------------------------------------
# Schutt et al., "Equivariant message passing for the prediction of tensorial properties" (2021),
# figure 2: message and update blocks. Without a cutoff; filters of Gaussians, as SchNet's.


def _painn_shapes(f: int) -> Shapes:
    return {"a1": (f, f), "b1": (f,), "a2": (f, 3 * f), "w": (CENTRES, 3 * f), "bw": (3 * f,),
            "u": (f, f), "v": (f, f), "m1": (2 * f, f), "b2": (f,), "m2": (f, 3 * f)}  # fmt: skip


def _painn_parts(p: Arrays, s: Any) -> Any:
    """What a vertex says to each of the three parts of a message: `[..., F]` -> `[..., 3 F]`."""
    return silu(s @ p["a1"] + p["b1"]) @ p["a2"]


def _painn_filters(p: Arrays, distance: Any) -> Any:
    return basis(distance) @ p["w"] + p["bw"]


def _painn_messages(parts: Any, v: Any, filters: Any, direction: Any) -> tuple[Any, Any]:
    """For scalars `[..., F]` and vectors `[..., 3, F]`."""
    to_s, along_v, along_r = jnp.split(parts * filters, 3, -1)
    return to_s, v * along_v[..., None, :] + direction[..., :, None] * along_r[..., None, :]


def _painn_update(p: Arrays, s: Any, v: Any) -> dict[str, Any]:
    left, right = v @ p["u"], v @ p["v"]
    size = jnp.sqrt(jnp.sum(right * right, -2) + 1e-6)
    hidden = silu(jnp.concatenate([s, size], -1) @ p["m1"] + p["b2"])
    to_v, mixed, to_s = jnp.split(hidden @ p["m2"], 3, -1)
    s = s + to_s + mixed * jnp.sum(left * right, -2)
    return {"s": s, "v": v + left * to_v[..., None, :]}


@gnnjit.layer
def _painn_step(v: Any, e: Any, p: Arrays) -> Any:
    step = v["r"] - e.src["r"]
    distance = length(step)
    parts, filters = _painn_parts(p, e.src["s"]), _painn_filters(p, distance)
    scalars, vectors = _painn_messages(parts, e.src["v"], filters, step / distance)
    return _painn_update(p, v["s"] + gnnjit.sum(scalars), v["v"] + gnnjit.sum(vectors))


def _painn_layer(p: Arrays, state: Arrays, i: Inputs) -> dict[str, Any]:
    return _painn_step(i.graph, {**state, "r": i.r}, p)


def _painn_plain(p: Arrays, state: Arrays, i: Inputs) -> dict[str, Any]:
    """Split already: the network of scalars reads one endpoint."""
    s, v, step = state["s"], state["v"], i.r[i.dst] - i.r[i.src]
    distance = length(step)
    parts, filters = _painn_parts(p, s)[i.src], _painn_filters(p, distance)
    scalars, vectors = _painn_messages(parts, v[i.src], filters, step / distance)
    return _painn_update(p, s + segment_sum(scalars, i), v + segment_sum(vectors, i))


def _painn_split(p: Arrays, state: Arrays, i: Inputs) -> dict[str, Any]:
    """Filters and directions once for each pair."""
    s, v, step = state["s"], state["v"], i.r[i.pair_dst] - i.r[i.pair_src]
    distance = length(step)
    parts, filters, way = _painn_parts(p, s), _painn_filters(p, distance), step / distance
    scalars, vectors = sum_both_ways(
        lambda a, b, sign: _painn_messages(parts[a], v[a], filters, sign * way), i
    )
    return _painn_update(p, s + scalars, v + vectors)


def _painn_flops(n: int, e: int, f: int) -> float:
    """Vertices: the message's and the update's network, and two products of three components.
    Pairs: the filters, whose operand is data."""
    return BLOCKS * (product(n, 15 * f, f) + product(e // 2, CENTRES, 3 * f, times=2))


# -- MACE ------------------------------------------------------------------------------------------
# Batatia et al., "MACE" (2022), equations 8 to 11, to l = 1: the tensor product of the source's
# features with the spherical harmonics of the edge, with weights of each edge, feature and path;
# then, in place of the symmetric contraction, products of two sums.

PATHS = 5
RADIAL = 64
NEIGHBOURS = 10
"""Sums are divided by about the number of neighbours."""
LEVI_CIVITA = np.zeros((3, 3, 3), np.float32)
LEVI_CIVITA[[0, 1, 2], [1, 2, 0], [2, 0, 1]] = 1
LEVI_CIVITA[[0, 2, 1], [2, 1, 0], [1, 0, 2]] = -1


def _mace_shapes(f: int) -> Shapes:
    return {"up0": (f, f), "up1": (f, f), "r1": (CENTRES, RADIAL), "b": (RADIAL,),
            "r2": (RADIAL, PATHS * f), "m0": (f, f), "m1": (f, f), "p0": (3 * f, f),
            "p1": (f, f)}  # fmt: skip


def _mace_weights(p: Arrays, step: Any) -> tuple[Any, Any]:
    """Of paths and features, `[..., 5 F]`, and the spherical harmonics for l = 1, `[..., 3]`."""
    distance = length(step)
    weights = silu(basis(distance) @ p["r1"] + p["b"]) @ p["r2"]
    return weights, jnp.sqrt(3.0) * step / distance


def _mace_messages(s: Any, v: Any, weights: Any, y: Any) -> tuple[Any, Any]:
    """For l = 0, `[..., F]`, and l = 1, `[..., 3, F]`."""
    ss, vs, sv, vv, cross = jnp.split(weights, PATHS, -1)
    scalars = ss * s + vs * jnp.einsum("...if,...i->...f", v, y)
    turned = jnp.einsum("ijk,...jf,...k->...if", LEVI_CIVITA, v, y)
    vectors = (
        jnp.einsum("...f,...i->...if", sv * s, y)
        + jnp.einsum("...f,...if->...if", vv, v)
        + jnp.einsum("...f,...if->...if", cross, turned)
    )
    return scalars, vectors


def _mace_update(p: Arrays, s: Any, v: Any, scalars: Any, vectors: Any) -> dict[str, Any]:
    a, b = (scalars / NEIGHBOURS) @ p["m0"], (vectors / NEIGHBOURS) @ p["m1"]
    both = jnp.concatenate([a, a * a, jnp.sum(b * b, -2)], -1)
    return {"s": s + both @ p["p0"], "v": v + b + (a[..., None, :] * b) @ p["p1"]}


@gnnjit.layer
def _mace_step(v: Any, e: Any, p: Arrays) -> Any:
    s, vectors = e.src["s"] @ p["up0"], e.src["v"] @ p["up1"]
    to_s, to_v = _mace_messages(s, vectors, *_mace_weights(p, v["r"] - e.src["r"]))
    return _mace_update(p, v["s"], v["v"], gnnjit.sum(to_s), gnnjit.sum(to_v))


def _mace_layer(p: Arrays, state: Arrays, i: Inputs) -> dict[str, Any]:
    return _mace_step(i.graph, {**state, "r": i.r}, p)


def _mace_plain(p: Arrays, state: Arrays, i: Inputs) -> dict[str, Any]:
    """Split already: what a source is multiplied with reads nothing else."""
    s, v = state["s"], state["v"]
    weights = _mace_weights(p, i.r[i.dst] - i.r[i.src])
    to_s, to_v = _mace_messages((s @ p["up0"])[i.src], (v @ p["up1"])[i.src], *weights)
    return _mace_update(p, s, v, segment_sum(to_s, i), segment_sum(to_v, i))


def _mace_split(p: Arrays, state: Arrays, i: Inputs) -> dict[str, Any]:
    """Weights and harmonics once for each pair."""
    s, v = state["s"], state["v"]
    up0, up1 = s @ p["up0"], v @ p["up1"]
    weights, y = _mace_weights(p, i.r[i.pair_dst] - i.r[i.pair_src])
    sums = sum_both_ways(lambda a, b, sign: _mace_messages(up0[a], up1[a], weights, sign * y), i)
    return _mace_update(p, s, v, *sums)


def _mace_flops(n: int, e: int, f: int) -> float:
    """Vertices: before and after the sums, one product for scalars and three for vectors, and those
    of the contraction. Pairs: the radial network, whose first operand is data."""
    pairs = product(e // 2, CENTRES, RADIAL, times=2) + product(e // 2, RADIAL, PATHS * f)
    return BLOCKS * (product(n, 14 * f, f) + pairs)


def _features(f: int) -> Shapes:
    return {"s": (f,), "v": (3, f)}


EGNN = Network(
    _egnn_shapes, lambda f: {"x": (f,)}, _egnn_layer, _egnn_plain, _egnn_split, _egnn_flops,
    moves=True,
)  # fmt: skip
FORCES = Network(
    _schnet_shapes, lambda f: {"x": (f,)}, _schnet_layer, _schnet_plain, _schnet_split,
    _forces_flops, end=_schnet_end_shapes, finish=_schnet_energy, forces=True, both_ways=True,
)  # fmt: skip
DIRECTED_FORCES = dataclasses.replace(FORCES, split=None, flops=_directed_flops, both_ways=False)
PAINN = Network(
    _painn_shapes, _features, _painn_layer, _painn_plain, _painn_split, _painn_flops,
    both_ways=True,
)  # fmt: skip
MACE = Network(
    _mace_shapes, _features, _mace_layer, _mace_plain, _mace_split, _mace_flops, narrower=2,
    both_ways=True,
)  # fmt: skip
