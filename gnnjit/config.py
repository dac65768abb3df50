"""What the environment decides: flags, and the user's cache directory."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

AUTOTUNE = os.environ.get("GNNJIT_AUTOTUNE", "") not in ("", "0")
"""Time the candidates for the tiles of each new GPU kernel once, and keep the fastest on disk."""


def cache_dir() -> Path:
    """XDG_CACHE_HOME/gnnjit, or ~/.cache/gnnjit. It need not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gnnjit"


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
