"""Draws in proportion to weights in O(1): Walker's alias method, the table built as in Vose, "A
linear algorithm for generating random numbers with a given distribution" (1991)."""

from __future__ import annotations

import dataclasses

import numpy as np
from numba import njit

from gnnjit.errors import SampleError
from gnnjit.sample.adjacency import check_weights, read_only
from gnnjit.sample.random import below, uniform
from gnnjit.shapes import HostArray


@dataclasses.dataclass(frozen=True, eq=False)
class AliasTable:
    """n columns, each with a number and an alias that has the rest of the column.

    Attributes:
        share: `float64[n]`, how much of column `i` is `i`'s.
        alias: `int32[n]`, whose the rest is.
    """

    share: HostArray
    alias: HostArray

    @classmethod
    def of(cls, where: str, name: str, weights: HostArray) -> AliasTable:
        """That of `float64[n]`. Raises SampleError where a weight is negative or not finite, or
        none is above 0."""
        check_weights(where, name, weights)
        largest = weights.max(initial=0.0)
        if not largest > 0:
            raise SampleError(
                f"{where}: no entry of {name}, of {len(weights)}, is above 0, expected at least "
                f"one: nothing can be drawn"
            )
        scaled = weights / largest  # whose sum is finite
        scaled *= len(weights) / scaled.sum()
        return cls(read_only(scaled), read_only(_build(scaled)))


@njit(nogil=True, cache=True, inline="always")
def pick(share, alias, key, position):  # type: ignore[no-untyped-def]
    """The int64 that draw `position` of a stream picks."""
    column = below(key, 2 * position, len(share))
    if uniform(key, 2 * position + 1) < share[column]:
        return column
    return np.int64(alias[column])


@njit(nogil=True, cache=True)
def _build(share):  # type: ignore[no-untyped-def]
    """The aliases. `share` comes as the weights, of mean 1."""
    count = len(share)
    alias = np.empty(count, np.int32)
    poor, rich = np.empty(count, np.int32), np.empty(count, np.int32)
    num_poor, num_rich = 0, 0
    richest = np.int32(np.argmax(share))
    for i in range(count):
        alias[i] = richest
        if share[i] < 1:
            poor[num_poor] = i
            num_poor += 1
        else:
            rich[num_rich] = i
            num_rich += 1
    while num_poor > 0 and num_rich > 0:
        num_poor -= 1
        low, high = poor[num_poor], rich[num_rich - 1]
        alias[low] = high
        share[high] -= 1 - share[low]
        if share[high] < 1:
            num_rich -= 1
            poor[num_poor] = high
            num_poor += 1
    # What is left has a share of 1 but for rounding, and weights of 0 keep theirs.
    for i in range(num_rich):
        share[rich[i]] = 1.0
    return alias
