"""Where the vertex data of a streamed graph lives: named arrays, read and written by rows.

NeuGraph (sections 3.1 and 3.2) cuts the vertices into contiguous chunks and swaps vertex data and
activations between the device and host memory (`gnnjit.store.memory`); ROC (section 5) keeps in
host memory what it does not cache on the device. We also keep them on disk (`gnnjit.store.disk`),
behind the same interface.
"""

from __future__ import annotations

import abc
import operator
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from gnnjit.distributed.process_group import ALONE, ProcessGroup
from gnnjit.errors import StoreError
from gnnjit.graph.validate import cut, shown
from gnnjit.store.array_info import ALIGNED, DTYPES, NAME, ArrayInfo, described, fits, typed

GAP = 16 << 10
"""Bytes between two wanted rows that are read along rather than skipped with a further call."""
LISTED = 8
"""Arrays in a message."""
PIECE = 1 << 20
"""Bytes that a gather holds beside its result, unless one row is larger."""


class VertexStore(abc.ABC):
    """Named arrays `[rows, *shape]`, of float32, float16, bfloat16, int32 or bool.

    An array is made by `add`, written, and closed against writing by `seal`, which is also what
    makes it outlive the process where the store does. Every array that is returned is a copy, but
    for what `view` gives.

    `read`, `view`, `waits`, `expect`, `write`, `keep` and `gather` may run in several threads at
    once, on different rows where one writes; nothing else may run beside another call.

    Every method raises StoreError for a name that the store does not know, for rows that do not
    fit, and where the store is closed.
    """

    tenant: object = None
    """Stands for the graph that the arrays belong to, where a graph was made anew in the store."""
    group: ProcessGroup = ALONE
    """The processes that have the store open."""
    shows_rows: bool = False
    """Whether `view` gives rows that begin at a multiple of `ALIGNED` bytes, as a rule."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._counting = threading.Lock()
        self._bytes_read = self._bytes_written = 0

    @abc.abstractmethod
    def add(
        self, name: str, num_rows: int, shape: Sequence[int], dtype: Any, *, replace: bool = False
    ) -> None:
        """A new array of zeros, `[num_rows, *shape]`.

        With `replace` the name may exist: from then on it means the new array. Raises StoreError
        for a name other than 1 to 200 of the characters A-Z a-z 0-9 _ . -, and without room.
        """

    @abc.abstractmethod
    def seal(self, name: str) -> None:
        """The array is complete: writing is refused from now on. Sealing twice does nothing."""

    @abc.abstractmethod
    def unseal(self, name: str) -> None:
        """The array may be written again; it counts as incomplete until it is sealed."""

    @abc.abstractmethod
    def drop(self, name: str) -> None:
        """Forget the array, sealed or not, and free its room."""

    @abc.abstractmethod
    def close(self) -> None:
        """Nothing can be read or written any more. It does not seal. Closing twice is allowed."""

    def once(self, work: Callable[[], object]) -> None:
        """Do `work`, which makes, writes or drops arrays, in one of the processes that have the
        store open; all call this, and see what it did."""
        work()

    @abc.abstractmethod
    def _infos(self) -> Mapping[str, ArrayInfo]:
        """All arrays by name. Raises StoreError where the store is closed."""

    @abc.abstractmethod
    def _read(self, name: str, start: int, out: np.ndarray) -> None: ...

    @abc.abstractmethod
    def _write(self, name: str, start: int, rows: np.ndarray) -> None: ...

    def _view(self, name: str, start: int, stop: int, until: int) -> np.ndarray | None:
        """As `view`, for a row that begins at a multiple of `ALIGNED` bytes from the first."""
        return None

    def _keep(self, name: str, start: int, rows: np.ndarray, count: int) -> bool:
        return False

    def _usable(self, name: str) -> ArrayInfo:
        """What `name` is, where its rows can be read."""
        return self.info(name)

    def read(self, name: str, start: int, stop: int, out: np.ndarray | None = None) -> np.ndarray:
        """Rows start to stop, `[stop - start, *shape]`; in `out`, where that is given."""
        info, start, stop = self._range("read", name, start, stop)
        shape = (stop - start, *info.shape)
        if out is None:
            out = np.empty(shape, info.dtype)
        elif not fits(out, shape, info.dtype):
            raise StoreError(
                f"{self._where}: read({name!r}, {start}, {stop}) into {described(out)}, expected a "
                f"C-contiguous, writable NumPy array {typed(info.dtype, shape)}"
            )
        self._read(name, start, out)
        self._count(read=out.nbytes)
        return out

    def view(self, name: str, start: int, stop: int, until: int | None = None) -> np.ndarray | None:
        """Rows start to stop where they lie, `[stop - start, *shape]`, read-only, and at a multiple
        of `ALIGNED` bytes; None where they cannot be had so. Behind the last row of the array come
        zeros; with `until`, rows from there on hold anything. What is written to the rows later
        shows in it, unless an array was kept (`keep`) there. It may be held longer than the array
        is in the store."""
        info, start, stop = self._range("view", name, start, stop, behind=True)
        if start * info.row_bytes % ALIGNED:
            return None
        until = stop if until is None else min(operator.index(until), stop)
        found = self._view(name, start, stop, until)
        if found is not None:
            found.flags.writeable = False
            self._count(read=found.nbytes)
        return found

    def rows_behind(self, num_rows: int, row_bytes: int) -> int:
        """Rows behind the last one of an array of such rows, up to which `view` shows zeros."""
        return sys.maxsize

    def waits(self, name: str, start: int, stop: int) -> bool:
        """Whether to view rows start to stop would wait for a disk, as far as a look tells."""
        _, start, stop = self._range("waits", name, start, stop, behind=True)
        return self._waits(name, start, stop)

    def _waits(self, name: str, start: int, stop: int) -> bool:
        return False

    def expect(self, name: str, start: int, stop: int) -> None:
        """Rows start to stop are going to be viewed: what can be done for that without memory of
        this process is begun."""
        _, start, stop = self._range("expect", name, start, stop, behind=True)
        self._expect(name, start, stop)

    def _expect(self, name: str, start: int, stop: int) -> None:
        return

    def _range(
        self, call: str, name: str, start: int, stop: int, *, behind: bool = False
    ) -> tuple[ArrayInfo, int, int]:
        info = self._usable(name)
        start, stop = operator.index(start), operator.index(stop)
        if not (0 <= start <= stop and start <= info.rows and (behind or stop <= info.rows)):
            raise StoreError(
                f"{self._where}: {call}({name!r}, {start}, {stop}) of an array of {info.rows} "
                f"rows, expected 0 <= start <= {'' if behind else 'stop <= '}{info.rows}"
                + (" and start <= stop" if behind else "")
            )
        return info, start, stop

    def write(self, name: str, start: int, rows: Any) -> None:
        """Set the rows from `start` on to `rows`, `[n, *shape]` of the array's dtype. Raises
        StoreError for a sealed array: add it anew with `replace`, or unseal it."""
        start, rows = self._writable("write", name, start, rows, None)
        self._write(name, start, np.ascontiguousarray(rows))
        self._count(written=rows.nbytes)

    def keep(self, name: str, start: int, rows: np.ndarray, count: int) -> bool:
        """Set so many rows from `start` on to the first ones of `rows`, `[n, *shape]`, as `write`
        does, but by keeping that very array, which nobody may write any more; behind `count` it
        holds anything. False, and nothing is done, where the store cannot: use `write` then. Raises
        StoreError as `write`."""
        start, rows = self._writable("keep", name, start, rows, count)
        kept = rows.flags.c_contiguous and self._keep(name, start, rows, count)
        if kept:
            self._count(written=rows[:count].nbytes)
        return kept

    def _writable(
        self, call: str, name: str, start: int, rows: Any, count: int | None
    ) -> tuple[int, np.ndarray]:
        info = self._usable(name)
        start, rows = operator.index(start), np.asarray(rows)
        if info.sealed:
            raise StoreError(
                f"{self._where}: {call}({name!r}) to a sealed array: add it anew with "
                f"replace=True, or call unseal({name!r}) to write into it"
            )
        if rows.ndim == 0 or rows.shape[1:] != info.shape or rows.dtype != info.dtype:
            raise StoreError(
                f"{self._where}: {call}({name!r}) of rows {typed(rows.dtype, rows.shape)}, "
                f"expected {typed(info.dtype, ('n', *info.shape))}: nothing is cast or reshaped "
                "here"
            )
        count = len(rows) if count is None else operator.index(count)
        if not (0 <= start <= start + count <= info.rows and count <= len(rows)):
            raise StoreError(
                f"{self._where}: {call}({name!r}) of rows {start} to {start + count} of an "
                f"array of {info.rows} rows, expected rows of 0 to {info.rows}"
            )
        return start, rows

    def gather(self, name: str, rows: Any) -> np.ndarray:
        """`[len(rows), *shape]`: the rows of these numbers, `int[n]`, in any order, also twice."""
        info = self._usable(name)
        rows = np.asarray(rows)
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise StoreError(
                f"{self._where}: gather({name!r}) of row numbers {typed(rows.dtype, rows.shape)}, "
                "expected integers in one dimension"
            )
        rows = rows.astype(np.int64, copy=False)
        outside = rows[(rows < 0) | (rows >= info.rows)]
        if outside.size:
            raise StoreError(
                f"{self._where}: gather({name!r}) of row {outside[0]} of an array of {info.rows} "
                f"rows, expected 0 <= row < {info.rows}"
            )
        out = np.empty((len(rows), *info.shape), info.dtype)
        self._count(read=self._gather(name, rows, out))
        return out

    def _gather(self, name: str, rows: np.ndarray, out: np.ndarray) -> int:
        """Fill `out`, by reading contiguous rows; the bytes that were read for it."""
        info = self.info(name)
        order = None if (rows[1:] >= rows[:-1]).all() else np.argsort(rows, kind="stable")
        ranked = rows if order is None else rows[order]
        moved = 0
        for begin, end in _runs(ranked, info.row_bytes):
            first, last = int(ranked[begin]), int(ranked[end - 1])
            piece = np.empty((last + 1 - first, *info.shape), info.dtype)
            self._read(name, first, piece)
            place = slice(begin, end) if order is None else order[begin:end]
            out[place] = piece[ranked[begin:end] - first]
            moved += piece.nbytes
        return moved

    def names(self) -> tuple[str, ...]:
        """The names of all arrays, sorted."""
        return tuple(sorted(self._infos()))

    def info(self, name: str) -> ArrayInfo:
        """Rows, shape of a row and dtype of an array, and whether it is sealed."""
        infos = self._infos()
        if not isinstance(name, str) or name not in infos:
            names = sorted(infos)
            more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
            held = ", ".join(cut(repr(x)) for x in names[:LISTED]) + more or "none"
            raise StoreError(
                f"{self._where}: there is no array {shown(name)}, add it first; the arrays: {held}"
            )
        return infos[name]

    @property
    def bytes_read(self) -> int:
        """Bytes that `read`, `view` and `gather` have read since the last `reset_counters`. What a
        gather from disk reads between the rows that it wants counts too."""
        return self._bytes_read

    @property
    def bytes_written(self) -> int:
        """Bytes that `write` has written since the last `reset_counters`."""
        return self._bytes_written

    def reset_counters(self) -> None:
        """Set `bytes_read` and `bytes_written` to 0."""
        with self._counting:
            self._bytes_read = self._bytes_written = 0

    def _count(self, read: int = 0, written: int = 0) -> None:
        with self._counting:
            self._bytes_read += read
            self._bytes_written += written

    def _new(
        self, name: str, num_rows: int, shape: Sequence[int], dtype: Any, replace: bool
    ) -> ArrayInfo:
        """What `add` makes. Raises StoreError where it may not."""
        call = f"{self._where}: add({shown(name)})"
        if not isinstance(name, str) or not re.fullmatch(NAME, name):
            raise StoreError(
                f"{call}: not a name, expected 1 to 200 of the characters A-Z a-z 0-9 _ . -"
            )
        if name in self._infos() and not replace:
            raise StoreError(
                f"{call}: the array exists; drop it first, or pass replace=True to write it anew"
            )
        rows, sizes = operator.index(num_rows), tuple(map(operator.index, shape))
        if min(rows, *sizes, 0) < 0:
            raise StoreError(f"{call}: {rows} rows of shape {sizes}, expected sizes >= 0")
        try:
            found = str(np.dtype(DTYPES.get(dtype, dtype) if isinstance(dtype, str) else dtype))
        except TypeError:
            found = repr(dtype)
        if found not in DTYPES:
            raise StoreError(f"{call}: the dtype {found}, expected one of {', '.join(DTYPES)}")
        return ArrayInfo(rows, sizes, DTYPES[found])

    def _closed(self) -> StoreError:
        return StoreError(f"{self._where}: the store is closed, open it or make a new one")

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _runs(rows: np.ndarray, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut sorted row numbers where the gaps are large, and into spans of at most PIECE bytes."""
    if not len(rows):
        return
    row_bytes = max(1, row_bytes)
    span = max(1, PIECE // row_bytes)
    cuts = np.flatnonzero(np.diff(rows) > GAP // row_bytes + 1) + 1
    for begin, end in pairwise([0, *cuts.tolist(), len(rows)]):
        while begin < end:
            stop = begin + int(np.searchsorted(rows[begin:end], rows[begin] + span))
            yield begin, stop
            begin = stop
