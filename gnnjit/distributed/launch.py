"""The supervisor of `gnnjit launch`: starts the processes of a job, and stops all when one dies.

Children die with it: each holds one end of a pipe, the lifeline, and ends itself when the other
end, which the supervisor never writes to, is closed (`connection.watch_launcher`).
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from gnnjit.distributed.cluster_env import COORDINATOR, PROCESS, PROCESSES
from gnnjit.distributed.connection import LIFELINE, LISTENER, LOST_PEER
from gnnjit.distributed.control_plane import numbered
from gnnjit.errors import GnnjitError

_SETTLE = 0.2
"""Seconds after a death in which others are looked at, too, to name the one that was the cause."""

_SETTLE_LOST = 2.0
"""The same after a process ended because another did, which is not known yet."""

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class LaunchError(GnnjitError, ValueError):
    """A job cannot be started as it was asked for."""


@dataclass(frozen=True)
class Ended:
    """A process that has ended.

    Attributes:
        process: its number.
        code: as `subprocess` gives it: of a process killed by a signal, the negative signal.
    """

    process: int
    code: int

    @property
    def exit_code(self) -> int:
        """As a shell gives it."""
        return self.code if self.code >= 0 else 128 - self.code


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
        processes: how many there were.
        culprits: the process that failed first, and those that did the same in that moment.
        stopped: how many others had not ended well by then.
        signalled: the signal that the supervisor was stopped with.
    """

    processes: int
    culprits: tuple[Ended, ...] = ()
    stopped: int = 0
    signalled: int | None = None

    @property
    def exit_code(self) -> int:
        """The code of the process that failed first, or of one killed by the signal."""
        if self.signalled is not None:
            return 128 + self.signalled
        return self.culprits[0].exit_code if self.culprits else 0

    def __str__(self) -> str:
        if self.signalled is not None:
            return f"stopped by {_name(self.signalled)}, with all {self.processes} processes"
        if not self.culprits:
            return f"all {self.processes} processes ended well"
        who = numbered([culprit.process for culprit in self.culprits])
        text = f"{who} of {self.processes} {_how(self.culprits[0].code, len(self.culprits))}"
        if self.stopped == 1:
            return f"{text}; the other was stopped"
        return f"{text}; the other {self.stopped} were stopped" if self.stopped else text


def _how(code: int, many: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    return f"{_were(many)} killed by signal {-code} ({_name(-code)})"


def _were(many: int) -> str:
    return "was" if many == 1 else "were"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "a signal without a name"


def supervise(
    commands: Sequence[Sequence[str]],
    environments: Sequence[Mapping[str, str]] | None = None,
    *,
    grace: float = 5.0,
    verbose: bool = False,
) -> Outcome:
    """Run commands as the processes of one job, until all have ended or one has failed.

    Process 0 inherits a terminal; elsewhere its lines are passed on whole. Of the others, standard
    error is passed on line by line, with the process's number before it, and standard output where
    `verbose`. SIGINT, SIGTERM and SIGHUP are passed on to all.

    Args:
        commands: one for each process, the program first.
        environments: variables for each, beside those of this process.
        grace: seconds from SIGTERM to SIGKILL for those that remain when one has failed.

    Returns:
        How it ended: within `grace` and a few seconds after the first failure.

    Raises:
        LaunchError: if a command cannot be started.
    """
    environments = environments or [{}] * len(commands)
    with contextlib.ExitStack() as stack:
        events: queue.SimpleQueue[Ended | int] = queue.SimpleQueue()
        stack.enter_context(_signals(events))
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        job = _Job(stack, events, len(commands), grace, verbose)
        common = {PROCESSES: str(len(commands)), "GNNJIT_JOB": secrets.token_hex(8)}
        common[COORDINATOR] = f"127.0.0.1:{listener.getsockname()[1]}"
        for process, command in enumerate(commands):
            own = {**os.environ, **environments[process], **common, PROCESS: str(process)}
            job.start(process, command, own, listener if process == 0 else None)
        listener.close()  # process 0 has it
        return job.wait()


@contextlib.contextmanager
def _signals(events: queue.SimpleQueue[Ended | int]) -> Iterator[None]:
    """Signals that would end this process become events."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _FORWARDED}
    for number in _FORWARDED:
        signal.signal(number, lambda number, _: events.put(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Job:
    """The processes that run, and those that have ended, in that order."""

    def __init__(
        self,
        stack: contextlib.ExitStack,
        events: queue.SimpleQueue[Ended | int],
        processes: int,
        grace: float,
        verbose: bool,
    ) -> None:
        self._events, self._grace, self._verbose = events, grace, verbose
        self._processes = processes
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._ended: list[Ended] = []
        self._pumps: list[threading.Thread] = []
        self._lifeline, held = os.pipe()
        for end in (self._lifeline, held):
            stack.callback(os.close, end)
        stack.callback(self._kill, signal.SIGKILL)

    def start(
        self,
        process: int,
        command: Sequence[str],
        environ: dict[str, str],
        listener: socket.socket | None,
    ) -> None:
        """A process, with the socket where it listens if it is the one that does."""
        inherited = {LIFELINE: self._lifeline}
        if listener is not None:
            inherited[LISTENER] = listener.fileno()
        first = process == 0
        # Lines of others would fall into the middle of one that process 0 writes in pieces.
        mixed = subprocess.PIPE if self._verbose else None if first else subprocess.DEVNULL
        out = None if first and os.isatty(1) else mixed
        err = None if first and os.isatty(2) else subprocess.PIPE
        try:
            child = subprocess.Popen(
                command,
                env={**environ, **{name: str(fd) for name, fd in inherited.items()}},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                pass_fds=list(inherited.values()),
                # Ctrl-C in a terminal reaches the supervisor alone; what a child starts is killed
                # with it.
                process_group=0,
            )
        except OSError as error:
            raise LaunchError(f"{command[0]} cannot be started ({error.strerror})") from error
        self._running[process] = child
        for source, target in ((child.stdout, 1), (child.stderr, 2)):
            if source is not None:
                self._thread(_pump, source, target, b"" if first else f"[{process}] ".encode())
        threading.Thread(target=self._await, args=(process, child), daemon=True).start()

    def _thread(self, target: object, *args: object) -> None:
        assert callable(target)
        pump = threading.Thread(target=target, args=args, daemon=True)
        pump.start()
        self._pumps.append(pump)

    def _await(self, process: int, child: subprocess.Popen[bytes]) -> None:
        self._events.put(Ended(process, child.wait()))

    def wait(self) -> Outcome:
        """Until all have ended, one way or another."""
        outcome = Outcome(self._processes)
        while self._running:
            event = self._next()
            if isinstance(event, int):
                outcome = Outcome(self._processes, signalled=event)
                self._stop(signal.Signals(event))
            elif event is not None and event.code != 0:
                culprits = self._first_failures()
                well = sum(ended.code == 0 for ended in self._ended)
                stopped = self._processes - len(culprits) - well
                outcome = Outcome(self._processes, culprits, stopped)
                self._stop(signal.SIGTERM)
        for pump in self._pumps:  # what they still hold comes before the last message
            pump.join(1.0)
        return outcome

    def _next(self, deadline: float | None = None) -> Ended | int | None:
        """The next event; None at the deadline."""
        left = None if deadline is None else max(deadline - time.monotonic(), 0)
        try:
            event = self._events.get(timeout=left)
        except queue.Empty:
            return None
        if isinstance(event, Ended):
            del self._running[event.process]
            self._ended.append(event)
        return event

    def _first_failures(self) -> tuple[Ended, ...]:
        """The cause, among the processes that have ended now or do so in a moment."""
        began = time.monotonic()
        while True:
            failed = [ended for ended in self._ended if ended.code != 0]
            known = any(ended.code != LOST_PEER for ended in failed)
            event = self._next(began + (_SETTLE if known else _SETTLE_LOST))
            if not isinstance(event, Ended):
                if isinstance(event, int):
                    self._events.put(event)
                first = min(failed, key=_is_consequence)
                alike = (ended for ended in failed if ended.code == first.code)
                return tuple(sorted(alike, key=lambda ended: ended.process))

    def _stop(self, number: signal.Signals) -> None:
        """End all: with the signal, and after `grace` seconds or one more signal with SIGKILL."""
        self._kill(number)
        deadline = time.monotonic() + self._grace
        while self._running:
            event = self._next(deadline)
            if not isinstance(event, Ended):
                self._kill(signal.SIGKILL)
                deadline = None

    def _kill(self, number: int) -> None:
        for child in self._running.values():
            if child.returncode is None:  # its number is still its own
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, number)


def _is_consequence(ended: Ended) -> int:
    """Orders failures seen at the same time: from a cause to what one brings about.

    The kernel kills for want of memory, and errors kill by SIGSEGV; JAX, by SIGABRT, what it can no
    longer connect.
    """
    if ended.code == LOST_PEER:
        return 2
    return 0 if ended.code < 0 and -ended.code not in (signal.SIGABRT, signal.SIGTERM) else 1


def _pump(source: IO[bytes], target: int, prefix: bytes) -> None:
    """Pass lines on; where nobody reads them any more, take them in all the same."""
    for line in source:
        with contextlib.suppress(OSError):
            os.write(target, prefix + line + b"\n" * (not line.endswith(b"\n")))


def virtual_devices(count: int, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables with which JAX takes the CPU for `count` devices; other flags of XLA are kept."""
    flag = "--xla_force_host_platform_device_count"
    others = re.sub(rf"{flag}=\S*", "", environ.get("XLA_FLAGS", "")).split()
    flags = " ".join([*others, f"{flag}={count}"])
    return {"XLA_FLAGS": flags, "JAX_NUM_CPU_DEVICES": str(count), "JAX_PLATFORMS": "cpu"}


def show_cursor() -> None:
    """A progress bar that was killed leaves the terminal without a cursor, and in its line."""
    for stream in (sys.stdout, sys.stderr):
        if stream.isatty():
            stream.write("\n\x1b[?25h")
            stream.flush()
            return
