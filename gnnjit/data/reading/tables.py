"""Tables of text with a row for each vertex."""

from __future__ import annotations

from pathlib import Path

from gnnjit.data.reading.layout import fields, find_layout
from gnnjit.data.reading.streams import Source
from gnnjit.errors import DataError


def words_of(path: Path) -> tuple[list[int], list[tuple[str, ...]]]:
    """The number of each line of a table, from 1, and its words; the header is left out.

    Raises:
      DataError: naming the line that has more or fewer columns than the first.
    """
    text = Source(path).text()
    layout = find_layout(
        str(path), text, columns=None, weight=False, time=False, values=(), delimiter=None,
        header=None, comments="#%", ids="text",
    )  # fmt: skip
    numbers, rows = [], []
    for number, line in enumerate(text.split(b"\n"), 1):
        if number <= layout.skip or not line.strip() or line.lstrip()[:1] in (b"#", b"%"):
            continue
        words = fields(line, layout.delimiter)
        if len(words) != layout.columns:
            raise DataError(
                f"{path}, line {number}: got {len(words)} columns, expected {layout.columns}, as "
                "in the first line."
            )
        numbers.append(number)
        rows.append(words)
    return numbers, rows
