"""Sparse matrices in files: an entry in row i and column j is the edge from i to j."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse as sp

from gnnjit.data.archives import read_npz
from gnnjit.data.pickles import Csr, check_csr
from gnnjit.data.reading.collect import Collector
from gnnjit.data.reading.layout import Layout
from gnnjit.data.reading.streams import Source, Watch
from gnnjit.data.reading.text import read_lines
from gnnjit.errors import DataError
from gnnjit.graph.validate import shown
from gnnjit.shapes import HostArray
from gnnjit.store.store import VertexStore

_MATRICES = ("network", "adj", "adjacency", "A", "graph", "adj_matrix", "Problem")
_NODES = 1 << 28
"""Numbers of a column of vertices that are made dense."""


def read_matrix_market(
    source: Source, *, both: bool, store: VertexStore | None, block: int, watch: Watch
) -> tuple[Collector, tuple[str, ...]]:
    """The entries of a .mtx file, and what was done.

    Raises:
      DataError: naming the file and the line where it is no sparse square matrix.
    """
    where, lines = str(source.path), source.head(1 << 16).split(b"\n")
    words = lines[0].decode("latin1").lower().split()
    kinds = ("real", "integer", "pattern"), ("general", "symmetric")
    fine = len(words) == 5 and words[:3] == ["%%matrixmarket", "matrix", "coordinate"]
    if not fine or words[3] not in kinds[0] or words[4] not in kinds[1]:
        raise DataError(
            f"{where}, line 1: got {lines[0][:80].decode('latin1')!r}, expected '%%MatrixMarket "
            f"matrix coordinate' and one of {', '.join(kinds[0])}, and of {', '.join(kinds[1])}."
        )
    at = next((i for i, text in enumerate(lines) if text.strip() and text[:1] != b"%"), 0)
    sizes = lines[at].split()
    if not at or len(sizes) != 3 or not all(size.isdigit() for size in sizes):
        raise DataError(
            f"{where}, line {at + 1}: got {lines[at][:80].decode('latin1')!r}, expected the "
            "numbers of rows, columns and entries."
        )
    rows, columns, entries = map(int, sizes)
    if rows != columns:
        raise DataError(f"{where}, line {at + 1}: is {rows} x {columns}, expected a square matrix.")
    values = (("weight", 2),) if words[3] != "pattern" else ()
    sample = ("1", "1", "1.0")
    layout = Layout(" ", at + 1, None, 3, 0, 1, values, False, "%", sample)
    symmetric = words[4] == "symmetric"
    collector = Collector(
        where, text=False, first=1, num_nodes=rows, both=both or symmetric, store=store
    )
    read_lines(source, layout, collector, block=block, watch=watch)
    if collector.given != entries:
        raise DataError(
            f"{where}, line {at + 1}: says {entries} entries, and {collector.given} follow. The "
            "file is cut short; get it again."
        )
    return collector, ("each entry of the symmetric matrix both ways",) if symmetric else ()


def read_mat(path: Path, raw: bytes, key: str | None) -> tuple[Any, dict[str, HostArray], str]:
    """(matrix, columns of vertices, the matrix's name) of a MATLAB file of version 5."""
    try:
        found = scipy.io.loadmat(io.BytesIO(raw))
    except Exception as error:  # a damaged file may raise anything at all
        raise DataError(
            f"{path}: {error}, expected a MATLAB file of version 5 to 7. Save it with -v7."
        ) from error
    return _chosen(path, {k: v for k, v in found.items() if not k.startswith("__")}, key)


def read_arrays(path: Path, key: str | None) -> tuple[Any, dict[str, HostArray], str]:
    """(matrix, or int[2, E] edges; columns of vertices; the matrix's name) of an .npz file."""
    members = _names(path)
    arrays = read_npz(path, tuple(members))
    if {"indices", "indptr", "shape"} <= set(arrays) and "data" in arrays:
        parts = (arrays["data"], arrays["indices"], arrays["indptr"])
        return _csr(path, parts, arrays["shape"]), {}, "matrix"
    if {"row", "col", "shape"} <= set(arrays):
        shape = tuple(int(n) for n in arrays["shape"])
        data = arrays.get("data", np.ones(len(arrays["row"]), np.float32))
        return sp.coo_matrix((data, (arrays["row"], arrays["col"])), shape), {}, "matrix"
    for name in _MATRICES:
        parts = [arrays.get(f"{name}{dot}{part}") for dot in "_." for part in _PARTS]
        for four in (parts[:4], parts[4:]):
            if all(part is not None for part in four):
                arrays[name] = _csr(path, four[:3], four[3])
    pair = _pair(arrays)
    if pair is not None and key is None:
        edges, used = pair
        count = int(edges.max(initial=-1)) + 1
        rest = {k: v for k, v in arrays.items() if k not in used and isinstance(v, np.ndarray)}
        sizes = [len(v) for k, v in rest.items() if k in ("x", "y", "labels", "features")]
        count = max([count, *sizes])
        return edges, {k: v for k, v in rest.items() if v.shape[:1] == (count,)}, used[0]
    return _chosen(path, {k: _as_scipy(v) for k, v in arrays.items()}, key)


_PARTS = ("data", "indices", "indptr", "shape")


def _names(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return [n.removesuffix(".npy") for n in archive.namelist()]
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: not a readable zip archive ({error}). Get it again.") from error


def _csr(path: Path, parts: Any, shape: Any) -> Any:
    data, indices, indptr = parts
    return _as_scipy(check_csr(str(path), data, indices, indptr, shape))


def _as_scipy(value: Any) -> Any:
    if isinstance(value, Csr):
        return sp.csr_matrix((value.data, value.indices, value.indptr), value.shape)
    return value


def _pair(arrays: Mapping[str, Any]) -> tuple[HostArray, tuple[str, ...]] | None:
    """int64 [2, E], and the names of the arrays that it is of."""
    for name in ("edge_index", "edges"):
        found = arrays.get(name)
        if isinstance(found, np.ndarray) and found.ndim == 2 and found.dtype.kind in "iu":
            if found.shape[0] == 2:
                return found.astype(np.int64), (name,)
            if found.shape[1] == 2:
                return found.T.astype(np.int64), (name,)
    for two in (("src", "dst"), ("senders", "receivers"), ("source", "target"), ("u", "v")):
        if all(isinstance(arrays.get(name), np.ndarray) for name in two):
            return np.stack([arrays[name] for name in two]).astype(np.int64), two
    return None


def _chosen(
    path: Path, arrays: Mapping[str, Any], key: str | None
) -> tuple[Any, dict[str, HostArray], str]:
    square = [k for k, v in arrays.items() if sp.issparse(v) and v.shape[0] == v.shape[1]]
    if key is None:
        named = [name for name in _MATRICES if name in square]
        chosen = named[0] if named else (square[0] if len(square) == 1 else None)
    else:
        chosen = key if key in square else None
    if chosen is None:
        raise DataError(
            f"{path}: holds {', '.join(arrays) or 'nothing'}; expected "
            + (f"a sparse square matrix {shown(key)}." if key else "one sparse square matrix.")
            + (f" Pass key=, one of {', '.join(square)}." if square else "")
        )
    count = arrays[chosen].shape[0]
    nodes = {}
    for name, value in arrays.items():
        if name == chosen or getattr(value, "shape", (0,))[:1] != (count,):
            continue
        if sp.issparse(value):
            if value.shape[0] * value.shape[1] > _NODES:
                continue
            value = value.toarray()
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            nodes[name] = value
    return arrays[chosen], nodes, chosen
