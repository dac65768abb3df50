"""Old dataset pickles, read without trusting them.

A pickle is a program that may call anything importable. Here it may name only the few globals
below, and each of them is replaced by a stand-in of ours: not even NumPy's or SciPy's own
unpickling code runs on the file's bytes. What the stand-ins hold is checked and then turned into
plain arrays. Before any of that, the opcodes are read one by one: the C unpickler would make room
for whatever index or length they name.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnnjit.errors import DataError


@dataclass(frozen=True)
class Csr:
    """A checked sparse matrix by rows: data [nnz], indices [nnz], indptr [rows + 1]."""

    data: np.ndarray
    indices: np.ndarray
    indptr: np.ndarray
    shape: tuple[int, int]

    def rows(self) -> np.ndarray:
        """int64 [nnz]: the row of each stored entry."""
        return np.repeat(np.arange(self.shape[0]), np.diff(self.indptr))

    def dense(self, where: str = "a sparse matrix") -> np.ndarray:
        """float32 [rows, columns]; entries stored twice add up, as in SciPy. Raises DataError
        naming `where` for what does not fit into memory."""
        try:
            out = np.zeros(self.shape, np.float32)
        except (MemoryError, ValueError) as error:
            raise DataError(
                f"{where}: the matrix has {self.shape[0]:,} x {self.shape[1]:,} elements, expected "
                "one that fits into memory. Is it the right file?"
            ) from error
        with np.errstate(over="ignore"):  # infinities are told where features are looked at
            np.add.at(out, (self.rows(), self.indices), self.data.astype(np.float32))
        return out


def check_csr(
    where: str, data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: Any
) -> Csr:
    """Build a `Csr` from arrays of unknown origin, or raise DataError naming `where`."""
    try:
        rows, columns = (int(side) for side in shape)
        data, indices, indptr = (np.asarray(part).reshape(-1) for part in (data, indices, indptr))
        steps = np.diff(indptr)
        sound = (
            min(rows, columns) >= 0
            and all(part.dtype.kind in "iu" for part in (indices, indptr))
            and data.dtype.kind in "iufb"
            and indptr.shape == (rows + 1,)
            and indptr[0] == 0
            and indptr[-1] == indices.shape[0] == data.shape[0]
            and (steps >= 0).all()
            and ((indices >= 0) & (indices < columns)).all()
        )
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: the sparse matrix cannot be read ({error}).") from error
    if not sound:
        raise DataError(
            f"{where}: the sparse matrix is inconsistent, expected row pointers that rise from 0 "
            f"to {data.shape[0]} over {rows} rows, and columns below {columns}. The file is "
            "damaged; get it again."
        )
    return Csr(data, indices.astype(np.int64), indptr.astype(np.int64), (rows, columns))


class _Dtype:
    """Stands for numpy.dtype: keeps the type code and the byte order, nothing else."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.code = code
        self.order = "|"

    def __setstate__(self, state: Any) -> None:
        self.order = state[1]

    def resolve(self) -> np.dtype:
        if not isinstance(self.code, str) or self.code[:1] not in "biufO":
            raise pickle.UnpicklingError(f"array of type {self.code!r}, expected numbers")
        order = self.order if self.order in ("<", ">") else "="
        return np.dtype(self.code).newbyteorder(order)


class _Array:
    """Stands for numpy.ndarray: keeps what the pickle says of the array."""

    def __init__(self, shape: Any = (0,), dtype: Any = None, raw: Any = b"", order: Any = "C"):
        self.shape, self.dtype, self.raw, self.order = shape, dtype, raw, order

    def __setstate__(self, state: Any) -> None:
        _, self.shape, self.dtype, fortran, self.raw = state
        self.order = "F" if fortran else "C"

    def resolve(self, where: str) -> np.ndarray:
        dtype = self.dtype.resolve()
        if dtype.hasobject:
            out = np.empty(len(self.raw), object)
            out[:] = [_resolve(item, where) for item in self.raw]
            return out.reshape(self.shape)
        raw = self.raw.encode("latin1") if isinstance(self.raw, str) else self.raw
        array = np.frombuffer(raw, dtype)
        if self.order == "F":
            return array.reshape(self.shape[::-1]).T
        return array.reshape(self.shape)


class _Matrix:
    """Stands for scipy.sparse.csr_matrix: keeps its attributes."""

    state: dict[str, Any]

    def __setstate__(self, state: Any) -> None:
        self.state = dict(state)

    def resolve(self, where: str) -> Csr:
        state = self.state
        data, indices, indptr = (_resolve(state[k], where) for k in ("data", "indices", "indptr"))
        return check_csr(where, data, indices, indptr, state.get("_shape", state.get("shape")))


def _resolve(value: Any, where: str) -> Any:
    """Replace a stand-in by the array or matrix it stands for; those in a list too."""
    if isinstance(value, list):
        return [v.resolve(where) if isinstance(v, _Array | _Matrix) else v for v in value]
    return value.resolve(where) if isinstance(value, _Array | _Matrix) else value


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _frombuffer(raw: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    return _Array(shape, dtype, raw, order)


def _plain_dict(*_: Any) -> dict:
    return {}


def _encode(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"bytes in encoding {encoding!r}, expected latin1")
    return text.encode("latin1")


_GLOBALS: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("collections", "defaultdict"): _plain_dict,
    ("collections", "OrderedDict"): _plain_dict,
    ("__builtin__", "list"): list,
    ("builtins", "list"): list,
    ("_codecs", "encode"): _encode,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _reconstruct for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _frombuffer for core in ("core", "_core")},
    **{
        (f"scipy.sparse.{module}", f"csr_{kind}"): _Matrix
        for module in ("csr", "_csr")
        for kind in ("matrix", "array")
    },
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, where: str) -> None:
        super().__init__(stream, encoding="latin1")
        self.where = where

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _GLOBALS[module, name]
        except KeyError:
            raise DataError(
                f"{self.where}: the pickle asks for {module}.{name}, expected only NumPy arrays, "
                "SciPy CSR matrices, dicts and lists. The file is not this dataset; nothing in it "
                "was run. Get it from its original source."
            ) from None


_OPCODES = {ord(op.code): op for op in pickletools.opcodes}
_REFUSED = {
    "PERSID", "BINPERSID", "EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "READONLY_BUFFER", "NEWOBJ_EX",
}  # fmt: skip
"""Opcodes of pickles that need more than their own bytes, or keyword arguments."""
_LENGTHS = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
"""Bytes of the length that some arguments begin with."""


def _check_opcodes(raw: bytes) -> None:
    """Raises UnpicklingError for an opcode that is refused or unknown, an argument that runs past
    the end, or a number in the memo larger than the file could need."""
    at = 0
    while True:
        if at >= len(raw):
            raise EOFError("Ran out of input")
        op = _OPCODES.get(raw[at])
        if op is None or op.name in _REFUSED:
            found = op.name if op else f"{raw[at]:#04x}"
            raise pickle.UnpicklingError(f"byte {at:,} is {found}, expected an opcode of arrays")
        at += 1
        end = _end_of_argument(raw, at, op)
        if end > len(raw):
            raise EOFError(f"{op.name} at byte {at - 1:,} runs past the end")
        if op.name in ("PUT", "BINPUT", "LONG_BINPUT"):
            text = raw[at:end]
            number = int(text) if op.name == "PUT" else int.from_bytes(text, "little")
            if not 0 <= number <= len(raw):
                raise pickle.UnpicklingError(
                    f"{op.name} at byte {at - 1:,} names entry {number:,} of the memo"
                )
        if op.name == "STOP":
            return
        at = end


def _end_of_argument(raw: bytes, at: int, op: pickletools.OpcodeInfo) -> int:
    """Where the argument that begins at `at` ends; past the end of `raw` where it does."""
    if op.arg is None:
        return at
    if op.arg.n >= 0:
        return at + op.arg.n
    if op.arg.n == pickletools.UP_TO_NEWLINE:
        for _ in range(2 if op.name in ("GLOBAL", "INST") else 1):
            at = raw.find(b"\n", at) + 1
            if at == 0:
                return len(raw) + 1
        return at
    size = _LENGTHS[op.arg.n]
    length = int.from_bytes(raw[at : at + size], "little")
    return at + size + length


def load_pickle(raw: bytes, where: str) -> Any:
    """The value in a pickle of arrays, `Csr` matrices, dicts, lists and numbers.

    Args:
      raw: the file's bytes, of any pickle protocol (Python 2's included).
      where: the file's name, for messages.

    Raises:
      DataError: if the pickle names any other global, is cut short or is no pickle.
    """
    try:
        _check_opcodes(raw)
        return _resolve(_Unpickler(io.BytesIO(raw), where).load(), where)
    except DataError:
        raise
    except Exception as error:  # a damaged pickle may raise anything at all
        why = f"{type(error).__name__}: {str(error)[:200]}"
        raise DataError(
            f"{where}: not a readable pickle ({why}), expected a pickle of arrays; got "
            f"{len(raw):,} bytes. The file is cut short or another kind of file; get it again."
        ) from error
