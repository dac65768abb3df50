"""Bloggers, their friends, and the groups that they joined: several labels a vertex."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import scipy.io
import scipy.sparse as sp

from gnnjit.data.edges import symmetric_edges
from gnnjit.data.files import Fetch, fetch_url, locate, read_bytes
from gnnjit.data.splits import masks_from_indices
from gnnjit.data.types import Dataset
from gnnjit.data.upstream import BLOGCATALOG
from gnnjit.errors import DataError
from gnnjit.graph import Graph


def blogcatalog(
    data_dir: str | os.PathLike[str] | None = None,
    *,
    train_fraction: float = 0.5,
    val_fraction: float = 0.1,
    seed: int = 0,
    fetch: Fetch = fetch_url,
) -> Dataset:
    """The graph of BlogCatalog, in the file of DeepWalk's authors.

    Tang & Liu, "Relational Learning via Latent Social Dimensions" (2009). The vertices have no
    features: `x` is float32 [N, 0], and `gnnjit.training` gives each an embedding that is learned.
    Edges are symmetric, without duplicates and self loops.

    Args:
      data_dir: holds `blogcatalog.mat`, or a folder `blogcatalog` with it; see `gnnjit.data.files`.
      train_fraction, val_fraction: shares of the vertices, drawn at random; the rest is test.
      seed: of the split.
      fetch: downloads a URL; for tests.

    Returns:
      10,312 vertices, 667,966 directed edges, 39 classes, of which each vertex has one or more: `y`
      is bool [N, 39].

    Raises:
      DataError: if the file is missing, damaged or inconsistent, or the shares are none.
    """
    if not (0 < train_fraction and 0 <= val_fraction and train_fraction + val_fraction < 1):
        raise DataError(
            f"blogcatalog: got train_fraction={train_fraction} and val_fraction={val_fraction}, "
            "expected shares above 0 and from 0 on, below 1 together."
        )
    if seed < 0:
        raise DataError(f"blogcatalog: got seed={seed}, expected at least 0.")
    path = locate("blogcatalog", "blogcatalog", (BLOGCATALOG,), data_dir, fetch)[BLOGCATALOG.name]
    network, group = _matrices(path)
    n = network.shape[0]
    order = np.random.Generator(np.random.PCG64(seed)).permutation(n)
    first, second = round(train_fraction * n), round((train_fraction + val_fraction) * n)
    masks = masks_from_indices(n, order[:first], order[first:second], order[second:])
    src, dst = symmetric_edges(network.row, network.col, n)
    return Dataset(
        name="blogcatalog",
        graph=Graph.from_edges(src, dst, n),
        x=np.zeros((n, 0), np.float32),
        y=group.toarray() > 0,
        train_mask=masks.train,
        val_mask=masks.val,
        test_mask=masks.test,
        num_classes=group.shape[1],
        source="Tang & Liu 2009",
    )


def _matrices(path: Path) -> tuple[sp.coo_matrix, sp.csr_matrix]:
    """Who knows whom [N, N], and who is in which group [N, C]."""
    try:
        found = scipy.io.loadmat(io.BytesIO(read_bytes(path)), variable_names=["network", "group"])
    except Exception as error:  # a damaged file may raise anything at all
        raise DataError(
            f"{path}: {error}, expected a MATLAB file of version 5. The file is damaged; get it "
            "again."
        ) from error
    for name in ("network", "group"):
        if not sp.issparse(found.get(name)):
            raise DataError(f"{path}: has no sparse matrix {name}, expected network and group.")
    network, group = sp.coo_matrix(found["network"]), sp.csr_matrix(found["group"])
    if network.shape[0] != network.shape[1] or group.shape[0] != network.shape[0]:
        raise DataError(
            f"{path}: network is {network.shape[0]} x {network.shape[1]} and group "
            f"{group.shape[0]} x {group.shape[1]}, expected a square network and a row of group "
            "for each of its rows."
        )
    return network, group
