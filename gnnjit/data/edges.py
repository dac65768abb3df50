"""Edge lists in the one form that every vertex dataset uses."""

from __future__ import annotations

import numpy as np


def symmetric_edges(a: np.ndarray, b: np.ndarray, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Both directions of each pair {a, b}, once, without self loops.

    Args:
      a, b: int [P], ids in [0, num_nodes); the caller has checked them.
      num_nodes: number of vertices, below 2**31.

    Returns:
      (src, dst): int32 [E], sorted by destination and then by source.
    """
    a = np.asarray(a, np.int64)
    b = np.asarray(b, np.int64)
    different = a != b
    a, b = a[different], b[different]
    keys = np.concatenate([a * num_nodes + b, b * num_nodes + a])
    keys.sort()
    keys = keys[first_of_run(keys)]
    dst, src = np.divmod(keys, max(num_nodes, 1))
    return src.astype(np.int32), dst.astype(np.int32)


def first_of_run(values: np.ndarray) -> np.ndarray:
    """Where a sorted array starts a new value: [P] -> bool [P]."""
    first = np.ones(values.shape[0], bool)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return first
