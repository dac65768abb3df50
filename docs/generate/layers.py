"""Small layers for the pages of the passes, one for each pass."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import gnnjit


class Case(NamedTuple):
    """A layer that a pass changes.

    Attributes:
        layer: the layer.
        vertices: the shape of a vertex's features, or a dictionary of shapes.
        edges: that of an edge's features; None without, "int32" for a whole number.
        params: the shapes of the parameters.
        gradient: a traversal of its gradient, as text, for a pass that changes no layer itself.
    """

    layer: Any
    vertices: Any
    edges: Any = None
    params: tuple[tuple[int, ...], ...] = ()
    gradient: str = ""


@gnnjit.layer
def convolution(v, e, w):
    return gnnjit.sum(e.data * (e.src @ w))


@gnnjit.layer
def attention(v, e, w, a):
    h = e.src @ w
    score = jax.nn.leaky_relu(h @ a[0] + (v @ w) @ a[1], 0.2)
    return gnnjit.sum(gnnjit.softmax(score) * h)


@gnnjit.layer
def weighted(v, e):
    return gnnjit.sum(gnnjit.softmax(e.data) * e.src)


@gnnjit.layer
def heads(v, e, w, a):
    h = (e.src @ w).reshape(2, 8)
    return gnnjit.sum(h * (h * a).sum(axis=-1, keepdims=True))


@gnnjit.layer
def message(v, e, w):
    return gnnjit.max(jnp.concatenate([e.src, v, e.data]) @ w)


@gnnjit.layer
def of_graphs(v, e, w):
    middle = gnnjit.readout.mean(v)
    return gnnjit.max(jnp.concatenate([e.src, v, middle]) @ w)


@gnnjit.layer
def scaled(v, e):
    return gnnjit.sum(v * e.src)


@gnnjit.layer
def normalized(v, e):
    return gnnjit.sum(e.src["factor"] * e.src["x"])


@gnnjit.layer
def negated(v, e):
    return -jnp.negative(gnnjit.sum(e.src * 1.0))


@gnnjit.layer
def same(v, e, w):
    return gnnjit.sum(jnp.tanh(e.src @ w)) + gnnjit.max(jnp.tanh(e.src @ w))


@gnnjit.layer
def unused(v, e, w):
    _ = gnnjit.max(e.src @ w)
    return gnnjit.sum(e.src)


@gnnjit.layer
def logarithm(v, e):
    return gnnjit.sum(jnp.log(e.src))


@gnnjit.layer
def biased(v, e, b):
    return gnnjit.sum(jnp.tanh(e.src + b[0] + v + b[1]))


@gnnjit.layer
def bases(v, e, basis):
    return gnnjit.sum(jnp.einsum("b,bio,i->o", e.data, basis, e.src))


@gnnjit.layer
def largest(v, e, w):
    return gnnjit.max((e.src * v) @ w)


@gnnjit.layer
def by_type(v, e):
    rows = jnp.zeros((3, 4))
    return gnnjit.sum(jax.lax.dynamic_update_slice(rows, e.src[None], (e.data, 0)))


@gnnjit.layer
def of_kind(v, e, w):
    return gnnjit.sum(e.src @ w[v[0].astype(jnp.int32)])


@gnnjit.layer
def bent(v, e):
    return gnnjit.sum(jnp.tanh(e.data + jnp.abs(e.src)) * e.src)


@gnnjit.layer
def distance(v, e):
    return gnnjit.sum(jnp.abs(v) * e.src)


@gnnjit.layer
def copies(v, e):
    return gnnjit.sum(e.data[:, None] * jnp.broadcast_to(e.src, (2, 4)))


@gnnjit.layer
def scaled_vectors(v, e):
    return gnnjit.sum(jnp.einsum("ci,i->ci", e.src, e.data))


@gnnjit.layer
def edge_network(v, e, w):
    return gnnjit.sum(jnp.tanh(jnp.tanh(e.src + v) @ w))


@gnnjit.layer
def decayed(v, e):
    return gnnjit.fold(lambda state, value: 0.9 * state + value, v, e.src * v)


@gnnjit.layer
def slope(v, e):
    return gnnjit.sum(jax.vmap(jax.grad(jax.nn.softplus))(e.src))


@gnnjit.layer
def gate(v, e, w):
    return gnnjit.sum(e.src * (jnp.tanh(v + e.src) @ w))


@gnnjit.layer
def tensor_product(v, e):
    turn = jnp.tensordot(e.data, jnp.tanh(e.data), 0)
    return gnnjit.sum(jnp.tensordot(turn[:, None], e.src, ((0,), (0,))))


@gnnjit.layer
def own_matrix(v, e, w):
    return gnnjit.sum(e.src @ (e.data @ w).reshape(4, 2))


@gnnjit.layer
def turned_vectors(v, e, w):
    return gnnjit.sum(jnp.einsum("fk,fg->gk", e.src - v, w))


@gnnjit.layer
def scaled_pairs(v, e):
    pairs = jnp.tensordot(e.data, e.src["x"], 0)
    return gnnjit.sum(e.src["factor"] * pairs)


EDGE_NETWORK_GRADIENT = """\
layer gradient(x: f32[src, 32], y: f32[dst, 32], w: f32[32, 32], c: f32[dst, 32])
  a: f32[edge, 32] = x[u] + y[v]
  h: f32[edge, 32] = tanh(a)
  m: f32[edge, 32] = h @ w
  t: f32[edge, 32] = tanh(m)
  q: f32[edge, 32] = t * t
  p: f32[edge, 32] = q * c[v]
  b: f32[edge, 32] = c[v] - p
  d: f32[edge, 32] = w @ b
  e: f32[edge, 32] = h * h
  r: f32[edge, 32] = e * d
  s: f32[edge, 32] = d - r
  g: f32[src, 32] = sum over (v <- u) of s
  k: f32[dst, 32] = sum over (u -> v) of s
  return g, k
"""


CASES = {
    "shield-unread-vertices": Case(logarithm, (4,)),
    "drop-dead": Case(unused, (4,), None, ((4, 8),)),
    "fold-transposes": Case(scaled_vectors, (3, 8), (8,)),
    "place-in-smallest-space": Case(attention, (4,), None, ((4, 8), (2, 8))),
    "long-axes-last": Case(turned_vectors, (16, 3), None, ((16, 16),)),
    "fold-constants": Case(negated, (4,)),
    "share-subexpressions": Case(same, (4,), None, ((4, 8),)),
    "split-concat-matmul": Case(message, (4,), (2,), ((10, 8),)),
    "place-in-graphs": Case(of_graphs, (4,), None, ((12, 8),)),
    "edge-matrices-as-products": Case(own_matrix, (4,), (8,), ((8, 8),)),
    "contract-with-shared-first": Case(bases, (4,), (3,), ((3, 4, 8),)),
    "group-sums-by-space": Case(biased, (4,), None, ((2, 4),)),
    "factor-out-of-reduce": Case(scaled, (4,)),
    "reorder-aggregate-combine": Case(convolution, (4,), (), ((4, 8),)),
    "scale-outer-factors": Case(scaled_pairs, {"x": (4,), "factor": ()}, (2,)),
    "scores-as-products": Case(heads, (4,), None, ((4, 16), (2, 8))),
    "sink-vertex-work": Case(same, (4,), None, ((4, 8),)),
    "store-edge-values": Case(largest, (4,), None, ((4, 8),)),
    "sink-into-sequences": Case(decayed, (4,)),
    "online-softmax": Case(weighted, (4,), ()),
    "sink-broadcasts": Case(copies, (4,), (2,)),
    "sink-picked-matrices": Case(of_kind, (16,), None, ((3, 16, 16),)),
    "sink-scaling": Case(normalized, {"x": (4,), "factor": ()}),
    "extremes-in-full-precision": Case(largest, (4,), None, ((4, 8),)),
    "fuse-scatter-apply-gather": Case(attention, (4,), None, ((4, 8), (2, 8))),
    "sink-row-arithmetic": Case(distance, (4,)),
    "sink-derived-values": Case(bent, (4,), (4,)),
    "slopes-of-softplus": Case(slope, (4,)),
    "single-columns": Case(gate, (4,), None, ((4, 1),)),
    "edge-products-as-matrices": Case(tensor_product, (3, 32), (3,)),
    "sink-zeros": Case(by_type, (4,), "int32"),
    "store-shared-products": Case(
        edge_network, (32,), None, ((32, 32),), gradient=EDGE_NETWORK_GRADIENT
    ),
}
"""By the name of the pass. A pass without one stops the build of the manual."""
