"""Zip and npz files, read in memory with bounds; nothing is ever unpacked to disk."""

from __future__ import annotations

import io
import math
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from gnnjit.data.pickles import load_pickle
from gnnjit.errors import DataError

MAX_MEMBER_BYTES = 1 << 30


def read_zip(path: Path, limit: int = MAX_MEMBER_BYTES) -> dict[str, bytes]:
    """The files of a zip by their last name component.

    Raises:
      DataError: if the archive is damaged or encrypted, a member's path leaves the archive, two
        members share a name, or the members unpack to more than `limit` bytes together.
    """
    members: dict[str, bytes] = {}
    left = limit
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if info.is_dir():
                    continue
                name = _member_name(path, info.filename)
                if name in members:
                    raise DataError(f"{path}: holds {name} twice, expected each file once.")
                with archive.open(info) as stream:
                    members[name] = stream.read(left + 1)
                left -= len(members[name])
                if left < 0:
                    raise DataError(
                        f"{path}: unpacks to more than {limit:,} bytes (reached in "
                        f"{info.filename}), expected a small dataset. Is it the right file?"
                    )
    except DataError:
        raise
    except Exception as error:  # a damaged archive may raise anything at all
        raise DataError(
            f"{path}: not a readable zip archive ({error}). The file is cut short or another kind "
            "of file; get it again."
        ) from error
    return members


def _member_name(path: Path, filename: str) -> str:
    parts = PurePosixPath(filename.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or ":" in filename:
        raise DataError(
            f"{path}: holds the path {filename!r}, expected paths inside the archive. "
            "The file is not to be trusted; get it from its original source."
        )
    return parts.name


def read_npz(path: Path, wanted: tuple[str, ...]) -> dict[str, Any]:
    """Those arrays of an npz file that `wanted` names and the file has.

    Arrays of numbers are read without pickle; object arrays (old files keep SciPy matrices in
    them) through the restricted unpickler, and a single object is taken out of its array.
    """
    members = read_zip(path)
    return {
        key: _read_npy(members[f"{key}.npy"], f"{path}:{key}")
        for key in wanted
        if f"{key}.npy" in members
    }


def _read_npy(raw: bytes, where: str) -> Any:
    """The array in a file of NumPy's format, or what is pickled in it.

    The header is compared with the number of bytes behind it before anything is made of its size.
    """
    stream = io.BytesIO(raw)
    try:
        version = np.lib.format.read_magic(stream)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, fortran, dtype = read_header(stream)
    except Exception as error:  # the header is parsed as Python's source is
        raise _unreadable(where, error) from error
    rest = raw[stream.tell() :]
    if dtype.hasobject:
        value = load_pickle(rest, where)
        return value.item() if isinstance(value, np.ndarray) and value.shape == () else value
    odd = _unreadable(where, f"its shape is {_short(shape)}")
    if not all(type(side) is int and side >= 0 for side in shape):
        raise odd
    if dtype.kind not in "biufUS" or dtype.itemsize * math.prod(shape) != len(rest):
        found = f"{len(rest):,} bytes for {_short(dtype)} of the shape {_short(shape)}"
        raise _unreadable(where, found)
    try:
        if dtype.itemsize == 0:
            return np.zeros(shape, dtype)
        return np.frombuffer(rest, dtype).reshape(shape, order="F" if fortran else "C")
    except (ValueError, MemoryError) as error:  # more dimensions or elements than NumPy has
        raise odd from error


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _unreadable(where: str, why: object) -> DataError:
    return DataError(
        f"{where}: not a readable array ({_short(why)}), expected the .npy format. Get the file "
        "again."
    )
