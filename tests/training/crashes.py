"""Commands in processes that kill themselves at a chosen moment.

`Crashes` starts one process, which imports gnnjit once, and forks a child for each command, before
JAX has started anything that a fork would break. They compile as with `quick_compilation`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Crashes:
    """Runs commands of `gnnjit`; the exit codes are as `subprocess` gives them."""

    def __enter__(self) -> Crashes:
        self._server = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate(timeout=60)

    def __call__(self, arguments: list[str], moment: str | None = None, count: int = 1) -> int:
        """The exit code of a command that is killed the `count`-th time that `moment` comes; in an
        epoch: in the middle of the `count`-th call of a streamed function, two of which make one.
        """
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps([arguments, moment, count]) + "\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())


def _prime(moment: str, count: int) -> None:
    """Kill this process when the moment comes."""
    if moment == "preparing":
        from gnnjit.data.stored import prepare

        _wrap(prepare, "_relay", count, lambda said, watch: said.get("stage") == "order")
    elif moment == "building the grid":
        from gnnjit.streaming.grid import build_blocks

        _wrap(build_blocks, "sort_by_source", count)
    elif moment == "in an epoch":
        from gnnjit.streaming.runtime.executor import Executor

        calls = []
        _wrap(Executor, "__call__", 1, lambda *_: bool(calls.append(None)))
        _wrap(Executor, "_chunk", 3, lambda *_: len(calls) == count)
    else:
        assert moment == "writing a checkpoint"
        for name in ("rename", "replace"):  # of a complete temporary directory
            _wrap(os, name, count, lambda old, new, **_: Path(new).name.isdigit())


def _wrap(owner: Any, name: str, count: int, when: Callable[..., bool] | None = None) -> None:
    wrapped, left = getattr(owner, name), [count]

    def call(*args: Any, **kwargs: Any) -> Any:
        left[0] -= when is None or when(*args, **kwargs)
        if left[0] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return wrapped(*args, **kwargs)

    setattr(owner, name, call)


def _serve() -> None:
    from gnnjit.cli import main, train  # noqa: F401  (imported before it forks)

    channel = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    while line := sys.stdin.readline():
        arguments, moment, count = json.loads(line)
        child = os.fork()
        if child == 0:
            if moment is not None:
                _prime(moment, count)
            os._exit(main.main(arguments))
        _, status = os.waitpid(child, 0)
        channel.write(f"{os.waitstatus_to_exitcode(status)}\n")
        channel.flush()


if __name__ == "__main__":
    _serve()
