"""Protein interactions in 24 tissues: several labels a vertex, in three CSV files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from gnnjit.data.edges import symmetric_edges
from gnnjit.data.files import Fetch, fetch_url, locate
from gnnjit.data.types import Dataset
from gnnjit.data.upstream import PPI
from gnnjit.errors import DataError
from gnnjit.graph import Graph

PARTS = {"train": (0, 9716), "val": (9716, 11541), "test": (11541, 14755)}
"""First vertex and the one after the last; no edge joins two parts."""


def ppi(
    data_dir: str | os.PathLike[str] | None = None,
    *,
    standardize: bool = True,
    fetch: Fetch = fetch_url,
) -> Dataset:
    """The PPI graph of GraphSAGE, of which each vertex has some of 121 labels.

    Hamilton, Ying & Leskovec, "Inductive Representation Learning on Large Graphs" (2017), section
    4.1; the smaller of two versions, that of GraphSAINT and of graph-sampling GCN. The tissues of
    the three parts differ, and no edge joins them. Edges are symmetric, without duplicates and self
    loops.

    Args:
      data_dir: holds `edges.csv`, `features.csv` and `target.csv`, or a folder `toy-ppi` of them;
        see `gnnjit.data.files`.
      standardize: each feature less its mean, over its deviation, of the training vertices, as in
        GraphSAGE.
      fetch: downloads a URL; for tests.

    Returns:
      14,755 vertices, 444,218 directed edges, 50 features, 121 classes, of which 0 to 101 are a
      vertex's labels: `y` is bool [N, 121].

    Raises:
      DataError: if a file is missing, damaged or inconsistent.
    """
    paths = locate("ppi", "toy-ppi", tuple(PPI.values()), data_dir, fetch)
    x, y = (_table(paths[PPI[part].name]) for part in ("features", "target"))
    edges = _table(paths[PPI["edges"].name]).astype(np.int64)
    n = PARTS["test"][1]
    for part, table, rows in (("features", x, n), ("target", y, n)):
        if len(table) != rows:
            raise DataError(
                f"{paths[PPI[part].name]}: got {len(table)} rows, expected {rows}. Is it another "
                f"dataset's file?"
            )
    if edges.shape[1] != 2 or edges.size == 0 or edges.min() < 0 or edges.max() >= n:
        raise DataError(
            f"{paths[PPI['edges'].name]}: expected two vertices from 0 to {n - 1} a row. The file "
            "is damaged; get it again."
        )
    if not np.isin(y, (0, 1)).all():
        raise DataError(f"{paths[PPI['target'].name]}: expected labels 0 and 1 alone.")
    masks = {part: (np.arange(n) >= a) & (np.arange(n) < b) for part, (a, b) in PARTS.items()}
    if standardize:
        known = x[masks["train"]]
        spread = known.std(axis=0)
        x = (x - known.mean(axis=0)) / np.where(spread > 0, spread, 1)
    src, dst = symmetric_edges(edges[:, 0], edges[:, 1], n)
    return Dataset(
        name="ppi",
        graph=Graph.from_edges(src, dst, n),
        x=x.astype(np.float32),
        y=y.astype(bool),
        train_mask=masks["train"],
        val_mask=masks["val"],
        test_mask=masks["test"],
        num_classes=y.shape[1],
        source="Hamilton et al. 2017, arXiv:1706.02216",
    )


def _table(path: Path) -> np.ndarray:
    """float64 [rows, columns], without the header."""
    try:
        table = np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: {error}, expected a header and rows of numbers with commas between them. The "
            "file is damaged; get it again."
        ) from error
    if not np.isfinite(table).all():
        raise DataError(f"{path}: holds numbers that are not finite. Replace them.")
    return table
