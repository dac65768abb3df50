"""Cuts of a row of vertices into contiguous shards, on prefix sums of their costs."""

from __future__ import annotations

import numpy as np

from gnnjit.shapes import HostArray


def prefix_sums(rows: HostArray) -> HostArray:
    """`[N + 1, ...]`, of which entry i is the sum of the first i rows."""
    return np.concatenate([np.zeros((1, *rows.shape[1:])), np.cumsum(rows, axis=0)])


def even(num_nodes: int, parts: int) -> HostArray:
    """`int64[parts + 1]`: bounds of equal numbers of vertices, give or take one."""
    return np.arange(parts + 1) * num_nodes // parts


def contiguous_cut(sums: HostArray, parts: int) -> HostArray:
    """`int64[parts + 1]`: the bounds of the least maximum, and of those the nearest to where k/P of
    all is reached; even where all cost nothing.

    Args:
        sums: `float64[N + 1]`, of which entry i is the cost of the first i vertices.
        parts: P.
    """
    last, total = len(sums) - 1, sums[-1]
    if not total:
        return even(last, parts)
    packed = _least_packed(sums, parts)
    most = np.diff(sums[packed]).max()
    # The first start of shards k and later that can still hold what is left.
    first = np.full(parts + 1, last)
    for k in range(parts - 1, 0, -1):
        first[k] = np.searchsorted(sums, sums[first[k + 1]] - most, "left")
    wanted = _nearest(sums, total * np.arange(parts + 1) / parts)
    bounds = np.zeros(parts + 1, np.int64)
    bounds[-1] = last
    for k in range(1, parts):
        bounds[k] = min(max(wanted[k], first[k]), _reach(sums, bounds[k - 1], most))
    # Sums and differences are rounded apart: an even cut must not cost the least maximum.
    return bounds if np.diff(sums[bounds]).max() <= most else packed


def _least_packed(sums: HostArray, parts: int) -> HostArray:
    """Bounds of the least maximum, where each shard takes as much as it may."""
    last = len(sums) - 1
    low, high = max(np.diff(sums).max(), sums[-1] / parts), sums[-1]
    found = _packed(sums, parts, low)
    if found[-1] == last:
        return found
    found = _packed(sums, parts, high)
    while low < (middle := low + (high - low) / 2) < high:
        tried = _packed(sums, parts, middle)
        if tried[-1] == last:
            found, high = tried, middle
        else:
            low = middle
    return found


def _packed(sums: HostArray, parts: int, most: float) -> HostArray:
    """Bounds of shards that each take what costs at most `most`; some may be left over."""
    bounds = np.zeros(parts + 1, np.int64)
    for k in range(parts):
        bounds[k + 1] = _reach(sums, bounds[k], most)
    return bounds


def _reach(sums: HostArray, start: int, most: float) -> int:
    """The last bound of a shard from `start` that costs at most `most`."""
    return int(np.searchsorted(sums, sums[start] + most, "right")) - 1


def _nearest(sums: HostArray, goals: HostArray) -> HostArray:
    """For each goal the position whose sum is the nearest."""
    above = np.clip(np.searchsorted(sums, goals, "left"), 1, len(sums) - 1)
    return above - (goals - sums[above - 1] < sums[above] - goals)
