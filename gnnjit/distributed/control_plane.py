"""The control plane of a job: what its processes agree on, and which of them has died.

Process 0 listens, and each other process holds one connection to it. What a process says reaches
all; when it dies, the system closes its connection, and the others know within milliseconds who it
was, whatever they are computing. JAX by itself does not do: it ends the process that cannot reach
the coordinator in C++, without an exception; it notices a death by missing heartbeats, after
seconds; and a process that fails with an exception waits for the others in JAX's shutdown, while
they wait for it in a collective.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from gnnjit.errors import GnnjitError

_LONGEST_HELLO = 1 << 16
_PATIENCE = 5.0
"""Seconds: for the hello of a new connection, and for news that another process sends first."""


class DistributedError(GnnjitError, RuntimeError):
    """The processes of a job cannot be connected, do not answer, or disagree."""


class Connection:
    """A connection that carries messages: a header of JSON, and bytes."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # A host that vanishes closes nothing: its kernel is asked, and given 10 seconds.
        for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 5)):
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def send(self, header: dict[str, Any], body: bytes = b"") -> None:
        """Raises OSError."""
        head = json.dumps(header).encode()
        with self._sending:
            self._connection.sendall(struct.pack("!II", len(head), len(body)) + head + body)

    def receive(
        self, timeout: float | None = None, longest: int | None = None
    ) -> tuple[dict[str, Any], bytes] | None:
        """The next message; None where the connection was closed.

        Raises:
            OSError: if the connection broke, or nothing came in time.
            ValueError: if it is none of ours, or longer than `longest`.
        """
        self._connection.settimeout(timeout)
        sizes = self._exactly(8)
        if sizes is None:
            return None
        head, body = struct.unpack("!II", sizes)
        if longest is not None and head + body > longest:
            raise ValueError("a message of another program")
        raw = self._exactly(head + body)
        if raw is None:
            return None
        header = json.loads(raw[:head])
        if not isinstance(header, dict):
            raise ValueError("a message of another program")
        return header, raw[head:]

    def _exactly(self, size: int) -> bytes | None:
        parts = []
        while size > 0:
            part = self._connection.recv(min(size, 1 << 20))
            if not part:
                return None
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        self._connection.close()


class ControlPlane:
    """The other processes of the job, as one of them sees them.

    Args:
        process, processes: the number of this one, and how many there are.
        lost: called once, in a thread, with the number of a process that ended without `leave`,
            and what it did, as the rest of a sentence.
    """

    def __init__(self, process: int, processes: int, lost: Callable[[int, str], None]) -> None:
        self._process = process
        self._processes = processes
        self._lost = lost
        self._lines: dict[int, Connection] = {}
        self._changed = threading.Condition()
        self._values: dict[int, dict[int, tuple[str, bytes]]] = {}
        self._step = 0
        self._left: set[int] = set()
        self._ending = False
        self._telling = threading.Lock()

    def listen(self, listener: socket.socket, job: str, timeout: float) -> None:
        """As process 0: wait until all the others are connected.

        Raises:
            DistributedError: if one is missing after `timeout` seconds, or two disagree; in those
                that are connected, too.
        """
        try:
            self._await_all(listener, job, timeout)
        except DistributedError as error:
            self._tell({"kind": "refused", "why": str(error)})
            raise
        self._tell({"kind": "welcome"})
        self._start()

    def _await_all(self, listener: socket.socket, job: str, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while missing := sorted(set(range(1, self._processes)) - self._lines.keys()):
            listener.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                raise DistributedError(
                    f"process 0 of {self._processes} waited {timeout:g} s for {numbered(missing)} "
                    f"at {show_address(listener)}: check that all {self._processes} processes were "
                    "started, and that their hosts reach this one"
                ) from None
            self._greet(Connection(connection), job)

    def _greet(self, line: Connection, job: str) -> None:
        """Take a connection in, or turn it away where it comes from elsewhere."""
        try:
            hello = line.receive(_PATIENCE, longest=_LONGEST_HELLO)
        except (OSError, ValueError):
            hello = None
        if hello is None or hello[0].get("job") != job:
            line.close()
            return
        process, processes = hello[0].get("process"), hello[0].get("processes")
        if not isinstance(process, int) or not isinstance(processes, int):
            line.close()
            return
        why = None
        if processes != self._processes:
            why = f"process {process} was told of {processes} processes, process 0 of "
            why += f"{self._processes}: start all with the same number"
        elif process in self._lines or not 0 < process < processes:
            why = f"two processes were told that they are process {process} of {processes}: number "
            why += f"them from 0 to {processes - 1}"
        if why is not None:
            line.send({"kind": "refused", "why": why})
            raise DistributedError(why)
        self._lines[process] = line

    def dial(self, address: tuple[str, int], job: str, timeout: float) -> None:
        """As another process: connect to process 0, and wait until all have done so.

        Raises:
            DistributedError: if process 0 does not answer within `timeout` seconds, or gives up.
        """
        me = f"process {self._process} of {self._processes}"
        where = f"process 0 at {address[0]}:{address[1]}"
        deadline = time.monotonic() + timeout
        line = Connection(_dialled(address, deadline, f"{me}: no answer from {where}", timeout))
        self._lines[0] = line
        try:
            line.send({"process": self._process, "processes": self._processes, "job": job})
            # Process 0 gives up first where others are missing, and knows who.
            answer = line.receive(max(deadline - time.monotonic(), 0) + _PATIENCE)
        except TimeoutError:
            raise DistributedError(
                f"{me}: {where} took the connection but did not answer within {timeout:g} s: check "
                "that GNNJIT_COORDINATOR names this job's process 0, and no other program"
            ) from None
        except (OSError, ValueError):
            answer = None
        if answer is None:
            raise DistributedError(
                f"{me}: {where} closed the connection before all processes were there: see its "
                "message, and check that no other program listens there"
            )
        if answer[0]["kind"] == "refused":
            raise DistributedError(answer[0]["why"])
        self._start()

    def _start(self) -> None:
        for peer, line in self._lines.items():
            threading.Thread(target=self._read, args=(peer, line), daemon=True).start()

    def gather(
        self, name: str, value: bytes | None, *, timeout: float, of: Iterable[int] | None = None
    ) -> dict[int, bytes]:
        """What the processes `of` (all, if None) pass here; every process calls this in the same
        order.

        Raises:
            DistributedError: if one of them does not come within `timeout` seconds, or is elsewhere
                in the program.
        """
        wanted = set(range(self._processes) if of is None else of)
        with self._changed:
            step, self._step = self._step, self._step + 1
        if self._process in wanted:
            header = {"kind": "value", "process": self._process, "step": step, "name": name}
            self._take(header, value or b"")
            self._tell(header, value or b"")
        with self._changed:
            found = self._values.setdefault(step, {})
            self._changed.wait_for(lambda: wanted <= found.keys() | self._left, timeout)
            del self._values[step]
        for process, (other, _) in sorted(found.items()):
            if other != name:
                raise DistributedError(
                    f"process {self._process} of {self._processes} is at '{name}', process "
                    f"{process} at '{other}': all processes must run the same program"
                )
        missing = sorted(wanted - found.keys())
        if left := [process for process in missing if process in self._left]:
            raise DistributedError(
                f"process {self._process} of {self._processes} is at '{name}', {numbered(left)} "
                "ended before: all processes must run the same program"
            )
        if missing:
            raise DistributedError(
                f"process {self._process} of {self._processes} waited {timeout:g} s at '{name}' "
                f"for {numbered(missing)}: see what they are doing, or allow more time"
            )
        return {process: body for process, (_, body) in found.items()}

    def leave(self) -> None:
        """Say that this process is done: its end is no longer news."""
        self._ending = True
        self._tell({"kind": "bye", "process": self._process})

    def fail(self, why: str) -> None:
        """Say that this process ends, and why; the others end too."""
        self._ending = True
        self._tell({"kind": "lost", "process": self._process, "why": why})

    def _tell(self, header: dict[str, Any], body: bytes = b"", besides: int = -1) -> None:
        for peer, line in self._lines.items():
            if peer != besides:
                try:
                    line.send(header, body)
                except OSError:
                    pass  # the thread that reads from it finds out too, and knows what to do

    def _take(self, header: dict[str, Any], body: bytes) -> None:
        with self._changed:
            at = self._values.setdefault(header["step"], {})
            at[header["process"]] = (header["name"], body)
            self._changed.notify_all()

    def _read(self, peer: int, line: Connection) -> None:
        """All that one connection brings, until it is closed."""
        try:
            while (message := line.receive()) is not None:
                self._handle(peer, *message)
            why = "has died (it closed its connection)"
        except (OSError, ValueError) as error:
            why = f"has died, or cannot be reached ({error})"
        if peer not in self._left:
            self._lose(peer, why, peer)

    def _handle(self, peer: int, header: dict[str, Any], body: bytes) -> None:
        if header["kind"] == "value":
            self._take(header, body)
            if self._process == 0:
                self._tell(header, body, besides=peer)
        elif header["kind"] == "bye":
            with self._changed:
                self._left.add(header["process"])
                self._changed.notify_all()
            if self._process == 0:
                self._tell(header, besides=peer)
        elif header["kind"] == "lost":
            self._lose(header["process"], header["why"], peer)

    def _lose(self, process: int, why: str, told_by: int) -> None:
        with self._telling:
            if self._ending:
                return
            self._ending = True
            if self._process == 0:
                news = {"kind": "lost", "process": process, "why": why}
                self._tell(news, besides=told_by)
        self._lost(process, why)


def _dialled(
    address: tuple[str, int], deadline: float, failure: str, timeout: float
) -> socket.socket:
    """A connection, tried again until the deadline: process 0 may start last."""
    while True:
        left = deadline - time.monotonic()
        try:
            return socket.create_connection(address, timeout=max(left, 0.001))
        except OSError as error:
            if left <= 0.1:
                raise DistributedError(
                    f"{failure} within {timeout:g} s ({error}): check that process 0 was started, "
                    "that this is its address, and that its host can be reached from here"
                ) from error
        time.sleep(0.1)


def show_address(listener: socket.socket) -> str:
    """Where a socket listens."""
    host, port = listener.getsockname()[:2]
    return f"{host}:{port}" if host not in ("::", "0.0.0.0") else f"port {port}"


def numbered(processes: list[int]) -> str:
    """`process 2`, or `processes 1, 2`."""
    return f"process{'es' * (len(processes) > 1)} {', '.join(map(str, processes))}"
