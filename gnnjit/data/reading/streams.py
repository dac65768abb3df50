"""Files as streams of bytes, unpacked on the way."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from gnnjit.errors import DataError
from gnnjit.system.optional import optional

_PACKED_BLOCK = 1 << 16
PACKED = (".gz", ".bz2", ".xz", ".zst")
"""Endings of packed files."""

Watch = Callable[[str, int, int], None]
"""Called with what is being done, and how much of it is done of how much."""


def unpacked_name(path: Path) -> str:
    """The file's name without the ending of its packing, in lower case."""
    name = path.name.lower()
    return next((name[: -len(end)] for end in PACKED if name.endswith(end)), name)


class Source:
    """A file that is read from its beginning, any number of times.

    Attributes:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._packed = self._open_packed()

    def _open_packed(self) -> Callable[[BinaryIO], Any] | None:
        """What unpacks the file, by its first bytes. Raises DataError without a library for it."""
        try:
            with self.path.open("rb") as stream:
                first = stream.read(6)
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read ({error.strerror}).") from error
        if first[:2] == b"\x1f\x8b":
            return lambda stream: gzip.GzipFile(fileobj=stream)
        if first[:3] == b"BZh":
            return bz2.BZ2File
        if first == b"\xfd7zXZ\x00":
            return lzma.LZMAFile
        return _zstandard(self.path) if first[:4] == b"\x28\xb5\x2f\xfd" else None

    def blocks(self, size: int, watch: Watch) -> Iterator[bytes]:
        """Blocks of about `size` bytes of whole lines; the last one ends with a newline too.

        Raises DataError where the file is damaged.
        """
        total, rest = self.path.stat().st_size, b""
        for block, done in self._read(size):
            whole = rest + block
            cut = whole.rfind(b"\n") + 1
            rest = whole[cut:]
            if cut:
                yield whole[:cut]
            watch(f"reading {self.path.name}", min(done, total), total)
        if rest:
            yield rest + b"\n"

    def head(self, size: int) -> bytes:
        """The first bytes, cut at the end of a line where the file is longer than them."""
        block = next((block for block, _ in self._read(size)), b"")
        cut = block.rfind(b"\n") + 1
        return block[:cut] if len(block) >= size and cut else block

    def text(self) -> bytes:
        """All bytes."""
        return b"".join(block for block, _ in self._read(1 << 24))

    def _read(self, size: int) -> Iterator[tuple[bytes, int]]:
        """Blocks, and how far the file has been read."""
        try:
            with self.path.open("rb") as raw:
                stream = raw if self._packed is None else self._packed(raw)
                while block := stream.read(size):
                    yield block, raw.tell()
        except (OSError, EOFError, lzma.LZMAError, ValueError) as error:
            raise DataError(f"{self.path}: is cut short or damaged ({error}). Get it again.") from (
                error
            )
        except Exception as error:  # libraries of Zstandard have errors of their own
            if self._packed is None or type(error).__name__ not in ("ZstdError", "ZstandardError"):
                raise
            raise DataError(f"{self.path}: is damaged ({error}). Get it again.") from error


def _zstandard(path: Path) -> Callable[[BinaryIO], Any]:
    """What unpacks .zst files: Python's own from 3.14 on, or a library."""
    for module in ("compression.zstd", "backports.zstd"):
        try:
            found = optional(module, "", "")
        except ImportError:
            continue
        return found.ZstdFile
    try:
        zstandard = optional("zstandard", "", "")
    except ImportError as error:
        raise DataError(
            f"{path}: is packed with Zstandard, and there is no library for it: pip install "
            "zstandard, or unpack the file with zstd -d."
        ) from error
    return lambda stream: _Frames(stream, zstandard.ZstdDecompressor())


class _Frames:
    """Unpacks frame after frame; the library's own reader is silent about one that is cut short."""

    def __init__(self, stream: BinaryIO, unpacker: Any) -> None:
        self._stream, self._unpacker = stream, unpacker
        self._frame, self._left = unpacker.decompressobj(), b""
        self._begun = False  # whether the frame has bytes

    def read(self, size: int) -> bytes:
        """About `size` bytes; none at the end. Raises EOFError within a frame."""
        found, done = [], 0
        while done < size:
            packed = self._left or self._stream.read(_PACKED_BLOCK)
            if not packed:
                if self._begun:
                    raise EOFError("the last frame has no end")
                break
            found.append(self._frame.decompress(packed))
            done, self._left, self._begun = done + len(found[-1]), b"", True
            if self._frame.eof:
                self._left = self._frame.unused_data
                self._frame, self._begun = self._unpacker.decompressobj(), False
        return b"".join(found)
