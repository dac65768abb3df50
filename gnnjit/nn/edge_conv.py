"""Edge convolution."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import gnnjit
from gnnjit.nn.arguments import check_rngs, check_sizes
from gnnjit.nn.init import glorot


class EdgeConv(nnx.Module):
    """`h'[v] = max over (u -> v) of W_2 relu(W_1 concat(h[v], h[u] - h[v]) + b_1) + b_2`.

    Wang et al., "Dynamic Graph CNN for Learning on Point Clouds" (2019), section 3.1, equations 7
    and 8, with an MLP of one hidden layer as the edge function. The graph (in the paper the k
    nearest neighbours in feature space) is built by the caller. A vertex without edges gets 0.

    Args:
        in_features, hidden, out_features: F, the width of the hidden layer, and F'.
        rngs: draws the weights.

    Raises:
        LayerError: a size or `rngs` is no such value.
    """

    def __init__(self, in_features: int, hidden: int, out_features: int, *, rngs: nnx.Rngs):
        check_sizes("EdgeConv", in_features=in_features, hidden=hidden, out_features=out_features)
        check_rngs("EdgeConv", rngs)
        self.hidden = nnx.Linear(2 * in_features, hidden, kernel_init=glorot, rngs=rngs)
        self.out = nnx.Linear(hidden, out_features, kernel_init=glorot, rngs=rngs)

    @gnnjit.layer
    def __call__(self, v: jax.Array, e: Any) -> jax.Array:
        """Called as `model(graph, x)`. `x` is `[N, F]`, or a `Bipartite` of two such arrays; the
        result is `[N, F']`."""
        pair = jnp.concatenate([v, e.src - v])
        return gnnjit.max(self.out(jax.nn.relu(self.hidden(pair))))
