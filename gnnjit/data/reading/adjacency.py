"""Files that list the neighbours of each vertex, or begin with the sizes of the graph."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gnnjit.data.reading.collect import Collector
from gnnjit.data.reading.layout import Layout
from gnnjit.data.reading.streams import Source, Watch
from gnnjit.data.reading.text import read_lines
from gnnjit.errors import DataError
from gnnjit.shapes import HostArray
from gnnjit.store.store import VertexStore

_LINES = 1 << 16
"""Lines that are given on at once."""


def read_metis(
    source: Source, *, store: VertexStore | None, block: int, watch: Watch
) -> tuple[Collector, dict[str, HostArray]]:
    """The edges of a .graph file, in the order of its lines, and the vertices' weights.

    Karypis & Kumar, the manual of METIS 5.1.0, section 4.1.1: the first line has the numbers of
    vertices and undirected edges, and what weights there are; line v after it the neighbours of
    vertex v, from 1. Each edge stands in two lines, and goes both ways.

    Blocks of `block` bytes are read one after the other; of the whole file only the vertices'
    weights are in memory, and the edges where there is no store.

    Raises:
      DataError: naming the file and the line.
    """
    where = str(source.path)
    lines = _lines(source, block, watch)
    number, first = next(lines)
    head = _numbers(where, number, first)
    flags = str(head[2]).zfill(3) if len(head) > 2 else "000"
    if not 2 <= len(head) <= 4 or set(flags) - set("01"):
        raise DataError(
            f"{where}, line {number}: got {_shown(first)}, expected the numbers of vertices and "
            "edges, and perhaps which weights follow, as in 10 20 011."
        )
    count, edges = int(head[0]), int(head[1])
    skip = (flags[0] == "1") + (flags[1] == "1") * (int(head[3]) if len(head) == 4 else 1)
    weighted, own = flags[2] == "1", np.zeros((count, skip), np.int64)
    collector = Collector(where, text=False, first=1, num_nodes=count, store=store)
    pieces, vertex = [], 0
    for number, line in lines:
        if vertex == count:
            if line.strip():
                raise DataError(
                    f"{where}, line {number}: got {_shown(line)} after {count} vertices."
                )
            continue
        row, vertex = _numbers(where, number, line), vertex + 1
        if len(row) < skip or (weighted and (len(row) - skip) % 2):
            raise DataError(
                f"{where}, line {number}: got {_shown(line)}, expected {skip} weights of the "
                "vertex, and then neighbours" + (" with a weight each." if weighted else ".")
            )
        own[vertex - 1], row = row[:skip], row[skip:]
        row = row.reshape(-1, 2) if weighted else row[:, None]
        if ((row[:, 0] < 1) | (row[:, 0] > count)).any():
            raise DataError(
                f"{where}, line {number}: got {_shown(line)}, expected neighbours from 1 to "
                f"{count}."
            )
        pieces.append(row)
        if vertex % _LINES == 0 or vertex == count:
            _give(collector, pieces, vertex, weighted)
            pieces = []
    if vertex != count or collector.rows != 2 * edges:
        raise DataError(
            f"{where}: says {count} vertices and {edges} edges, and has {vertex} lines with "
            f"{collector.rows} neighbours, expected two for each edge. The file is cut short; get "
            "it again."
        )
    return collector, {"weight": own.astype(np.float32)} if skip else {}


def _lines(source: Source, block: int, watch: Watch) -> Iterator[tuple[int, bytes]]:
    """The lines that are no comments, with their numbers. The last one may be a vertex without
    neighbours and without an end, so an empty one follows all."""
    number = 0
    for part in source.blocks(block, watch):
        for line in part.split(b"\n")[:-1]:
            number += 1
            if line[:1] != b"%":
                yield number, line
    yield number + 1, b""


def _give(collector: Collector, pieces: list[HostArray], last: int, weighted: bool) -> None:
    """The neighbours of vertices up to `last`, and their weights."""
    rows = np.concatenate(pieces)
    vertices = np.arange(last - len(pieces) + 1, last + 1)
    source = np.repeat(vertices, [len(piece) for piece in pieces])
    columns = {"weight": rows[:, 1].astype(np.float64)} if weighted else {}
    collector.add(np.stack([source, rows[:, 0]], axis=1), columns)


def _numbers(where: str, number: int, line: bytes) -> HostArray:
    try:
        return np.array(line.split(), np.int64)
    except (ValueError, OverflowError) as error:
        raise DataError(
            f"{where}, line {number}: got {_shown(line)}, expected whole numbers."
        ) from error


def _shown(line: bytes) -> str:
    return repr(line.strip()[:80].decode("utf-8", "replace"))


def read_jlg(
    source: Source, *, both: bool, store: VertexStore | None, block: int, watch: Watch
) -> tuple[Collector, tuple[str, ...]]:
    """The edges of a graph that Julia's GraphIO saved as .jlg or .lg.

    The first line has the numbers of vertices and edges, "u" or "d", and a name; then come
    "source,destination", from 1. An undirected edge goes both ways.

    Raises:
      DataError: naming the file and the line.
    """
    where, first = str(source.path), source.head(1 << 12).split(b"\n")[0]
    words = first.decode("utf-8", "replace").strip().split(",")
    if len(words) < 3 or not (words[0].isdecimal() and words[1].isdecimal()) or (
        words[2] not in ("u", "d")
    ):  # fmt: skip
        raise DataError(
            f"{where}, line 1: got {_shown(first)}, expected the numbers of vertices and edges, "
            "and u or d, as in 10,20,u,name."
        )
    both = both or words[2] == "u"
    collector = Collector(
        where, text=False, first=1, num_nodes=int(words[0]), both=both, store=store
    )
    layout = Layout(",", 1, None, 2, 0, 1, (), False, "", ("1", "1"))
    read_lines(source, layout, collector, block=block, watch=watch)
    if collector.given != int(words[1]):
        raise DataError(
            f"{where}, line 1: says {words[1]} edges, and {collector.given} follow. The file is "
            "cut short; get it again."
        )
    return collector, ("each edge both ways",) if both else ()
