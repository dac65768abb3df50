"""When to send only the rows that a chunk uses: NeuGraph's threshold (section 3.2).

A chunk of edges reads some of the rows of its source chunk. Either the whole chunk of rows goes to
the device, or the rows in use are first copied together in host memory and only they go. For rows
of B bytes in all, of which the fraction u is used, that takes

    whole:      B / transfer_rate
    selective:  u * B / copy_rate + u * B / transfer_rate

so that selective is faster exactly if u < copy_rate / (copy_rate + transfer_rate): with copies much
faster than the bus nearly always, with copies much slower than the bus only for very sparse chunks.

The rates are throughputs in bytes per second (T_copy and T_trans of the paper), not durations.
`copy_rate` counts each collected byte once, though it is read and written. Several devices that
share the host's cores share its copies: each has a smaller `copy_rate`, a lower threshold and so
fewer selective chunks. (Section 3.3 of the paper says the same, "on more sparse chunks", but adds
"with a larger theta", which its formula does not give.)
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gnnjit.errors import PlanError
from gnnjit.shapes import HostArray

REPEATS = 3
"""Runs of which `Rates.measure` takes the fastest."""


@dataclasses.dataclass(frozen=True)
class Rates:
    """Throughputs of one machine, in bytes per second.

    Attributes:
        copy: of collecting rows in host memory.
        transfer: of sending one block from the host to the device.

    Raises:
        PlanError: one of them is not positive and finite.
    """

    copy: float
    transfer: float

    def __post_init__(self) -> None:
        _check_rates(self.copy, self.transfer)

    @classmethod
    def measure(
        cls,
        copy: Callable[[], Any],
        transfer: Callable[[], Any],
        *,
        bytes: int,
        repeats: int = REPEATS,
        clock: Callable[[], float] = time.perf_counter,
    ) -> Rates:
        """From the fastest of `repeats` runs of each.

        Args:
            copy: collects `bytes` bytes of rows in host memory.
            transfer: sends as many to the device, and waits until they are there.
            bytes: of one call of either.
            repeats: calls of each.
            clock: seconds, as `time.perf_counter`.

        Raises:
            PlanError: `bytes` or `repeats` is not positive; or `clock` sees no time pass.
        """
        for what, count in (("bytes", bytes), ("repeats", repeats)):
            if count < 1:
                raise PlanError(f"{what}={count!r}, expected at least 1")
        seconds = {}
        for what, run in (("copy", copy), ("transfer", transfer)):
            seconds[what] = _fastest(run, repeats, clock)
            if seconds[what] <= 0:
                raise PlanError(
                    f"the {what} of {bytes} bytes took no time that the clock can tell: measure "
                    "with more bytes"
                )
        return cls(bytes / seconds["copy"], bytes / seconds["transfer"])

    @property
    def threshold(self) -> float:
        """As the function `threshold`."""
        return threshold(self.copy, self.transfer)


def threshold(copy_rate: float, transfer_rate: float) -> float:
    """The fraction of used rows below which it is faster to send only those; in (0, 1).

    Args:
        copy_rate: bytes per second that the host collects.
        transfer_rate: bytes per second from the host to the device.

    Raises:
        PlanError: a rate is not positive and finite.
    """
    _check_rates(copy_rate, transfer_rate)
    return float(copy_rate) / (float(copy_rate) + float(transfer_rate))


def selects(used_fraction: Any, copy_rate: float, transfer_rate: float) -> HostArray:
    """Whether to copy the used rows together and send only those: bool, in the shape of
    `used_fraction`, whose entries are fractions of the rows, 0 to 1. At the threshold itself the
    whole chunk goes.

    Raises:
        PlanError: a fraction is not in [0, 1]; or as `threshold`.
    """
    used = np.asarray(used_fraction, np.float64)
    wrong = used[~((used >= 0) & (used <= 1))]
    if wrong.size:
        raise PlanError(
            f"used_fraction holds {wrong.flat[0]}, expected fractions of the rows, 0 to 1: divide "
            "the rows in use by the rows of the chunk"
        )
    return np.asarray(used < threshold(copy_rate, transfer_rate))


def seconds(
    rows_used: Any,
    rows: Any,
    row_bytes: Any,
    copy_rate: float,
    transfer_rate: float,
    selective: Any,
) -> HostArray:
    """Predicted seconds until a chunk's rows are on the device; the arguments but for the rates
    broadcast together.

    Args:
        rows_used: rows that the chunk of edges reads.
        rows: all rows of the source chunk.
        row_bytes: bytes of one row.
        copy_rate, transfer_rate: as in `threshold`.
        selective: whether only the used rows are sent.

    Raises:
        PlanError: as `threshold`; or more rows are used than there are.
    """
    _check_rates(copy_rate, transfer_rate)
    used, every = np.asarray(rows_used, np.float64), np.asarray(rows, np.float64)
    if not np.all((used >= 0) & (used <= every)):
        raise PlanError(
            f"rows_used is {rows_used!r}, expected 0 to rows={rows!r}: count each row once"
        )
    size = np.asarray(row_bytes, np.float64)
    whole = every * size / transfer_rate
    only_used = used * size / copy_rate + used * size / transfer_rate
    return np.where(np.asarray(selective, bool), only_used, whole)


def _fastest(run: Callable[[], Any], repeats: int, clock: Callable[[], float]) -> float:
    best = math.inf
    for _ in range(repeats):
        start = clock()
        run()
        best = min(best, clock() - start)
    return best


def _check_rates(copy_rate: float, transfer_rate: float) -> None:
    for what, rate in (("copy", copy_rate), ("transfer", transfer_rate)):
        if not 0 < rate < math.inf:
            raise PlanError(
                f"the {what} rate is {rate!r} bytes per second, expected a positive number"
            )
