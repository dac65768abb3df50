"""A vertex store in the memory of this process."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gnnjit.store.array_info import ALIGNED, ArrayInfo, aligned
from gnnjit.store.store import VertexStore

BEHIND = 1 << 20
"""Bytes of zeros behind the last row of an array, at most."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Kept:
    """Rows start to stop of an array; behind them, `rows` holds anything."""

    start: int
    stop: int
    rows: np.ndarray

    def shows(self, start: int, stop: int, until: int) -> bool:
        held = self.start <= start and until <= self.stop and stop <= self.start + len(self.rows)
        address = self.rows.ctypes.data + (start - self.start) * (self.rows[:1].nbytes)
        return held and address % ALIGNED == 0


class HostStore(VertexStore):
    """Arrays in the memory of this process, and gone with it.

    An array that is kept stands for its rows until something but a view of it is asked of them;
    then they are copied to where the rows of the whole array lie.
    """

    shows_rows = True

    def __init__(self) -> None:
        super().__init__("host store")
        self._arrays: dict[str, np.ndarray] | None = {}
        self._whole: dict[str, np.ndarray] = {}  # with zeros behind the last row
        self._held: dict[str, ArrayInfo] = {}
        self._kept: dict[str, list[_Kept]] = {}
        self._keeping = threading.Lock()

    def add(
        self, name: str, num_rows: int, shape: Sequence[int], dtype: Any, *, replace: bool = False
    ) -> None:
        info = self._new(name, num_rows, shape, dtype, replace)
        # What is behind the last row is seen alone, and no memory before that.
        behind = self.rows_behind(info.rows, info.row_bytes)
        whole = aligned((info.rows + behind, *info.shape), info.dtype, np.zeros)
        self._all()[name], self._whole[name] = whole[: info.rows], whole
        self._held[name], self._kept[name] = info, []

    def seal(self, name: str) -> None:
        self._held[name] = dataclasses.replace(self.info(name), sealed=True)

    def unseal(self, name: str) -> None:
        self._held[name] = dataclasses.replace(self.info(name), sealed=False)

    def drop(self, name: str) -> None:
        self.info(name)
        del self._held[name], self._all()[name], self._whole[name], self._kept[name]

    def close(self) -> None:
        self._arrays, self._whole, self._kept = None, {}, {}

    def _all(self) -> dict[str, np.ndarray]:
        if self._arrays is None:
            raise self._closed()
        return self._arrays

    def _infos(self) -> Mapping[str, ArrayInfo]:
        self._all()
        return self._held

    def _read(self, name: str, start: int, out: np.ndarray) -> None:
        self._settle(name, start, start + len(out))
        out[...] = self._all()[name][start : start + len(out)]

    def _write(self, name: str, start: int, rows: np.ndarray) -> None:
        self._settle(name, start, start + len(rows), instead=True)
        self._all()[name][start : start + len(rows)] = rows

    def _keep(self, name: str, start: int, rows: np.ndarray, count: int) -> bool:
        stop = start + count
        self._settle(name, start, stop, instead=True)
        with self._keeping:
            self._kept[name].append(_Kept(start, stop, rows))
        return True

    def _settle(self, name: str, start: int, stop: int, *, instead: bool = False) -> None:
        """Copy what is kept of any of these rows to the whole array, but for what is about to be
        replaced (`instead`)."""
        with self._keeping:
            kept = self._kept[name]
            for k in [k for k in kept if k.start < stop and start < k.stop]:
                if not (instead and start <= k.start and k.stop <= stop):
                    self._all()[name][k.start : k.stop] = k.rows[: k.stop - k.start]
                kept.remove(k)

    def rows_behind(self, num_rows: int, row_bytes: int) -> int:
        return min(BEHIND, num_rows * row_bytes // 4) // max(1, row_bytes)

    def _view(self, name: str, start: int, stop: int, until: int) -> np.ndarray | None:
        with self._keeping:
            for kept in self._kept[name]:
                if kept.shows(start, stop, until):
                    return kept.rows[start - kept.start : stop - kept.start]
        self._settle(name, start, until)
        whole = self._whole[name]
        return whole[start:stop] if stop <= len(whole) else None

    def _gather(self, name: str, rows: np.ndarray, out: np.ndarray) -> int:
        array = self._all()[name]
        self._settle(name, 0, len(array))
        # The numbers are known to be in range; "raise" would go through a second buffer.
        np.take(array, rows, axis=0, out=out, mode="clip")
        return out.nbytes
