"""Lines of text to edges, a block at a time."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from gnnjit.data.reading.collect import Collector
from gnnjit.data.reading.layout import Layout, comment_table
from gnnjit.data.reading.scan import POWERS, real_numbers, split, texts, whole_numbers
from gnnjit.data.reading.streams import Source, Watch
from gnnjit.errors import DataError
from gnnjit.shapes import HostArray

BLOCK = 8 << 20
"""Bytes of text that are read at once, unless told otherwise."""


def read_lines(
    source: Source, layout: Layout, collector: Collector, *, block: int = BLOCK, watch: Watch
) -> int:
    """Give the edges of a file to `collector`; the number of lines.

    Raises:
      DataError: naming the file, the line and its text where it is no edge.
    """
    reader = _Reader(str(source.path), layout)
    skip = layout.skip
    for text in source.blocks(block, watch):
        while skip and text:
            cut = text.find(b"\n") + 1
            text, skip = text[cut:], skip - 1
            reader.lines += 1
        if text:
            ends, columns = reader.edges(text)
            if len(ends):
                collector.add(ends, columns)
    return reader.lines


class _Reader:
    """Blocks of whole lines to ids and columns; `lines` are those before the block."""

    def __init__(self, where: str, layout: Layout) -> None:
        self.lines = 0
        self._where, self._layout = where, layout
        self._slot = layout.wanted()
        self._wanted = int(self._slot.max()) + 1
        self._comments = comment_table(layout.comments)
        self._kinds = {name: _kind(layout.sample[column]) for name, column in layout.values}
        if layout.real_time:
            self._kinds["time"] = "real"

    def edges(self, block: bytes) -> tuple[HostArray, dict[str, HostArray]]:
        """(ids [rows, 2], columns [rows])."""
        text, count = np.frombuffer(block, np.uint8), block.count(b"\n")
        begin, end = np.empty((2, count, self._wanted), np.int32)
        rows, wrong = split(text, self._layout.byte, self._comments, self._slot, begin, end)
        if wrong >= 0:
            self._short(block, wrong)
        begin, end = begin[:rows], end[:rows]
        ends = self._ids(block, text, begin, end)
        columns = {
            name: self._column(name, block, text, begin[:, i], end[:, i])
            for i, (name, _) in enumerate(self._layout.values, 2)
        }
        self.lines += count
        return ends, columns

    def _ids(self, block: bytes, text: HostArray, begin: HostArray, end: HostArray) -> HostArray:
        if self._layout.text:
            found = texts(text, begin[:, :2].reshape(-1), end[:, :2].reshape(-1))
            empty = np.flatnonzero(found == b"")
            if len(empty):
                self._wrong(
                    block, int(begin[empty[0] // 2, empty[0] % 2]), "", "the id of a vertex"
                )
            return found.reshape(-1, 2)
        out = np.empty((len(begin), 2), np.int64)
        for side in range(2):
            ids = np.empty(len(begin), np.int64)
            self._whole(block, text, begin[:, side], end[:, side], ids)
            out[:, side] = ids
        return out

    def _whole(
        self,
        block: bytes,
        text: HostArray,
        begin: HostArray,
        end: HostArray,
        out: HostArray,
        hint: str = ". Are ids texts? Pass ids='text'",
    ) -> None:
        """Whole numbers, which may be written as 12.0 or 1e5."""
        start = 0
        while (bad := whole_numbers(text, begin[start:], end[start:], out[start:])) >= 0:
            row = start + bad
            field = block[begin[row] : end[row]]
            try:
                number = float(field)
            except ValueError:
                number = 0.5
            if not number.is_integer() or abs(number) >= 2**53:
                self._wrong(block, int(begin[row]), field, f"a whole number{hint}")
            out[row] = int(number)
            start = row + 1

    def _column(
        self, name: str, block: bytes, text: HostArray, begin: HostArray, end: HostArray
    ) -> HostArray:
        kind = self._kinds[name]
        if kind == "date":
            return self._dates(block, text, begin, end)
        if kind == "whole" and name == "time":
            out = np.empty(len(begin), np.int64)
            self._whole(block, text, begin, end, out, ", as the first times are")
            return out
        out = np.empty(len(begin), np.float64)
        odd = np.empty(len(begin), np.int32)
        for row in odd[: real_numbers(text, begin, end, POWERS, out, odd)]:
            field = block[begin[row] : end[row]]
            try:
                out[row] = float(field)
            except ValueError:
                self._wrong(block, int(begin[row]), field, f"a number, the {name}")
        wrong = np.flatnonzero(~np.isfinite(out))
        if len(wrong):
            row = int(wrong[0])
            field = block[begin[row] : end[row]]
            self._wrong(block, int(begin[row]), field, f"a finite number, the {name}")
        return out if name in ("weight", "time") else out.astype(np.float32)

    def _dates(self, block: bytes, text: HostArray, begin: HostArray, end: HostArray) -> HostArray:
        """Seconds since 1970 of dates as ISO 8601 has them, int64."""
        found = texts(text, begin, end)
        try:
            return found.astype("U").astype("datetime64[s]").astype(np.int64)
        except ValueError:
            for row, field in enumerate(found.tolist()):
                if _kind(field.decode("latin1")) != "date":
                    self._wrong(block, int(begin[row]), field, "a date, as 2024-05-31T12:00:00")
            raise

    def _short(self, block: bytes, at: int) -> NoReturn:
        line = block[at : block.index(b"\n", at)].strip().decode("utf-8", "replace")
        raise DataError(
            f"{self._line(block, at)}: got {line[:80]!r}, expected at least {len(self._slot)} "
            f"columns with {_said(self._layout.delimiter)} between them."
        )

    def _wrong(self, block: bytes, at: int, field: Any, expected: str) -> NoReturn:
        text = field.decode("utf-8", "replace") if field else ""
        first = block.rfind(b"\n", 0, at) + 1
        line = block[first : block.index(b"\n", at)].strip().decode("utf-8", "replace")
        raise DataError(
            f"{self._line(block, at)}: got {text[:40]!r} in {line[:80]!r}, expected {expected}."
        )

    def _line(self, block: bytes, at: int) -> str:
        number = self.lines + block.count(b"\n", 0, at) + 1
        return f"{self._where}, line {number}"


def _said(delimiter: str) -> str:
    return {" ": "blanks", "\t": "a tab"}.get(delimiter, f"{delimiter!r}")


def _kind(sample: str) -> str:
    """Whether a column holds whole numbers, real ones, or dates, by its first field."""
    try:
        return "whole" if float(sample).is_integer() and "." not in sample else "real"
    except ValueError:
        pass
    try:
        return "date" if not np.isnat(np.datetime64(sample.replace("Z", ""), "s")) else "real"
    except ValueError:
        return "real"
