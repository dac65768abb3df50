"""Linen twins of some modules: the same formulas, with the input width read from the features.

Each wraps its nnx module (`flax.nnx.bridge`), which makes its parameters before the layer is
traced, so `init` and `apply` work under any transformation. The parameters are those of the nnx
module, under its name in lower case. In a layer method of your own linen module, make submodules
in `setup`: parameters that `@nn.compact` would create while the layer is traced are refused.
"""

from __future__ import annotations

from typing import Any

import jax
from flax import linen
from flax.nnx import bridge

from gnnjit import nn
from gnnjit.graph import Bipartite, Graph
from gnnjit.nn.sage import Aggregator


def _width(x: Any) -> int:
    return (x.src if isinstance(x, Bipartite) else x).shape[-1]


class GCN(linen.Module):
    """`gnnjit.nn.GCN` for linen; `features` is F'."""

    features: int
    self_loops: bool = True
    use_bias: bool = True

    @linen.compact
    def __call__(self, graph: Graph, x: Any, *, edges: jax.Array | None = None) -> jax.Array:
        """As `gnnjit.nn.GCN` is called: `x: [N, F]`, or a `Bipartite` of two, to `[N, F']`."""
        module = bridge.to_linen(
            nn.GCN,
            _width(x),
            self.features,
            self_loops=self.self_loops,
            use_bias=self.use_bias,
            name="gcn",
        )
        return module(graph, x, edges=edges)


class SAGE(linen.Module):
    """`gnnjit.nn.SAGE` for linen; `features` is F'."""

    features: int
    aggregator: Aggregator = "mean"
    normalize: bool = False

    @linen.compact
    def __call__(self, graph: Graph, x: Any, *, edges: jax.Array | None = None) -> jax.Array:
        """As `gnnjit.nn.SAGE` is called: `x: [N, F]`, or a `Bipartite` of two, to `[N, F']`."""
        module = bridge.to_linen(
            nn.SAGE,
            _width(x),
            self.features,
            aggregator=self.aggregator,
            normalize=self.normalize,
            name="sage",
        )
        return module(graph, x, edges=edges)


class GAT(linen.Module):
    """`gnnjit.nn.GAT` for linen; `features` is F' of one head."""

    features: int
    heads: int = 1
    concat: bool = True
    dropout: float = 0.0
    negative_slope: float = 0.2
    self_loops: bool = True
    edge_features: int | None = None

    @linen.compact
    def __call__(
        self,
        graph: Graph,
        x: Any,
        *,
        edges: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """As `gnnjit.nn.GAT` is called: `x: [N, F]`, or a `Bipartite` of two, to
        `[N, heads * F']`, or `[N, F']` with `concat=False`."""
        module = bridge.to_linen(
            nn.GAT,
            _width(x),
            self.features,
            heads=self.heads,
            concat=self.concat,
            dropout=self.dropout,
            negative_slope=self.negative_slope,
            self_loops=self.self_loops,
            edge_features=self.edge_features,
            name="gat",
        )
        return module(graph, x, edges=edges, key=key)


class GIN(linen.Module):
    """`gnnjit.nn.GIN` for linen; `features` is F'. It has no batch normalisation, whose statistics
    linen keeps elsewhere."""

    hidden: int
    features: int
    eps: float = 0.0
    train_eps: bool = False
    edge_features: int | None = None

    @linen.compact
    def __call__(self, graph: Graph, x: Any, *, edges: jax.Array | None = None) -> jax.Array:
        """As `gnnjit.nn.GIN` is called: `x: [N, F]`, or a `Bipartite` of two, to `[N, F']`."""
        module = bridge.to_linen(
            nn.GIN,
            _width(x),
            self.hidden,
            self.features,
            eps=self.eps,
            train_eps=self.train_eps,
            edge_features=self.edge_features,
            name="gin",
        )
        return module(graph, x, edges=edges)
