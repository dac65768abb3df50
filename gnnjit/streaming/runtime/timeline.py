"""When chunks travel and when they are computed with: NeuGraph's pipeline (section 3.2).

One engine transfers, one computes. While a chunk is computed with, the next ones travel into the
free slots of a buffer. Chunks differ in both times, so their order decides how much of the
transfers is hidden; it is improved by swaps on a simulated timeline, from measured times.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from gnnjit.errors import PlanError

ROUNDS = 10
"""Passes over all pairs that `refine` makes at most, from each of its two starts."""

_COLUMNS = 80
_SIGNS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclasses.dataclass(frozen=True)
class Job:
    """One chunk: seconds of its transfer to the device and of the computation with it.

    Raises:
        PlanError: one of the times is negative or not finite.
    """

    name: str
    transfer: float
    compute: float

    def __post_init__(self) -> None:
        for what, seconds in (("transfer", self.transfer), ("compute", self.compute)):
            _check_seconds(self.name, what, seconds)


@dataclasses.dataclass(frozen=True)
class JobTimes:
    """When one job runs: seconds from the start of the first job."""

    name: str
    transfer_start: float
    transfer_end: float
    compute_start: float
    compute_end: float


@dataclasses.dataclass(frozen=True)
class Timeline:
    """What `timeline` returns.

    Attributes:
        jobs: one a job, in the order in which they run.
        total: seconds until the last computation ends.
        transfer_idle: seconds of `total` in which nothing travels.
        compute_idle: seconds of `total` in which nothing is computed.
        overlap: share of the transfer seconds in which something is computed too, 0 to 1; 1 where
            nothing travels.
    """

    jobs: tuple[JobTimes, ...]
    total: float
    transfer_idle: float
    compute_idle: float
    overlap: float

    def __str__(self) -> str:
        """A chart of 80 columns at most: one line an engine, a sign a job (those of the first are
        `0`, after `z` they begin anew), `.` where the engine is idle. Then the total, and the idle
        seconds of either engine."""
        labels = ("transfer ", "compute  ")
        width = _COLUMNS - len(labels[0])
        spans = (
            [(s.transfer_start, s.transfer_end) for s in self.jobs],
            [(s.compute_start, s.compute_end) for s in self.jobs],
        )
        lines = [
            label + _chart(span, self.total, width)
            for label, span in zip(labels, spans, strict=True)
        ]
        lines.append(
            f"{self.total:.3g} s, {self.overlap:.0%} of the transfers hidden, idle "
            f"{self.transfer_idle:.3g} s and {self.compute_idle:.3g} s"
        )
        return "\n".join(lines)


def timeline(jobs: Sequence[Job], buffers: int = 2) -> Timeline:
    """The jobs in the given order, each engine as early as it can.

    A transfer starts after the one before it, and when a slot is free: at most `buffers` jobs are
    travelling, loaded or computed with. A computation starts after its transfer and after the
    computation before it. One buffer overlaps nothing; two are double buffering.

    Raises:
        PlanError: there is no buffer.
    """
    _check_buffers(buffers)
    times: list[JobTimes] = []
    for i, job in enumerate(jobs):
        freed = times[i - buffers].compute_end if i >= buffers else 0.0
        start = max(freed, times[-1].transfer_end if times else 0.0)
        loaded = start + job.transfer
        compute = max(loaded, times[-1].compute_end if times else 0.0)
        times.append(JobTimes(job.name, start, loaded, compute, compute + job.compute))
    total = times[-1].compute_end if times else 0.0
    transfer = math.fsum(j.transfer for j in jobs)
    compute = math.fsum(j.compute for j in jobs)
    hidden = min(_both_busy(times) / transfer, 1.0) if transfer else 1.0
    return Timeline(
        tuple(times), total, max(total - transfer, 0.0), max(total - compute, 0.0), hidden
    )


def refine(jobs: Sequence[Job], buffers: int = 2, rounds: int = ROUNDS) -> list[int]:
    """An order of the jobs with a shorter timeline, as indices into `jobs`.

    NeuGraph starts from a random order and swaps pairs while the simulated total falls. We start
    from the given order, and once more from that of Johnson's rule, which is the best one for
    unlimited buffers; the same jobs always give the same order, and it is never slower than the
    given one, which also wins a tie. NeuGraph swaps a job with much transfer and one with much
    computation; we try every pair, those first.

    A round takes time with the cube of the number of jobs at worst: it is made for the tens of
    sub-chunks of a column.

    Raises:
        PlanError: there is no buffer.
    """
    _check_buffers(buffers)
    times = [(j.transfer, j.compute) for j in jobs]
    given = list(range(len(times)))
    best, best_total = _improve(times, given, buffers, rounds)
    other, total = _improve(times, _johnson(times), buffers, rounds)
    if total < best_total:
        best, best_total = other, total
    return best


_Times = Sequence[tuple[float, float]]


def _improve(
    times: _Times, order: Sequence[int], buffers: int, rounds: int
) -> tuple[list[int], float]:
    """Swap pairs while the total falls; the order and its total."""
    best = list(order)
    best_total = _total(times, best, buffers, math.inf)
    floor = _floor(times)
    for _ in range(rounds):
        before = best_total
        for i, j in _pairs(times, best):
            if best_total <= floor:
                return best, best_total
            best[i], best[j] = best[j], best[i]
            total = _total(times, best, buffers, best_total)
            if total < best_total:
                best_total = total
            else:
                best[i], best[j] = best[j], best[i]
        if best_total == before:
            break
    return best, best_total


def _pairs(times: _Times, order: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs of positions, those of jobs that are opposite in what they have more of first."""
    excess = [times[i][0] - times[i][1] for i in order]
    pairs = [(i, j) for i in range(len(order)) for j in range(i + 1, len(order))]
    return sorted(pairs, key=lambda p: excess[p[0]] * excess[p[1]] >= 0)


def _total(times: _Times, order: Iterable[int], buffers: int, limit: float) -> float:
    """Seconds of the timeline; infinite as soon as they cannot be below `limit`."""
    ends: list[float] = []
    loaded = end = 0.0
    for i, job in enumerate(order):
        transfer, compute = times[job]
        freed = ends[i - buffers] if i >= buffers else 0.0
        loaded = max(loaded, freed) + transfer
        end = max(loaded, end) + compute
        if end >= limit:
            return math.inf
        ends.append(end)
    return end


def _floor(times: _Times) -> float:
    """No order is faster: each engine does all its work, and one of them waits at an end."""
    if not times:
        return 0.0
    transfers, computes = zip(*times, strict=True)
    return max(sum(transfers) + min(computes), sum(computes) + min(transfers))


def _johnson(times: _Times) -> list[int]:
    """Johnson's rule (1954): first the jobs that compute longer than they travel, the quickest to
    arrive first; then the others, the quickest to compute last."""
    jobs = range(len(times))
    early = [i for i in jobs if times[i][0] < times[i][1]]
    late = [i for i in jobs if times[i][0] >= times[i][1]]
    early.sort(key=lambda i: times[i][0])
    late.sort(key=lambda i: -times[i][1])
    return early + late


def _both_busy(times: Sequence[JobTimes]) -> float:
    """Seconds in which both engines work; the spans of each are in order and do not overlap."""
    busy, i, j = 0.0, 0, 0
    while i < len(times) and j < len(times):
        moving, computing = times[i], times[j]
        start = max(moving.transfer_start, computing.compute_start)
        end = min(moving.transfer_end, computing.compute_end)
        busy += max(end - start, 0.0)
        if moving.transfer_end <= computing.compute_end:
            i += 1
        else:
            j += 1
    return busy


def _chart(spans: Sequence[tuple[float, float]], total: float, width: int) -> str:
    """One sign a column, of the job that runs in the middle of it."""
    cells = ["."] * (width if total else 0)
    for i, (start, end) in enumerate(spans):
        first = math.ceil(start / total * width - 0.5) if total else 0
        last = math.ceil(end / total * width - 0.5) if total else 0
        cells[first:last] = _SIGNS[i % len(_SIGNS)] * (last - first)
    return "".join(cells)


def _check_seconds(name: str, what: str, seconds: float) -> None:
    if not 0 <= seconds < math.inf:
        raise PlanError(
            f"job {name!r}: its {what} takes {seconds!r} s, expected a finite number >= 0"
        )


def _check_buffers(buffers: int) -> None:
    if buffers < 1:
        raise PlanError(f"buffers={buffers!r}, expected at least 1 (2 for double buffering)")
