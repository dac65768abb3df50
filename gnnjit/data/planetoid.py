"""The citation graphs of Planetoid, in the `ind.*` files that every GNN paper reads."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gnnjit.data.edges import first_of_run, symmetric_edges
from gnnjit.data.files import Fetch, fetch_url, locate, read_bytes
from gnnjit.data.pickles import Csr, load_pickle
from gnnjit.data.splits import masks_from_indices, row_normalize
from gnnjit.data.types import Dataset
from gnnjit.data.upstream import PLANETOID
from gnnjit.errors import DataError
from gnnjit.graph import Graph

_VALIDATION = 500


@dataclass(frozen=True)
class _Parts:
    """What the eight files hold, each checked alone. `paths` is keyed by the files' suffix."""

    paths: dict[str, Path]
    x: Csr  # training vertices
    allx: Csr  # training and other vertices but the test's; rows are vertex ids
    tx: Csr  # test vertices, in the order of test_index
    y: np.ndarray  # int [rows of x, C], one-hot
    ally: np.ndarray
    ty: np.ndarray
    neighbours: dict[int, list[int]]
    test_index: np.ndarray  # int64 [rows of tx], vertex ids


def planetoid(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    normalize: bool = False,
    fetch: Fetch = fetch_url,
) -> Dataset:
    """Cora, Citeseer, Pubmed or NELL with the public split of Planetoid.

    Yang et al., "Revisiting semi-supervised learning with graph embeddings" (2016). Edges are
    symmetric, without duplicates and self loops, as in PyG. Vertices that the files give neither
    features nor a label get zero rows and class 0, and are in no mask: 15 of Citeseer, and NELL's
    relation vertices, where GCN adds 55,864 one-hot columns instead.

    Args:
      name: "cora", "citeseer", "pubmed" or "nell".
      data_dir: holds `ind.<name>.*` or `<name>/ind.<name>.*`; see `gnnjit.data.files`.
      normalize: divide each row of features by its sum.
      fetch: downloads a URL; for tests.

    Returns:
      Cora: 2,708 vertices, 10,556 directed edges, 1,433 features, 7 classes. Citeseer: 3,327,
      9,104, 3,703, 6. Pubmed: 19,717, 88,648, 500, 3.

    Raises:
      DataError: if the name is unknown or a file is missing, damaged or inconsistent.
    """
    if name not in PLANETOID:
        raise DataError(f"planetoid: got {name!r}, expected one of {', '.join(PLANETOID)}.")
    files = PLANETOID[name]
    found = locate(name, name, tuple(files.values()), data_dir, fetch)
    parts = _read({suffix: found[file.name] for suffix, file in files.items()})
    _check(parts)
    return _assemble(name, parts, normalize)


def _read(paths: dict[str, Path]) -> _Parts:
    loaded = {
        key: load_pickle(read_bytes(path), str(path))
        for key, path in paths.items()
        if key != "test.index"
    }
    for key in ("x", "allx", "tx"):
        if not isinstance(loaded[key], Csr):
            raise _foreign(paths[key], loaded[key], "a SciPy CSR matrix of features")
    return _Parts(
        paths=paths,
        x=loaded["x"],
        allx=loaded["allx"],
        tx=loaded["tx"],
        y=_one_hot(paths["y"], loaded["y"]),
        ally=_one_hot(paths["ally"], loaded["ally"]),
        ty=_one_hot(paths["ty"], loaded["ty"]),
        neighbours=_neighbours(paths["graph"], loaded["graph"]),
        test_index=_test_index(paths["test.index"]),
    )


def _foreign(path: Path, got: Any, expected: str) -> DataError:
    return DataError(
        f"{path}: holds a {type(got).__name__}, expected {expected}. Is it another dataset's file?"
    )


def _one_hot(path: Path, value: Any) -> np.ndarray:
    if not isinstance(value, np.ndarray) or value.ndim != 2 or value.dtype.kind not in "biuf":
        raise _foreign(path, value, "an array of one-hot labels, [rows, classes]")
    bad = ~np.isin(value, (0, 1)).all(axis=1) | (value.sum(axis=1) > 1)
    if bad.any():
        raise DataError(
            f"{path}: row {int(np.argmax(bad))} is not one-hot, expected a single 1. The file is "
            "damaged; get it again."
        )
    return value


def _neighbours(path: Path, value: Any) -> dict[int, list[int]]:
    ok = isinstance(value, dict) and all(
        isinstance(key, int) and isinstance(ids, list) and all(isinstance(i, int) for i in ids)
        for key, ids in value.items()
    )
    if not ok:
        raise _foreign(path, value, "a dict from vertex to list of neighbours")
    n = len(value)
    strays = [key for key in value if not 0 <= key < n]
    strays += [i for ids in value.values() for i in ids if not 0 <= i < n]
    if strays:
        raise DataError(
            f"{path}: mentions vertex {strays[0]}, expected ids from 0 to {n - 1} as the file "
            f"lists {n} vertices. The file is damaged; get it again."
        )
    return value


_MOST = int(np.iinfo(np.int64).max)


def _test_index(path: Path) -> np.ndarray:
    try:
        ids = [int(word) for word in read_bytes(path).decode("ascii").split()]
        if any(i > _MOST for i in ids):
            raise ValueError(f"{_MOST} is the largest that is read")
        return np.array(ids, dtype=np.int64)
    except (ValueError, OverflowError) as error:
        raise DataError(
            f"{path}: not a list of vertex ids ({str(error)[:200]}), expected one number a line."
        ) from error


def _check(p: _Parts) -> None:
    """The files must fit each other."""
    for features, labels in (("x", "y"), ("allx", "ally"), ("tx", "ty")):
        rows, got = getattr(p, features).shape[0], getattr(p, labels).shape[0]
        if rows != got:
            raise _mismatch(p, labels, f"{got} rows", f"{rows} as in", features)
        if getattr(p, features).shape[1] != p.allx.shape[1]:
            columns = getattr(p, features).shape[1]
            raise _mismatch(p, features, f"{columns} columns", f"{p.allx.shape[1]} as in", "allx")
        if getattr(p, labels).shape[1] != p.ally.shape[1]:
            columns = getattr(p, labels).shape[1]
            raise _mismatch(p, labels, f"{columns} classes", f"{p.ally.shape[1]} as in", "ally")
    if len(p.y) > len(p.ally) or not np.array_equal(p.y, p.ally[: len(p.y)]):
        raise _mismatch(p, "y", f"{len(p.y)} labels", "the first labels of", "ally")
    if p.test_index.shape[0] != p.tx.shape[0]:
        got = f"{p.test_index.shape[0]} ids"
        raise _mismatch(p, "test.index", got, f"{p.tx.shape[0]} as the rows of", "tx")
    low, n = p.allx.shape[0], len(p.neighbours)
    outside = (p.test_index < low) | (p.test_index >= n)
    if outside.any():
        got = f"vertex {p.test_index[outside][0]}"
        raise _mismatch(p, "test.index", got, f"ids from {low} to {n - 1} by allx and", "graph")
    if not first_of_run(np.sort(p.test_index)).all():
        raise _mismatch(p, "test.index", "an id twice", "distinct ids, one for each row of", "tx")
    if n < low:
        raise _mismatch(p, "graph", f"{n} vertices", f"at least the {low} rows of", "allx")


def _mismatch(p: _Parts, key: str, got: str, expected: str, other: str) -> DataError:
    return DataError(
        f"{p.paths[key]}: got {got}, expected {expected} {p.paths[other].name}. One of the two is "
        "damaged or of another dataset; get both again."
    )


def _assemble(name: str, p: _Parts, normalize: bool) -> Dataset:
    n, train = len(p.neighbours), p.y.shape[0]
    x = np.zeros((n, p.allx.shape[1]), np.float32)
    x[: p.allx.shape[0]] = p.allx.dense(str(p.paths["allx"]))
    x[p.test_index] = p.tx.dense(str(p.paths["tx"]))
    y = np.zeros(n, np.int32)
    y[: p.ally.shape[0]] = p.ally.argmax(axis=1)
    y[p.test_index] = p.ty.argmax(axis=1)
    labelled = np.zeros(n, bool)
    labelled[: p.ally.shape[0]] = p.ally.any(axis=1)
    labelled[p.test_index] = p.ty.any(axis=1)
    counts = [len(ids) for ids in p.neighbours.values()]
    a = np.repeat(np.fromiter(p.neighbours, np.int64, n), counts)
    b = np.fromiter((i for ids in p.neighbours.values() for i in ids), np.int64, sum(counts))
    val = np.arange(train, min(train + _VALIDATION, p.allx.shape[0]))
    masks = masks_from_indices(n, np.arange(train), val, p.test_index)
    return Dataset(
        name=name,
        graph=Graph.from_edges(*symmetric_edges(a, b, n), n),
        x=row_normalize(x) if normalize else x,
        y=y,
        train_mask=masks.train,
        val_mask=masks.val,
        test_mask=masks.test,
        num_classes=p.y.shape[1],
        source="Yang et al. 2016, arXiv:1603.08861",
        labelled=labelled,
    )
