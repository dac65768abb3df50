"""How the lines of a text file are read: found out from its first lines, or told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gnnjit.data.reading.scan import BLANKS, split, texts
from gnnjit.errors import DataError
from gnnjit.graph.validate import shown
from gnnjit.shapes import HostArray

Column = int | str
"""A column, by its place from 0 or its name in the header."""

SOURCES = ("source", "src", "from", "fromnodeid", "from_node_id", "head", "sender", "u", "id1",
           "node1", "user", "user_id", "userid", "n1", ":start_id", "id_1")  # fmt: skip
DESTINATIONS = ("destination", "dst", "to", "tonodeid", "to_node_id", "tail", "receiver", "v",
                "id2", "node2", "item", "item_id", "itemid", "target", "n2", ":end_id",
                "id_2")  # fmt: skip
WEIGHTS = ("weight", "w", "weights", "edge_weight")
TIMES = ("time", "timestamp", "ts", "date", "datetime")
_SAMPLED = 200
"""Lines that the layout is found from."""
_DELIMITERS = "\t,;|"


@dataclass(frozen=True)
class Layout:
    """How lines become edges.

    Attributes:
      delimiter: between columns, one character; " " for any number of blanks and tabs.
      skip: lines before the first edge, comments and blank lines among them.
      names: of the columns, by the header; None without one.
      columns: how many there are, in the first line.
      source, destination: their columns.
      values: further columns that are read, by the name they get.
      text: whether ids are texts, and not whole numbers.
      comments: characters that a line of comment begins with.
      sample: the columns of the first edge.
      real_time: whether a time of the first lines is no whole number.
    """

    delimiter: str
    skip: int
    names: tuple[str, ...] | None
    columns: int
    source: int
    destination: int
    values: tuple[tuple[str, int], ...]
    text: bool
    comments: str
    sample: tuple[str, ...]
    real_time: bool = False

    @property
    def byte(self) -> int:
        """The delimiter as `scan.split` takes it."""
        return BLANKS if self.delimiter == " " else ord(self.delimiter)

    def wanted(self) -> HostArray:
        """int64 [columns up to the last that is read]: as `slot` of `scan.split`."""
        columns = (self.source, self.destination, *(column for _, column in self.values))
        slot = np.full(max(columns) + 1, -1)
        slot[list(columns)] = np.arange(len(columns))
        return slot


def comment_table(comments: str) -> HostArray:
    """bool [256], as `scan.split` takes it."""
    table = np.zeros(256, bool)
    table[[ord(character) for character in comments]] = True
    return table


def fields(line: bytes, delimiter: str) -> tuple[str, ...]:
    """The columns of a line."""
    byte = BLANKS if delimiter == " " else ord(delimiter)
    most = len(line.split()) if byte == BLANKS else line.count(delimiter.encode()) + 1
    text = np.frombuffer(line.rstrip(b"\r\n") + b"\n", np.uint8)
    begin, end = np.zeros((2, 1, most), np.int32)
    none = np.zeros(256, bool)
    for count in range(most, 0, -1):  # quotes may hold delimiters
        slot = np.arange(count)
        rows, _ = split(text, byte, none, slot, begin, end)
        if rows:
            found = texts(text, begin[0, :count], end[0, :count])
            return tuple(f.decode("utf-8", "replace").replace('""', '"') for f in found.tolist())
    return ()


def find_layout(
    where: str,
    head: bytes,
    *,
    columns: Sequence[Column] | None,
    weight: Column | bool | None,
    time: Column | bool | None,
    values: Sequence[Column],
    delimiter: str | None,
    header: bool | None,
    comments: str,
    ids: str,
) -> Layout:
    """The layout of a file that begins so.

    Raises:
      DataError: there is no edge, or no column that is asked for.
    """
    lines = [
        (number, line)
        for number, line in enumerate(head.split(b"\n"), 1)
        if line.strip() and line.lstrip()[:1].decode("latin1") not in comments
    ][:_SAMPLED]
    if not lines:
        raise DataError(f"{where}: has no edges, expected a line with two columns for each.")
    delimiter = _delimiter(where, lines[0][1], delimiter)
    rows = [fields(line, delimiter) for _, line in lines[:2]]
    has_header = _is_header(rows) if header is None else header
    if has_header and len(rows) < 2:
        raise DataError(f"{where}: has no edges after its header {', '.join(rows[0])!r}.")
    names = rows[0] if has_header else None
    first = rows[1] if has_header else rows[0]
    place = Places(where, names, len(first))
    source, destination = place.ends(columns)
    found = [("weight", place.value(weight, WEIGHTS)), ("time", place.value(time, TIMES))]
    taken = [(name, column) for name, column in found if column is not None]
    for value in values:
        column = place.of(value)
        taken.append((names[column] if names else f"column {column}", column))
    if ids not in ("auto", "numbers", "text"):
        raise DataError(f"{where}: ids is {shown(ids)}, expected 'auto', 'numbers' or 'text'.")
    whole = _is_whole(first[source]) and _is_whole(first[destination])
    return Layout(
        delimiter=delimiter,
        skip=lines[1][0] - 1 if has_header else lines[0][0] - 1,
        names=names,
        columns=len(first),
        source=source,
        destination=destination,
        values=tuple(taken),
        text=ids == "text" or (ids == "auto" and not whole),
        comments=comments,
        sample=first,
        real_time=_is_real(lines[has_header:], delimiter, dict(taken).get("time")),
    )


def _is_real(lines: Sequence[tuple[int, bytes]], delimiter: str, column: int | None) -> bool:
    """Whether a column has a number that is not whole."""
    if column is None:
        return False
    words = [fields(line, delimiter)[column : column + 1] for _, line in lines]
    return any(not _is_whole(word[0]) and _is_number(word[0]) for word in words if word)


def _delimiter(where: str, line: bytes, given: str | None) -> str:
    if given is not None:
        if len(given) != 1 or ord(given) > 127 or given in '\r\n"':
            raise DataError(
                f"{where}: delimiter is {shown(given)}, expected one character, such as ',', or "
                "' ' for any number of blanks and tabs."
            )
        return given
    text = line.decode("latin1").strip()
    return next((d for d in _DELIMITERS if d in text), " ")


def _is_whole(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and len(text) <= 18


def _is_header(rows: Sequence[tuple[str, ...]]) -> bool:
    """Whether the first line names columns: by words that are usual, or that have numbers below."""
    words = {word.strip().lower() for word in rows[0]}
    if words & set(SOURCES) and words & set(DESTINATIONS):
        return True
    if len(rows) < 2:
        return False
    pairs = list(zip(*rows, strict=False))
    return all(not _is_number(word) for word in rows[0]) and any(_is_whole(b) for _, b in pairs)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class Places:
    """Columns by place or name, checked."""

    def __init__(self, where: str, names: tuple[str, ...] | None, count: int) -> None:
        self._where, self._names, self._count = where, names, count
        self._lower = [name.strip().lower() for name in names or ()]

    def of(self, column: Column) -> int:
        """Its place. Raises DataError where there is none."""
        if isinstance(column, str) and column.lower() in self._lower:
            return self._lower.index(column.lower())
        if isinstance(column, int) and not isinstance(column, bool) and 0 <= column < self._count:
            return column
        known = f"0 to {self._count - 1}"
        known += f", or one of {', '.join(self._names)}" if self._names else ", there is no header"
        raise DataError(f"{self._where}: has no column {shown(column)}, expected {known}.")

    def ends(self, columns: Sequence[Column] | None) -> tuple[int, int]:
        """Those of source and destination: as told, as their names say, or the first two."""
        if columns is not None:
            if isinstance(columns, str) or len(columns) != 2:
                raise DataError(
                    f"{self._where}: columns is {shown(columns)}, expected two: those of source "
                    "and destination."
                )
            return self.of(columns[0]), self.of(columns[1])
        named = [next((i for i, n in enumerate(self._lower) if n in some), None)
                 for some in (SOURCES, DESTINATIONS)]  # fmt: skip
        if named[0] is not None and named[1] is not None:
            return named[0], named[1]
        if self._count < 2:
            raise DataError(
                f"{self._where}: has one column, expected two or more, of source and destination. "
                "Is it another delimiter? Pass delimiter=."
            )
        return 0, 1

    def value(self, column: Column | bool | None, usual: tuple[str, ...]) -> int | None:
        """That of a weight or time: as told, or with a usual name; False is none."""
        if column is False:
            return None
        if column is None or column is True:
            return next((i for i, name in enumerate(self._lower) if name in usual), None)
        return self.of(column)
