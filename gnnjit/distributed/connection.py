"""Many processes for one job: connected, agreed on what they run, and stopped together.

`connect()` finds out from the environment whether this process is one of several, meets the others,
and starts `jax.distributed`, after which `jax.devices()` are those of all of them. From then on a
process that dies, or fails with an exception, ends the others at once, with a message that names
it.
"""

from __future__ import annotations

import atexit
import functools
import math
import os
import socket
import sys
import threading
from collections.abc import Sequence
from types import TracebackType

import jax

from gnnjit._compat import devices_in_use
from gnnjit.config import version
from gnnjit.distributed.cluster_env import (
    ALONE,
    Rank,
    job_name,
    rank_from_environment,
    split_address,
)
from gnnjit.distributed.control_plane import ControlPlane, DistributedError, numbered

__all__ = [
    "DistributedError",
    "Rank",
    "barrier",
    "broadcast_bytes",
    "check_equal",
    "connect",
    "everywhere",
    "gather_bytes",
    "is_main",
    "joined",
    "keep_stdout",
    "leave",
    "rank_from_environment",
    "watch_launcher",
]

LOST_PEER = 69
"""Exit code of a process that ends because another one did."""

LISTENER, LIFELINE = "GNNJIT_LISTENER", "GNNJIT_LIFELINE"
"""File descriptors from `gnnjit launch`: where process 0 listens; what closes with the launcher."""

_TELLING = 1.0
"""Seconds to learn, after an exception, that another process died and caused it."""

_joined: tuple[Rank, ControlPlane] | None = None
_launched = False


def connect(*, timeout: float = 60, heartbeat: int = 10) -> Rank:
    """Join the other processes of this job, before any device is used.

    It does nothing where the environment tells of one process, and nothing in a second call.

    Afterwards, if another process dies or fails, this one prints which, and exits with code 69. An
    exception that nothing catches ends this process with code 1, without waiting for the others;
    call `leave` to end with another code. SIGTERM ends it as it did before: JAX's service for
    preempted processes, which takes that signal, is turned off.

    Args:
        timeout: the most seconds that processes may start after each other.
        heartbeat: seconds after which JAX counts a process as dead that is stuck, or whose host is.

    Returns:
        Which process this is; `Rank(0, 1, None)` where it is the only one.

    Raises:
        DistributedError: if the environment is malformed (`rank_from_environment`), others cannot
            be reached or do not come in time, they disagree on how many they are or run other
            versions of JAX or gnnjit, or a device was used before.
    """
    global _joined
    if _joined is not None:
        return _joined[0]
    watch_launcher()
    rank = rank_from_environment()
    if rank is None:
        return ALONE
    _check(rank, timeout, heartbeat)
    plane = ControlPlane(rank.process, rank.processes, functools.partial(_stop_for, rank))
    _meet(rank, plane, timeout)
    _joined = rank, plane
    sys.excepthook = functools.partial(_fail, sys.excepthook)
    atexit.register(plane.leave)
    names = ("jax", "jaxlib", "gnnjit")
    everywhere(", ".join(f"{name} {version(name)}" for name in names), "the software")
    _start_jax(rank, plane, timeout, heartbeat)
    return rank


def _check(rank: Rank, timeout: float, heartbeat: int) -> None:
    if not 1 <= timeout < math.inf or heartbeat < 1:
        raise DistributedError(
            f"timeout is {timeout} and heartbeat {heartbeat}, expected at least 1 second each"
        )
    if jax.distributed.is_initialized():
        raise DistributedError(
            f"{rank}: jax.distributed is initialized already: call gnnjit.distributed.connect() "
            "in its place"
        )
    if devices_in_use():
        raise DistributedError(
            f"{rank}: JAX has used its devices before connect(): call it first, before arrays are "
            "made and devices asked for"
        )


def _meet(rank: Rank, plane: ControlPlane, timeout: float) -> None:
    """Connect all processes to process 0."""
    host, port = split_address(rank.coordinator or "")
    if rank.process > 0:
        plane.dial((host, port), job_name(), timeout)
        return
    inherited = os.environ.pop(LISTENER, None)
    try:
        listener = socket.socket(fileno=int(inherited)) if inherited else _listener(host, port)
    except OSError as error:
        raise DistributedError(
            f"{rank} cannot listen at {rank.coordinator} ({_reason(error)}): choose another port "
            "in GNNJIT_COORDINATOR"
        ) from error
    with listener:
        plane.listen(listener, job_name(), timeout)


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)


def _listener(host: str, port: int) -> socket.socket:
    """On this host alone where the name is one of it alone; else at all its addresses."""
    if host in ("127.0.0.1", "localhost"):
        return socket.create_server(("127.0.0.1", port))
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _start_jax(rank: Rank, plane: ControlPlane, timeout: float, heartbeat: int) -> None:
    """Start `jax.distributed` in all processes at once, at a port that is free now."""
    host, _ = split_address(rank.coordinator or "")
    local = host in ("127.0.0.1", "localhost")
    with socket.socket() as reserved:
        if rank.process == 0:
            # gRPC may share a port that was bound so, and nobody else can take it meanwhile.
            shared = sys.platform.startswith("linux")
            if shared:
                reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            reserved.bind(("127.0.0.1" if local else "", 0))
            port = str(reserved.getsockname()[1])
            if not shared:
                reserved.close()
        else:
            port = ""
        port = plane.gather("JAX's port", port.encode(), timeout=timeout, of=[0])[0].decode()
        jax.config.update("jax_enable_preemption_service", False)
        try:
            jax.distributed.initialize(
                f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
                num_processes=rank.processes,
                process_id=rank.process,
                # Slurm and Open MPI tell which GPU of a host belongs to which process.
                cluster_detection_method="deactivate" if _launched else None,
                initialization_timeout=math.ceil(timeout),
                heartbeat_timeout_seconds=heartbeat,
                coordinator_bind_address=f"127.0.0.1:{port}" if local else None,
            )
        except RuntimeError as error:
            raise DistributedError(f"{rank}: jax.distributed does not start ({error})") from error


def is_main() -> bool:
    """Whether this process is the one that prints and writes: process 0, or the only one."""
    return _joined is None or _joined[0].process == 0


def joined() -> Rank:
    """Which process this is, as `connect` said; `Rank(0, 1, None)` before it."""
    return ALONE if _joined is None else _joined[0]


def barrier(name: str, timeout: float = 60) -> None:
    """Wait until all processes are here. In a job of one process it does nothing.

    Args:
        name: of the barrier, the same in all processes.
        timeout: seconds to wait for the others.

    Raises:
        DistributedError: if one does not come within `timeout` seconds (it is named), or is at
            another barrier.
    """
    if _joined is not None:
        _joined[1].gather(f"barrier {name}", b"", timeout=timeout)


def broadcast_bytes(data: bytes | None, timeout: float = 60) -> bytes:
    """Give what process 0 passes to all processes.

    Args:
        data: in process 0 what is sent; others may pass None.
        timeout: seconds to wait for process 0.

    Returns:
        The bytes of process 0.

    Raises:
        DistributedError: if process 0 does not come within `timeout` seconds; if it passes None.
    """
    if is_main() and data is None:
        raise DistributedError("broadcast_bytes got None from process 0, expected bytes")
    if _joined is None:
        return data or b""
    return _joined[1].gather("broadcast_bytes", data, timeout=timeout, of=[0])[0]


def gather_bytes(name: str, data: bytes, timeout: float = 60) -> list[bytes]:
    """Give what each process passes to all processes, by way of process 0: for small data.

    Args:
        name: of this exchange, the same in all processes.
        data: this process's bytes.
        timeout: seconds to wait for the others.

    Returns:
        The bytes of each process, by its number.

    Raises:
        DistributedError: as `barrier`.
    """
    if _joined is None:
        return [data]
    return [body for _, body in sorted(_joined[1].gather(name, data, timeout=timeout).items())]


def everywhere(value: bytes | str, what: str, timeout: float = 60) -> None:
    """Check that all processes pass the same value, before they wait for each other.

    In a job of one process it does nothing.

    Args:
        value: such as a digest of the configuration.
        what: its name, for the message.
        timeout: seconds to wait for the others.

    Raises:
        DistributedError: in all of them, if one differs (all are named, with their values) or does
            not come within `timeout` seconds.
    """
    if _joined is None:
        return
    raw = value.encode() if isinstance(value, str) else value
    check_equal(gather_bytes(f"everywhere {what}", raw, timeout), what)


def check_equal(values: Sequence[bytes], what: str) -> None:
    """Check values that all processes have gathered already.

    Args:
        values: that of each process, by its number.
        what: their name, for the message.

    Raises:
        DistributedError: they differ; the message says which process has which.
    """
    groups: dict[bytes, list[int]] = {}
    for process, theirs in enumerate(values):
        groups.setdefault(theirs, []).append(process)
    if len(groups) > 1:
        shown = "; ".join(f"{numbered(who)}: {_shown(theirs)}" for theirs, who in groups.items())
        raise DistributedError(
            f"{what} is not the same in all processes ({shown}): start all with the same command "
            "in the same environment"
        )


def _shown(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = value.hex()
    return text if len(text) <= 100 else text[:97] + "..."


def leave(code: int) -> None:
    """End this process with an exit code, as the last thing that it does.

    If the code is 0, or there is one process, this returns. Otherwise the process ends here, and
    the others are told. Python's own way out would wait in JAX's shutdown until they are done, and
    they may be waiting for this one.
    """
    if _joined is not None and code != 0:
        _leave(code, f"ended with exit code {code}")


def watch_launcher() -> None:
    """If `gnnjit launch` started this process, end it when the launcher is killed.

    `connect` does so too, and so does the `gnnjit` command, from its start on.
    """
    global _launched
    lifeline = os.environ.pop(LIFELINE, None)
    if lifeline is None:
        return
    _launched = True
    os.set_inheritable(int(lifeline), False)
    threading.Thread(target=_await_end, args=(int(lifeline),), daemon=True).start()


def keep_stdout() -> None:
    """In process 0 of several, keep standard output for what Python prints.

    From C++, Gloo prints every connection that it makes to standard output, which would spoil a
    result that a program reads; after this call that goes to standard error. Call it at the start
    of a program: objects that hold `sys.stdout` from before write to standard error, too.
    """
    try:
        rank = rank_from_environment()
    except DistributedError:
        return  # `connect` says so
    if rank is None or rank.process > 0:
        return
    sys.stdout.flush()
    own = os.dup(1)
    os.dup2(2, 1)
    lines = 1 if os.isatty(own) else -1
    sys.stdout = os.fdopen(own, "w", lines, sys.stdout.encoding, sys.stdout.errors)


def _await_end(lifeline: int) -> None:
    os.read(lifeline, 1)  # nothing is written: this returns when the other end is closed
    if os.getpgrp() == os.getpid():
        os.killpg(0, 9)  # and what this process has started
    os._exit(LOST_PEER)


def _stop_for(rank: Rank, process: int, why: str) -> None:
    """In a thread: another process has died."""
    if not _launched:  # the launcher says it once for all
        _say(
            f"gnnjit: error: process {process} of {rank.processes} {why}; this is process "
            f"{rank.process}, which stops too. See the messages of process {process} for the cause"
        )
    _exit(LOST_PEER)


def _fail(
    hook: object,
    kind: type[BaseException],
    error: BaseException,
    traceback: TracebackType | None,
) -> None:
    """In place of `sys.excepthook`."""
    # Collectives fail when another process dies. A thread is told of that, and ends this process.
    threading.Event().wait(_TELLING)
    assert callable(hook)
    hook(kind, error, traceback)
    first = str(error).strip().split("\n")[0][:200]
    _leave(130 if kind is KeyboardInterrupt else 1, f"failed ({kind.__name__}: {first})")


def _leave(code: int, why: str) -> None:
    assert _joined is not None
    _joined[1].fail(why)
    _exit(code)


def _say(text: str) -> None:
    try:
        os.write(2, f"{text}\n".encode())
    except OSError:
        pass  # nobody reads it; the exit code tells, too


def _exit(code: int) -> None:
    """Without Python's and JAX's ways out, which wait for others."""
    flushing = threading.Thread(target=_flush, daemon=True)
    flushing.start()
    flushing.join(1.0)  # the thread that holds a stream may wait for ever
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass  # closed, or nobody reads it
