"""Gated graph convolution."""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx

import gnnjit
from gnnjit.nn.init import glorot


class GatedGCN(nnx.Module):
    """`h'[v] = W (sum over (u -> v) of eta * h[u])`, `eta = sigmoid(W_dst h[v] + W_src h[u])`.

    G-GCN of Ma et al., "NeuGraph: Parallel Deep Neural Network Computation on Large Graphs"
    (2019), example 2.1, equations 1 and 2 (`W_H` is `gate_dst`, `W_C` is `gate_src`); the paper's
    ReLU is left to the caller. It is Bresson & Laurent's gated ConvNet (2017) without their
    residual and own term, so a vertex without edges gets 0.

    Where we differ: nothing; both gates map F to F, and there are no biases.
    """

    def __init__(self, in_features: int, out_features: int, *, rngs: nnx.Rngs):
        def linear(width: int) -> nnx.Linear:
            return nnx.Linear(in_features, width, use_bias=False, kernel_init=glorot, rngs=rngs)

        self.gate_src = linear(in_features)
        self.gate_dst = linear(in_features)
        self.linear = linear(out_features)

    @gnnjit.layer
    def __call__(self, v: Any, e: Any) -> jax.Array:
        """Called as `model(graph, x)`, `x: [N, F]` or a `Bipartite` of two; returns `[N, F']`."""
        gate = jax.nn.sigmoid(self.gate_dst(v) + self.gate_src(e.src))
        return self.linear(gnnjit.sum(gate * e.src))
