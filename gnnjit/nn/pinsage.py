"""PinSage's convolution."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import gnnjit
from gnnjit.graph import Graph
from gnnjit.nn.arguments import check_flags, check_rngs, check_sizes
from gnnjit.nn.edge_features import check_weights
from gnnjit.nn.init import glorot
from gnnjit.nn.unit import unit


class PinSage(nnx.Module):
    """`h'[v] = relu(W concat(h[v], n[v]) + w)` divided by its L2 norm, where `n[v] = sum over
    (u -> v) of a[u, v] relu(Q h[u] + q) / sum over (u -> v) of a[u, v]`.

    Ying et al., "Graph Convolutional Neural Networks for Web-Scale Recommender Systems" (2018),
    algorithm 1, with importance pooling (section 3.2): the edges are those of
    `gnnjit.neighborhood.random_walks`, and the weights `a` its data. So it is a stage of such an
    HDG, `hdg(x, PinSage(...))`, and a module on any graph.

    Args:
        in_features, out_features: F and F'.
        hidden: the length of `Q h + q`; F' if left out.
        normalize: the paper's line 3; False for a layer whose length counts.
        rngs: draws the weights.

    Raises:
        LayerError: a size, flag or `rngs` is no such value.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        hidden: int | None = None,
        normalize: bool = True,
        rngs: nnx.Rngs,
    ):
        hidden = out_features if hidden is None else hidden
        check_sizes("PinSage", in_features=in_features, out_features=out_features, hidden=hidden)
        check_flags("PinSage", normalize=normalize)
        check_rngs("PinSage", rngs)
        self.message = nnx.Linear(in_features, hidden, kernel_init=glorot, rngs=rngs)
        self.update = nnx.Linear(in_features + hidden, out_features, kernel_init=glorot, rngs=rngs)
        self.normalize = normalize

    def __call__(self, graph: Graph, x: Any, *, edges: jax.Array | None = None) -> jax.Array:
        """The new features, `[N, F']`.

        Args:
            graph: a `Graph` or `ShardedGraph`, such as the level of walks.
            x: `[N, F]`, or a `Bipartite` of two such arrays.
            edges: `[E]`, weights of the edges, 0 or more; 1 if left out.

        Raises:
            GraphError: an array does not fit the graph.
            LayerError: features are no numbers.
        """
        check_weights(edges, "PinSage")
        return self.propagate(graph, x, edges=edges, weighted=edges is not None)

    @gnnjit.layer(static_argnames="weighted")
    def propagate(self, v: Any, e: Any, *, weighted: bool) -> jax.Array:
        """The layer."""
        message = jax.nn.relu(self.message(e.src))
        if weighted:
            total = gnnjit.sum(e.data)
            pooled = gnnjit.sum(e.data * message) / jnp.where(total > 0, total, 1)
        else:
            pooled = gnnjit.mean(message)
        out = jax.nn.relu(self.update(jnp.concatenate([v, pooled])))
        return unit(out) if self.normalize else out
