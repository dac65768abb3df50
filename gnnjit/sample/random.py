"""Random numbers that are a function of a key and a position.

A draw needs no draw before it: any part of a batch, and any batch, can be made alone, in any order,
on any number of threads, to the same bits. The function is SplitMix64 (Steele, Lea & Flood, "Fast
Splittable Pseudorandom Number Generators", 2014) at a position of its stream.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from gnnjit.errors import SampleError
from gnnjit.graph.validate import shown

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_UNIT = 2.0**-53


@njit(nogil=True, cache=True, inline="always")
def mixed(z):  # type: ignore[no-untyped-def]
    """`uint64 -> uint64`: every bit of the result depends on every bit of `z`."""
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))


@njit(nogil=True, cache=True, inline="always")
def stream(key, number):  # type: ignore[no-untyped-def]
    """The key of stream `number` (an integer >= 0) within the stream of `key`."""
    return mixed(key ^ mixed(np.uint64(number) * _STEP + _STEP))


@njit(nogil=True, cache=True, inline="always")
def bits(key, position):  # type: ignore[no-untyped-def]
    """64 random bits."""
    return mixed(key + (np.uint64(position) + np.uint64(1)) * _STEP)


@njit(nogil=True, cache=True, inline="always")
def uniform(key, position):  # type: ignore[no-untyped-def]
    """A float64 in [0, 1), a multiple of 2**-53."""
    return np.float64(bits(key, position) >> np.uint64(11)) * _UNIT


@njit(nogil=True, cache=True, inline="always")
def below(key, position, count):  # type: ignore[no-untyped-def]
    """An int64 in [0, count), for 0 < count < 2**32: the high half of a product of 64 bits."""
    z, n = bits(key, position), np.uint64(count)
    return np.int64(((z >> _HALF) * n + (((z & _LOW) * n) >> _HALF)) >> _HALF)


@njit(nogil=True, cache=True, inline="always")
def below_wide(key, position, count):  # type: ignore[no-untyped-def]
    """An int64 in [0, count), for 0 < count < 2**63: the high half of a product of 128 bits."""
    z, n = bits(key, position), np.uint64(count)
    low, high = z & _LOW, z >> _HALF
    n_low, n_high = n & _LOW, n >> _HALF
    middle = high * n_low + ((low * n_low) >> _HALF)
    other = low * n_high + (middle & _LOW)
    return np.int64(high * n_high + (middle >> _HALF) + (other >> _HALF))


def key_of(where: str, seed: int, *numbers: int) -> np.uint64:
    """The key of stream `numbers` of `seed`. Raises SampleError unless `seed` is a whole number
    from 0 to 2**64 - 1."""
    whole = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
    if not whole or not 0 <= seed < 2**64:
        raise SampleError(
            f"{where}: seed is {shown(seed)}, expected a whole number from 0 to 2**64 - 1: pass "
            f"another for each batch"
        )
    key = np.uint64(seed)
    for number in (0, *numbers):
        key = np.uint64(stream(key, np.uint64(number)))
    return key
