"""Rows of features by number: from memory, from a file, or on the device."""

from __future__ import annotations

import collections
import dataclasses
import math
from typing import Any

import jax
import numpy as np
from numba import njit

from gnnjit.errors import SampleError
from gnnjit.graph.hosting import on_host
from gnnjit.graph.reading import read_array
from gnnjit.sample.adjacency import read_only
from gnnjit.sample.workers import ALONE, Workers
from gnnjit.shapes import HostArray, PyTree
from gnnjit.store.array_info import aligned
from gnnjit.store.store import VertexStore

KEPT = 4
"""Buffers of an array that are kept for the next batches."""


@dataclasses.dataclass(frozen=True, eq=False)
class Stored:
    """The array `name` of a store, as features. A leaf of a pytree."""

    store: VertexStore
    name: str


class Features:
    """A pytree of arrays with `rows` rows each, of which rows are looked up by number.

    Arrays of NumPy, mapped files among them, arrays of JAX that lie in host memory, and `Stored`
    ones are read on the host. Arrays of JAX on an accelerator are read there.

    Raises:
        SampleError: an array has another number of rows.
    """

    def __init__(self, where: str, tree: PyTree, rows: int) -> None:
        found, self._structure = jax.tree_util.tree_flatten_with_path(tree)
        self._leaves = [
            _read(where + jax.tree_util.keystr(path), leaf, rows) for path, leaf in found
        ]
        self.rows = rows
        self._buffers = [_Buffers(leaf) for leaf in self._leaves]
        self._on_device = [isinstance(leaf, jax.Array) for leaf in self._leaves]

    @property
    def on_host(self) -> bool:
        """Whether an array is read on the host."""
        return not all(self._on_device)

    @property
    def on_device(self) -> bool:
        """Whether an array is read on an accelerator."""
        return any(self._on_device)

    def room(self, rows: int) -> list[HostArray | None]:
        """An array of `rows` rows for each one that is read on the host. They begin where JAX on a
        CPU takes an array without a copy."""
        return [
            None if on_device else buffers.lend(rows)
            for buffers, on_device in zip(self._buffers, self._on_device, strict=True)
        ]

    def look_up(
        self,
        index: HostArray,
        out: list[HostArray | None],
        begin: int,
        workers: Workers = ALONE,
    ) -> None:
        """Rows `index` into the rows of `out`, which `room` gave, from `begin` on."""
        for leaf, array in zip(self._leaves, out, strict=True):
            if array is not None:
                leaf.take(index, array[begin : begin + len(index)], workers)

    def joined(self, host: list[Any], vertices: Any, put: Any) -> PyTree:
        """The pytree of what was looked up on the host, moved by `put`, and of rows `vertices`
        (padding is `rows`) of what lies on the device."""
        leaves = [
            _on_device(leaf, vertices) if array is None else put(array)
            for leaf, array in zip(self._leaves, host, strict=True)
        ]
        return jax.tree.unflatten(self._structure, leaves)


@jax.jit
def _on_device(leaf: jax.Array, vertices: jax.Array) -> jax.Array:
    """Rows of an array, and zeros for numbers past the last."""
    return leaf.at[vertices].get(mode="fill", fill_value=0)


class _Buffers:
    """Arrays for rows of one leaf. What is lent comes back when nothing refers to it any more, JAX
    included: memory that the system has yet to give costs as much time as the rows."""

    def __init__(self, leaf: Any) -> None:
        self._shape, self._dtype = tuple(leaf.shape), np.dtype(leaf.dtype)
        self._row_bytes = math.prod(self._shape) * self._dtype.itemsize
        self._free: collections.deque[HostArray] = collections.deque(maxlen=KEPT)

    def lend(self, rows: int) -> HostArray:
        """`[rows, ...]`, which holds anything."""
        size = rows * self._row_bytes
        try:
            raw = self._free.pop()
        except IndexError:
            raw = None
        if raw is None or len(raw) < size:
            raw = aligned((size,), np.uint8)
        lent = np.asarray(_Loan(raw, self._free))
        return lent[:size].view(self._dtype).reshape(rows, *self._shape)


class _Loan:
    """What all views of a buffer refer to: it gives the buffer back when the last is gone."""

    def __init__(self, raw: HostArray, free: collections.deque[HostArray]) -> None:
        self.__array_interface__ = raw.__array_interface__
        self._raw, self._free = raw, free

    def __del__(self) -> None:
        self._free.append(self._raw)


class _InMemory:
    """Rows of an array, in whole words: one loop serves all types."""

    def __init__(self, array: HostArray) -> None:
        self._array = array
        self.shape, self.dtype = array.shape[1:], array.dtype
        self._words = _words(array)

    def take(self, index: HostArray, out: HostArray, workers: Workers) -> None:
        if self._words is None:
            out[...] = self._array[index]
            return
        words = self._words
        target = out.reshape(len(out), -1).view(words.dtype) if out.size else None
        if target is None:
            return
        index = read_only(index)
        workers.run(lambda b, e: _copy_rows(words, index, b, e, target), len(index))


class _InStore:
    """Rows of an array of a store."""

    def __init__(self, leaf: Stored) -> None:
        info = leaf.store.info(leaf.name)
        self._store, self._name = leaf.store, leaf.name
        self.shape, self.dtype = info.shape, info.dtype

    def take(self, index: HostArray, out: HostArray, workers: Workers) -> None:
        out[...] = self._store.gather(self._name, index)


def _read(name: str, leaf: Any, rows: int) -> Any:
    """What reads the rows of a leaf. Raises SampleError where it has another number of them."""
    if isinstance(leaf, Stored):
        info = leaf.store.info(leaf.name)
        _check_rows(name, (info.rows, *info.shape), rows)
        return _InStore(leaf)
    array = read_array(name, leaf)
    _check_rows(name, array.shape, rows)
    if isinstance(array, jax.Array):
        if _on_accelerator(array):
            return array
        if not on_host(array):
            raise SampleError(
                f"{name} is spread over devices, or traced, expected an array that is whole: pass "
                f"a NumPy array"
            )
    if np.asarray(array).dtype.hasobject:
        raise SampleError(f"{name} has dtype {array.dtype}, expected numbers")
    return _InMemory(np.asarray(array))


def _on_accelerator(array: jax.Array) -> bool:
    return any(device.platform != "cpu" for device in array.sharding.device_set)


def _check_rows(name: str, shape: tuple[int, ...], rows: int) -> None:
    if shape[:1] != (rows,):
        raise SampleError(
            f"{name} has shape {tuple(shape)}, expected ({rows}, ...): one row for each, in the "
            f"graph's numbering"
        )


def _words(array: HostArray) -> HostArray | None:
    """`uint[rows, words]`, the same bytes; None of an array that is not contiguous or empty."""
    if not array.flags.c_contiguous or not array.size:
        return None
    size = array[:1].nbytes
    fit = [w for w in (8, 4, 2, 1) if size % w == 0 and array.ctypes.data % w == 0]
    return read_only(array.reshape(len(array), -1).view(np.dtype(f"u{fit[0]}")))


@njit(nogil=True, cache=True)
def _copy_rows(values, index, begin, end, out):  # type: ignore[no-untyped-def]
    for i in range(begin, end):
        row = index[i]
        for j in range(values.shape[1]):
            out[i, j] = values[row, j]
