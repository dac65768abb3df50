"""Dropout of rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def dropped(x: jax.Array, rate: float, key: jax.Array | None, number: int) -> jax.Array:
    """`x` with each value left out with chance `rate`, and the others scaled up; `x` without a key.

    Args:
        x: any shape.
        rate: from 0 to below 1.
        key: of the call.
        number: tells the draws of one call apart.
    """
    if key is None or rate == 0:
        return x
    keep = jax.random.bernoulli(jax.random.fold_in(key, number), 1 - rate, x.shape)
    return jnp.where(keep, x / (1 - rate), 0)
