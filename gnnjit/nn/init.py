"""Initial values shared by the modules."""

from __future__ import annotations

import jax
from flax import nnx

glorot = nnx.initializers.glorot_uniform()
"""Glorot & Bengio's uniform distribution, which the code of GCN and of GAT starts from."""


def per_head(rngs: nnx.Rngs, heads: int, features: int) -> jax.Array:
    """`[heads, features]`: one attention vector per head, each a Glorot `[features, 1]` matrix."""
    bound = (6 / (features + 1)) ** 0.5
    return jax.random.uniform(rngs.params(), (heads, features), minval=-bound, maxval=bound)
