"""Progress of runs: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from gnnjit.training.loop import Epoch, Watcher

_REMEMBERED = 300
"""The speed is estimated over so many seconds: parts of an epoch differ in it."""


class Lines(Watcher):
    """A line every few epochs."""

    def __init__(self, console: Console, every: int = 0) -> None:
        self._console = console
        self._given = every
        self._every = 1
        self._name = self._stage = ""
        self._epochs = 0

    def stage(self, name: str, done: int, total: int) -> None:
        if name != self._stage:
            self._stage = name
            self._print(f"preparing  {name}")

    def start(self, name: str, done: int, epochs: int) -> None:
        self._name, self._epochs = name, epochs
        self._every = self._given or max(1, epochs // 10)
        if done:
            self._print(resumed(name, done))

    def epoch(self, record: Epoch) -> None:
        if record.epoch in (1, self._epochs) or record.epoch % self._every == 0:
            number = f"{record.epoch:>{len(str(self._epochs))}}/{self._epochs}"
            self._print(f"{self._name}  epoch {number}  {describe(record)}")

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)
        self._console.file.flush()


class Bar(Watcher):
    """A bar with the newest losses and accuracies; stages before an epoch have their own."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._name = self._stage = self._text = ""
        self._done = self._epochs = 0

    def stage(self, name: str, done: int, total: int) -> None:
        if name != self._stage:
            self._leave()
            self._stage = name
            columns = (TaskProgressColumn(), TimeRemainingColumn())
            self._show(f"preparing  {name}", 0, None, *columns)
        if self._progress is not None and (done or total > 1):  # else the bar just moves
            self._progress.update(self._task, completed=done, total=total)

    def start(self, name: str, done: int, epochs: int) -> None:
        self._name, self._done, self._epochs, self._text = name, done, epochs, ""
        if done:
            self._console.print(resumed(name, done), highlight=False, soft_wrap=True)
        self._show_run()

    def part(self, done: float) -> None:
        self._advance(self._done + done)

    def epoch(self, record: Epoch) -> None:
        self._done, self._text = record.epoch, describe(record)
        self._advance(record.epoch)

    def finish(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _leave(self) -> None:
        """A bar that is interrupted vanishes."""
        if self._progress is not None and not self._progress.finished:
            self._progress.live.transient = True
        self.finish()

    def _advance(self, completed: float) -> None:
        if self._stage:  # which has ended
            self._show_run()
        if self._progress is not None:
            self._progress.update(self._task, completed=completed, text=self._text)

    def _show_run(self) -> None:
        self._stage = ""
        columns = (MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[text]}"))
        self._show(self._name, self._done, self._epochs, *columns)

    def _show(self, name: str, done: int, total: int | None, *columns: ProgressColumn) -> None:
        self.finish()
        progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            *columns,
            console=self._console,
            speed_estimate_period=_REMEMBERED,
        )
        progress.start()
        self._task = progress.add_task(name, total=total, completed=done, text=self._text)
        self._progress = progress


def resumed(name: str, done: int) -> str:
    """Where a run continues."""
    return f"{name}  resumed after epoch {done}"


def describe(record: Epoch) -> str:
    """The losses and scores of an epoch; the test split is left for the end, unless it is all that
    is evaluated."""
    parts = [f"loss {record.loss:.4f}"]
    others = [record.accuracy[split] for split in ("train", "val")]
    for split in ("train", "val") if any(v is not None for v in others) else ("test",):
        accuracy = record.accuracy[split]
        if accuracy is not None:
            parts.append(f"{split} {100 * accuracy:.1f} %")
    return "  ".join(parts)


def watcher(console: Console, *, quiet: bool = False, every: int = 0) -> Watcher:
    """What suits the console: nothing if `quiet`, a bar on a terminal, else lines."""
    if quiet:
        return Watcher()
    if console.is_terminal and not every:
        return Bar(console)
    return Lines(console, every)
