"""What kind of numbers a dtype has: remembered, as passes ask for each value and JAX's answer takes
a microsecond."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp


@functools.cache
def is_inexact(dtype: Any) -> bool:
    """Floating-point or complex."""
    return bool(jnp.issubdtype(dtype, jnp.inexact))


@functools.cache
def is_floating(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.floating))


@functools.cache
def is_extended(dtype: Any) -> bool:
    """One of JAX's own, as that of a key."""
    return bool(jnp.issubdtype(dtype, jax.dtypes.extended))


@functools.cache
def is_half(dtype: Any) -> bool:
    """Floating-point numbers of 16 bits."""
    return dtype in (jnp.float16, jnp.bfloat16)
