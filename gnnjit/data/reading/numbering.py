"""The vertices of a source by number: ids as they come, piece by piece, to 0 .. N - 1."""

from __future__ import annotations

import numpy as np

from gnnjit.errors import DataError
from gnnjit.shapes import HostArray

DENSE = 1 << 24
"""Whole numbers below this, or below 16 times the edges so far, are marked in a table."""
MOST = np.iinfo(np.int32).max


class Numbering:
    """Numbers the ids of vertices.

    Whole numbers are numbered in ascending order, texts in the order in which they come first.
    `number` gives temporary numbers; `finish` tells what they become. Memory is O(N), with one
    byte for each id that is left out below `DENSE`.

    Args:
        where: of the source, for messages.
        text: whether ids are texts.
    """

    def __init__(self, where: str, *, text: bool) -> None:
        self._where, self._text = where, text
        self._seen = np.zeros(0 if text else 1024, bool)
        self._edges = 0
        self._open = not text  # whether the table may still grow
        self._known = np.zeros(0, "S1" if text else np.int64)  # sorted
        self._numbers = np.zeros(0, np.int64)

    def number(self, ids: HostArray) -> HostArray:
        """int32 of the shape of `ids`: their temporary numbers.

        Raises DataError for 2**31 vertices and more.
        """
        self._edges += len(ids)
        flat = ids.reshape(-1)
        if self._open and len(flat) and not self._fits(flat):
            self._open = False
        if self._open or not len(flat):
            self._seen[flat] = True
            return ids.astype(np.int32)
        out = np.empty(len(flat), np.int64)
        small = np.zeros(len(flat), bool)
        if not self._text:
            small = (flat >= 0) & (flat < len(self._seen))
            self._seen[flat[small]] = True
            out[small] = flat[small]
        out[~small] = self._of_others(flat[~small])
        return out.astype(np.int32).reshape(ids.shape)

    def _fits(self, flat: HostArray) -> bool:
        """Whether the table holds these ids, grown if need be."""
        low, high = int(flat.min()), int(flat.max())
        if low < 0 or high >= min(max(DENSE, 16 * self._edges), MOST):
            return False
        if high >= len(self._seen):
            grown = np.zeros(max(high + 1, 2 * len(self._seen)), bool)
            grown[: len(self._seen)] = self._seen
            self._seen = grown
        return True

    def _of_others(self, flat: HostArray) -> HostArray:
        """Numbers of ids that have no place in the table, new ones in the order they come in."""
        found, first, inverse = np.unique(flat, return_index=True, return_inverse=True)
        at = np.searchsorted(self._known, found)
        fits = np.minimum(at, max(len(self._known) - 1, 0))
        old = self._known[fits] == found if len(self._known) else np.zeros(len(found), bool)
        numbers = np.empty(len(found), np.int64)
        numbers[old] = self._numbers[fits[old]]
        order = np.argsort(first[~old], kind="stable")
        start = len(self._seen) + len(self._known)
        if start + len(order) > MOST:
            raise DataError(
                f"{self._where}: has {start + len(order):,} different vertices and more, expected "
                f"at most {MOST:,}."
            )
        new = np.empty(len(order), np.int64)
        new[order] = start + np.arange(len(order))
        numbers[~old] = new
        width = np.promote_types(self._known.dtype, found.dtype)
        self._known = np.insert(self._known.astype(width), at[~old], found[~old])
        self._numbers = np.insert(self._numbers, at[~old], new)
        return numbers[inverse.reshape(-1)]

    def finish(self) -> tuple[HostArray | None, HostArray | None, int]:
        """(table, ids, N): a temporary number is final, or the final one is `table[number]`, int32.
        `ids` [N], the id of each vertex: int64, or str; None where it is its number."""
        if self._text:
            ids = np.empty(len(self._known), self._known.dtype)
            ids[self._numbers] = self._known
            return None, _decoded(self._where, ids), len(ids)
        used = np.flatnonzero(self._seen)
        ids = np.sort(np.concatenate([used, self._known]))
        if not len(self._known) and (not len(used) or len(used) == used[-1] + 1):
            return None, None, len(used)
        table = np.zeros(len(self._seen) + len(self._known), np.int32)
        table[used] = np.searchsorted(ids, used)
        table[self._numbers] = np.searchsorted(ids, self._known)
        return table, ids.astype(np.int64), len(ids)


def _decoded(where: str, ids: HostArray) -> HostArray:
    try:
        return np.char.decode(ids, "utf-8") if len(ids) else np.zeros(0, "U1")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: the id {error.object[:40]!r} is no UTF-8, expected text. Save the file as "
            "UTF-8."
        ) from error
