"""The full citation graphs of Bojchevski & Günnemann, one .npz file each."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from gnnjit.data.archives import read_npz
from gnnjit.data.edges import symmetric_edges
from gnnjit.data.files import Fetch, fetch_url, locate
from gnnjit.data.pickles import Csr, check_csr
from gnnjit.data.splits import per_class_split, row_normalize
from gnnjit.data.types import Dataset
from gnnjit.data.upstream import CITATION_FULL
from gnnjit.errors import DataError
from gnnjit.graph import Graph

# The same matrix goes by several names in the copies of these files that are about.
_ADJACENCY = ("adj_matrix", "adj")
_FEATURES = ("node_attr", "attr_matrix", "attr")
_LABELS = ("node_label", "labels")
_CSR_PARTS = ("data", "indices", "indptr", "shape")


def citation_full(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    normalize: bool = False,
    seed: int = 0,
    train_per_class: int = 20,
    val_per_class: int = 30,
    fetch: Fetch = fetch_url,
) -> Dataset:
    """DBLP of CitationFull with a seeded random split; it has no standard one.

    Bojchevski & Günnemann, "Deep Gaussian embedding of graphs" (2018). Edges are symmetric,
    without duplicates and self loops. Split as in Shchur et al. (2018).

    Args:
      name: "dblp".
      data_dir: holds `dblp.npz` or `citationfull-dblp/dblp.npz`; see `gnnjit.data.files`.
      normalize: divide each row of features by its sum.
      seed: of the split.
      train_per_class, val_per_class: vertices of each class; the rest is test.
      fetch: downloads a URL; for tests.

    Returns:
      17,716 vertices, 105,734 directed edges, 1,639 features, 4 classes.

    Raises:
      DataError: if the name is unknown or the file is missing, damaged or inconsistent.
    """
    if name not in CITATION_FULL:
        raise DataError(f"citation_full: got {name!r}, expected {', '.join(CITATION_FULL)}.")
    file = CITATION_FULL[name]
    path = locate(name, f"citationfull-{name}", (file,), data_dir, fetch)[file.name]
    adjacency, features, y = _read(path)
    n, num_classes = y.shape[0], int(y.max()) + 1
    x = features.dense(str(path))
    x = row_normalize(x) if normalize else x
    masks = per_class_split(
        name, y, num_classes, train=train_per_class, val=val_per_class, seed=seed
    )
    src, dst = symmetric_edges(adjacency.rows(), adjacency.indices, n)
    return Dataset(
        name=name,
        graph=Graph.from_edges(src, dst, n),
        x=x,
        y=y,
        train_mask=masks.train,
        val_mask=masks.val,
        test_mask=masks.test,
        num_classes=num_classes,
        source="Bojchevski & Günnemann 2018, arXiv:1707.03815",
    )


def _read(path: Path) -> tuple[Csr, Csr, np.ndarray]:
    whole = (*_ADJACENCY, *_FEATURES)
    split = tuple(f"{key}{dot}{part}" for key in whole for dot in "_." for part in _CSR_PARTS)
    arrays = read_npz(path, (*whole, *_LABELS, *split))
    adjacency = _matrix(path, arrays, _ADJACENCY)
    features = _matrix(path, arrays, _FEATURES)
    labels = next((arrays[key] for key in _LABELS if key in arrays), None)
    if not isinstance(labels, np.ndarray) or labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(f"{path}: expected the labels as integers [vertices], {_LABELS[0]}.npy.")
    n = labels.shape[0]
    if adjacency.shape != (n, n) or features.shape[0] != n:
        raise DataError(
            f"{path}: got an adjacency matrix of {adjacency.shape}, features of {features.shape} "
            f"and {n} labels, expected ({n}, {n}) and ({n}, any). The file is damaged; get it "
            "again."
        )
    if n == 0 or labels.min() < 0 or labels.max() >= n:
        raise DataError(f"{path}: got labels out of range, expected classes numbered from 0.")
    return adjacency, features, labels.astype(np.int32)


def _matrix(path: Path, arrays: dict[str, Any], keys: tuple[str, ...]) -> Csr:
    """A matrix stored whole (a pickled CSR matrix) or as its four arrays."""
    for key in keys:
        if isinstance(arrays.get(key), Csr):
            return arrays[key]
        for dot in "_.":
            names = [f"{key}{dot}{part}" for part in _CSR_PARTS]
            if all(isinstance(arrays.get(name), np.ndarray) for name in names):
                data, indices, indptr, shape = (arrays[name] for name in names)
                return check_csr(f"{path}:{key}", data, indices, indptr, shape)
    raise DataError(
        f"{path}: has no CSR matrix {' or '.join(keys)}, expected the npz format of CitationFull. "
        "Is it another dataset's file?"
    )
