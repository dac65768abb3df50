"""Graph isomorphism network."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import gnnjit
from gnnjit.graph import Graph
from gnnjit.nn.arguments import check_flags, check_numbers, check_rngs, check_sizes
from gnnjit.nn.edge_features import edge_vector
from gnnjit.nn.init import glorot
from gnnjit.sharding import ShardedGraph


class GIN(nnx.Module):
    """`h'[v] = MLP((1 + eps) h[v] + sum over (u -> v) of h[u])`, the MLP with one hidden layer.

    Xu, Hu, Leskovec & Jegelka, "How Powerful are Graph Neural Networks?" (2019), equation 4.1.
    `train_eps=True` learns eps (GIN-eps), else it stays as given (GIN-0). `batch_norm` normalises
    the MLP's hidden layer over the vertices, as in section 7. The nonlinearity after the MLP is
    left to the caller.

    With `edge_features` it is `GINE`.

    Args:
        in_features, hidden, out_features: widths of the MLP: F, hidden layer, F'.
        eps: weight of the vertex's own features, beside 1.
        train_eps: whether it is learned.
        batch_norm: normalise the hidden layer over the vertices.
        edge_features: width of the edges' features; None without.
        rngs: draws the weights.

    Raises:
        LayerError: a size, number, flag or `rngs` is no such value.
    """

    def __init__(
        self,
        in_features: int,
        hidden: int,
        out_features: int,
        *,
        eps: float = 0.0,
        train_eps: bool = False,
        batch_norm: bool = False,
        edge_features: int | None = None,
        rngs: nnx.Rngs,
    ):
        name = type(self).__name__
        check_sizes(name, in_features=in_features, hidden=hidden, out_features=out_features)
        check_sizes(name, edge_features=edge_features)
        check_numbers(name, eps=eps)
        check_flags(name, train_eps=train_eps, batch_norm=batch_norm)
        check_rngs(name, rngs)
        self.hidden = nnx.Linear(in_features, hidden, kernel_init=glorot, rngs=rngs)
        self.out = nnx.Linear(hidden, out_features, kernel_init=glorot, rngs=rngs)
        self.norm = nnx.BatchNorm(hidden, momentum=0.9, rngs=rngs) if batch_norm else None
        self.edge = (
            None
            if edge_features is None
            else nnx.Linear(edge_features, in_features, kernel_init=glorot, rngs=rngs)
        )
        self.eps = nnx.Param(jnp.asarray(float(eps))) if train_eps else float(eps)

    def __call__(
        self,
        graph: Graph | ShardedGraph,
        x: Any,
        *,
        edges: jax.Array | None = None,
        train: bool = False,
        mask: jax.Array | None = None,
    ) -> jax.Array:
        """`x: [N, F]` or a `Bipartite` of two; returns `[N, F']`.

        Args:
            edges: `[E, edge_features]`, where the module was made with `edge_features`.
            train: whether batch normalisation uses this batch's statistics, and records them.
            mask: `bool[N]`, the vertices that those statistics are taken over; if None all, but no
                padding of a `ShardedGraph`.
        """
        h = self.aggregate(graph, x, edges=edges)
        if self.norm is not None:
            if mask is None and isinstance(graph, ShardedGraph):
                mask = graph.vertex_mask
            mask = None if mask is None else mask[:, None]
            h = self.norm(h, use_running_average=not train, mask=mask)
        return self.out(jax.nn.relu(h))

    @gnnjit.layer
    def aggregate(self, v: Any, e: Any) -> jax.Array:
        """The layer: what the MLP is applied to."""
        message = e.src
        if self.edge is not None:
            data = edge_vector(e.data, type(self).__name__, self.edge.in_features)
            message = jax.nn.relu(message + self.edge(data))
        return self.hidden((1 + self.eps) * v + gnnjit.sum(message))


class GINE(GIN):
    """`h'[v] = MLP((1 + eps) h[v] + sum over (u -> v) of relu(h[u] + W e[u, v] + b))`, the MLP with
    one hidden layer.

    Hu, Liu et al., "Strategies for Pre-training Graph Neural Networks" (2020), section 5.1 and
    appendix A, in the form of PyG (`GINEConv`, `edge_dim`); `e[u, v]` comes as `edges=`. It is
    `GIN` with `edge_features`, called in the same way.

    Args:
        edge_features: width of the edges' features.
        in_features, hidden, out_features, eps, train_eps, batch_norm, rngs: as in `GIN`.

    Raises:
        LayerError: a size, number, flag or `rngs` is no such value.
    """

    def __init__(
        self,
        in_features: int,
        hidden: int,
        out_features: int,
        *,
        edge_features: int,
        eps: float = 0.0,
        train_eps: bool = False,
        batch_norm: bool = False,
        rngs: nnx.Rngs,
    ):
        check_sizes("GINE", **{"edge_features, which it reads,": edge_features})
        super().__init__(
            in_features,
            hidden,
            out_features,
            eps=eps,
            train_eps=train_eps,
            batch_norm=batch_norm,
            edge_features=edge_features,
            rngs=rngs,
        )
