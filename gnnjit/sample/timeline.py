"""When the parts of each batch were made, and in which thread."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Generator, Iterator

Place = tuple[int, int, int]
"""Epoch, number in the epoch, part."""


@dataclasses.dataclass(frozen=True)
class Event:
    """One part of the work on a batch.

    Attributes:
        batch: epoch, number in the epoch, part.
        stage: "sample", "reindex", "look up", "transfer" (until it was begun), or "wait" of the one
            who asks for batches.
        hop: from the seeds on; None where all hops are together.
        start, end: seconds, of the monotonic clock.
        thread: that worked on it.
    """

    batch: Place
    stage: str
    hop: int | None
    start: float
    end: float
    thread: str


class Log:
    """Events, where they are wanted."""

    def __init__(self, wanted: bool = False) -> None:
        self.wanted = wanted
        self.events: list[Event] = []

    @contextlib.contextmanager
    def stage(self, name: str, batch: Place, hop: int | None = None) -> Iterator[None]:
        """Notes how long its body takes."""
        start = time.perf_counter()
        yield
        self._note(name, batch, hop, start)

    def hops(self, name: str, batch: Place) -> Generator[None, None, None]:
        """Each `next` ends a hop."""
        return self._hops(name, batch, time.perf_counter())

    def _hops(self, name: str, batch: Place, start: float) -> Generator[None, None, None]:
        hop = 0
        while True:
            self._note(name, batch, hop, start)
            start, hop = time.perf_counter(), hop + 1
            yield

    def _note(self, name: str, batch: Place, hop: int | None, start: float) -> None:
        if self.wanted:
            end, thread = time.perf_counter(), threading.current_thread().name
            self.events.append(Event(batch, name, hop, start, end, thread))
