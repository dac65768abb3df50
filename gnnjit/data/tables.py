"""Text files of whole numbers, read with errors that name the line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gnnjit.data.files import read_bytes
from gnnjit.errors import DataError


def text_of(path: Path) -> str:
    """The text of a file. Raises DataError where it is no UTF-8."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: byte {error.start} is no UTF-8, expected a text file. The file is damaged; "
            "get it again."
        ) from error


def numbers_of_lines(
    path: Path, *, columns: int | None = None, least: int = 0, header: int = 0
) -> Any:
    """The whole numbers of each line, with spaces or tabs between them; empty lines are left out.

    Args:
      path: the file.
      columns: how many each line has; None for one or more.
      least: the smallest number that there may be.
      header: lines to skip.

    Returns:
      int64 [lines, columns]; without `columns` a list of a list for each line.

    Raises:
      DataError: naming the file, the line, what it has and what was expected.
    """
    rows = []
    for i, line in enumerate(text_of(path).split("\n")[header:], header + 1):
        words = line.split()
        if not words:
            continue
        row = [_whole(word) for word in words]
        wrong = next((w for w, n in zip(words, row, strict=True) if n is None or n < least), None)
        if wrong is not None:
            raise DataError(
                f"{path}, line {i}: got {wrong[:40]!r}, expected whole numbers from {least} on."
            )
        if columns is not None and len(row) != columns:
            raise DataError(f"{path}, line {i}: got {len(row)} numbers, expected {columns}.")
        rows.append(row)
    if not rows:
        raise DataError(f"{path}: has no lines of numbers, expected some.")
    return rows if columns is None else np.array(rows, np.int64)


def _whole(word: str) -> int | None:
    """The number, which may be written as 1e5; None where it is none below 2**31."""
    try:
        value = int(word)
    except ValueError:
        try:
            exact = float(word)
        except ValueError:
            return None
        if not exact.is_integer():
            return None
        value = int(exact)
    return value if abs(value) < 2**31 else None
