"""The command `gnnjit`: a table of subcommands, and how errors leave the program."""

from __future__ import annotations

import _thread
import argparse
import contextlib
import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jax

from gnnjit.cli import calibrate, data, explain, launch, opt
from gnnjit.cli import train as train_command
from gnnjit.cli.output import drop_output
from gnnjit.config import KEEP_MEMORY, version
from gnnjit.distributed import connection
from gnnjit.errors import LONGEST, GnnjitError, shortened
from gnnjit.system.allocator import keep_memory
from gnnjit.training.checkpoint import quiet

FAILURE = 2
INTERRUPTED = 130
BROKEN_PIPE = 141

_OF_STREAMS = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO, errno.EBADF)
"""What writing to a stream may end in."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(shortened(message, 500))


@dataclass(frozen=True)
class Command:
    """A subcommand.

    Attributes:
        name: what is typed.
        summary: one line for the list of subcommands.
        configure: adds its options to a parser.
        run: does it, and returns the exit code.
    """

    name: str
    summary: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def _run_launch(args: argparse.Namespace) -> int:
    # Mistakes in the command are told once, and not by every process.
    return launch.run(args, parser().parse_args(launch.arguments(args)))


COMMANDS = (
    Command("train", train_command.SUMMARY, train_command.configure, train_command.run),
    Command("explain", explain.SUMMARY, explain.configure, explain.run),
    Command("opt", opt.SUMMARY, opt.configure, opt.run),
    Command("calibrate", calibrate.SUMMARY, calibrate.configure, calibrate.run),
    Command("launch", launch.SUMMARY, launch.configure, _run_launch),
    Command("data", "list the datasets, or show what a file holds", data.configure, data.run),
)


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    top = _Parser(
        prog="gnnjit", description="A functional compiler for graph neural networks in JAX."
    )
    top.add_argument("--version", action="version", version=f"gnnjit {version()}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        sub = commands.add_parser(
            command.name, help=command.summary, description=command.summary.capitalize() + "."
        )
        command.configure(sub)
        sub.set_defaults(run=command.run)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0 is success, 2 a mistake that the message names (argparse's included), 130 an interrupt.
    """
    try:
        args = parser().parse_args(argv)
        return args.run(args)
    except SystemExit as leaving:  # argparse has printed help, the version or a usage error
        if isinstance(leaving.__context__, BrokenPipeError):  # raised by rich
            return BROKEN_PIPE
        return leaving.code if isinstance(leaving.code, int) else FAILURE
    except GnnjitError as error:
        return _failed(str(error))
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not _is_of_memory(error):
            raise
        said = shortened(str(error).strip() or "no room", 200)
        return _failed(
            f"there is not enough memory ({said}): choose a smaller model or dataset, or train "
            "within a budget (gnnjit train --memory-budget 1GiB --store DIR)"
        )
    except KeyboardInterrupt:
        print("gnnjit: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        drop_output(sys.stdout)
        return BROKEN_PIPE
    except OSError as error:
        return _failed(_of_the_system(error))


def _of_the_system(error: OSError) -> str:
    """What to say of a file or a stream that failed. Raises any other error again."""
    if error.filename is None and error.errno not in _OF_STREAMS:
        raise error
    if error.filename is None:
        drop_output(sys.stdout)
    at = error.filename or "the standard output"
    return f"{at} cannot be used ({error.strerror}): make room, or choose another"


def _failed(message: str) -> int:
    print(shortened(f"gnnjit: error: {' '.join(message.split())}", LONGEST), file=sys.stderr)
    return FAILURE


def _is_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Within it, a Ctrl-C that comes during a callback from C code comes again. Python reports what
    such a callback raises (JAX has one of the garbage collector), and goes on."""
    before = sys.unraisablehook

    def hook(found: Any) -> None:
        if isinstance(found.exc_value, KeyboardInterrupt):
            threading.Timer(0.05, _interrupt).start()  # when the callback is over
        else:
            before(found)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def _interrupt() -> None:
    """Send this process what Ctrl-C sends, so that a wait ends too."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        _thread.interrupt_main()


def console() -> int:
    """`main` in a process of its own. What is measured there should not depend on what was freed
    before. One of several processes of a job ends with `gnnjit launch`, and does not wait for the
    others when it has failed."""
    connection.watch_launcher()
    if sys.argv[1:2] != ["launch"]:
        connection.keep_stdout()
    if KEEP_MEMORY or sys.argv[1:2] == ["calibrate"]:
        keep_memory()
    with interruptible(), quiet():  # what callbacks of a checkpoint raise may come after it
        code = main()
        connection.leave(code)
        if code == INTERRUPTED:  # threads of XLA and Orbax are at work: Python's way out may crash
            with contextlib.suppress(OSError):
                sys.stdout.flush()
            os._exit(code)
    return code
