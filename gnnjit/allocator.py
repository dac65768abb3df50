"""How the C library holds the memory of this process."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
"""Of `mallopt`, from glibc's <malloc.h>."""

_kept = False


def keep_memory() -> bool:
    """Tell the C library to keep freed memory in this process, for the next call.

    glibc gives every freed block above 32 MiB back to the system, and the next call of a layer, or
    of anything else in JAX on a CPU, is given pages that the kernel has to clear first: layers with
    blocks of 50 MiB took 2 to 3 times as long so. Call this at the start of a program, before JAX
    has run anything. The `gnnjit` command does so where the environment variable
    `GNNJIT_KEEP_MEMORY` is 1; `gnnjit calibrate` always does.

    The price: the process keeps the most memory that it ever needed until it ends, and more, since
    holes are filled imperfectly: up to fifteen times its largest array was seen with glibc 2.36. It
    counts for the whole process, and cannot be taken back. Memory of GPUs is not concerned.

    Returns:
        Whether that was done. Nothing is changed where the C library is not glibc.
    """
    global _kept
    _kept = _kept or _tell_glibc()
    return _kept


def keeps_memory() -> bool:
    """Whether `keep_memory` has done its work."""
    return _kept


def _tell_glibc() -> bool:
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    # No block is mapped by itself, none is given back, and threads share one heap: a thread's own
    # one is cut into pieces of 64 MiB, which are given back whole.
    wanted = [(_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1), (_ARENA_MAX, 1)]
    return all([library.mallopt(name, value) == 1 for name, value in wanted])
