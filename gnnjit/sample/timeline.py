"""When the parts of each batch were made, and in which thread; matplotlib is for pictures only.

GraphTensor's figure 14 is such a picture.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from gnnjit.errors import SampleError
from gnnjit.system.optional import optional

Place = tuple[int, int, int]
"""Epoch, number in the epoch, part."""

COLOURS = {
    "sample": "#4c72b0",
    "reindex": "#dd8452",
    "look up": "#55a868",
    "transfer": "#c44e52",
    "wait": "#8c8c8c",
}


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


def plot_timeline(events: Sequence[Event], axes: Any = None) -> Any:
    """A lane for each thread, a bar for each event, with the number of its batch; the figure.

    Args:
        events: of a `Loader` with `timeline=True`.
        axes: of matplotlib, to draw into.

    Raises:
        SampleError: there are no events.
        ImportError: matplotlib is not installed.
    """
    if not events:
        raise SampleError(
            "plot_timeline: got no events, expected some: make the Loader with timeline=True and "
            "take a few batches"
        )
    if axes is None:
        how = "pip install 'gnnjit[notebooks]', or read Loader.events"
        pyplot = optional("matplotlib.pyplot", "plot_timeline()", how)
        _, axes = pyplot.subplots(figsize=(11, 4), layout="constrained")
    lanes = sorted({event.thread for event in events})
    first = min(event.start for event in events)
    named = set()
    for event in events:
        lane, width = lanes.index(event.thread), event.end - event.start
        label = None if event.stage in named else event.stage
        named.add(event.stage)
        axes.barh(lane, 1e3 * width, left=1e3 * (event.start - first), label=label,
                  color=COLOURS[event.stage], edgecolor="white", linewidth=0.5)  # fmt: skip
        if event.stage == "sample" and event.hop == 0:
            axes.text(1e3 * (event.start - first), lane - 0.42, str(event.batch[1]), fontsize=7)
    axes.set(yticks=range(len(lanes)), yticklabels=lanes, xlabel="ms", title="work on batches")
    axes.invert_yaxis()
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=5, fontsize=7, frameon=False)
    return axes.figure
