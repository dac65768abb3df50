"""A network of vectors, whose components are the last axis, as in e3nn.

Jing et al., "Learning from Protein Structure with Geometric Vector Perceptrons" (2021), algorithm 1
and equation 6: F scalars and F / 4 vectors of each vertex. A message is two perceptrons, an update
one more. Without normalisation and dropout.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

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
)


def _perceptron_shapes(at: str, scalars: int, vectors: int, f: int) -> Shapes:
    return {f"h{at}": (vectors, vectors), f"u{at}": (vectors, f // 4),
            f"m{at}": (vectors + scalars, f), f"b{at}": (f,)}  # fmt: skip


def _shapes(f: int) -> Shapes:
    inner = _perceptron_shapes("2", f, f // 4, f) | _perceptron_shapes("3", f, f // 4, f)
    return _perceptron_shapes("1", 2 * f + CENTRES, 2 * (f // 4) + 1, f) | inner


def _mixed(v: Any, w: Any) -> Any:
    """Vectors `[..., V, 3]` times a matrix `[V, W]`."""
    return jnp.einsum("...vk,vw->...wk", v, w)


def _lengths(v: Any) -> Any:
    return jnp.sqrt(jnp.sum(v * v, -1) + 1e-6)


def _outputs(p: Arrays, at: str, scalars: Any, hidden: Any) -> tuple[Any, Any]:
    v = _mixed(hidden, p[f"u{at}"])
    gate = jax.nn.sigmoid(_lengths(v))
    return jax.nn.silu(scalars + p[f"b{at}"]), v * gate[..., None]


def _perceptron(p: Arrays, at: str, s: Any, v: Any) -> tuple[Any, Any]:
    """Algorithm 1, of scalars `[..., S]` and vectors `[..., V, 3]`."""
    hidden = _mixed(v, p[f"h{at}"])
    scalars = jnp.concatenate([_lengths(hidden), s], -1) @ p[f"m{at}"]
    return _outputs(p, at, scalars, hidden)


def _message(p: Arrays, src: Arrays, dst: Arrays) -> tuple[Any, Any]:
    step = dst["r"] - src["r"]
    distance = length(step)
    s = jnp.concatenate([src["s"], dst["s"], basis(distance)], -1)
    v = jnp.concatenate([src["v"], dst["v"], (step / distance)[..., None, :]], -2)
    return _perceptron(p, "2", *_perceptron(p, "1", s, v))


def _update(p: Arrays, s: Any, v: Any) -> Arrays:
    more_s, more_v = _perceptron(p, "3", s, v)
    return {"s": s + more_s, "v": v + more_v}


@gnnjit.layer
def _step(v: Any, e: Any, p: Arrays) -> Any:
    s, vectors = _message(p, e.src, v)
    return _update(p, v["s"] + gnnjit.mean(s), v["v"] + gnnjit.mean(vectors))


def _layer(p: Arrays, state: Arrays, i: Inputs) -> Arrays:
    return _step(i.graph, {**state, "r": i.r}, p)


def _end(p: Arrays, state: Arrays, i: Inputs, s: Any, v: Any) -> Arrays:
    flat = segment_mean(jnp.concatenate([s, v.reshape(len(v), -1)], -1), i)
    s, v = flat[:, : s.shape[-1]], flat[:, s.shape[-1] :].reshape(-1, *v.shape[1:])
    return _update(p, state["s"] + s, state["v"] + v)


def _plain(p: Arrays, state: Arrays, i: Inputs) -> Arrays:
    ends = [{k: x[at] for k, x in {**state, "r": i.r}.items()} for at in (i.src, i.dst)]
    return _end(p, state, i, *_message(p, *ends))


def _split(p: Arrays, state: Arrays, i: Inputs) -> Arrays:
    """What reads one end is multiplied once per vertex."""
    s, v, (f, n) = state["s"], state["v"], (state["s"].shape[-1], state["v"].shape[-2])
    step = i.r[i.dst] - i.r[i.src]
    distance = length(step)
    h, m = p["h1"], p["m1"][2 * n + 1 :]
    unit = (step / distance)[..., None, :] * h[2 * n :].T
    hidden = _mixed(v, h[:n])[i.src] + _mixed(v, h[n : 2 * n])[i.dst] + unit
    ends = (s @ m[:f])[i.src] + (s @ m[f : 2 * f])[i.dst] + basis(distance) @ m[2 * f :]
    scalars = _lengths(hidden) @ p["m1"][: 2 * n + 1] + ends
    return _end(p, state, i, *_perceptron(p, "2", *_outputs(p, "1", scalars, hidden)))


def _flops(n: int, e: int, f: int) -> float:
    """Three components of each vector. The first perceptron's ends are of vertices."""
    v = f // 4
    hidden = 2 * v + 1

    def perceptron(rows: int) -> float:
        return product(3 * rows, 2 * v, v) + product(rows, f + v, f)

    ends = 2 * (product(3 * n, v, hidden) + product(n, f, f)) + perceptron(n)
    data = product(e, CENTRES, f, times=2)
    edges = product(e, hidden, f) + product(3 * e, hidden, v) + perceptron(e)
    return BLOCKS * (ends + data + edges)


GVP = Network(
    _shapes, lambda f: {"s": (f,), "v": (f // 4, 3)}, _layer, _plain, _split, _flops,
)  # fmt: skip
