"""Communication network."""

from __future__ import annotations

from typing import Any, Literal

import jax
from flax import nnx

import gnnjit
from gnnjit.nn.arguments import check_choice, check_rngs, check_sizes
from gnnjit.nn.init import glorot


class CommNet(nnx.Module):
    """`h'[v] = H h[v] + C (mean over (u -> v) of h[u]) + b`.

    Sukhbaatar, Szlam & Fergus, "Learning Multiagent Communication with Backpropagation" (2016),
    equations 1 and 2, with communication along edges. `aggregator="sum"` is the form of NeuGraph
    (2019), figure 10. The nonlinearity (tanh; NeuGraph: ReLU) is left to the caller.

    Where we differ: a bias; the mean is over the in-edges, so an agent hears itself only through a
    self loop.

    Args:
        in_features, out_features: F and F'.
        aggregator: "mean" or "sum".
        rngs: draws the weights.

    Raises:
        LayerError: a size, name or `rngs` is no such value.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        aggregator: Literal["mean", "sum"] = "mean",
        rngs: nnx.Rngs,
    ):
        check_sizes("CommNet", in_features=in_features, out_features=out_features)
        check_choice("CommNet", "aggregator", aggregator, ("mean", "sum"))
        check_rngs("CommNet", rngs)
        self.own = nnx.Linear(in_features, out_features, kernel_init=glorot, rngs=rngs)
        self.heard = nnx.Linear(
            in_features, out_features, use_bias=False, kernel_init=glorot, rngs=rngs
        )
        self.aggregator = aggregator

    @gnnjit.layer
    def __call__(self, v: Any, e: Any) -> jax.Array:
        """Called as `model(graph, x)`. `x` is `[N, F]`, or a `Bipartite` of two such arrays; the
        result is `[N, F']`."""
        heard = gnnjit.mean(e.src) if self.aggregator == "mean" else gnnjit.sum(e.src)
        return self.own(v) + self.heard(heard)
