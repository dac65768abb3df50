"""Dispatch the next operation before the previous one has finished, as far as memory allows.

Otherwise the device is idle while the main thread stores what was made and prepares what follows.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax

from gnnjit.ir.array_program import Array


@dataclasses.dataclass(frozen=True)
class Write:
    """Rows of an array that go to the store: start to stop; their bytes on the device."""

    array: Array
    start: int
    stop: int
    size: int
    done: concurrent.futures.Future[None]

    def meets(self, x: Array, start: int, stop: int) -> bool:
        return x is self.array and start < self.stop and self.start < stop


@dataclasses.dataclass
class _Begun:
    """A dispatched operation.

    number: of the step; None for writing alone. beside: bytes until it has ended. ended: an array
    that is ready then; None where nothing runs. time: when that was.
    """

    number: int | None
    beside: int
    ended: Any
    time: concurrent.futures.Future[float]
    writes: list[Write] = dataclasses.field(default_factory=list)

    def runs(self) -> bool:
        return self.ended is not None and not self.ended.is_ready()

    def writing(self) -> int:
        return sum(w.size for w in self.writes if not w.done.done())

    def landed(self) -> bool:
        return self.time.done() and all(w.done.done() for w in self.writes)


class InFlight:
    """The dispatched operations of a run whose end is not known.

    Args:
        room: bytes for them.
        ahead: whether one may begin before the one before it has ended.
        jobs: filled with the seconds of each, by its name.
        landed: called with the number of each, in order, when it has ended and what it made is in
            the store, and the time at which it ended.
    """

    def __init__(
        self, room: int, ahead: bool, jobs: dict[str, float], landed: Callable[[int, float], None]
    ) -> None:
        self._room, self._jobs, self._landed = room, jobs, landed
        self._flying: collections.deque[_Begun] = collections.deque()
        self._last = 0.0
        self._watcher = None
        if ahead:
            self._watcher = concurrent.futures.ThreadPoolExecutor(1, "gnnjit-watcher")

    def make_room(self, needed: int) -> None:
        """Wait until so many bytes are free, or nothing is on its way."""
        while self._flying and needed + self.taken() > self._room:
            running = next((f for f in self._flying if f.runs()), None)
            if running is None:
                self._land()
            else:
                jax.block_until_ready(running.ended)
        while self._flying and self._flying[0].landed():
            self._land()

    def taken(self) -> int:
        """Bytes of what is on its way, beside what the next operation needs. What one leaves may
        also be what an earlier one still reads."""
        total, running = 0, False
        for flight in self._flying:
            running = running or flight.runs()
            total += flight.writing() + (flight.beside if running else 0)
        return total

    def begin(
        self, number: int, name: str, beside: int, ended: jax.Array | None, at: float
    ) -> None:
        """An operation was begun at this time; `ended` is there when it has ended, None where there
        was nothing to do."""
        if ended is None:
            time = _done(self._last)
        elif self._watcher is None:
            time = _done(self._watch(name, ended, at))
        else:
            time = self._watcher.submit(self._watch, name, ended, at)
        self._flying.append(_Begun(number, beside, ended, time))

    def _watch(self, name: str, ended: jax.Array, at: float) -> float:
        jax.block_until_ready(ended)
        now = time.perf_counter()
        self._jobs[name] = now - max(at, self._last)
        self._last = now
        return now

    def writes(self, write: Write) -> None:
        """Rows of the last dispatched operation, or evicted before the next one, are written."""
        if not self._flying:
            self._flying.append(_Begun(None, 0, None, _done(self._last)))
        self._flying[-1].writes.append(write)

    def written(self, x: Array, start: int, stop: int) -> None:
        """Wait for all that writes some of these rows of an array."""
        while any(w.meets(x, start, stop) for flight in self._flying for w in flight.writes):
            self._land()

    def land(self) -> None:
        """Wait for all."""
        while self._flying:
            self._land()

    def idle(self, since: float) -> float:
        """Seconds in which nothing was on its way, of those since a time until now."""
        if any(not flight.time.done() for flight in self._flying):
            return 0.0
        return time.perf_counter() - max(since, self._last)

    def close(self) -> None:
        """Wait until nothing runs any more, whether it succeeds or not."""
        if self._watcher is not None:
            self._watcher.shutdown(wait=True)

    def _land(self) -> None:
        flight = self._flying.popleft()
        ended = flight.time.result()
        for write in flight.writes:
            write.done.result()
        if flight.number is not None:
            self._landed(flight.number, ended)


def _done(time: float) -> concurrent.futures.Future[float]:
    found: concurrent.futures.Future[float] = concurrent.futures.Future()
    found.set_result(time)
    return found
