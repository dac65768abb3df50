"""Convolution with a network of the edges."""

from __future__ import annotations

from typing import Any, Literal, get_args

import jax
from flax import nnx

import gnnjit
from gnnjit.nn.arguments import check_choice, check_rngs, check_sizes
from gnnjit.nn.edge_features import edge_vector
from gnnjit.nn.init import glorot

Aggregator = Literal["sum", "mean", "max"]


class NNConv(nnx.Module):
    """`h'[v] = W h[v] + b + sum over (u -> v) of A(e[u, v]) h[u]`, `A(e) = W_2 relu(W_1 e + b_1) +
    b_2` as a matrix of `[F, F']`.

    Gilmer et al., "Neural Message Passing for Quantum Chemistry" (2017), section 5, "edge network",
    with the own term of PyG (`NNConv`); it is also the edge-conditioned convolution of Simonovsky &
    Komodakis (2017), whose sum is a mean. `e[u, v]` comes as `edges=`. The nonlinearity is left to
    the caller.

    Args:
        in_features, hidden, out_features: F, the width of the network's hidden layer, and F'.
        edge_features: width of the edges' features.
        aggregator: "sum", "mean" or "max" of the messages.
        rngs: draws the weights.

    Raises:
        LayerError: a size, name or `rngs` is no such value.
    """

    def __init__(
        self,
        in_features: int,
        hidden: int,
        out_features: int,
        *,
        edge_features: int,
        aggregator: Aggregator = "sum",
        rngs: nnx.Rngs,
    ):
        check_sizes("NNConv", in_features=in_features, hidden=hidden, out_features=out_features)
        check_sizes("NNConv", **{"edge_features, which it reads,": edge_features})
        check_choice("NNConv", "aggregator", aggregator, get_args(Aggregator))
        check_rngs("NNConv", rngs)

        def linear(inputs: int, outputs: int) -> nnx.Linear:
            return nnx.Linear(inputs, outputs, kernel_init=glorot, rngs=rngs)

        self.own = linear(in_features, out_features)
        self.hidden = linear(edge_features, hidden)
        self.matrix = linear(hidden, in_features * out_features)
        self.aggregator = aggregator

    @gnnjit.layer
    def __call__(self, v: Any, e: Any) -> jax.Array:
        """Called as `model(graph, x, edges=...)`. `x` is `[N, F]`, or a `Bipartite` of two such
        arrays, `edges` is `[E, edge_features]`. The result is `[N, F']`."""
        data = edge_vector(e.data, "NNConv", self.hidden.in_features)
        matrix = self.matrix(jax.nn.relu(self.hidden(data)))
        message = e.src @ matrix.reshape(self.own.in_features, self.own.out_features)
        reduce = {"sum": gnnjit.sum, "mean": gnnjit.mean}.get(self.aggregator, gnnjit.max)
        return self.own(v) + reduce(message)
