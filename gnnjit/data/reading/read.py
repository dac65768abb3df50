"""`read_edges`: a graph from a file, a table or another library's object."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from gnnjit.config import path_of
from gnnjit.data.reading import adjacency, matrices, objects, ogb
from gnnjit.data.reading.collect import Collector
from gnnjit.data.reading.edge_list import EdgeList
from gnnjit.data.reading.layout import Column, Layout, find_layout
from gnnjit.data.reading.streams import Source, Watch, unpacked_name
from gnnjit.data.reading.text import BLOCK, read_lines
from gnnjit.errors import DataError
from gnnjit.graph.validate import shown
from gnnjit.interop.networkx import READERS, read_with_networkx
from gnnjit.store.store import VertexStore

HEAD = 1 << 18
"""Bytes that the layout of a text file is found from."""

KINDS: dict[str, tuple[str, ...]] = {
    "text": (".txt", ".csv", ".tsv", ".edges", ".edgelist", ".el", ".dat", ".ncol"),
    "matrixmarket": (".mtx", ".mm"),
    "mat": (".mat",),
    "npz": (".npz",),
    "metis": (".graph", ".metis"),
    "jlg": (".jlg", ".lg"),
    "ogb": (),
    **{kind: endings for kind, (endings, _) in READERS.items()},
}
"""Kinds of files, and the endings of their names (before .gz, .bz2, .xz and .zst)."""


def kind_of(path: Path) -> str:
    """The kind of a file, by its name; "ogb" for a folder. Text where the name says nothing."""
    if path.is_dir():
        return "ogb"
    name = unpacked_name(path)
    return next((kind for kind, some in KINDS.items() if name.endswith(some or ("\0",))), "text")


def read_edges(
    source: Any,
    *,
    kind: str | None = None,
    columns: Sequence[Column] | None = None,
    weight: Column | bool | None = None,
    time: Column | bool | None = None,
    values: Sequence[Column] = (),
    delimiter: str | None = None,
    header: bool | None = None,
    comments: str = "#%",
    ids: str = "auto",
    num_nodes: int | None = None,
    undirected: bool = False,
    bipartite: bool = False,
    key: str | None = None,
    store: VertexStore | None = None,
    block_bytes: int = BLOCK,
    progress: bool = False,
) -> EdgeList:
    """The edges of a graph: of a file, a table, or an object of another library.

    A file is text with an edge a line, of any delimiter, with or without a header; MatrixMarket,
    MATLAB, .npz, METIS, .jlg; GraphML, GML, GEXF, Pajek through networkx; or a folder of OGB. Text,
    MatrixMarket and .jlg are read in blocks, and may be packed: .gz, .bz2, .xz, .zst. A table is
    anything with `__arrow_c_stream__` (pandas, polars, pyarrow, DuckDB), or a dictionary of columns
    or a pair of arrays. An object is a graph of networkx, igraph, rustworkx, PyG or DGL, or a
    sparse matrix of SciPy, in which row i and column j are the edge from i to j, as in files.
    Libraries are imported only where a file needs them.

    Vertices get numbers from 0: whole numbers in ascending order, texts in the order in which they
    come first. What the source calls them is kept in `ids`.

    Args:
      source: a path, a table or an object.
      kind: one of "text", "matrixmarket", "mat", "npz", "metis", "jlg", "ogb", "graphml", "gml",
        "gexf", "pajek"; by default what the name ends with, and else text.
      columns: those of source and destination, by place or name; by default those that are called
        so in the header, and else the first two.
      weight, time: their columns; by default those with such a name in the header; False for none.
        Times are whole numbers, real ones, or dates of ISO 8601.
      values: further columns of numbers, kept as float32.
      delimiter: one character, or " " for any number of blanks and tabs.
      header: whether the first line names columns.
      comments: characters that a line of comment begins with.
      ids: "numbers" or "text"; by default what the first edge has.
      num_nodes: ids are the numbers from 0 to N - 1; by default vertices are counted.
      undirected: take each edge both ways.
      bipartite: number sources and destinations apart, as users and items, whose ids may be the
        same: sources are the first vertices. For text and tables.
      key: the matrix in a file that holds several.
      store: where the edges are kept, as "edge.src", "edge.dst" and "edge.NAME"; by default in
        memory. What they need of memory does not grow with their number then, for text.
      block_bytes: bytes of text that are read at once.
      progress: show a bar.

    Raises:
      DataError: the source is of no known kind, is damaged, or misses what is asked for; with the
        number of the line and its text.
      StoreError: what the store refuses.
    """
    text = {
        "columns": columns,
        "weight": weight,
        "time": time,
        "values": values,
        "delimiter": delimiter,
        "header": header,
        "comments": comments,
        "ids": ids,
    }
    if isinstance(source, str | os.PathLike):
        path = path_of(source, "read_edges", DataError)
        if not path.exists():
            raise DataError(f"{path}: no such file or folder, expected one with edges.")
        with _bar(progress) as watch:
            reader = _Reader(
                path, text, num_nodes, undirected, bipartite, key, store, block_bytes, watch
            )
            return reader.read(kind or kind_of(path))
    found = objects.columns_of(source)
    collector, nodes = objects.collect(
        found, text, num_nodes=num_nodes, both=undirected, bipartite=bipartite, store=store
    )
    return collector.finish(found.name, found.report, _nobody, nodes)


def layout_of(path: Path, options: dict[str, Any]) -> Layout:
    """The layout of a text file, by its first lines."""
    return find_layout(str(path), Source(path).head(HEAD), **options)


class _Reader:
    """Reads one file or folder of each kind."""

    def __init__(
        self,
        path: Path,
        text: dict[str, Any],
        num_nodes: int | None,
        undirected: bool,
        bipartite: bool,
        key: str | None,
        store: VertexStore | None,
        block: int,
        watch: Watch,
    ) -> None:
        self._path, self._text, self._num_nodes = path, text, num_nodes
        self._both, self._key, self._store = undirected, key, store
        self._block, self._watch, self._bipartite = block, watch, bipartite

    def read(self, kind: str) -> EdgeList:
        """The edges. Raises DataError for an unknown kind."""
        if kind not in KINDS:
            raise DataError(
                f"{self._path}: kind is {shown(kind)}, expected one of {', '.join(KINDS)}."
            )
        if self._bipartite and kind != "text":
            raise DataError(
                f"{self._path}: bipartite=True is for text and tables, and this is read as {kind}."
            )
        if kind in READERS:
            return self._of_object(read_with_networkx(Source(self._path).text(), kind, self._path))
        of_kind = {
            "text": self._text_lines,
            "matrixmarket": self._matrixmarket,
            "mat": self._mat,
            "npz": self._npz,
            "metis": self._metis,
            "jlg": self._jlg,
            "ogb": self._ogb,
        }
        return of_kind[kind]()

    def _finish(
        self, collector: Collector, report: Sequence[str] = (), nodes: Any = None
    ) -> EdgeList:
        name = self._path.name
        return collector.finish(name, tuple(report), self._watch, nodes or {})

    def _of_object(self, found: Any) -> EdgeList:
        table = objects.columns_of(found)
        collector, nodes = objects.collect(
            table, {**self._text, "columns": None}, num_nodes=self._num_nodes, both=self._both,
            store=self._store,
        )  # fmt: skip
        return self._finish(collector, table.report, nodes)

    def _text_lines(self) -> EdgeList:
        path, source = self._path, Source(self._path)
        layout = find_layout(str(path), source.head(HEAD), **self._text)
        collector = Collector(
            str(path),
            text=layout.text,
            num_nodes=self._num_nodes,
            both=self._both,
            bipartite=self._bipartite,
            store=self._store,
        )
        lines = read_lines(source, layout, collector, block=self._block, watch=self._watch)
        report = [f"{lines:,} lines, {collector.given:,} of them edges"]
        if layout.names:
            report.append(f"a header: {', '.join(layout.names)}")
        report += ["each edge both ways"] if self._both else []
        return self._finish(collector, report)

    def _matrixmarket(self) -> EdgeList:
        found = matrices.read_matrix_market(
            Source(self._path), both=self._both, store=self._store, block=self._block,
            watch=self._watch,
        )  # fmt: skip
        return self._finish(*found)

    def _metis(self) -> EdgeList:
        collector, nodes = adjacency.read_metis(
            Source(self._path), store=self._store, block=self._block, watch=self._watch
        )
        return self._finish(collector, (), nodes)

    def _jlg(self) -> EdgeList:
        found = adjacency.read_jlg(
            Source(self._path), both=self._both, store=self._store, block=self._block,
            watch=self._watch,
        )  # fmt: skip
        return self._finish(*found)

    def _mat(self) -> EdgeList:
        raw = Source(self._path).text()
        return self._of_matrix(*matrices.read_mat(self._path, raw, self._key))

    def _npz(self) -> EdgeList:
        return self._of_matrix(*matrices.read_arrays(self._path, self._key))

    def _of_matrix(self, matrix: Any, nodes: dict[str, Any], name: str) -> EdgeList:
        ends, columns, count = objects.entries_of(matrix)
        where = f"{self._path}:{name}"
        count = max([count, *(len(v) for v in nodes.values())])
        collector = Collector(
            where, text=False, num_nodes=count, both=self._both, store=self._store
        )
        collector.add(ends, columns)
        return self._finish(collector, (f"edges of {name}",), nodes)

    def _ogb(self) -> EdgeList:
        found = ogb.read_folder(self._path)
        collector = Collector(
            str(self._path), text=False, num_nodes=found.num_nodes, both=self._both,
            store=self._store,
        )  # fmt: skip
        collector.add(found.ends, found.edges)
        return self._finish(collector, found.report, found.nodes)


def _nobody(stage: str, done: int, total: int) -> None:
    """The `Watch` of nobody."""


@contextlib.contextmanager
def _bar(progress: bool) -> Iterator[Watch]:
    """A bar for each stage, on standard error."""
    if not progress:
        yield _nobody
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def watch(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total)
            bar.update(tasks[stage], completed=done, total=total)

        yield watch
