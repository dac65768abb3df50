"""Which edges of a vertex are drawn.

`rows` are vertices; row `i` may draw from the slots `indptr[rows[i]]` to `stop[i] - 1`, and its
picks are those from `begin[i]` to `begin[i + 1] - 1`. Its random numbers are those of the stream
`first + i` of a key.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from gnnjit.sample import random
from gnnjit.sample.prefetching import prefetch
from gnnjit.sample.random import below, stream
from gnnjit.sample.workers import Workers
from gnnjit.shapes import HostArray

AHEAD = 16
"""Rows that memory is asked for before it is read."""

_NOTHING = np.empty(0, np.float64)
_NOTHING.flags.writeable = False


def stops(
    indptr: HostArray, rows: HostArray, slot_times: Any, times: Any, workers: Workers
) -> HostArray:
    """`int64[rows]`: where the slots end that a row may draw from; with times, which rise within a
    vertex's slots, those that are no later than the row's."""
    out = np.empty(len(rows), np.int64)
    if slot_times is None:
        workers.run(lambda b, e: _row_ends(indptr, rows, b, e, out), len(rows))
    else:
        workers.run(lambda b, e: _until(indptr, rows, slot_times, times, b, e, out), len(rows))
    return out


def begins(
    indptr: HostArray,
    stop: HostArray,
    rows: HostArray,
    weights: HostArray | None,
    sums: HostArray | None,
    fanout: int,
    replace: bool,
    workers: Workers,
) -> HostArray:
    """`int64[rows + 1]`: the first pick of each row."""
    counts = np.zeros(len(rows) + 1, np.int64)
    if sums is not None:
        weights = None
    given = _NOTHING if weights is None else weights
    total = _NOTHING if sums is None else sums
    workers.run(
        lambda b, e: _count(indptr, stop, rows, given, total, fanout, replace, b, e, counts),
        len(rows),
    )
    return np.cumsum(counts)


def taken(values: HostArray, index: HostArray, workers: Workers) -> HostArray:
    """`values[index]`."""
    out = np.empty(len(index), values.dtype)
    workers.run(lambda b, e: _take(values, index, b, e, out), len(index))
    return out


def all_slots(
    indptr: HostArray, stop: HostArray, rows: HostArray, begin: HostArray, workers: Workers
) -> HostArray:
    """`int64[picks]`: every slot of every row."""
    slots = np.empty(begin[-1], np.int64)
    workers.run(lambda b, e: _all(indptr, stop, rows, begin, b, e, slots), len(rows))
    return slots


def picked(
    draw: Any, indptr: HostArray, stop: HostArray, rows: HostArray, begin: HostArray, first: int,
    key: np.uint64, values: HostArray, workers: Workers,
) -> HostArray:  # fmt: skip
    """`int64[picks]`: the slots that `draw` picks, one of `uniform`, `uniform_again`, `by_weight`
    and `by_sums`; `values` are what it reads for each slot of the graph."""
    slots = np.empty(begin[-1], np.int64)
    workers.run(
        lambda b, e: draw(indptr, stop, rows, begin, first, key, values, b, e, slots), len(rows)
    )
    return slots


@njit(nogil=True, cache=True)
def degrees(indptr, vertices):  # type: ignore[no-untyped-def]
    """`int32[n]`: the in-edges of some vertices."""
    out = np.empty(len(vertices), np.int32)
    for i in range(len(vertices)):
        if i + AHEAD < len(vertices):
            prefetch(indptr, vertices[i + AHEAD])
        out[i] = indptr[vertices[i] + 1] - indptr[vertices[i]]
    return out


@njit(nogil=True, cache=True)
def sums_by_row(indptr, weights):  # type: ignore[no-untyped-def]
    """`float64[E]`: in each row, the sum of the weights up to and with this slot's."""
    out = np.empty_like(weights)
    for row in range(len(indptr) - 1):
        total = 0.0
        for slot in range(indptr[row], indptr[row + 1]):
            total += weights[slot]
            out[slot] = total
    return out


@njit(nogil=True, cache=True)
def _row_ends(indptr, rows, begin, end, out):  # type: ignore[no-untyped-def]
    for i in range(begin, end):
        if i + AHEAD < end:
            prefetch(indptr, rows[i + AHEAD])
        out[i] = indptr[rows[i] + 1]


@njit(nogil=True, cache=True)
def _until(indptr, rows, slot_times, times, begin, end, out):  # type: ignore[no-untyped-def]
    for i in range(begin, end):
        low, high = np.int64(indptr[rows[i]]), np.int64(indptr[rows[i] + 1])
        while low < high:
            middle = (low + high) // 2
            if slot_times[middle] <= times[i]:
                low = middle + 1
            else:
                high = middle
        out[i] = low


@njit(nogil=True, cache=True)
def _count(indptr, stop, rows, weights, sums, fanout, replace, begin, end, counts):  # type: ignore[no-untyped-def]
    for i in range(begin, end):
        first = np.int64(indptr[rows[i]])
        count = stop[i] - first
        if len(sums) > 0 and count > 0 and not sums[stop[i] - 1] > 0:
            count = 0
        if len(weights) > 0:
            count = 0
            for slot in range(first, stop[i]):
                count += weights[slot] > 0
        if fanout >= 0 and (count > fanout or (replace and count > 0)):
            count = fanout
        counts[i + 1] = count


@njit(nogil=True, cache=True)
def _take(values, index, begin, end, out):  # type: ignore[no-untyped-def]
    for i in range(begin, end):
        out[i] = values[index[i]]


@njit(nogil=True, cache=True)
def _all(indptr, stop, rows, begin, first_row, end, slots):  # type: ignore[no-untyped-def]
    for i in range(first_row, end):
        at = begin[i]
        for slot in range(indptr[rows[i]], stop[i]):
            slots[at] = slot
            at += 1


@njit(nogil=True, cache=True)
def uniform_again(indptr, stop, rows, begin, first, key, neighbor, first_row, end, slots):  # type: ignore[no-untyped-def]
    """All slots have the same chance, each draw for itself. Neighbours that are picked are asked
    for in memory."""
    for i in range(first_row, end):
        low = np.int64(indptr[rows[i]])
        own = stream(key, first + i)
        for j in range(begin[i + 1] - begin[i]):
            slot = low + below(own, j, stop[i] - low)
            prefetch(neighbor, slot)
            slots[begin[i] + j] = slot


@njit(nogil=True, cache=True)
def uniform(indptr, stop, rows, begin, first, key, neighbor, first_row, end, slots):  # type: ignore[no-untyped-def]
    """All slots have the same chance, and none is picked twice. Neighbours that are picked are
    asked for in memory."""
    for i in range(first_row, end):
        low = np.int64(indptr[rows[i]])
        count, own = stop[i] - low, slots[begin[i] : begin[i + 1]]
        if len(own) == count:
            for j in range(count):
                own[j] = low + j
        elif len(own) * len(own) < 8 * count:
            _floyd(stream(key, first + i), low, count, own)
        else:
            _in_one_pass(stream(key, first + i), low, count, own)
        for j in range(len(own)):
            prefetch(neighbor, own[j])


@njit(nogil=True, cache=True)
def _floyd(key, low, count, picks):  # type: ignore[no-untyped-def]
    """Floyd's algorithm: a draw for each pick, and a search for duplicates."""
    for j in range(len(picks)):
        last = low + count - len(picks) + j
        pick = low + below(key, j, last - low + 1)
        for other in range(j):
            if picks[other] == pick:
                pick = last
                break
        picks[j] = pick


@njit(nogil=True, cache=True)
def _in_one_pass(key, low, count, picks):  # type: ignore[no-untyped-def]
    """Knuth's algorithm S: a draw for each slot."""
    held = 0
    for j in range(count):
        if below(key, j, count - j) < len(picks) - held:
            picks[held] = low + j
            held += 1
            if held == len(picks):
                return


@njit(nogil=True, cache=True)
def by_weight(indptr, stop, rows, begin, first, key, weights, first_row, end, slots):  # type: ignore[no-untyped-def]
    """In proportion to weights, one after the other, none twice: the slots of the smallest
    `-log(u) / weight` (Efraimidis & Spirakis, "Weighted random sampling with a reservoir", 2006).
    """
    most = 0
    for i in range(first_row, end):
        most = max(most, begin[i + 1] - begin[i])
    arrivals = np.empty(most, np.float64)
    for i in range(first_row, end):
        low = np.int64(indptr[rows[i]])
        wanted, at = begin[i + 1] - begin[i], begin[i]
        if wanted == 0:
            continue
        own = stream(key, first + i)
        held, latest = 0, 0
        for slot in range(low, stop[i]):
            if not weights[slot] > 0:
                continue
            arrival = -np.log1p(-random.uniform(own, slot - low)) / weights[slot]
            if held < wanted:
                place = held
                held += 1
            elif arrival < arrivals[latest]:
                place = latest
            else:
                continue
            arrivals[place] = arrival
            slots[at + place] = slot
            if held == wanted:
                latest = np.argmax(arrivals[:wanted])


@njit(nogil=True, cache=True)
def by_sums(indptr, stop, rows, begin, first, key, sums, first_row, end, slots):  # type: ignore[no-untyped-def]
    """In proportion to weights, each draw for itself; `sums` as `sums_by_row` gives them."""
    for i in range(first_row, end):
        if begin[i] == begin[i + 1]:
            continue
        own = stream(key, first + i)
        total = sums[stop[i] - 1]
        for j in range(begin[i + 1] - begin[i]):
            wanted = random.uniform(own, j) * total
            low, high = np.int64(indptr[rows[i]]), stop[i] - 1
            while low < high:
                middle = (low + high) // 2
                if sums[middle] > wanted:
                    high = middle
                else:
                    low = middle + 1
            while low > indptr[rows[i]] and sums[low] == sums[low - 1]:
                low -= 1  # `wanted` was rounded up to the total, and the last weights are 0
            slots[begin[i] + j] = low
