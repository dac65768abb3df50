"""Integers that are ordered as numbers are, NaN included: what sorting compares."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from gnnjit.ir.dtypes import is_half


def key_bits(dtype: Any) -> int:
    """Bits of the key of a number."""
    return 64 if np.dtype(dtype).itemsize == 8 and not is_half(dtype) else 32


def sort_key(x: Any, descending: bool) -> Any:
    """`int32` (`int64` of 8-byte numbers) for each number: less where the number comes earlier.

    Equal numbers, 0 and -0 too, have equal keys. NaN counts as larger than infinity, so that it
    comes last, or first if `descending`.
    """
    if is_half(x.dtype):
        x = x.astype(jnp.float32)
    kind = jnp.int64 if key_bits(x.dtype) == 64 else jnp.int32
    if jnp.issubdtype(x.dtype, jnp.floating):
        bits = lax.bitcast_convert_type(jnp.where(x == 0, jnp.zeros_like(x), x), kind)
        largest = jnp.iinfo(kind).max
        key = jnp.where(bits < 0, bits ^ largest, bits)
        key = jnp.where(x != x, jnp.asarray(largest, kind), key)
    elif (
        jnp.issubdtype(x.dtype, jnp.unsignedinteger) and x.dtype.itemsize == np.dtype(kind).itemsize
    ):
        key = lax.bitcast_convert_type(x, kind) ^ jnp.iinfo(kind).min
    else:
        key = x.astype(kind)
    return ~key if descending else key
