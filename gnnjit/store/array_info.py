"""What the arrays of a vertex store are."""

from __future__ import annotations

import dataclasses
import functools
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

DTYPES = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "int32": np.dtype(np.int32),
    "bool": np.dtype(np.bool_),
}
NAME = "[A-Za-z0-9_.-]{1,200}"

ALIGNED = 64
"""Bytes at a multiple of which JAX takes a host buffer on a CPU as it is, without a copy."""


@dataclasses.dataclass(frozen=True)
class ArrayInfo:
    """What an array of a store is: `[rows, *shape]` of `dtype`. `sealed`: it cannot be written."""

    rows: int
    shape: tuple[int, ...]
    dtype: np.dtype
    sealed: bool = False

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def bytes(self) -> int:
        """Bytes of all rows."""
        return self.rows * self.row_bytes

    @property
    def file_bytes(self) -> int:
        """Bytes of a `.npy` file with all rows."""
        return self.begin + self.bytes

    @functools.cached_property
    def begin(self) -> int:
        """Where the rows begin in such a file."""
        return len(self.header())

    def header(self) -> bytes:
        """What such a file begins with, in version 1.0 of the format. Written here, so that it is
        the same in all versions of NumPy: where the rows begin follows from what the array is."""
        shape = (self.rows, *self.shape)
        text = f"{{'descr': {self.dtype.str!r}, 'fortran_order': False, 'shape': {shape}, }}"
        length = -(len(text) + 11) % 64 + len(text) + 1
        line = text.ljust(length - 1) + "\n"
        return b"\x93NUMPY\x01\x00" + struct.pack("<H", length) + line.encode()

    def __str__(self) -> str:
        return typed(self.dtype, (self.rows, *self.shape))


def aligned(
    shape: Sequence[int], dtype: Any, make: Callable[..., np.ndarray] = np.empty
) -> np.ndarray:
    """An array that begins at a multiple of `ALIGNED` bytes, in bytes that `make` makes."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    raw = make(size + ALIGNED, np.uint8)
    start = -raw.ctypes.data % ALIGNED
    return raw[start : start + size].view(dtype).reshape(shape)


def fits(out: Any, shape: tuple[int, ...], dtype: np.dtype) -> bool:
    return (
        isinstance(out, np.ndarray)
        and (out.shape, out.dtype) == (shape, dtype)
        and out.flags.c_contiguous
        and out.flags.writeable
    )


def described(value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return f"a {type(value).__name__}"
    kind = "" if value.flags.c_contiguous else "strided "
    return kind + ("" if value.flags.writeable else "read-only ") + typed(value.dtype, value.shape)


def typed(dtype: np.dtype, shape: Sequence[object]) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"
