"""Rows that are looked up often, kept on the device: only the others travel."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.sample.adjacency import Adjacency
from gnnjit.sample.features import Features
from gnnjit.shapes import HostArray, PyTree

_PADDING = int(np.iinfo(np.int32).min)


class Hot:
    """Some rows of the features that lie on the host, on the device.

    Attributes:
        count: how many.
    """

    def __init__(self, features: Features, numbers: HostArray, device: Any) -> None:
        self._features = features
        self.count = len(numbers)
        self._slots = np.full(features.rows, -1, np.int32)
        self._slots[numbers] = np.arange(len(numbers), dtype=np.int32)
        room = features.room(len(numbers))
        features.look_up(numbers, room, 0)
        self._held = [None if rows is None else jax.device_put(rows, device) for rows in room]

    def missed(self, vertices: HostArray) -> HostArray:
        """Those that are not held, in the same order."""
        return vertices[self._slots[vertices] < 0]

    def joined(
        self, missed: list[HostArray | None], found: HostArray, room: int, vertices: Any, put: Any
    ) -> PyTree:
        """The features of `found`, padded with zeros up to `room`, from the rows that were
        `missed` and those that are held."""
        source = np.full(room, _PADDING, np.int32)
        slots = self._slots[found]
        away = slots < 0
        source[: len(found)] = np.where(away, np.negative(np.cumsum(away)), slots)
        where = put(source)
        moved = [
            None if rows is None else _assembled(held, put(rows), where)
            for held, rows in zip(self._held, missed, strict=True)
        ]
        return self._features.joined(moved, vertices, lambda array: array)


def by_degree(adjacency: Adjacency, count: int) -> HostArray:
    """`int64[count]`, the vertices that are neighbours most often."""
    often = np.bincount(adjacency.neighbor, minlength=adjacency.num_nodes)
    return np.argsort(-often, kind="stable")[:count]


@jax.jit
def _assembled(held: Any, missed: jax.Array, source: jax.Array) -> jax.Array:
    """Row `source[i] >= 0` of `held`, or row `-source[i] - 1` of `missed`; zeros on padding."""
    away = missed.at[-source - 1].get(mode="fill", fill_value=0)
    own = jnp.take(held, jnp.maximum(source, 0), axis=0)
    return jnp.where((source >= 0).reshape(-1, *[1] * (away.ndim - 1)), own, away)
