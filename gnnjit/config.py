"""What the environment decides: flags, and the user's cache directory."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from gnnjit.errors import shortened


def number(flag: str) -> int:
    """A flag's number; 0 where it is empty, 1 where it is something else."""
    return int(flag) if flag.isdecimal() else int(flag != "")


AUTOTUNE = number(os.environ.get("GNNJIT_AUTOTUNE", ""))
"""The `stretches` of `gnnjit.autotuning` where nothing else is said; 0: it is off."""

KEEP_MEMORY = os.environ.get("GNNJIT_KEEP_MEMORY", "") not in ("", "0")
"""Whether the command `gnnjit` calls `gnnjit.keep_memory()`."""


def cache_dir() -> Path:
    """The folder of downloads, cost models and timings: XDG_CACHE_HOME/gnnjit, or ~/.cache/gnnjit.
    It need not exist yet."""
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
    """Of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def write_json(path: Path, data: Any) -> None:
    """A table of the cache directory, atomically; its directory is made. Raises OSError, and
    ValueError for a number that JSON has no word for."""
    text = json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode())


def write_atomically(path: Path, raw: bytes) -> None:
    """Others see the old file or the whole new one, also after a crash. Raises OSError."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(raw)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
