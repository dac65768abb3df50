"""Seeded splits of vertices and links, and the features' usual scaling."""

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


def random_split(
    name: str,
    y: np.ndarray,
    *,
    train: float = 0.6,
    val: float = 0.2,
    known: np.ndarray | None = None,
    stratified: bool = True,
    seed: int = 0,
) -> Masks:
    """Shares of the vertices, drawn at random, in each class as in all; the rest is the test.

    Args:
      name: of the dataset, for messages.
      y: labels [N, ...]; only classes, int [N], are stratified.
      train, val: shares.
      known: bool [N], which vertices have a label; the others are in no mask.
      stratified: whether each class is divided so.
      seed: of the draw.

    Raises:
      DataError: the shares are none, or leave no vertex to train on or to test.
    """
    _check_shares(name, train, val)
    if seed < 0:
        raise DataError(f"{name}: the split got seed={seed}, expected at least 0.")
    vertices = np.arange(len(y)) if known is None else np.flatnonzero(known)
    order = np.random.Generator(np.random.PCG64(seed)).permutation(vertices)
    if stratified and y.ndim == 1 and y.dtype.kind in "biu":
        order = order[np.argsort(y[order], kind="stable")]
        # Each class is dealt out evenly along the line that is cut.
        sizes = np.bincount(y[order])
        rank = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        place = (rank + 0.5) / np.repeat(sizes, sizes)
        order = order[np.argsort(place, kind="stable")]
    first, second = round(train * len(order)), round((train + val) * len(order))
    if first == 0 or second == len(order):
        raise DataError(
            f"{name}: the split takes {first} of {len(order)} labelled vertices to train on, and "
            f"{len(order) - second} for the test, expected one of each. Label more."
        )
    return masks_from_indices(len(y), order[:first], order[first:second], order[second:])


def time_split(name: str, time: np.ndarray, *, train: float = 0.6, val: float = 0.2) -> Masks:
    """The earliest vertices to train on, those after them for validation, the latest for the test.

    Vertices of one time are in one part: a part takes all that are as early as its last.

    Args:
      name: of the dataset, for messages.
      time: numbers [N]; NaN is in no part.
      train, val: shares.

    Raises:
      DataError: the shares are none, or leave a part empty that is to have vertices.
    """
    _check_shares(name, train, val)
    known = np.sort(time[~np.isnan(np.asarray(time, np.float64))])
    if not len(known):
        raise DataError(f"{name}: the split got no times, expected a number for each vertex.")
    first, second = (known[max(round(share * len(known)) - 1, 0)] for share in (train, train + val))
    masks = Masks(time <= first, (time > first) & (time <= second), time > second)
    if not masks.train.any() or not masks.test.any():
        raise DataError(
            f"{name}: {np.count_nonzero(masks.train)} vertices are as early as {first} and "
            f"{np.count_nonzero(masks.test)} are later than {second}, expected some of both. "
            "Change the shares."
        )
    return masks


def _check_shares(name: str, train: float, val: float) -> None:
    if not (0 < train and 0 <= val and train + val < 1):
        raise DataError(
            f"{name}: the split got shares train={train} and val={val}, expected above 0 and from "
            "0 on, below 1 together."
        )


def row_normalize(x: np.ndarray) -> np.ndarray:
    """Features divided by their row's sum, as GCN trains on (Kipf & Welling 2017, section 5.2).

    It takes and gives float32 [N, F]. Rows that sum to zero stay as they are."""
    total = x.sum(axis=1, keepdims=True, dtype=np.float64)
    return (x / np.where(total == 0, 1, total)).astype(np.float32)
