"""`gnnjit launch`: another command in several processes of this machine."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from gnnjit.distributed.launch import LaunchError, Outcome, show_cursor, supervise, virtual_devices

SUMMARY = "run a command of gnnjit in several processes that work together"

MISTAKE = 2
"""Exit code of a command after an error whose message says what to do."""

MOST = 1024
"""Processes of a machine, and devices of a process."""

_LOCAL_DEVICES = "JAX_LOCAL_DEVICE_IDS"

EPILOG = """examples:
  gnnjit launch -n 4 -- train communities --checkpoint run1
  gnnjit launch -n 2 --devices-per-process 4 -- train    8 devices on a machine without GPUs
  gnnjit launch -n 2 -- train communities --memory-budget 1GiB --store DIR
                                     each within the budget, on its blocks of one graph

When a process dies, the others are stopped, and the exit code is that of the one that died first:
128 more than the signal that killed it. On a cluster, its own launcher starts the processes (srun,
mpirun, or a Job of Kubernetes with GNNJIT_PROCESSES and GNNJIT_COORDINATOR set).
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gnnjit launch`."""
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "gnnjit launch [-h] -n N [OPTION ...] -- COMMAND [ARGUMENT ...]"
    parser.add_argument(
        "-n", "--processes", type=int, required=True, metavar="N", help="how many processes"
    )
    parser.add_argument(
        "--devices-per-process",
        type=int,
        metavar="K",
        help="compute on the CPU, as K devices in each process (default: one device of the CPU, or "
        "one GPU, for each)",
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="from SIGTERM to SIGKILL for those left when a process has died (default: 5)",
    )
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="show the standard output of all processes (default: of process 0; standard error is "
        "always shown)",
    )
    parser.add_argument(
        "arguments",
        nargs=argparse.REMAINDER,
        metavar="-- COMMAND [ARGUMENT ...]",
        help="the command that all processes run, with its options",
    )


def arguments(args: argparse.Namespace) -> list[str]:
    """The command to run, without the `--` before it."""
    return args.arguments[1:] if args.arguments[:1] == ["--"] else args.arguments


def run(args: argparse.Namespace, inner: argparse.Namespace) -> int:
    """Launch the processes; the exit code.

    Args:
        args: the options of `gnnjit launch`.
        inner: the options of the command that it runs.

    Raises:
        LaunchError: if an option is out of range, or the command cannot be launched.
    """
    _check(args, inner)
    environments = [_devices(args, k) for k in range(args.processes)]
    command = [sys.executable, "-m", "gnnjit.cli", *arguments(args)]
    outcome = supervise(
        [command] * args.processes, environments, grace=args.grace, verbose=args.verbose
    )
    if outcome.exit_code != 0:
        show_cursor()
        print(f"gnnjit: error: {message(outcome, inner)}", file=sys.stderr)
    return outcome.exit_code


def _check(args: argparse.Namespace, inner: argparse.Namespace) -> None:
    for option, count in (
        ("--processes", args.processes), ("--devices-per-process", args.devices_per_process)
    ):  # fmt: skip
        if count is not None and not 1 <= count <= MOST:
            raise LaunchError(f"{option} is {count}, expected 1 to {MOST}")
    if not 0 <= args.grace < 1e6:
        raise LaunchError(f"--grace is {args.grace:g}, expected a number of seconds from 0 on")
    if inner.command == "launch":
        raise LaunchError("launch cannot launch itself: name the command to run, such as train")


def _devices(args: argparse.Namespace, process: int) -> dict[str, str]:
    """Which devices a process has: some of the CPU, or a GPU of its own where there are any."""
    if args.devices_per_process is not None:
        return virtual_devices(args.devices_per_process)
    if args.processes == 1 or _LOCAL_DEVICES in os.environ:
        return {}
    return {_LOCAL_DEVICES: str(process)}


def message(outcome: Outcome, inner: argparse.Namespace) -> str:
    """What happened, and how to go on."""
    root = getattr(inner, "checkpoint", None)
    # A mistake in the command has been told, and stays one when it is run again.
    if root is None or outcome.exit_code == MISTAKE or not Path(root).expanduser().is_dir():
        return str(outcome)
    how = "again" if inner.resume else "with --resume"
    return f"{outcome}. Run the same command {how} to continue from the last checkpoint"
