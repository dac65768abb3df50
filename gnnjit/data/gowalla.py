"""Check-ins of Gowalla and listenings of Last.fm, as LightGCN's authors prepared them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from gnnjit.data.archives import read_npz
from gnnjit.data.files import Fetch, fetch_url, locate
from gnnjit.data.links import LinkDataset
from gnnjit.data.tables import numbers_of_lines
from gnnjit.data.upstream import GOWALLA, LASTFM
from gnnjit.errors import DataError


def gowalla(
    data_dir: str | os.PathLike[str] | None = None, *, fetch: Fetch = fetch_url
) -> LinkDataset:
    """Users and the places that they checked in at.

    He et al., "LightGCN: Simplifying and Powering Graph Convolution Network for Recommendation"
    (2020), section 4.1; the split of Wang et al., "Neural Graph Collaborative Filtering" (2019).
    There is no validation split.

    Args:
      data_dir: holds `s_adj_mat.npz` (the symmetric matrix of the training interactions, users
        first) and `test.txt` (a line "user item item ..." a user), or a folder `gowalla` of them;
        see `gnnjit.data.files`.
      fetch: downloads a URL; for tests.

    Returns:
      29,858 users, 40,981 items, 810,128 training and 217,242 test interactions.

    Raises:
      DataError: if a file is missing, damaged or inconsistent.
    """
    paths = locate("gowalla", "gowalla", tuple(GOWALLA.values()), data_dir, fetch)
    test = _lists(paths["test.txt"])
    src, dst, size = _matrix(paths["s_adj_mat.npz"])
    forward = src < dst
    users = int(src[forward].max(initial=-1)) + 1
    users = max(users, int(test[:, 0].max(initial=-1)) + 1)
    crossing = (src[forward] < users) & (dst[forward] >= users)
    if not crossing.all() or 2 * np.count_nonzero(forward) != len(src):
        raise DataError(
            f"{paths['s_adj_mat.npz']}: expected a symmetric matrix that joins users, who come "
            "first, and items alone. The file is damaged; get it again."
        )
    items = size - users
    if (test[:, 1] >= items).any():
        wrong = int(test[:, 1].max())
        raise DataError(
            f"{paths['test.txt']}: has the item {wrong}, expected 0 to {items - 1}, the items of "
            "s_adj_mat.npz."
        )
    train = np.stack([src[forward], dst[forward] - users], axis=1)
    return _of("gowalla", train, test, users, items, "He et al. 2020, arXiv:2002.02126")


def lastfm(
    data_dir: str | os.PathLike[str] | None = None, *, fetch: Fetch = fetch_url
) -> LinkDataset:
    """Users and the artists that they listen to; who trusts whom is left out.

    The small dataset of LightGCN's authors. There is no validation split.

    Args:
      data_dir: holds `data1.txt` and `test1.txt` (lines "user item count", counted from 1), or a
        folder `lastfm-rec` of them; see `gnnjit.data.files`.
      fetch: downloads a URL; for tests.

    Returns:
      1,892 users, 4,489 items, 42,135 training and 10,533 test interactions.

    Raises:
      DataError: if a file is missing, damaged or inconsistent.
    """
    paths = locate("lastfm", "lastfm-rec", tuple(LASTFM.values()), data_dir, fetch)
    train, test = (
        numbers_of_lines(paths[name], columns=3, least=1)[:, :2] - 1
        for name in ("data1.txt", "test1.txt")
    )
    users, items = np.maximum(train.max(axis=0), test.max(axis=0)) + 1
    return _of("lastfm", train, test, int(users), int(items), "github.com/gusye1234/LightGCN")


def _of(
    name: str, train: np.ndarray, test: np.ndarray, users: int, items: int, source: str
) -> LinkDataset:
    """`train`, `test`: int [L, 2], users and items, each numbered from 0."""

    def links(pairs: np.ndarray) -> np.ndarray:
        zeros = np.zeros(len(pairs), np.int64)
        return np.stack([pairs[:, 0], zeros, pairs[:, 1] + users], axis=1).astype(np.int32)

    return LinkDataset(
        name,
        users + items,
        links(train),
        links(test[:0]),
        links(test),
        num_users=users,
        source=source,
    )


def _lists(path: Path) -> np.ndarray:
    """int64 [L, 2], of lines "user item item ..."."""
    lines = numbers_of_lines(path)
    counts = np.array([len(line) - 1 for line in lines], np.int64)
    users = np.repeat(np.array([line[0] for line in lines], np.int64), counts)
    items = [item for line in lines for item in line[1:]]
    return np.stack([users, np.array(items, np.int64)], axis=1)


def _matrix(path: Path) -> tuple[np.ndarray, np.ndarray, int]:
    """Rows and columns of the entries of a square matrix that SciPy wrote, and its size."""
    parts = read_npz(path, ("indices", "indptr", "shape", "format"))
    try:
        indices, indptr = (np.asarray(parts[k], np.int64) for k in ("indices", "indptr"))
        shape, kind = tuple(int(n) for n in parts["shape"]), bytes(parts["format"].item())
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: {error!r}, expected a sparse matrix that scipy.sparse.save_npz wrote. The "
            "file is damaged; get it again."
        ) from error
    size = shape[0]
    fits = shape == (size, size) and kind == b"csr" and indptr.shape == (size + 1,)
    fits = fits and indptr[0] == 0 and indptr[-1] == len(indices) and (np.diff(indptr) >= 0).all()
    if not fits or (indices < 0).any() or (indices >= size).any():
        raise DataError(
            f"{path}: is no square matrix in CSR whose indices are in range, got the shape {shape} "
            f"in {kind.decode()}. The file is damaged; get it again."
        )
    return np.repeat(np.arange(size), np.diff(indptr)), indices, size
