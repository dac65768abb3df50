"""Rows on the shards: of the vertices of one set, or of edges."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from gnnjit.distributed.process_group import on_host
from gnnjit.graph import validate
from gnnjit.shapes import ArrayLike, HostArray


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["number", "sizes"],
    meta_fields=["count", "length"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Where the elements of a set lie: shard p has `length` rows for its own, padding last.

    Attributes:
        number: `int32[P * length]`, the user's number of each row's element; 0 in padding.
        sizes: `int32[P]`, elements of each shard.
        count: elements as the user counts them (static).
        length: rows of each shard (static).
    """

    number: Any
    sizes: Any
    count: int
    length: int

    @property
    def mask(self) -> jax.Array:
        """`bool[P * length]`, False in padding."""
        return (jnp.arange(self.length) < self.sizes[:, None]).reshape(-1)

    def without_padding(self, x: Any) -> jax.Array:
        """`x`, `[P * length, ...]`, with zeros in padding, whatever is there."""
        return jnp.where(_column(self.mask, x), x, jnp.zeros_like(x))

    def put(self, x: ArrayLike, sharding: NamedSharding) -> jax.Array:
        """`x`, `[count, ...]`, on the shards, with zeros in padding: `[P * length, ...]`. Traced
        arrays stay in the program."""
        if validate.is_traced(x, self.number):
            rows, number = jnp.asarray(x), self.number
            rows = rows[number] if len(rows) else jnp.resize(rows, (len(number), *rows.shape[1:]))
            return self.without_padding(rows)
        host = np.asarray(x)
        at = {i: np.asarray(s) for i, s in parts_here(self.number)}
        count = {i: int(np.asarray(s)[0]) for i, s in parts_here(self.sizes)}

        def part(index: Any) -> HostArray:
            start = index[0].start or 0
            rows = np.zeros((self.length, *host.shape[1:]), host.dtype)
            real = count[start // self.length]
            rows[:real] = host[at[start][:real]]
            return rows

        shape = (len(self.sizes) * self.length, *host.shape[1:])
        return jax.make_array_from_callback(shape, sharding, part)

    def get(self, y: Any) -> Any:
        """`y`, `[P * length, ...]`, as NumPy's `[count, ...]` by the user's numbers, 0 where no row
        has one; traced arrays stay in the program."""
        if validate.is_traced(y, self.number):
            at = jnp.where(self.mask, self.number, self.count)
            return jnp.zeros((self.count, *y.shape[1:]), y.dtype).at[at].set(y, mode="drop")
        values, numbers = on_host(y), on_host(self.number)
        real = (np.arange(self.length) < on_host(self.sizes)[:, None]).reshape(-1)
        out = np.zeros((self.count, *values.shape[1:]), values.dtype)
        out[numbers[real]] = values[real]
        return out


def parts_here(x: Any) -> list[tuple[int, Any]]:
    """First row and data of each part of `x` that this process holds."""
    return [(s.index[0].start or 0, s.data) for s in x.addressable_shards]


def _column(rows: Any, like: Any) -> Any:
    return rows.reshape((-1,) + (1,) * (like.ndim - 1))
