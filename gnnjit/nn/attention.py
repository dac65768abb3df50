"""What GAT and GATv2 share: attention over a vertex's in-edges and, if asked, itself."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import gnnjit


def attend(
    score: jax.Array,
    own_score: jax.Array | None,
    value: jax.Array,
    own_value: jax.Array,
    rate: float,
    key: jax.Array | None,
) -> jax.Array:
    """The mean of `value` under the softmax of `score`; to be called inside a layer.

    `own_score`, if not None, takes part in the softmax as one more edge that carries `own_value`.

    Args:
        score: `[H]`, an edge value: one number per head.
        own_score: `[H]`, a vertex value, or None.
        value, own_value: `[H, F]`, an edge and a vertex value.
        rate, key: dropout of the attention coefficients, none where `key` is None.

    Returns:
        `[H, F]`, a vertex value. A vertex without edges gets `own_value`, or 0.
    """
    weight = gnnjit.softmax(score)
    if own_score is None:
        if key is not None:
            weight = gnnjit.dropout(weight, rate, key)
        return gnnjit.sum(weight[:, None] * value)
    # The softmax over edges and self is that over the edges, shrunk by the edges' total share.
    share = jax.nn.sigmoid(gnnjit.logsumexp(score, initial=-jnp.inf) - own_score)
    weight, own = weight * share, 1 - share
    if key is not None:
        weight, own = gnnjit.dropout((weight, own), rate, key)
    return gnnjit.sum(weight[:, None] * value) + own[:, None] * own_value


def merge_heads(out: jax.Array, concat: bool) -> jax.Array:
    """`[H, F] -> [H * F]`, or `[F]`, the mean over the heads."""
    return out.reshape(-1) if concat else out.mean(axis=0)
