"""What the processes of a job tell each other, and agree on, wherever they are all at one point.

Each runs the same program, and calls what is here at the same points of it. What waits has no limit
of its own: the others may be building a grid for hours, and a process that dies, or ends, ends the
wait (`connection`). Where there is one process, all of it is nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from gnnjit import errors
from gnnjit.distributed import connection
from gnnjit.errors import StreamError
from gnnjit.shapes import HostArray

T = TypeVar("T")

LONG = 7 * 86400.0
"""Seconds that others may take to prepare, compile or write: where one has died, nobody waits."""

is_main = connection.is_main


def _gather(name: str, value: bytes) -> list[bytes]:
    return connection.gather_bytes(name, value, timeout=LONG)


@dataclasses.dataclass(frozen=True)
class ProcessGroup:
    """The processes that do something together, as one of them sees them.

    Attributes:
        process, processes: its number, and how many there are.
        exchange: what each passes at a point of this name, in all, by their numbers.
    """

    process: int = 0
    processes: int = 1
    exchange: Callable[[str, bytes], list[bytes]] = _gather

    @classmethod
    def here(cls) -> ProcessGroup:
        """All processes of this job."""
        place = connection.joined()
        return cls(place.process, place.processes)

    @property
    def alone(self) -> bool:
        return self.processes == 1

    @property
    def leads(self) -> bool:
        """Whether this is the process that does what is done once for all."""
        return self.process == 0

    def gather(self, name: str, value: bytes) -> list[bytes]:
        """What each process passes, by their numbers."""
        return [value] if self.alone else self.exchange(name, value)

    def barrier(self, name: str) -> None:
        """Wait until all are here."""
        self.gather(name, b"")

    def largest(self, name: str, values: Mapping[str, float]) -> dict[str, float]:
        """The largest of each value that a process has."""
        every = [json.loads(x) for x in self.gather(name, json.dumps(dict(values)).encode())]
        return {key: max(x[key] for x in every) for key in values}

    def least(self, name: str, value: int) -> int:
        """The least that a process has."""
        return min(int(x) for x in self.gather(name, b"%d" % value))

    def same(self, what: str, value: Callable[[], str | bytes]) -> None:
        """Raises DistributedError in all, where the value is not the same in all."""
        if not self.alone:
            mine = value()
            raw = mine.encode() if isinstance(mine, str) else mine
            connection.check_equal(self.gather(f"same {what}", raw), what)

    def agree(self, name: str, work: Callable[[], T], error: type[Exception]) -> T:
        """What `work` gives here; where it raises `error` in one process, all raise it."""
        if self.alone:
            return work()
        found: list[T] = []
        why = ""
        try:
            found.append(work())
        except error as raised:
            why = str(raised) or "no reason is known"
        for process, other in enumerate(self.gather(name, why.encode())):
            if other:
                raise error(f"in process {process} of {self.processes}: {other.decode()}")
        return found[0]

    def lead(self, name: str, work: Callable[[], bytes]) -> bytes:
        """What `work` gives in process 0, which alone does it, once all are here; where it raises
        an error of gnnjit there, all raise it."""
        if self.alone:
            return work()
        self.barrier(f"before {name}")
        if not self.leads:
            return _unpacked(self.gather(name, b"")[0])
        try:
            found = work()
        except errors.GnnjitError as error:
            self.gather(name, f"{type(error).__name__}\n{error}".encode())
            raise
        self.gather(name, b"\n" + found)
        return found


def _unpacked(message: bytes) -> bytes:
    """What process 0 found; raises what it raised."""
    kind, rest = message.split(b"\n", 1)
    if not kind:
        return rest
    known: Any = getattr(errors, kind.decode(), StreamError)
    raise known(rest.decode())


ALONE = ProcessGroup()


def wait(name: str) -> None:
    """Until all are here. JAX's own collectives are not for waiting long: they give up."""
    ProcessGroup.here().barrier(name)


def check_same(values: Mapping[str, Any]) -> None:
    """Raises DistributedError, in all processes, where a value differs; it is named."""
    for what, value in values.items():
        ProcessGroup.here().same(what, lambda value=value: str(value))


def broadcast(data: bytes | None) -> bytes:
    """What process 0 passes, in all; what the others pass is not looked at."""
    return connection.broadcast_bytes(data, timeout=LONG)


def of_main(numbers: np.ndarray) -> np.ndarray:
    """Process 0's `float64` numbers, in all: what is decided from them must be equal everywhere."""
    raw = broadcast(numbers.astype(np.float64).tobytes())
    return np.frombuffer(raw, np.float64).reshape(numbers.shape)


def of_each(x: HostArray) -> HostArray:
    """`[processes, ...]`: an array of one shape from each, in 32 bits, by a collective of JAX, so
    that it also works where the user has called `jax.distributed.initialize`."""
    if jax.process_count() == 1:
        return x[None]
    return np.asarray(multihost_utils.process_allgather(x))


def on_host(x: Any) -> HostArray:
    """All of an array that is sharded over the devices of all processes, in each of them."""
    if getattr(x, "is_fully_addressable", True):
        return np.asarray(x)
    return np.asarray(multihost_utils.process_allgather(x, tiled=True))


def hashed(*texts: str) -> str:
    """Equal for equal texts."""
    return hashlib.blake2b(json.dumps(texts).encode(), digest_size=8).hexdigest()


def digest(*arrays: Any) -> str:
    """Equal for equal arrays."""
    found = hashlib.blake2b(digest_size=8)
    for x in map(np.asarray, arrays):
        found.update(f"{x.dtype}{x.shape}".encode())
        found.update(np.ascontiguousarray(x).reshape(-1).view(np.uint8).data)
    return found.hexdigest()
