"""Choices by time: whether they are wanted, and tables of them in the user's cache directory."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import jax

from gnnjit import config
from gnnjit.contexts import Context

T = TypeVar("T")

_tuning: Context[int | None] = Context(None)


@contextlib.contextmanager
def autotuning(on: bool = True, *, stretches: int = 1) -> Iterator[None]:
    """A context in which plans that are predicted to be about equally fast are timed.

    A layer's first compilation then takes longer. Plans whose predicted times are close are
    compiled and timed on made-up arrays and edges of the same sizes, and so are tiles of GPU
    kernels. The times are kept in the user's cache directory, for every later process on the same
    kind of device with the same versions, whether it tunes or not. `GNNJIT_AUTOTUNE=1` turns tuning
    on for a whole process.

    On a busy machine, another program can decide for minutes which of two close plans is faster.
    With `stretches=3` (or `GNNJIT_AUTOTUNE=3`) close plans are timed again in the next two
    processes that compile the layer, and the median counts. These processes may choose other plans
    than the first one, and so add in another order.

    Under a memory budget, for sharded graphs and in programs of several processes, the cost model
    alone chooses.

    Args:
        on: False turns tuning off within.
        stretches: processes in which close plans are timed, 1 or more.

    Raises:
        ValueError: `stretches` is less than 1.
    """
    if stretches < 1:
        raise ValueError(
            f"autotuning: stretches={stretches}, expected 1 or more; to turn it off, "
            "autotuning(False)"
        )
    with _tuning(stretches if on else 0):
        yield


def stretches() -> int:
    """In how many stretches of time close plans are timed; 0: they are not."""
    return int(config.AUTOTUNE if _tuning.value is None else _tuning.value)


def is_on() -> bool:
    return stretches() > 0


def untraced(work: Callable[[], T]) -> T:
    """What `work` gives, run now, although something is being traced: in a thread of its own, which
    knows nothing of that."""
    wide = jax.config.read("jax_enable_x64")

    def alone() -> T:
        with jax.enable_x64(wide):
            return work()

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(alone).result()


@dataclasses.dataclass(frozen=True)
class Table(Generic[T]):
    """Entries by key, in one file of the cache directory.

    name: of the entries, and of the file, without its ending. parse, dump: of one entry, from and
    to what JSON can say; `parse` raises ValueError, TypeError, KeyError or AttributeError.
    """

    name: str
    parse: Callable[[str, Any], T]
    dump: Callable[[T], Any]
    format: int = 1

    def path(self) -> Path:
        return config.cache_dir() / f"{self.name}.json"

    def load(self) -> dict[str, T]:
        """Everything stored; nothing, with a warning, where the file is damaged or not ours."""
        file = self.path()
        try:
            stamp = file.stat().st_mtime_ns
        except OSError:
            return {}
        place = (str(file), stamp)
        if place not in _loaded:
            try:
                _loaded[place] = self._parse(file.read_text(encoding="utf-8"))
            except _NO_TABLE as error:
                warnings.warn(
                    f"{file}: not a table of gnnjit's {self.name} ({type(error).__name__}: "
                    f"{error}); it is ignored, and written anew at the next tuning",
                    stacklevel=2,
                )
                _loaded[place] = {}
        return _loaded[place]

    def store(self, key: str, entry: T) -> None:
        """Beside what is stored, atomically; a warning where that cannot be written."""
        file = self.path()
        entries = {**self.load(), key: entry}
        data = {
            "format": self.format,
            self.name: {k: self.dump(v) for k, v in entries.items()},
        }
        try:
            config.write_json(file, data)
        except OSError as error:
            warnings.warn(
                f"{file}: cannot be written ({error.strerror}); the {self.name} are timed again "
                "next time. Set XDG_CACHE_HOME to a directory that can",
                stacklevel=2,
            )

    def _parse(self, text: str) -> dict[str, T]:
        data = json.loads(text)
        if data["format"] != self.format:
            raise ValueError(f"format {data['format']}, expected {self.format}")
        return {k: self.parse(k, v) for k, v in data[self.name].items()}


_NO_TABLE = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""What reading or parsing a damaged file raises."""

_loaded: dict[tuple[str, int], dict[str, Any]] = {}
