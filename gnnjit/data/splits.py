"""Seeded splits into train, validation and test vertices, and the features' usual scaling."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gnnjit.errors import DataError


class Masks(NamedTuple):
    """Disjoint bool [N] masks."""

    train: np.ndarray
    val: np.ndarray
    test: np.ndarray


def masks_from_indices(
    num_nodes: int, train: np.ndarray, val: np.ndarray, test: np.ndarray
) -> Masks:
    """Index arrays -> bool [num_nodes] masks."""
    masks = Masks(*(np.zeros(num_nodes, bool) for _ in range(3)))
    for mask, indices in zip(masks, (train, val, test), strict=True):
        mask[indices] = True
    return masks


def per_class_split(
    name: str, y: np.ndarray, num_classes: int, *, train: int, val: int, seed: int
) -> Masks:
    """`train` and `val` vertices of every class, drawn at random, and the rest as test.

    The protocol of Shchur et al., "Pitfalls of graph neural network evaluation" (2018), 3.

    Raises:
      DataError: if a class has too few vertices to leave one for the test.
    """
    if train < 1 or val < 0:
        raise DataError(
            f"{name}: the split got train={train}, val={val} vertices a class, expected at least "
            "1 and 0."
        )
    if seed < 0:
        raise DataError(f"{name}: the split got seed={seed}, expected at least 0.")
    shuffled = np.random.Generator(np.random.PCG64(seed)).permutation(y.shape[0])
    by_class = shuffled[np.argsort(y[shuffled], kind="stable")]
    sizes = np.bincount(y, minlength=num_classes)
    if sizes.min() <= train + val:
        small = int(sizes.argmin())
        raise DataError(
            f"{name}: class {small} has {sizes[small]} vertices, expected more than {train} train "
            f"+ {val} val. Lower train_per_class or val_per_class."
        )
    rank = np.arange(y.shape[0]) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return masks_from_indices(
        y.shape[0],
        by_class[rank < train],
        by_class[(rank >= train) & (rank < train + val)],
        by_class[rank >= train + val],
    )


def row_normalize(x: np.ndarray) -> np.ndarray:
    """Features divided by their row's sum, as GCN trains on (Kipf & Welling 2017, section 5.2).

    It takes and gives float32 [N, F]. Rows that sum to zero stay as they are."""
    total = x.sum(axis=1, keepdims=True, dtype=np.float64)
    return (x / np.where(total == 0, 1, total)).astype(np.float32)
