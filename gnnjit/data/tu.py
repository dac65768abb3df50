"""Graph classification sets in the text format of TUDataset."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from gnnjit.data.archives import read_zip
from gnnjit.data.files import Fetch, fetch_url, locate, read_bytes, user_dir
from gnnjit.data.types import GraphDataset
from gnnjit.data.upstream import TU
from gnnjit.errors import DataError

_REQUIRED = ("A", "graph_indicator", "graph_labels")
_OPTIONAL = ("node_labels", "node_attributes", "edge_labels")


def tu(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    attributes: bool = False,
    fetch: Fetch = fetch_url,
) -> GraphDataset:
    """A set of small graphs with a class each: MUTAG, PROTEINS, ENZYMES.

    Morris et al., "TUDataset: a collection of benchmark datasets for learning with graphs"
    (2020). Features are the vertex labels one-hot, after the attributes where asked for (PyG's
    order); a set with neither gets one constant feature. Graph, vertex and edge labels are
    renumbered from 0 in their order. Edges are as in the files, one graph after the other.

    Args:
      name: "MUTAG", "PROTEINS" or "ENZYMES" in any case, or the exact name of another TU set
        whose files are in `data_dir`.
      data_dir: holds `<NAME>.zip` or `<NAME>/<NAME>_A.txt` and so on, either of them possibly
        below `tu-<name>`; or is such a zip file itself. See `gnnjit.data.files`.
      attributes: put the real-valued vertex attributes in front of the one-hot labels.
      fetch: downloads a URL; for tests.

    Returns:
      MUTAG: 188 graphs, 3,371 vertices, 7,442 directed edges, 7 vertex labels, 2 classes.
      PROTEINS: 1,113, 43,471, 162,088, 3 (and 1 attribute), 2. ENZYMES: 600, 19,580, 74,564, 3
      (and 18 attributes), 6.

    Raises:
      DataError: if a file is missing, damaged or inconsistent.
    """
    name = next((known for known in TU if known.lower() == name.lower()), name)
    return _assemble(name, _Texts(name, *_open(name, data_dir, fetch)), attributes)


def _open(
    name: str, data_dir: str | os.PathLike[str] | None, fetch: Fetch
) -> tuple[str, dict[str, bytes]]:
    """Where the texts are from, and the texts by file name."""
    root = user_dir(data_dir)
    folder = f"tu-{name.lower()}"
    if root is None:
        if name not in TU:
            raise DataError(
                f"{name}: has no known checksum here, so it is not downloaded; known are "
                f"{', '.join(TU)}. Get it yourself and pass --data-dir DIR."
            )
        path = locate(name, folder, (TU[name],), None, fetch)[TU[name].name]
        return str(path), read_zip(path)
    if root.is_file():
        return str(root), read_zip(root)
    for base in (root / folder, root):
        for texts in (base / name, base):
            if (texts / f"{name}_A.txt").is_file():
                return str(texts), _read_folder(name, texts)
        if (base / f"{name}.zip").is_file():
            return str(base / f"{name}.zip"), read_zip(base / f"{name}.zip")
    raise DataError(
        f"{name}: {name}.zip is missing, expected {root / folder / name}.zip, {root / name}.zip or "
        f"the folder {root / name}. Add it, or leave out --data-dir (and GNNJIT_DATA_DIR) to "
        "download it."
    )


def _read_folder(name: str, folder: Path) -> dict[str, bytes]:
    paths = [folder / f"{name}_{part}.txt" for part in (*_REQUIRED, *_OPTIONAL)]
    return {path.name: read_bytes(path) for path in paths if path.is_file()}


class _Texts:
    """The text files of one set, parsed on demand with errors that name the file."""

    def __init__(self, name: str, where: str, texts: dict[str, bytes]) -> None:
        self.name, self.where, self.texts = name, where, texts
        for part in _REQUIRED:
            if f"{name}_{part}.txt" not in texts:
                raise DataError(
                    f"{where}: {name}_{part}.txt is missing, expected the TUDataset files of "
                    f"{name}. Is it another dataset's file?"
                )

    def has(self, part: str) -> bool:
        return f"{self.name}_{part}.txt" in self.texts

    def file(self, part: str) -> str:
        return f"{self.where}:{self.name}_{part}.txt"

    def table(
        self, part: str, dtype: type, rows: int | None = None, columns: int | None = None
    ) -> np.ndarray:
        """The numbers of one file, [lines, columns]."""
        text = self.texts[f"{self.name}_{part}.txt"]
        if not text.strip():
            raise DataError(f"{self.file(part)}: is empty, expected a line of numbers an element.")
        try:
            lines = text.decode("ascii").splitlines()
            table = np.loadtxt(lines, dtype=dtype, delimiter=",", ndmin=2, comments=None)
        except (ValueError, OverflowError) as error:
            raise DataError(
                f"{self.file(part)}: not a table of numbers ({error}). The file is damaged; get "
                "it again."
            ) from error
        if rows not in (None, table.shape[0]) or columns not in (None, table.shape[1]):
            raise DataError(
                f"{self.file(part)}: got {table.shape[0]} lines of {table.shape[1]} numbers, "
                f"expected {'any' if rows is None else rows} lines of "
                f"{'any' if columns is None else columns}. The file is damaged or of another set; "
                "get all files again."
            )
        return table


def _assemble(name: str, texts: _Texts, attributes: bool) -> GraphDataset:
    _, y = np.unique(texts.table("graph_labels", np.int64, columns=1), return_inverse=True)
    y = y.reshape(-1).astype(np.int32)
    owner = _owner(texts, y.shape[0])
    n = owner.shape[0]
    edges = _edges(texts, owner)
    order = np.argsort(owner[edges[:, 0]], kind="stable")
    edges = edges[order].astype(np.int32)
    edge_label = None
    if texts.has("edge_labels"):
        table = texts.table("edge_labels", np.int64, order.shape[0], 1)
        _, renumbered = np.unique(table, return_inverse=True)
        edge_label = renumbered.reshape(-1)[order].astype(np.int32)
    return GraphDataset(
        name=name,
        node_offsets=np.searchsorted(owner, np.arange(y.shape[0] + 1)).astype(np.int64),
        edge_offsets=np.searchsorted(owner[edges[:, 0]], np.arange(y.shape[0] + 1)).astype(
            np.int64
        ),
        src=np.ascontiguousarray(edges[:, 0]),
        dst=np.ascontiguousarray(edges[:, 1]),
        x=_features(texts, n, attributes),
        y=y,
        num_classes=int(y.max()) + 1,
        edge_label=edge_label,
        source="Morris et al. 2020, arXiv:2007.08663",
    )


def _owner(texts: _Texts, graphs: int) -> np.ndarray:
    """int64 [N]: the graph of each vertex, from 0, rising."""
    number = texts.table("graph_indicator", np.int64, columns=1)[:, 0]
    falls = number[1:] < number[:-1]
    if falls.any():
        line = int(np.argmax(falls)) + 2
        raise DataError(
            f"{texts.file('graph_indicator')}: line {line} steps down to graph "
            f"{number[line - 1]}, expected the vertices graph by graph. The file is damaged; "
            "get it again."
        )
    if number[0] < 1 or number[-1] > graphs:
        raise DataError(
            f"{texts.file('graph_indicator')}: got graphs {number[0]} to {number[-1]}, "
            f"expected 1 to {graphs} by the lines of graph_labels. Get both files again."
        )
    return number - 1


def _edges(texts: _Texts, owner: np.ndarray) -> np.ndarray:
    """int64 [E, 2]: the ends of each edge, from 0."""
    n, number = owner.shape[0], texts.table("A", np.int64, columns=2)
    outside = ((number < 1) | (number > n)).any(axis=1)
    if outside.any():
        line = int(np.argmax(outside))
        raise DataError(
            f"{texts.file('A')}: line {line + 1} joins {number[line, 0]} and "
            f"{number[line, 1]}, expected vertices from 1 to {n}. Get all files again."
        )
    edges = number - 1
    crossing = owner[edges[:, 0]] != owner[edges[:, 1]]
    if crossing.any():
        line = int(np.argmax(crossing))
        a, b = owner[edges[line]] + 1
        raise DataError(
            f"{texts.file('A')}: line {line + 1} joins graphs {a} and {b}, expected edges within "
            "a graph. Get all files again."
        )
    return edges


def _features(texts: _Texts, n: int, attributes: bool) -> np.ndarray:
    columns = []
    if attributes:
        if not texts.has("node_attributes"):
            raise DataError(
                f"{texts.where}: {texts.name}_node_attributes.txt is missing, but attributes=True "
                "asks for it. Leave attributes out."
            )
        columns.append(texts.table("node_attributes", np.float32, n))
    if texts.has("node_labels"):
        labels = texts.table("node_labels", np.int64, n)
        for column in labels.T:
            values, index = np.unique(column, return_inverse=True)
            columns.append(_one_hot(texts, index.reshape(-1), len(values)))
    if not columns:
        columns.append(np.ones((n, 1), np.float32))
    return np.concatenate(columns, axis=1)


def _one_hot(texts: _Texts, index: np.ndarray, count: int) -> np.ndarray:
    """float32 [N, count]: 1 at each vertex's label."""
    try:
        out = np.zeros((index.shape[0], count), np.float32)
    except MemoryError as error:
        raise DataError(
            f"{texts.file('node_labels')}: {count:,} different labels of {index.shape[0]:,} "
            "vertices, one-hot, do not fit into memory. Are they labels?"
        ) from error
    out[np.arange(index.shape[0]), index] = 1
    return out
