"""Tables and other libraries' graphs as columns of edges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from gnnjit.data.reading.arrow import arrow_columns
from gnnjit.data.reading.collect import Collector
from gnnjit.data.reading.layout import TIMES, WEIGHTS, Places
from gnnjit.errors import DataError
from gnnjit.graph.validate import cut, shown
from gnnjit.interop.dgl import from_heterograph
from gnnjit.interop.igraph import from_igraph
from gnnjit.interop.networkx import from_networkx
from gnnjit.interop.plain import FromObject, built
from gnnjit.interop.pyg import from_data
from gnnjit.interop.rustworkx import from_rustworkx
from gnnjit.interop.scipy_entries import entries
from gnnjit.shapes import HostArray
from gnnjit.store.store import VertexStore


class Table(NamedTuple):
    """Columns of edges.

    Attributes:
        name: of the object.
        columns: [E] each, the names in their order.
        num_nodes: N, where vertices are numbered from 0.
        ids, nodes: as in `EdgeList`, for such ones.
        report: what was done.
    """

    name: str
    columns: Mapping[str, Any]
    num_nodes: int | None = None
    ids: HostArray | None = None
    nodes: Mapping[str, HostArray] = {}
    report: tuple[str, ...] = ()


def columns_of(source: Any) -> Table:
    """What a table or an object holds. Raises DataError for one of no known library."""
    name = type(source).__name__
    if sp.issparse(source):
        ends, columns, count = entries_of(source)
        found = {"source": ends[:, 0], "destination": ends[:, 1], **columns}
        return Table(name, found, count)
    if isinstance(source, Mapping):
        return Table(name, source)
    if isinstance(source, list | tuple | np.ndarray):
        if len(source) != 2:
            raise DataError(
                f"read_edges: got {shown(source)}, expected a pair of sources and destinations, or "
                "an array of two rows."
            )
        return Table(name, {"source": source[0], "destination": source[1]})
    if hasattr(source, "__arrow_c_stream__"):
        try:
            return Table(name, arrow_columns(source))
        except ImportError:  # of pandas, which asks pyarrow for it
            pass
    if hasattr(source, "columns") and hasattr(source, "__getitem__"):
        return Table(name, {str(column): np.asarray(source[column]) for column in source.columns})
    return _of_library(source)


def _of_library(source: Any) -> Table:
    readers = (
        ("edge_types", None),
        ("edge_index", from_data),
        ("canonical_etypes", _from_dgl),
        ("vcount", from_igraph),
        ("weighted_edge_list", from_rustworkx),
        ("is_multigraph", from_networkx),
    )
    name = type(source).__name__
    reader = next((reader for known, reader in readers if hasattr(source, known)), None)
    if reader is None:
        raise DataError(
            f"read_edges: got a {cut(name)}, expected a path, a table with __arrow_c_stream__ or "
            "columns, a pair of arrays, a sparse matrix, or a graph of networkx, igraph, "
            "rustworkx, PyG (Data) or DGL of one type; typed graphs are for gnnjit.interop."
        )
    found: FromObject = reader(source)
    graph = found.graph
    columns = {"source": np.asarray(graph.src), "destination": np.asarray(graph.dst)}
    ids = None
    if found.ids is not None:
        ids = np.asarray(found.ids)
        if ids.ndim != 1 or ids.dtype.kind not in "iuU":
            ids = np.array([str(i) for i in found.ids])
    return Table(name, {**columns, **found.edges}, graph.num_nodes, ids, found.nodes)


def _from_dgl(source: Any) -> FromObject:
    found = from_heterograph(source)
    if len(found.graph.types) != 1 or len(found.edges) != 1:
        raise DataError(
            "read_edges: got a graph of DGL with several types, expected one: typed graphs are "
            "read by gnnjit.interop.dgl.from_heterograph."
        )
    (node_type,), (key,) = found.graph.types, found.edges
    one = found.graph[key]
    pairs = np.stack([np.asarray(one.src), np.asarray(one.dst)], axis=1)
    count = found.graph.num_nodes[node_type]
    return built(pairs, count, True, found.nodes[node_type], found.edges[key])


def entries_of(matrix: Any) -> tuple[HostArray, dict[str, HostArray], int]:
    """(ids [E, 2], columns, N) of a sparse matrix, row to column, or of int [2, E]."""
    if isinstance(matrix, np.ndarray):
        return matrix.T, {}, int(matrix.max(initial=-1)) + 1
    row, column, value = entries(matrix)
    ends = np.stack([row, column], axis=1).astype(np.int64)
    return ends, {"weight": np.asarray(value)}, max(matrix.shape)


def collect(
    table: Table,
    text: Mapping[str, Any],
    *,
    num_nodes: int | None,
    both: bool,
    store: VertexStore | None,
    bipartite: bool = False,
) -> tuple[Collector, Mapping[str, HostArray]]:
    """The edges of a table, and its columns of vertices; `text` as the options of `read_edges`.

    Raises DataError for a column that is not there, or is of another kind.
    """
    where, names = table.name, tuple(map(str, table.columns))
    places = Places(where, names, len(names))
    source, destination = places.ends(text["columns"])
    wanted = [("weight", places.value(text["weight"], WEIGHTS))]
    wanted += [("time", places.value(text["time"], TIMES))]
    wanted += [(names[places.of(value)], places.of(value)) for value in text["values"]]
    if table.num_nodes is not None:  # a graph of a library: all that it carries
        wanted = [(name, at) for at, name in enumerate(names) if at not in (source, destination)]
    arrays = [np.asarray(column) for column in table.columns.values()]
    ends = _ids(where, [arrays[source], arrays[destination]], text["ids"])
    columns = {
        name: _numbers(where, names[at], arrays[at], len(ends), time=name == "time")
        for name, at in wanted
        if at is not None
    }
    count = table.num_nodes if num_nodes is None else num_nodes
    collector = Collector(
        where, text=ends.dtype.kind == "S", num_nodes=count, ids=table.ids, both=both,
        bipartite=bipartite, store=store,
    )  # fmt: skip
    collector.add(ends, columns)
    return collector, table.nodes


def _ids(where: str, ends: list[HostArray], ids: str) -> HostArray:
    """[E, 2], int64 or bytes."""
    if ends[0].ndim != 1 or ends[0].shape != ends[1].shape:
        raise DataError(
            f"{where}: source has the shape {ends[0].shape} and destination {ends[1].shape}, "
            "expected one id for each edge in both."
        )
    both = np.stack([np.asarray(end) for end in ends], axis=1)
    if both.dtype.kind in "iu" and ids != "text":
        if both.dtype == np.uint64 and both.size and both.max() > np.iinfo(np.int64).max:
            raise DataError(f"{where}: has the id {both.max()}, expected at most 2**63 - 1.")
        return both.astype(np.int64)
    if both.dtype.kind in "fO":
        missing = np.array([v is None or v != v for v in both.reshape(-1)]).reshape(both.shape)
        if missing.any():
            row = int(missing.any(axis=1).argmax())
            raise DataError(f"{where}, row {row}: has no id, expected one. Leave the row out.")
    if both.dtype.kind == "f" and (both == np.floor(both)).all():
        return both.astype(np.int64)
    if ids == "numbers":
        raise DataError(f"{where}: ids are {both.dtype}, expected whole numbers.")
    return np.char.encode(both.astype("U"), "utf-8")


def _numbers(where: str, name: str, column: HostArray, rows: int, *, time: bool) -> HostArray:
    if column.shape[:1] != (rows,):
        raise DataError(f"{where}: {name} has the shape {column.shape}, expected {rows} rows.")
    if column.dtype.kind == "M":
        return column.astype("datetime64[s]").astype(np.int64)
    if column.dtype.kind not in "biuf":
        raise DataError(f"{where}: {name} is {column.dtype}, expected numbers.")
    if time:
        return column.astype(np.float64 if column.dtype.kind == "f" else np.int64)
    if column.dtype.kind == "f" and not np.isfinite(column).all():
        row = int(np.argwhere(~np.isfinite(column))[0, 0])
        raise DataError(f"{where}, row {row}: {name} is {column[row]}, expected a finite number.")
    return column
