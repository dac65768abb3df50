"""A dataset of a graph in a file of one's own: its vertices' labels, or else its links."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gnnjit.config import path_of
from gnnjit.data.edges import symmetric_edges
from gnnjit.data.link_splits import split_links
from gnnjit.data.links import LinkDataset
from gnnjit.data.molecules import molecules
from gnnjit.data.reading.edge_list import EdgeList
from gnnjit.data.reading.layout import fields
from gnnjit.data.reading.read import read_edges
from gnnjit.data.reading.streams import Source
from gnnjit.data.reading.tables import words_of
from gnnjit.data.splits import Masks, random_split
from gnnjit.data.types import Dataset, GraphDataset
from gnnjit.errors import DataError
from gnnjit.graph import Graph
from gnnjit.shapes import HostArray

FEATURES = ("x", "features", "node_attr", "attr_matrix", "feat")
LABELS = ("y", "labels", "label", "node_label", "group")
_IDS = ("id", "ids", "node", "node_id", "nodeid", "vertex", "vertex_id", "name")
"""What a table of vertices calls their ids."""
_MASKS = ("train_mask", "val_mask", "test_mask")


def own_dataset(
    path: str | os.PathLike[str] | EdgeList,
    *,
    features: str | os.PathLike[str] | None = None,
    labels: str | os.PathLike[str] | None = None,
    train_fraction: float = 0.6,
    val_fraction: float = 0.2,
    val_links: int | None = None,
    test_links: int | None = None,
    by_time: bool = False,
    targets: Sequence[str] = (),
    seed: int = 0,
    **reading: Any,
) -> Dataset | LinkDataset | GraphDataset:
    """What can be learned of a graph in a file.

    Where its vertices have labels, a `Dataset` that predicts them: arrays called "y", "labels" and
    the like in the file, or a table. Else a `LinkDataset` of its edges, see `split_links`. A file
    that ends with .sdf, or has a column "smiles", goes to `molecules`.

    Args:
      path: what `read_edges` reads, or has read.
      features, labels: a .npy file with a row for each vertex, or a table of text: the id of a
        vertex, and its numbers; of labels one whole number or word. Vertices without a row have
        zeros, and no label.
      train_fraction, val_fraction: shares of the labelled vertices, drawn in each class; the rest
        is the test. The masks "train_mask", "val_mask" and "test_mask" of the file go before.
      val_links, test_links, by_time: as `val`, `test` and `by_time` of `split_links`.
      targets: of molecules, as in `molecules`.
      seed: of the split.
      reading: what `read_edges` takes, such as columns= and time=.

    Raises:
      DataError: as `read_edges`; or a table names a vertex that is not there.
    """
    if isinstance(path, EdgeList):
        edges, path = path, Path(path.name)
        check_reading(path, reading)
    else:
        path = path_of(path, "open_dataset", DataError)
        check_reading(path, reading)
        if path.suffix.lower() == ".sdf":
            return molecules(path, targets=targets)
        smiles = smiles_column(path)
        if smiles is not None:
            return molecules(path, smiles=smiles, targets=targets)
        edges = read_edges(path, **reading)
    y = edge_labels = None
    if labels is not None:
        y, edge_labels = _labels(edges, Path(labels))
    else:
        name = next((name for name in LABELS if name in edges.nodes), None)
        if name is not None:
            y, edge_labels = _as_labels(path, name, np.asarray(edges.nodes[name]))
    if y is None or edge_labels is None:
        return split_links(edges, val=val_links, test=test_links, by_time=by_time, seed=seed)
    shares = (train_fraction, val_fraction)
    return _of_vertices(edges, _features(edges, features), y, edge_labels, shares, seed)


def smiles_column(path: Path) -> str | None:
    """What a CSV file calls its column of SMILES, if it has one."""
    if not path.is_file() or path.suffix.lower() != ".csv":
        return None
    first = Source(path).head(1 << 12).split(b"\n")[0]
    return next((name for name in fields(first, ",") if name.strip().lower() == "smiles"), None)


def check_reading(path: Path, options: Mapping[str, Any]) -> None:
    """Raises DataError for what is no argument of `read_edges`."""
    known = [name for name in inspect.signature(read_edges).parameters if name != "source"]
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            raise DataError(
                f"{path}: got the option {name!r}, expected one of {', '.join(known)}, or of "
                "own_dataset." + (f" Did you mean {close[0]!r}?" if close else "")
            )


def _of_vertices(
    edges: EdgeList,
    x: HostArray,
    y: HostArray,
    known: HostArray,
    shares: tuple[float, float],
    seed: int,
) -> Dataset:
    """`known`: bool [N], which vertices have a label."""
    if all(name in edges.nodes for name in _MASKS):
        masks = Masks(*(np.asarray(edges.nodes[name]).astype(bool) for name in _MASKS))
    else:
        masks = random_split(edges.name, y, train=shares[0], val=shares[1], known=known, seed=seed)
    src, dst = symmetric_edges(edges.src, edges.dst, edges.num_nodes)
    return Dataset(
        name=edges.name,
        graph=Graph.from_edges(src, dst, edges.num_nodes),
        x=x,
        y=y,
        train_mask=masks.train,
        val_mask=masks.val,
        test_mask=masks.test,
        num_classes=0 if y.dtype.kind == "f" else y.shape[1] if y.ndim == 2 else int(y.max()) + 1,
    )


def _features(edges: EdgeList, given: str | os.PathLike[str] | None) -> HostArray:
    """float32 [N, F]."""
    if given is not None:
        return _rows(edges, Path(given)).astype(np.float32)
    name = next((name for name in FEATURES if name in edges.nodes), None)
    if name is None:
        return np.zeros((edges.num_nodes, 0), np.float32)
    found = np.asarray(edges.nodes[name])
    return found.reshape(len(found), -1).astype(np.float32)


def _labels(edges: EdgeList, path: Path) -> tuple[HostArray, HostArray]:
    """(y, bool [N]: which vertices have one)."""
    if path.suffix == ".npy":
        return _as_labels(path, "labels", _array(edges, path))
    rows, words = _table(edges, path)
    if words.shape[1] != 1:
        raise DataError(
            f"{path}: has {words.shape[1]} columns beside ids, expected one, of labels."
        )
    classes, index = np.unique(words[:, 0], return_inverse=True)
    try:  # whole numbers keep their order
        order = np.argsort(classes.astype(np.int64), kind="stable")
        index = np.argsort(order)[index]
    except ValueError:
        pass
    y, known = np.zeros(edges.num_nodes, np.int32), np.zeros(edges.num_nodes, bool)
    y[rows], known[rows] = index.reshape(-1), True
    return y, known


def _as_labels(path: Path, name: str, array: HostArray) -> tuple[HostArray, HostArray]:
    """Classes, several of them, or numbers; what is NaN or below 0 has no label."""
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim == 2 and np.isin(array, (0, 1)).all():
        return array.astype(bool), np.ones(len(array), bool)
    known = np.isfinite(array.astype(np.float64)) & (array >= 0)
    whole = array.ndim == 1 and (array[known] == np.floor(array[known])).all()
    if not whole:
        finite = np.isfinite(array.astype(np.float64)).reshape(len(array), -1)
        known = np.asarray(finite.all(axis=1))
        y = np.where(known.reshape(-1, *(1,) * (array.ndim - 1)), array, 0)
        return y.reshape(len(y), -1).astype(np.float32), known
    if not known.any():
        raise DataError(f"{path}: {name} has no label, expected classes from 0, or numbers.")
    return np.where(known, array, 0).astype(np.int32), known


def _rows(edges: EdgeList, path: Path) -> HostArray:
    """float64 [N, F] of a file."""
    if path.suffix == ".npy":
        found = _array(edges, path)
        return found.reshape(len(found), -1)
    rows, words = _table(edges, path)
    out = np.zeros((edges.num_nodes, words.shape[1]))
    try:
        out[rows] = words.astype(np.float64)
    except ValueError as error:
        raise DataError(
            f"{path}: {error}, expected numbers in all columns but the first."
        ) from error
    return out


def _array(edges: EdgeList, path: Path) -> HostArray:
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: {error}, expected an array of numbers that NumPy saved."
        ) from error
    if found.shape[:1] != (edges.num_nodes,) or found.dtype.kind not in "biuf":
        raise DataError(
            f"{path}: is {found.dtype}{list(found.shape)}, expected numbers with "
            f"{edges.num_nodes} rows, one for each vertex."
        )
    return found


def _table(edges: EdgeList, path: Path) -> tuple[HostArray, HostArray]:
    """(the vertex of each row, words [rows, columns]) of a text file with ids in front."""
    names, words = words_of(path)
    if edges.ids is None:
        number: Mapping[str, int] = {str(i): i for i in range(edges.num_nodes)}
    else:
        number = {str(name): i for i, name in enumerate(edges.ids.tolist())}
    if words and words[0][0].lower() in _IDS and words[0][0] not in number:
        names, words = names[1:], words[1:]  # a header of words alone
    unknown = next((i for i, row in enumerate(words) if row[0] not in number), None)
    if unknown is not None:
        raise DataError(
            f"{path}, line {names[unknown]}: has the vertex {words[unknown][0]!r}, which no edge "
            "has. Leave the line out, or correct it."
        )
    rows = np.array([number[row[0]] for row in words], np.int64)
    return rows, np.array([row[1:] for row in words])
