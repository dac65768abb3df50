"""An oracle that shares no code with the compiler: a layer function under `jax.vmap`.

One lane per edge, and one more per vertex (for the vertices that have no edge). A reduction
gathers all lanes (`lax.all_gather` over the axis of the `vmap`) and reduces them by segment.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

AXIS = "lane"


@dataclasses.dataclass(frozen=True)
class Edge:
    src: Any
    dst: Any
    data: Any


class Plain:
    """The vocabulary of layers, in one lane."""

    def __init__(self, own: Any, rows: np.ndarray, real: np.ndarray, count: int):
        self.own, self.rows, self.real, self.count = own, rows, real, count
        self.inside = (rows[None] == np.arange(count)[:, None]) & real[None]

    def lanes(self, x: Any) -> Any:
        x = jnp.asarray(x)
        x = x.astype(jnp.int32) if x.dtype == jnp.bool_ else x
        return lax.all_gather(jnp.where(self.own >= 0, x, x), AXIS)

    def here(self, x: Any, initial: Any) -> Any:
        x = x[self.own]
        if initial is None:
            return x
        return jnp.where(self.degree() > 0, x, jnp.asarray(initial, x.dtype))

    def degree(self) -> Any:
        return jnp.asarray(self.inside.sum(1), jnp.int32)[self.own]

    def tree(self, one: Any, value: Any) -> Any:
        return jax.tree.map(one, value)

    def total(self, x: Any) -> Any:
        every = self.lanes(x)
        real = self.real.reshape((-1,) + (1,) * (every.ndim - 1))
        return jax.ops.segment_sum(jnp.where(real, every, 0), self.rows, self.count)

    def sum(self, value: Any, *, initial: Any = None) -> Any:
        return self.tree(lambda x: self.here(self.total(x), initial), value)

    def extreme(self, x: Any, sign: int) -> Any:
        every = self.lanes(x)
        inside = self.inside.reshape(*self.inside.shape, *(1,) * (every.ndim - 1))
        some = inside.any(1, keepdims=True)
        kept = jnp.where(some, inside, True)
        floats = jnp.issubdtype(every.dtype, jnp.floating)
        info = jnp.finfo(every.dtype) if floats else jnp.iinfo(every.dtype)
        worst = jnp.asarray(info.min if sign > 0 else info.max, every.dtype)
        best = (jnp.max if sign > 0 else jnp.min)(jnp.where(kept, every[None], worst), axis=1)
        return jnp.where(some[:, 0], best, jnp.zeros_like(best))

    def max(self, value: Any, *, initial: Any = None) -> Any:
        return self.tree(lambda x: self.here(self.extreme(x, 1), initial), value)

    def min(self, value: Any, *, initial: Any = None) -> Any:
        return self.tree(lambda x: self.here(self.extreme(x, -1), initial), value)

    def average(self, x: Any) -> Any:
        count = np.maximum(self.inside.sum(1), 1)
        total = self.total(x)
        total = total if jnp.issubdtype(total.dtype, jnp.floating) else total.astype(jnp.float32)
        return total / count.reshape((-1,) + (1,) * (total.ndim - 1)).astype(total.dtype)

    def mean(self, value: Any, *, initial: Any = None) -> Any:
        return self.tree(lambda x: self.here(self.average(x), initial), value)

    def variance(self, x: Any) -> Any:
        return self.average(jnp.square(x - self.average(x)[self.own]))

    def var(self, value: Any, *, initial: Any = None) -> Any:
        return self.tree(lambda x: self.here(self.variance(x), initial), value)

    def std(self, value: Any, *, initial: Any = None) -> Any:
        def one(x: Any) -> Any:
            var = self.variance(x)
            root = jnp.where(var > 0, jnp.sqrt(jnp.where(var > 0, var, 1)), 0)
            return self.here(root, initial)

        return self.tree(one, value)

    def logsumexp(self, value: Any, *, initial: Any = None) -> Any:
        def one(x: Any) -> Any:
            top = lax.stop_gradient(self.extreme(x, 1))
            total = self.total(jnp.exp(x - top[self.own]))
            return self.here(
                jnp.where(total > 0, jnp.log(jnp.where(total > 0, total, 1)) + top, 0), initial
            )

        return self.tree(one, value)

    def softmax(self, value: Any) -> Any:
        def one(x: Any) -> Any:
            weight = jnp.exp(x - lax.stop_gradient(self.extreme(x, 1))[self.own])
            total = self.total(weight)[self.own]
            return weight / jnp.where(total > 0, total, 1)

        return self.tree(one, value)


def plain(fn: Any, edges: Any, x_src: Any, x_dst: Any, data: Any, *params: Any) -> Any:
    """`fn(vocabulary, v, e, *params)` on every lane; leaves `[E + num_dst, ...]`.

    The first `E` rows are the values of the edges, the others those of the vertices.
    """
    real = edges.real
    src = np.where(real, edges.src, 0).astype(np.int32)
    dst = np.where(real, edges.dst, 0).astype(np.int32)
    rows = np.concatenate([dst, np.arange(edges.num_dst, dtype=np.int32)])
    lane_real = np.concatenate([real, np.zeros(edges.num_dst, bool)])

    def extend(x: Any) -> Any:
        return jnp.concatenate([x, jnp.ones((edges.num_dst, *x.shape[1:]), x.dtype)])

    e_src = jax.tree.map(lambda x: extend(x[src]), x_src)
    v = jax.tree.map(lambda x: x[rows], x_dst)
    e_data = jax.tree.map(extend, data)

    def lane(own: Any, xs: Any, xd: Any, d: Any) -> Any:
        words = Plain(own, rows, lane_real, edges.num_dst)
        return fn(words, xd, Edge(xs, xd, d), *params)

    return jax.vmap(lane, axis_name=AXIS)(jnp.asarray(rows), e_src, v, e_data)
