"""How the C library holds the memory of this process."""

from __future__ import annotations

import ctypes
import os
import sys

from gnnjit.system.contexts import Context

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -3, -4, -8
"""Parameters of `mallopt`, from glibc's <malloc.h>."""

_kept = Context(False)
"""Plans depend on it, since blocks that are asked of the system anew cost time."""


def keep_memory() -> bool:
    """Tell the C library to keep freed memory in this process, for the next call.

    glibc gives every freed block above 32 MiB back to the system. The next call of a layer, or
    of anything else in JAX on a CPU, then gets pages that the system has to clear first: layers
    with blocks of 50 MiB and more took 1.2 to 2 times as long. Call this at the start of a program,
    before JAX has run anything. The `gnnjit` command does so where the environment variable
    `GNNJIT_KEEP_MEMORY` is 1; `gnnjit calibrate` always does.

    The price: until it ends, the process keeps the most memory that it ever needed, and more, since
    holes are filled imperfectly; up to fifteen times its largest array was seen with glibc 2.36.
    This holds for the whole process and cannot be taken back. Memory of GPUs is not affected.

    Returns:
        Whether it was done. Nothing is changed where the C library is not glibc.
    """
    # No block is mapped by itself, none is given back, and threads share one heap: a thread's own
    # one is cut into pieces of 64 MiB, which are given back whole.
    if not _kept.value and _tell_glibc([(_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1), (_ARENA_MAX, 1)]):
        _kept.set_in_all_threads(True)
    return _kept.value


def give_memory_back() -> bool:
    """Tell the C library to give freed memory back to the system at once, in this process.

    By itself glibc keeps freed blocks of up to 32 MiB, as soon as one of that size was freed; then
    the resident memory is more than what is in use. The price is that new pages are cleared.

    Returns:
        Whether that was done. Nothing is changed where the C library is not glibc, or where
        `keep_memory` was called.
    """
    wanted = [(_MMAP_THRESHOLD, 1 << 20), (_TRIM_THRESHOLD, 1 << 20), (_ARENA_MAX, 2)]
    return not _kept.value and _tell_glibc(wanted)


def keeps_memory() -> bool:
    """Whether `keep_memory` has done its work."""
    return _kept.value


def trim() -> None:
    """Give back what is free now, such as what compiling left: where the C library is glibc."""
    if _kept.value or not sys.platform.startswith("linux"):
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


def resident() -> int | None:
    """Bytes of this process in memory now; None where the system does not tell."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def _tell_glibc(wanted: list[tuple[int, int]]) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    return all([library.mallopt(name, value) == 1 for name, value in wanted])
