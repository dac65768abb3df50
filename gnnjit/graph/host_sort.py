"""Counting sorts on the host, on all its cores: what the structures of concrete graphs come from.

Edges are dealt into bins of neighbouring rows, and each bin, whose slots fit a cache, is sorted.
Both steps count first, and then each edge goes to the next place of its bin or row. Threads deal
blocks of edges that lie one after the other. The first place of a block in a bin is known from the
counts of the blocks before it, so the sort is stable and has one result, whatever the number of
threads.
"""

from __future__ import annotations

import concurrent.futures
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from gnnjit.config import cores
from gnnjit.graph import hosting
from gnnjit.shapes import HostArray

try:
    from gnnjit.graph import sort_code
except (ImportError, OSError):  # no LLVM
    sort_code = None

LEAST = 1 << 19
"""Edges from which on the code is used: it takes 12 ms to compile, once in a process."""

FEW = 1 << 15
"""Edges below which NumPy sorts: to import SciPy's matrices takes a tenth of a second."""

BIN_BITS = 9
"""The base-2 logarithm of the number of bins: each has a cache line that is being written."""

INDICES = (np.int32, np.int64)

Sorted = tuple[HostArray, HostArray, HostArray]


def counting_sort(key: HostArray, payload: HostArray, num_keys: int) -> Sorted:
    """(first slot of each key, payload by slot, position by slot), stable. Keys are in range.

    On one core, with 4 bytes an edge beside the result, where `counting_sorts` takes 12 or more.
    SciPy's conversion from CSC to CSR is exactly this sort: take one column per edge.
    """
    if len(key) < FEW:
        dtype = np.int32 if np.can_cast(key.dtype, np.int32) else np.int64  # as SciPy has them
        order, indptr = np.argsort(key, kind="stable"), np.zeros(num_keys + 1, dtype)
        np.cumsum(np.bincount(key, minlength=num_keys), out=indptr[1:])
        return indptr, payload[order], order.astype(dtype)

    import scipy.sparse

    columns = np.arange(len(key) + 1, dtype=key.dtype)
    matrix = scipy.sparse.csc_array((payload, key, columns), shape=(num_keys, len(key)))
    rows = matrix.tocsr()
    return rows.indptr, rows.data, rows.indices


def counting_sorts(sorts: Sequence[tuple[HostArray, HostArray, int]]) -> list[Sorted]:
    """Several of them at a time, on all cores where edges are many."""
    if max(len(key) for key, _, _ in sorts) < LEAST:
        return [_sort(*each, 1) for each in sorts]
    threads = max(1, cores() // len(sorts))
    return _in_threads(_sort, [(*each, threads) for each in sorts])


def _sort(key: HostArray, payload: HostArray, num_keys: int, threads: int) -> Sorted:
    fits = key.dtype in INDICES and payload.itemsize in (4, 8)
    if sort_code is None or len(key) < LEAST or not fits:
        return counting_sort(key, payload, num_keys)
    key, payload = (np.require(a, None, ["C", "A"]) for a in (key, payload))
    return _by_code(key, payload, num_keys, threads)


def _by_code(key: HostArray, payload: HostArray, num_keys: int, threads: int) -> Sorted:
    assert sort_code is not None
    code, dtype = sort_code.parts(key.itemsize, payload.itemsize), key.dtype
    shift = max(0, (num_keys - 1).bit_length() - BIN_BITS)
    bins = ((num_keys - 1) >> shift) + 1
    blocks = list(itertools.pairwise(len(key) * k // threads for k in range(threads + 1)))

    counts = np.zeros((threads, bins), dtype)
    _in_threads(code.count, [(key, *b, shift, n) for b, n in zip(blocks, counts, strict=True)])
    starts = np.zeros(bins + 1, dtype)
    np.cumsum(counts.sum(0), out=starts[1:])
    places = starts[:-1] + np.cumsum(counts, 0, dtype=dtype) - counts

    records = np.empty(len(key) * code.record, np.uint8)
    dealt = zip(blocks, places, strict=True)
    _in_threads(code.deal, [(key, payload, *b, shift, first, records) for b, first in dealt])

    indptr = hosting.empty(num_keys + 1, dtype)
    neighbor, edge = hosting.empty(len(key), payload.dtype), hosting.empty(len(key), dtype)
    outputs = indptr, neighbor, edge
    scratch = np.empty((threads, 1 << shift), dtype)
    parts = zip(_parts_of_bins(starts, threads), scratch, strict=True)
    _in_threads(
        code.finish, [(records, *p, starts, shift, num_keys, own, *outputs) for p, own in parts]
    )
    return outputs


def _parts_of_bins(starts: HostArray, threads: int) -> Iterable[tuple[int, int]]:
    """Bins from one to another, with about as many edges in each part."""
    ideal = np.arange(1, threads) * int(starts[-1]) // threads
    inner = np.searchsorted(starts[1:-1], ideal).tolist()
    return itertools.pairwise([0, *inner, len(starts) - 1])


def _in_threads(function: Callable[..., Any], calls: Sequence[Sequence[Any]]) -> list[Any]:
    if len(calls) == 1:
        return [function(*calls[0])]
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(function, *zip(*calls, strict=True)))
