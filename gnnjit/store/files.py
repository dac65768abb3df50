"""The files of a vertex store in a folder: made, read, written, mapped, and their errors."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import functools
import io
import mmap
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gnnjit.errors import StoreError
from gnnjit.store.array_info import ArrayInfo

_CALL = 1 << 30  # Bytes of one system call: macOS refuses 2 GiB, Linux does less than asked.
_POPULATE_READ = 22  # Linux's MADV_POPULATE_READ and MAP_FIXED: Python has no names for them.
_MAP_FIXED = 0x10
_LOOK = 1 << 20
_AHEAD = 128 << 10  # Of more, Linux reads what the disk takes in one request, and forgets the rest.


@dataclasses.dataclass(frozen=True)
class ArrayFile:
    """One generation of an array. `stream`: open for reading and writing; None where the run
    stopped before the array was sealed."""

    path: Path
    info: ArrayInfo
    stream: io.FileIO | None

    @property
    def fd(self) -> int:
        assert self.stream is not None
        return self.stream.fileno()

    def begin_of(self, row: int) -> int:
        """Where a row begins in the file."""
        return self.info.begin + row * self.info.row_bytes

    def close(self) -> None:
        if self.stream is not None:
            self.stream.close()

    def remove(self) -> None:
        self.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)


def open_complete(path: Path, info: ArrayInfo) -> io.FileIO:
    with contextlib.ExitStack() as undo, failures(path):
        try:
            stream = undo.enter_context(io.FileIO(path, "r+"))
        except FileNotFoundError:
            raise StoreError(
                f"{path}: the file of a sealed array, {info}, is missing: put it back, or create "
                "the store anew"
            ) from None
        actual, header = os.fstat(stream.fileno()).st_size, info.header()
        if actual != info.file_bytes:
            raise truncated(path, actual, info.file_bytes)
        found = stream.read(len(header))
        if found != header:
            raise StoreError(
                f"{path}: the header {found[10:].rstrip()!r}, expected "
                f"{header[10:].rstrip()!r}: put the right file back, or create the store anew"
            )
        undo.pop_all()
        return stream


def read_at(file: ArrayFile, view: memoryview, at: int) -> None:
    with failures(file.path):
        while view:
            done = os.preadv(file.fd, [view[:_CALL]], at)
            if not done:
                raise truncated(file.path, os.fstat(file.fd).st_size, file.info.file_bytes)
            view, at = view[done:], at + done


def write_at(file: ArrayFile, view: memoryview, at: int) -> None:
    with failures(file.path, len(view)):
        while view:
            done = os.pwritev(file.fd, [view[:_CALL]], at)
            view, at = view[done:], at + done


def mapped(file: ArrayFile, start: int, stop: int) -> np.ndarray | None:
    """`uint8[stop - start]`, these bytes of a file, read already, so that what the disk refuses is
    an error here; they are memory of the process as long as the array is held. Behind the end of
    the file come zeros. None where the system cannot do that."""
    if start == stop or not maps():
        return None
    skipped = start % mmap.ALLOCATIONGRANULARITY
    with failures(file.path):
        length = os.fstat(file.fd).st_size
        if length != file.info.file_bytes:
            raise truncated(file.path, length, file.info.file_bytes)
        pages = _pages(file.fd, start - skipped, stop, length)
        try:
            pages.madvise(_POPULATE_READ)
        except OSError as error:
            pages.close()
            if error.errno == errno.EFAULT:  # instead of the signal that reading them would send
                raise OSError(errno.EIO, os.strerror(errno.EIO)) from error
            raise
    return np.frombuffer(pages, np.uint8, stop - start, skipped)


@functools.cache
def maps() -> bool:
    """Whether this system has what `mapped` needs: Linux from 5.14 on."""
    if sys.platform != "linux":
        return False
    with mmap.mmap(-1, mmap.PAGESIZE) as page, contextlib.suppress(OSError):
        page.madvise(_POPULATE_READ)
        return True
    return False


def cached(file: ArrayFile, start: int, stop: int) -> bool:
    """Whether the system has these bytes of a file in its cache, from a look at one in each
    `_LOOK`; False where it does not tell."""
    nowait = getattr(os, "RWF_NOWAIT", None)  # Linux alone
    if nowait is None:
        return False
    stop = min(stop, file.info.file_bytes)
    looks, byte = [*range(start, stop, _LOOK), stop - 1], [bytearray(1)]
    with contextlib.suppress(OSError):
        return start >= stop or all(os.preadv(file.fd, byte, at, nowait) for at in looks)
    return False


def expect(file: ArrayFile, start: int, stop: int) -> None:
    """Have the system read these bytes of a file into its cache, beside what is done here."""
    if hasattr(os, "posix_fadvise"):  # macOS has none
        with contextlib.suppress(OSError):  # an advice: what a disk refuses, a read will tell
            for at in range(start, stop, _AHEAD):
                count = min(_AHEAD, stop - at)
                os.posix_fadvise(file.fd, at, count, os.POSIX_FADV_WILLNEED)


def _pages(fd: int, start: int, stop: int, length: int) -> mmap.mmap:
    """A map of a file of this length, with zeros behind it: its pages lie over those of memory
    that nobody has written. Raises OSError."""
    if stop <= length:
        return mmap.mmap(fd, stop - start, access=mmap.ACCESS_READ, offset=start)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    pages = mmap.mmap(-1, stop - start, flags=flags, prot=mmap.PROT_READ)
    if start >= length:
        return pages
    place = np.frombuffer(pages, np.uint8).ctypes.data
    flags = mmap.MAP_SHARED | _MAP_FIXED
    if _libc().mmap(place, length - start, mmap.PROT_READ, flags, fd, start) != place:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return pages


@functools.cache
def _libc() -> ctypes.CDLL:
    found = ctypes.CDLL(None, use_errno=True)
    found.mmap.restype = ctypes.c_void_p
    found.mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
        ctypes.c_long,
    )  # fmt: skip
    return found


def reserve(fd: int, size: int, folder: Path) -> None:
    """Give a new file its length, and room on the disk as far as the file system can promise it:
    a full disk is an error now, not in the middle of an epoch. Raises OSError."""
    allocate = getattr(os, "posix_fallocate", None)  # macOS has none
    if allocate is not None:
        try:
            allocate(fd, 0, size)
            return
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
    if shutil.disk_usage(folder).free < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(fd, size)


def sync_folder(folder: Path) -> None:
    """Which files it has is on the disk."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def truncated(path: Path, actual: int, expected: int) -> StoreError:
    return StoreError(
        f"{path}: {actual:,} bytes, expected {expected:,}: the file was truncated or changed: put "
        "the right one back, or create the store anew"
    )


@contextlib.contextmanager
def failures(path: Path, needed: int = 0) -> Iterator[None]:
    """What the disk refuses, as StoreError. `needed`: bytes that were to be written."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise StoreError(
                f"{path}: {error.strerror}: check the disk, and the rights on the folder"
            ) from error
        free = shutil.disk_usage(path.parent).free
        raise StoreError(
            f"{path}: {error.strerror}: {needed:,} bytes were needed, and the disk has {free:,} "
            "bytes free: make room, or create the store on another disk"
        ) from error
