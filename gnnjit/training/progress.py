"""Progress of runs: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from gnnjit.training.loop import Epoch, Watcher


class Silent:
    """Shows nothing."""

    def start(self, name: str, done: int, epochs: int) -> None:
        """A run starts, or continues after `done` epochs."""

    def epoch(self, record: Epoch) -> None:
        """An epoch has ended, and its checkpoint (if it has one) is written."""

    def finish(self) -> None:
        """The run has ended, by itself or by an error."""


class Lines(Silent):
    """A line every few epochs."""

    def __init__(self, console: Console, every: int = 0) -> None:
        self._console = console
        self._given = every
        self._every = 1
        self._name = ""
        self._epochs = 0

    def start(self, name: str, done: int, epochs: int) -> None:
        self._name, self._epochs = name, epochs
        self._every = self._given or max(1, epochs // 10)
        if done:
            self._print(f"{name}  resumed after epoch {done}")

    def epoch(self, record: Epoch) -> None:
        if record.epoch in (1, self._epochs) or record.epoch % self._every == 0:
            number = f"{record.epoch:>{len(str(self._epochs))}}/{self._epochs}"
            self._print(f"{self._name}  epoch {number}  {describe(record)}")

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)
        self._console.file.flush()


class Bar(Silent):
    """A bar with the newest losses and accuracies."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._task = TaskID(0)

    def start(self, name: str, done: int, epochs: int) -> None:
        progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[text]}"),
            console=self._console,
        )
        progress.start()
        self._task = progress.add_task(name, total=epochs, completed=done, text="")
        self._progress = progress

    def epoch(self, record: Epoch) -> None:
        if self._progress is not None:
            text = describe(record)
            self._progress.update(self._task, completed=record.epoch, text=text)

    def finish(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def describe(record: Epoch) -> str:
    """The losses and accuracies of an epoch; the test split is left for the end."""
    parts = [f"loss {record.loss:.4f}"]
    for split in ("train", "val"):
        accuracy = record.accuracy[split]
        if accuracy is not None:
            parts.append(f"{split} {100 * accuracy:.1f} %")
    return "  ".join(parts)


def watcher(console: Console, *, quiet: bool = False, every: int = 0) -> Watcher:
    """What suits the console: nothing if `quiet`, a bar on a terminal, else lines."""
    if quiet:
        return Silent()
    if console.is_terminal and not every:
        return Bar(console)
    return Lines(console, every)
