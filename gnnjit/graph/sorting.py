"""Edges sorted by one endpoint inside a compiled function: one primitive.

    indptr, neighbor, edge = sort_edges(key, payload, num_rows)

`gnnjit.lower.sort_edges` says how it runs; `sort_by_xla` is what runs everywhere.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gnnjit import _compat
from gnnjit._compat import ad, batching

sort_edges_p = _compat.Primitive("sort_edges")
sort_edges_p.multiple_results = True


def sort_edges(
    key: jax.Array, payload: jax.Array, num_rows: int, rises: bool = False
) -> list[jax.Array]:
    """`(indptr[..., rows + 1], payload by slot, position by slot)`, stable.

    Args:
        key: `int[..., E]`, the row of each edge, `num_rows` for padding.
        payload: `int[..., E]`.
        rises: the keys of the edges that are no padding are said to rise. It is looked at where it
            saves a sort, and costs nothing but time where it is not true.
    """
    return sort_edges_p.bind(key, payload, num_rows=num_rows, rises=rises)


@sort_edges_p.def_abstract_eval
def _shapes(key: Any, payload: Any, *, num_rows: int, rises: bool) -> list[Any]:
    rows = (*key.shape[:-1], num_rows + 1)
    return [
        _compat.result_aval((key, payload), shape, key.dtype)
        for shape in (rows, payload.shape, payload.shape)
    ]


sort_edges_p.def_impl(lambda *args, **params: _compiled(**params)(*args))


@functools.lru_cache(maxsize=256)
def _compiled(**params: Any) -> Any:
    return jax.jit(functools.partial(sort_edges_p.bind, **params))


def _jvp(primals: Sequence[Any], _: Sequence[Any], **params: Any) -> tuple[list[Any], list[Any]]:
    """Integers have no tangents."""
    outs = sort_edges_p.bind(*primals, **params)
    return outs, [_compat.zero_tangent(jax.typeof(x)) for x in outs]


ad.primitive_jvps[sort_edges_p] = _jvp


def _batch(args: Sequence[Any], dims: Sequence[Any], **params: Any) -> tuple[list[Any], list[int]]:
    (size,) = {x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None}
    moved = [
        jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
        for x, d in zip(args, dims, strict=True)
    ]
    return sort_edges_p.bind(*moved, **params), [0, 0, 0]


batching.primitive_batchers[sort_edges_p] = _batch


def sort_by_xla(
    key: jax.Array, payload: jax.Array, num_rows: int, rises: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`sort_edges` in array operations alone."""
    if key.ndim > 1:
        one = functools.partial(sort_by_xla, num_rows=num_rows, rises=rises)
        return jax.vmap(one)(key, payload)
    if not key.shape[0]:
        return jnp.zeros(num_rows + 1, key.dtype), payload, jnp.zeros_like(key)
    count = jnp.zeros(num_rows + 1, key.dtype).at[key].add(1)
    end = jnp.cumsum(count, dtype=key.dtype)
    indptr = jnp.concatenate([jnp.zeros(1, key.dtype), end[:-1]])
    edge = _rising_order(key, num_rows, indptr[-1]) if rises else _sorted_order(key, num_rows)
    return indptr, payload[edge], edge


def _sorted_order(key: jax.Array, num_rows: int) -> jax.Array:
    """The positions in the order of the keys. A sort of single numbers takes a fifth of the time
    of one of pairs: key and position share a number where both fit."""
    length = key.shape[0]
    position = jnp.arange(length, dtype=key.dtype)
    wide = np.dtype(np.uint32 if key.dtype.itemsize == 4 else np.uint64)
    if (num_rows + 1) * length > np.iinfo(wide).max:
        return lax.sort((key, position), num_keys=1, is_stable=True)[1]
    both = key.astype(wide) * wide.type(length) + position.astype(wide)
    return (lax.sort(both, is_stable=False) % wide.type(length)).astype(key.dtype)


def _rising_order(key: jax.Array, num_rows: int, real: jax.Array) -> jax.Array:
    """The positions in the order of the keys, which rise but for padding, if they do."""
    is_real = key < num_rows
    highest = lax.cummax(jnp.where(is_real, key, 0))

    def moved() -> jax.Array:
        """Edges to the front, padding to the end."""
        position = jnp.arange(len(key), dtype=key.dtype)
        before = jnp.cumsum(is_real, dtype=key.dtype)
        slot = jnp.where(is_real, before - 1, real + position - before)
        return jnp.zeros_like(key).at[slot].set(position, unique_indices=True)

    return lax.cond(
        jnp.all(jnp.where(is_real, key, highest) == highest),
        moved,
        lambda: _sorted_order(key, num_rows),
    )
