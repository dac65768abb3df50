"""What the environment decides: flags, and the user's cache directory."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
from pathlib import Path

from gnnjit.errors import shortened


def number(flag: str) -> int:
    """A flag's number; 0 where it is empty, 1 where it is something else."""
    return int(flag) if flag.isdecimal() else int(flag != "")


AUTOTUNE = number(os.environ.get("GNNJIT_AUTOTUNE", ""))
"""The `stretches` of `gnnjit.autotuning` where nothing else is said; 0: it is off."""

DEBUG = number(os.environ.get("GNNJIT_DEBUG", ""))
"""What is printed to standard error about each plan of a layer that this process runs, once:

1: the passes that changed the layer, and the code chosen for each traversal, with the reasons
   against all code that was tried before it;
2: also what the cost model predicts for each alternative of the plan;
3: also the program as written and after each of these passes, and what each traversal does;
4: also the generated code: LLVM's IR of CPU kernels, the jaxpr of all else.

0 is nothing. No level changes what runs, so no cache's key holds it."""

KEEP_MEMORY = os.environ.get("GNNJIT_KEEP_MEMORY", "") not in ("", "0")
"""Whether the command `gnnjit` calls `gnnjit.keep_memory()`."""

KEEP_KERNELS = os.environ.get("GNNJIT_KEEP_KERNELS", "") != "0"
"""Whether the machine code of CPU kernels is kept in the cache directory for later processes."""


def cache_dir() -> Path:
    """The folder of downloads, cost models, timings and machine code: XDG_CACHE_HOME/gnnjit, or
    ~/.cache/gnnjit. It need not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gnnjit"


def path_of(given: str | os.PathLike[str], what: str, error: type[Exception]) -> Path:
    """`given`, which the user calls `what`, as an absolute path. Raises `error` for what can be no
    path: no text, a name that is too long, the home of nobody, a folder that may not be entered."""
    try:
        if not os.fspath(given):
            raise ValueError("it is empty")
        path = Path(given).expanduser().absolute()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.stat()
    except (OSError, ValueError, RuntimeError) as found:
        reason = getattr(found, "strerror", None) or str(found)
        shown = repr(shortened(os.fspath(given), 200))
        raise error(f"{what} {shown} cannot be used ({reason}): choose another path") from found
    return path


def cores() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def version(package: str = "gnnjit") -> str:
    """The version of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
