"""GraphSAGE."""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

import gnnjit
from gnnjit.nn.init import glorot

Aggregator = Literal["mean", "sum", "max", "pool"]


class SAGE(nnx.Module):
    """`h'[v] = W_own h[v] + W (aggregate over (u -> v) of h[u]) + b`.

    Hamilton, Ying & Leskovec, "Inductive Representation Learning on Large Graphs" (2017),
    algorithm 1, lines 4 and 5: the two matrices are the two halves of the paper's one on
    `concat(h[v], aggregate)`. `normalize` is its line 7, each row divided by its L2 norm. The
    nonlinearity is left to the caller.

    Aggregators: "mean" (section 3.3), "sum", "max", and "pool", the maximum of
    `relu(W_pool h[u] + b_pool)` (equation 3). Where we differ: no LSTM aggregator, since its
    result depends on the order of the edges.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        aggregator: Aggregator = "mean",
        normalize: bool = False,
        rngs: nnx.Rngs,
    ):
        if aggregator not in ("mean", "sum", "max", "pool"):
            raise ValueError(f"SAGE: aggregator must be mean, sum, max or pool, got {aggregator!r}")
        self.own = nnx.Linear(in_features, out_features, kernel_init=glorot, rngs=rngs)
        self.neighbors = nnx.Linear(
            in_features, out_features, use_bias=False, kernel_init=glorot, rngs=rngs
        )
        self.pool = (
            nnx.Linear(in_features, in_features, kernel_init=glorot, rngs=rngs)
            if aggregator == "pool"
            else None
        )
        self.aggregator = aggregator
        self.normalize = normalize

    @gnnjit.layer
    def __call__(self, v: Any, e: Any) -> jax.Array:
        """Called as `model(graph, x)`, `x: [N, F]` or a `Bipartite` of two; returns `[N, F']`."""
        out = self.own(v) + self._aggregate(e)
        if not self.normalize:
            return out
        square = jnp.sum(out * out)
        some = square > 0  # a row of zeros stays zero, with a zero gradient
        return jnp.where(some, out * jax.lax.rsqrt(jnp.where(some, square, 1)), out)

    def _aggregate(self, e: Any) -> jax.Array:
        """What the neighbours contribute, per vertex."""
        aggregate = {"mean": gnnjit.mean, "sum": gnnjit.sum}.get(self.aggregator)
        if aggregate is None:
            message = e.src if self.pool is None else jax.nn.relu(self.pool(e.src))
            return self.neighbors(gnnjit.max(message))
        return self.neighbors(aggregate(e.src))
