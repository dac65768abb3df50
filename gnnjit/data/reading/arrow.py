"""Tables of any library that hands them out by Arrow's C stream, read without a library of Arrow.

The format is `__arrow_c_stream__` of the Arrow PyCapsule interface over the Arrow C data interface:
structs of pointers, which belong to the producer until they are released. Columns are copied.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_int64, c_void_p
from itertools import pairwise
from typing import Any

import numpy as np

from gnnjit.errors import DataError
from gnnjit.shapes import HostArray


class _Schema(ctypes.Structure):
    pass


_Schema._fields_ = [
    ("format", c_char_p),
    ("name", c_char_p),
    ("metadata", c_void_p),
    ("flags", c_int64),
    ("n_children", c_int64),
    ("children", POINTER(POINTER(_Schema))),
    ("dictionary", POINTER(_Schema)),
    ("release", ctypes.CFUNCTYPE(None, POINTER(_Schema))),
    ("private_data", c_void_p),
]


class _Array(ctypes.Structure):
    pass


_Array._fields_ = [
    ("length", c_int64),
    ("null_count", c_int64),
    ("offset", c_int64),
    ("n_buffers", c_int64),
    ("n_children", c_int64),
    ("buffers", POINTER(c_void_p)),
    ("children", POINTER(POINTER(_Array))),
    ("dictionary", POINTER(_Array)),
    ("release", ctypes.CFUNCTYPE(None, POINTER(_Array))),
    ("private_data", c_void_p),
]


class _Stream(ctypes.Structure):
    pass


_Stream._fields_ = [
    ("get_schema", ctypes.CFUNCTYPE(c_int, POINTER(_Stream), POINTER(_Schema))),
    ("get_next", ctypes.CFUNCTYPE(c_int, POINTER(_Stream), POINTER(_Array))),
    ("get_last_error", ctypes.CFUNCTYPE(c_char_p, POINTER(_Stream))),
    ("release", ctypes.CFUNCTYPE(None, POINTER(_Stream))),
    ("private_data", c_void_p),
]

_NUMBERS = {
    "c": "i1", "C": "u1", "s": "i2", "S": "u2", "i": "i4", "I": "u4", "l": "i8", "L": "u8",
    "e": "f2", "f": "f4", "g": "f8", "tdD": "M8[D]", "tdm": "M8[ms]",
}  # fmt: skip
_TEXTS = ("u", "U", "vu")


def arrow_columns(table: Any) -> dict[str, HostArray]:
    """The columns of a table by name, copied to NumPy: numbers, bool, texts and times; columns of
    other types are left out. Missing numbers are NaN, missing texts None.

    Raises:
      DataError: the stream has no columns, or its producer fails.
    """
    capsule = table.__arrow_c_stream__()
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = c_void_p, [ctypes.py_object, c_char_p]
    stream = ctypes.cast(get(capsule, b"arrow_array_stream"), POINTER(_Stream))
    schema = _Schema()
    _check(stream, stream.contents.get_schema(stream, schema))
    try:
        if (schema.format or b"") != b"+s":
            raise DataError("read_edges: got a stream of Arrow without columns, expected a table.")
        kinds = [schema.children[i].contents for i in range(schema.n_children)]
        pieces: dict[str, list[HostArray]] = {
            kind.name.decode(): [] for kind in kinds if _is_known(kind)
        }
        array = _Array()
        while True:
            _check(stream, stream.contents.get_next(stream, array))
            if not array.release:
                break
            try:
                for i, kind in enumerate(kinds):
                    if _is_known(kind):
                        column = array.children[i].contents
                        start = array.offset + column.offset
                        values = _values(kind, column, start, array.length)
                        pieces[kind.name.decode()].append(values)
            finally:
                array.release(array)
    finally:
        schema.release(schema)
    empty = np.zeros(0, np.int64)
    return {name: np.concatenate(some) if some else empty for name, some in pieces.items()}


def _check(stream: Any, code: int) -> None:
    if code:
        said = stream.contents.get_last_error(stream) or b"no reason given"
        raise DataError(
            f"read_edges: the producer of the Arrow stream failed ({code}: "
            f"{said.decode('utf-8', 'replace')[:200]}). Read the table in its own library first."
        )


def _is_known(kind: Any) -> bool:
    code = kind.dictionary.contents.format if kind.dictionary else kind.format
    text = code.decode()
    return text in _NUMBERS or text in _TEXTS or text == "b" or text.startswith(("ts", "d:"))


def _values(kind: Any, column: Any, start: int, count: int) -> HostArray:
    """Rows `start` to `start + count` of a column, copied."""
    code = kind.format.decode()
    if kind.dictionary:
        index = _values_plain(code, column, start, count)
        words = column.dictionary.contents
        known = _values(kind.dictionary.contents, words, words.offset, words.length)
        found = known[np.where(index < len(known), index, 0)] if len(known) else known
    else:
        found = _values_plain(code, column, start, count)
    missing = _missing(column, start, count)
    if missing is None or not missing.any():
        return found
    if found.dtype.kind == "M":
        return np.where(missing, np.datetime64("NaT"), found)
    if found.dtype.kind in "UO":
        words = found.astype(object)
        words[missing] = None
        return words
    return np.where(missing, np.nan, found.astype(np.float64))


def _buffer(column: Any, index: int, size: int) -> HostArray:
    """uint8[size]: bytes of a buffer, where they are."""
    address = column.buffers[index]
    if not size or not address:
        return np.zeros(size, np.uint8)
    raw = ctypes.cast(address, POINTER(ctypes.c_uint8))
    return np.ctypeslib.as_array(raw, (size,))


def _bits(column: Any, index: int, start: int, count: int) -> HostArray:
    packed = _buffer(column, index, (start + count + 7) // 8)
    return np.unpackbits(packed, bitorder="little")[start : start + count].astype(bool)


def _missing(column: Any, start: int, count: int) -> HostArray | None:
    if column.null_count == 0 or not column.n_buffers or not column.buffers[0]:
        return None
    return ~_bits(column, 0, start, count)


def _values_plain(code: str, column: Any, start: int, count: int) -> HostArray:
    if code == "b":
        return _bits(column, 1, start, count)
    if code in _TEXTS:
        return _texts(code, column, start, count)
    if code.startswith("d:"):
        return _decimals(code, column, start, count)
    if code.startswith("ts"):
        dtype = np.dtype({"s": "M8[s]", "m": "M8[ms]", "u": "M8[us]", "n": "M8[ns]"}[code[2]])
    else:
        dtype = np.dtype(_NUMBERS[code])
    raw = "i4" if code == "tdD" else f"i{dtype.itemsize}" if dtype.kind == "M" else dtype
    size = np.dtype(raw).itemsize
    values = _buffer(column, 1, (start + count) * size)[start * size :].view(raw).copy()
    return values.astype(np.int64).view(dtype) if dtype.kind == "M" else values


def _decimals(code: str, column: Any, start: int, count: int) -> HostArray:
    """Whole numbers of 32 bits to 256, over a power of ten, as float64."""
    said = [int(word) for word in code[2:].split(",")]
    scale, bits = said[1], said[2] if len(said) > 2 else 128
    size = bits // 8
    raw = _buffer(column, 1, (start + count) * size)[start * size :]
    if size <= 8:
        return raw.view(f"i{size}") / 10.0**scale
    words = raw.view(np.uint64).reshape(count, -1)
    value = words[:, -1].astype(np.int64).astype(np.float64)  # the highest has the sign
    for word in words.T[-2::-1]:
        value = value * 2.0**64 + word
    return value / 10.0**scale


def _texts(code: str, column: Any, start: int, count: int) -> HostArray:
    if code == "vu":
        return _text_views(column, start, count)
    size = 4 if code == "u" else 8
    raw = _buffer(column, 1, (start + count + 1) * size)[start * size :]
    bounds = raw.view(f"i{size}").astype(np.int64)
    text = _buffer(column, 2, int(bounds[-1])).tobytes()
    found = [text[a:b].decode() for a, b in pairwise(bounds.tolist())]
    return np.array(found) if found else np.zeros(0, "U1")


def _text_views(column: Any, start: int, count: int) -> HostArray:
    """Sixteen bytes a text: its length, and up to 12 bytes itself, or which buffer and where."""
    views = _buffer(column, 1, (start + count) * 16)[start * 16 :].view("<i4").reshape(-1, 4)
    further = column.n_buffers - 3  # validity, views, and at the end their sizes
    sizes = _buffer(column, column.n_buffers - 1, 8 * further).view(np.int64)
    buffers = [_buffer(column, 2 + i, int(sizes[i])).tobytes() for i in range(further)]
    found = []
    for view in views:
        length = int(view[0])
        if length <= 12:
            found.append(view[1:].tobytes()[:length].decode())
        else:
            at = int(view[3])
            found.append(buffers[view[2]][at : at + length].decode())
    return np.array(found) if found else np.zeros(0, "U1")
