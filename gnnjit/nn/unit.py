"""Rows of length one."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def unit(x: jax.Array) -> jax.Array:
    """`[F]` divided by its L2 norm; zeros stay zeros, with a zero gradient."""
    square = jnp.sum(x * x)
    some = square > 0
    return jnp.where(some, x * jax.lax.rsqrt(jnp.where(some, square, 1)), x)
