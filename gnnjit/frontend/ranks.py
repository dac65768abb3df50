"""Words that order the edges of a vertex: the largest, the middle one, the first few."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit import _compat
from gnnjit.errors import LayerError, shortened
from gnnjit.frontend.formulas import as_float
from gnnjit.frontend.vocabulary import Edges, Over, edges_over, index_p, numbers_to_reduce, reduced

__all__ = ["argmax", "argmin", "median", "quantile", "sort", "top_k"]

MOST = 1024
"""Values of a row that `sort` and `top_k` give, at most: each edge is compared with all of them."""

select_p = _compat.Primitive("gnnjit_select")
"""The numbers `int32[k, *shape]` of the edges whose values `[*shape]` have the ranks `int32[k]`."""


def _numbers_of(x: Any, ranks: Any, **_: Any) -> Any:
    return jnp.zeros((*ranks.shape, *x.shape), jnp.int32)


def _batch(args: Any, dims: Any, **params: Any) -> Any:
    (x, ranks), (at, of_ranks) = args, dims
    if of_ranks is not None or at is None:
        raise LayerError(
            f"gnnjit.{params['said']}() whose ranks jax.vmap maps over inside a layer: map over "
            "values of edges, or outside the layer"
        )
    return select_p.bind(jnp.moveaxis(x, at, -1), ranks, **params), x.ndim


def _jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    out = select_p.bind(*primals, **params)
    return out, _compat.zero_tangent(jax.ShapeDtypeStruct(out.shape, out.dtype))


select_p.def_impl(_numbers_of)
select_p.def_abstract_eval(
    lambda x, ranks, **_: _compat.shaped_array((*ranks.shape, *x.shape), np.dtype(np.int32))
)
_compat.batching.primitive_batchers[select_p] = _batch
_compat.ad.primitive_jvps[select_p] = _jvp
_compat.mlir.register_lowering(
    select_p, _compat.mlir.lower_fun(_numbers_of, multiple_results=False)
)


def _numbers(edges: Edges, x: Any, ranks: Any, *, descending: bool, first: bool = False) -> Any:
    """Which edges have the ranks, `int32[k, *shape]`; -1 where there is none."""
    x, said = numbers_to_reduce("max", x)
    if x.dtype == jnp.bool_:
        x = x.astype(jnp.int32)
    return select_p.bind(x, ranks, descending=descending, first=first, over=edges.over, said=said)


def _picked(edges: Edges, x: jax.Array, chosen: jax.Array) -> jax.Array:
    """The values of the edges of these numbers: `x` is `[*shape]` and `chosen` `[k, ...]`, one
    number for each entry, or one for a whole value; 0 where there is none.

    Each is a sum over all edges of which one term is not 0. So its gradient is that of a sum.
    """
    number = index_p.bind(x, edge=True)
    here = (chosen == number).reshape(*chosen.shape, *(1,) * (x.ndim + 1 - chosen.ndim))
    if x.dtype == jnp.bool_:
        return edges.reduce("sum", (here & x).astype(jnp.int32)) > 0
    return edges.reduce("sum", jnp.where(here, x, jnp.zeros_like(x)))


def argmax(value: Any, *, over: Over = "in") -> Any:
    """Which incoming edge has the largest value: a vertex value, `int32`, the number of that edge
    in the order in which the graph's edges were given; -1 over no edges.

    The first one where several tie, and the first NaN where there is any, as in `jnp.argmax`. It
    has no gradient.

    Args:
        value: a pytree of `[...]`, one value per edge; each entry has its own edge.
        over: "out" for this vertex's outgoing edges, as of `gnnjit.sum`.

    Raises:
        LayerError: as of `gnnjit.sum`; or the values are complex.
    """
    return reduced("argmax", value, None, over, _first)


def argmin(value: Any, *, over: Over = "in") -> Any:
    """Which incoming edge has the smallest value: otherwise as `gnnjit.argmax`.

    Args:
        value: a pytree of `[...]`, one value per edge; each entry has its own edge.
        over: "out" for this vertex's outgoing edges, as of `gnnjit.sum`.

    Raises:
        LayerError: as of `gnnjit.argmax`.
    """
    return reduced("argmin", value, None, over, lambda edges, x: _first(edges, _negative(x)))


def _negative(x: jax.Array) -> jax.Array:
    """The opposite order, in which nothing overflows."""
    return -x if jnp.issubdtype(x.dtype, jnp.inexact) else ~x


def _first(edges: Edges, x: jax.Array) -> jax.Array:
    ranks = jnp.zeros(1, jnp.int32)
    return _numbers(edges, x, ranks, descending=True, first=True)[0]


def top_k(value: Any, k: int, *, order: Any = None, initial: Any = None, over: Over = "in") -> Any:
    """The `k` largest values of the incoming edges, largest first: a vertex value `[k, ...]`.

    Edges that tie come in the order in which they were given, and NaN comes first, as in
    `jax.lax.top_k`. The gradient goes to the edges whose values they are.

    Args:
        value: a pytree of `[...]`, one value per edge; each entry is ordered by itself.
        k: how many, from 1 to 1024.
        order: one number per edge, `[]`: whole values are taken, those with the largest numbers.
        initial: what a vertex with fewer edges has in place of the others; 0 if left out.
        over: "out" for this vertex's outgoing edges, as of `gnnjit.sum`.

    Raises:
        LayerError: as of `gnnjit.argmax`; or `k` or `order` is no such value.
    """
    return _several("top_k", value, k, order, initial, over, descending=True)


def sort(
    value: Any, size: int, *, order: Any = None, initial: Any = None, over: Over = "in"
) -> Any:
    """The `size` smallest values of the incoming edges in ascending order: a vertex value
    `[size, ...]`. All of them, where no vertex has more edges.

    Edges that tie come in the order in which they were given, and NaN comes last. The gradient
    goes to the edges whose values they are.

    Args:
        value: a pytree of `[...]`, one value per edge; each entry is sorted by itself.
        size: how many, from 1 to 1024.
        order: one number per edge, `[]`: whole values are sorted, by these.
        initial: what a vertex with fewer edges has in place of the others; 0 if left out.
        over: "out" for this vertex's outgoing edges, as of `gnnjit.sum`.

    Raises:
        LayerError: as of `gnnjit.argmax`; or `size` or `order` is no such value.
    """
    return _several("sort", value, size, order, initial, over, descending=False)


def _several(
    said: str, value: Any, count: Any, order: Any, initial: Any, over: Any, *, descending: bool
) -> Any:
    edges = edges_over(said, over)
    what = "k" if said == "top_k" else "size"
    if not isinstance(count, (int, np.integer)) or not 1 <= count <= MOST:
        came = shortened(repr(count), 100)
        raise LayerError(
            f"gnnjit.{said}: {what} must be a whole number from 1 to {MOST}, got {came}"
        )
    if order is not None:
        order = jnp.asarray(order)
        if order.shape:
            raise LayerError(
                f"gnnjit.{said}: order must be one number per edge, [], got {order.dtype.name}"
                f"{list(order.shape)}: pick one entry of it, as in order=x[-1]"
            )
    ranks = jnp.arange(int(count), dtype=jnp.int32)

    def one(edges: Edges, x: jax.Array) -> jax.Array:
        chosen = _numbers(edges, x if order is None else order, ranks, descending=descending)
        out = _picked(edges, x, chosen)
        if initial is None:
            return out
        there = (ranks < edges.count()).reshape(-1, *(1,) * x.ndim)
        return jnp.where(there, out, jnp.asarray(initial, out.dtype))

    return jax.tree.map(lambda x: edges.at_vertex(one(edges, jnp.asarray(x))), value)


def quantile(value: Any, q: Any, *, initial: Any = None, over: Over = "in") -> Any:
    """The q-quantile of the values of the incoming edges, a vertex value: between two of them,
    linearly interpolated, as `jnp.quantile` does. NaN where any value is NaN.

    The gradient goes to the edges whose values they are; of those that tie, to the first.

    Args:
        value: a pytree of `[...]`, one value per edge; each entry has its own quantile.
        q: a number from 0 to 1; or a sequence of them, for `[len(q), ...]`.
        initial: the result over no edges; 0 if left out.
        over: "out" for this vertex's outgoing edges, as of `gnnjit.sum`.

    Raises:
        LayerError: as of `gnnjit.argmax`; or `q` is no such value.
    """
    return reduced("quantile", value, initial, over, _interpolated(q))


def median(value: Any, *, initial: Any = None, over: Over = "in") -> Any:
    """The median of the values of the incoming edges, a vertex value; of an even number, the mean
    of the two in the middle. Otherwise as `gnnjit.quantile`.

    Args:
        value: a pytree of `[...]`, one value per edge; each entry has its own median.
        initial: the result over no edges; 0 if left out.
        over: "out" for this vertex's outgoing edges, as of `gnnjit.sum`.

    Raises:
        LayerError: as of `gnnjit.argmax`.
    """
    return reduced("median", value, initial, over, _interpolated(0.5))


def _interpolated(q: Any) -> Callable[[Edges, jax.Array], jax.Array]:
    if isinstance(q, _compat.Tracer):
        raise LayerError(
            "gnnjit.quantile: q is traced, expected numbers that are known when the layer is "
            "traced: name it in @gnnjit.layer(static_argnames=...)"
        )
    try:
        wanted = np.asarray(q, np.float64)
    except (TypeError, ValueError):
        wanted = np.asarray(np.nan)
    if wanted.ndim > 1 or not wanted.size or not ((wanted >= 0) & (wanted <= 1)).all():
        came = shortened(repr(q), 100)
        raise LayerError(f"gnnjit.quantile: q must be a number from 0 to 1, or several, got {came}")

    def one(edges: Edges, x: jax.Array) -> jax.Array:
        dtype = as_float(x).dtype
        wide = x if x.dtype == jnp.float64 else as_float(x).astype(jnp.float32)
        last = jnp.maximum(edges.count() - 1, 0).astype(wide.dtype)
        at = last * jnp.asarray(wanted.reshape(-1), wide.dtype)
        low = jnp.floor(at).astype(jnp.int32)
        high = jnp.ceil(at).astype(jnp.int32)
        chosen = _numbers(edges, wide, jnp.concatenate([low, high]), descending=False)
        below, above = jnp.split(_picked(edges, wide, chosen), 2)
        part = (at - low).reshape(-1, *(1,) * x.ndim)
        apart = jnp.where(below == above, jnp.zeros_like(above), above - below)
        found = jnp.where(part == 0, below, below + apart * part)
        bad = edges.reduce("max", (wide != wide).astype(jnp.int32)) > 0
        found = jnp.where(bad, jnp.nan, found).astype(dtype)
        return found if wanted.ndim else found[0]

    return one
