"""The stored entries of a SciPy matrix, each format read in NumPy alone.

SciPy's compiled code believes what is in a matrix: one whose `indptr` runs past its data reads past
the memory. Nothing here is converted before it is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gnnjit.errors import GraphError
from gnnjit.graph.reading import is_integer, is_number, read_on_host
from gnnjit.graph.validate import cut
from gnnjit.shapes import HostArray

Entries = tuple[HostArray, HostArray, HostArray]
"""`(row[E], column[E], value[E])`."""

MEND = "build the matrix again from its rows, columns and values with scipy.sparse.coo_array"


def entries(matrix: Any) -> Entries:
    """The entries of a two-dimensional sparse matrix, in the order in which it stores them,
    duplicates and zeros included.

    Raises GraphError if its arrays do not fit each other or its shape.
    """
    read = _FORMATS.get(matrix.format)
    if read is None:
        raise _error(matrix, f"the format {cut(str(matrix.format))}", "one of SciPy's own")
    return read(matrix)


def _error(matrix: Any, got: str, expected: str) -> GraphError:
    return GraphError(
        f"from_scipy() got a {cut(type(matrix).__name__)} of shape {cut(str(matrix.shape))} with "
        f"{got}, expected {expected}: {MEND}"
    )


def _array(matrix: Any, name: str, ndim: int) -> HostArray:
    """An array of the matrix, of so many dimensions."""
    try:
        value = getattr(matrix, name)
    except Exception as error:  # of a property that SciPy computes of others
        raise _error(matrix, f"no {name}", "one") from error
    array = read_on_host(f"the matrix's {name}", value)
    if array.ndim != ndim:
        raise _error(matrix, f"{name} of shape {cut(str(array.shape))}", f"{ndim} dimensions")
    return array


def _data(matrix: Any, ndim: int) -> HostArray:
    """The values, which are numbers."""
    array = _array(matrix, "data", ndim)
    if not is_number(array.dtype):
        raise _error(matrix, f"values of type {cut(str(array.dtype))}", "numbers")
    return array


def _integers(matrix: Any, name: str) -> HostArray:
    return _as_integers(matrix, name, _array(matrix, name, 1))


def _as_integers(matrix: Any, name: str, array: HostArray) -> HostArray:
    if array.size and not is_integer(array.dtype):
        raise _error(matrix, f"{name} of type {cut(str(array.dtype))}", "integers")
    return array if array.size else array.astype(np.int32)


def _in_range(matrix: Any, name: str, index: HostArray, count: int) -> None:
    outside = (index < 0) | (index >= count)
    if outside.any():
        at = int(outside.argmax())
        raise _error(matrix, f"{name}[{at}] = {index[at]}", f"0 to {count - 1}")


def _same_length(matrix: Any, **lengths: int) -> None:
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} of length {n}" for name, n in lengths.items())
        raise _error(matrix, found, "one length")


def _pointers(matrix: Any, rows: int, stored: int) -> HostArray:
    """`indptr`, which rises from 0 to at most the number of entries that are stored."""
    indptr = _integers(matrix, "indptr")
    if len(indptr) != rows + 1:
        raise _error(matrix, f"indptr of length {len(indptr)}", f"{rows + 1}")
    falls = indptr[1:] < indptr[:-1]
    if falls.any():
        at = int(falls.argmax()) + 1
        got = f"indptr[{at}] = {indptr[at]} after {indptr[at - 1]}"
        raise _error(matrix, got, "numbers that do not fall")
    if indptr[0] != 0 or indptr[-1] > stored:
        got = f"indptr from {indptr[0]} to {indptr[-1]}"
        raise _error(matrix, got, f"0 to at most {stored}, the number of its indices")
    return indptr.astype(np.int64)


def _compressed(matrix: Any, major: int, minor: int, data: HostArray) -> Entries:
    """Indices along the compressed axis, indices along the other one, and values."""
    indices = _integers(matrix, "indices")
    _same_length(matrix, indices=len(indices), data=len(data))
    indptr = _pointers(matrix, major, len(indices))
    indices = indices[: indptr[-1]]
    _in_range(matrix, "indices", indices, minor)
    return np.repeat(np.arange(major), np.diff(indptr)), indices, data[: indptr[-1]]


def _csr(matrix: Any) -> Entries:
    major, minor = matrix.shape
    return _compressed(matrix, major, minor, _data(matrix, 1))


def _csc(matrix: Any) -> Entries:
    minor, major = matrix.shape
    columns, rows, values = _compressed(matrix, major, minor, _data(matrix, 1))
    return rows, columns, values


def _bsr(matrix: Any) -> Entries:
    data = _data(matrix, 3)
    high, wide = data.shape[1:]
    if not (high and wide) or matrix.shape[0] % high or matrix.shape[1] % wide:
        raise _error(matrix, f"blocks of {high} x {wide}", "blocks that divide its shape")
    major, minor = matrix.shape[0] // high, matrix.shape[1] // wide
    block_row, block_column, blocks = _compressed(matrix, major, minor, data)
    shape = blocks.shape
    row = block_row[:, None, None] * high + np.arange(high)[:, None]
    column = block_column.astype(np.int64)[:, None, None] * wide + np.arange(wide)
    return (
        np.broadcast_to(row, shape).ravel(), np.broadcast_to(column, shape).ravel(), blocks.ravel()
    )  # fmt: skip


def _coo(matrix: Any) -> Entries:
    row, column = _integers(matrix, "row"), _integers(matrix, "col")
    data = _data(matrix, 1)
    _same_length(matrix, row=len(row), col=len(column), data=len(data))
    _in_range(matrix, "row", row, matrix.shape[0])
    _in_range(matrix, "col", column, matrix.shape[1])
    return row, column, data


def _dia(matrix: Any) -> Entries:
    """By row, then column. SciPy takes a zero on a diagonal for an entry that is not stored."""
    data, offsets = _data(matrix, 2), _integers(matrix, "offsets")
    _same_length(matrix, data=len(data), offsets=len(offsets))
    if len(np.unique(offsets)) != len(offsets):
        raise _error(matrix, "a diagonal that is there twice", "each offset once")
    column = np.broadcast_to(np.arange(data.shape[1]), data.shape)
    row = column - offsets.astype(np.int64)[:, None]
    stored = (row >= 0) & (row < matrix.shape[0]) & (column < matrix.shape[1]) & (data != 0)
    row, column, data = row[stored], column[stored], data[stored]
    order = np.lexsort((column, row))
    return row[order], column[order], data[order]


def _dok(matrix: Any) -> Entries:
    keys = list(matrix.keys())
    pairs = read_on_host("the matrix's keys", keys).reshape(len(keys), -1)
    if keys and pairs.shape[1] != 2:
        raise _error(matrix, f"keys of {pairs.shape[1]} numbers", "(row, column)")
    pairs = _as_integers(matrix, "keys", pairs.reshape(-1, 2))
    row, column = pairs.T
    _in_range(matrix, "row of key ", row, matrix.shape[0])
    _in_range(matrix, "column of key ", column, matrix.shape[1])
    return row, column, _values(matrix, list(matrix.values()))


def _lil(matrix: Any) -> Entries:
    rows, data = _array(matrix, "rows", 1), _array(matrix, "data", 1)
    _same_length(matrix, rows=len(rows), data=len(data), shape=matrix.shape[0])
    for i, (indices, values) in enumerate(zip(rows, data, strict=True)):
        if not (isinstance(indices, list) and isinstance(values, list)):
            raise _error(matrix, f"rows[{i}] or data[{i}] that is no list", "lists")
        if len(indices) != len(values):
            got = f"{len(indices)} columns and {len(values)} values in row {i}"
            raise _error(matrix, got, "as many")
    lengths = [len(indices) for indices in rows]
    column = read_on_host("the matrix's rows", [c for indices in rows for c in indices])
    column = _as_integers(matrix, "rows", column)
    if column.ndim != 1:
        raise _error(matrix, "rows of lists", "column numbers")
    _in_range(matrix, "columns", column, matrix.shape[1])
    values = [v for some in data for v in some]
    return np.repeat(np.arange(len(rows)), lengths), column, _values(matrix, values)


def _values(matrix: Any, values: list[Any]) -> HostArray:
    """Checked, in the type of the matrix."""
    array = read_on_host("the matrix's values", values)
    if values and (array.ndim != 1 or not is_number(array.dtype)):
        raise _error(matrix, f"values of type {cut(str(array.dtype))}", "numbers")
    return array.astype(matrix.dtype)


_FORMATS: dict[str, Callable[[Any], Entries]] = {
    "csr": _csr, "csc": _csc, "bsr": _bsr, "coo": _coo, "dia": _dia, "dok": _dok, "lil": _lil,
}  # fmt: skip
