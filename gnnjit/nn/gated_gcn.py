"""Gated graph convolution."""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx

import gnnjit
from gnnjit.nn.arguments import check_rngs, check_sizes
from gnnjit.nn.edge_features import edge_vector
from gnnjit.nn.init import glorot


class GatedGCN(nnx.Module):
    """`h'[v] = W (sum over (u -> v) of eta * h[u])`, `eta = sigmoid(W_dst h[v] + W_src h[u])`.

    G-GCN of Ma et al., "NeuGraph: Parallel Deep Neural Network Computation on Large Graphs"
    (2019), example 2.1, equations 1 and 2 (`W_H` is `gate_dst`, `W_C` is `gate_src`); the paper's
    ReLU is left to the caller. It is Bresson & Laurent's gated ConvNet (2017) without their
    residual and own term, so a vertex without edges gets 0.

    With `edge_features`, `eta = sigmoid(... + W_edge e[u, v])`, where `e[u, v]` comes as `edges=`:
    the gate of Dwivedi et al., "Benchmarking Graph Neural Networks" (2020), of features of the
    edges that stay the same from layer to layer.

    Where we differ: nothing; both gates map F to F, and there are no biases.

    Args:
        in_features, out_features: F and F'.
        edge_features: width of the edges' features; None without.
        rngs: draws the weights.

    Raises:
        LayerError: a size or `rngs` is no such value.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        edge_features: int | None = None,
        rngs: nnx.Rngs,
    ):
        check_sizes("GatedGCN", in_features=in_features, out_features=out_features)
        check_sizes("GatedGCN", edge_features=edge_features)
        check_rngs("GatedGCN", rngs)

        def linear(inputs: int, outputs: int) -> nnx.Linear:
            return nnx.Linear(inputs, outputs, use_bias=False, kernel_init=glorot, rngs=rngs)

        self.gate_src = linear(in_features, in_features)
        self.gate_dst = linear(in_features, in_features)
        self.linear = linear(in_features, out_features)
        self.gate_edge = None if edge_features is None else linear(edge_features, in_features)

    @gnnjit.layer
    def __call__(self, v: Any, e: Any) -> jax.Array:
        """Called as `model(graph, x)`. `x` is `[N, F]`, or a `Bipartite` of two such arrays; with
        `edge_features`, `edges` is `[E, edge_features]`. The result is `[N, F']`."""
        gate = self.gate_dst(v) + self.gate_src(e.src)
        if self.gate_edge is not None:
            data = edge_vector(e.data, "GatedGCN", self.gate_edge.in_features)
            gate = gate + self.gate_edge(data)
        return self.linear(gnnjit.sum(jax.nn.sigmoid(gate) * e.src))
