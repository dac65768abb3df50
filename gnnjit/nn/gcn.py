"""Graph convolution."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import gnnjit
from gnnjit.errors import LayerError
from gnnjit.graph import Graph
from gnnjit.nn.arguments import check_flags, check_rngs, check_sizes
from gnnjit.nn.edge_features import check_weights
from gnnjit.nn.init import glorot
from gnnjit.nn.normalized import degree_factors, neighbours, own_term, paired


class GCN(nnx.Module):
    """`h'[v] = W (sum over (u -> v), and v itself, of h[u] / sqrt(d[u] d[v])) + b`.

    Kipf & Welling, "Semi-Supervised Classification with Graph Convolutional Networks" (2017),
    equation 2: `D^-1/2 (A + I) D^-1/2 H W` with `d` the degrees of `A + I`. The nonlinearity is
    left to the caller.

    The vertex's own term is part of the layer, so the graph needs no self loops. With
    `self_loops=False` the graph is taken as it is: `D^-1/2 A D^-1/2 H W`.

    Where we differ: a bias (zero at first); edge weights; directed graphs, with the in-degree at
    both ends; two vertex sets, with the out-degree at the sources; blocks of sampled batches, with
    the degrees of the whole graph, and the sum over sampled edges scaled to be that over all on
    average.

    Args:
        in_features, out_features: F and F'.
        self_loops: whether each vertex counts among its own neighbours.
        use_bias: whether `b` is there.
        rngs: draws the weights.

    Raises:
        LayerError: a size, flag or `rngs` is no such value.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        self_loops: bool = True,
        use_bias: bool = True,
        rngs: nnx.Rngs,
    ):
        check_sizes("GCN", in_features=in_features, out_features=out_features)
        check_flags("GCN", self_loops=self_loops, use_bias=use_bias)
        check_rngs("GCN", rngs)
        self.linear = nnx.Linear(
            in_features, out_features, use_bias=False, kernel_init=glorot, rngs=rngs
        )
        self.bias = nnx.Param(jnp.zeros(out_features)) if use_bias else None
        self.self_loops = self_loops

    def __call__(self, graph: Graph, x: Any, *, edges: jax.Array | None = None) -> jax.Array:
        """The new features, `[N, F']`.

        Args:
            graph: a `Graph` or `ShardedGraph`.
            x: `[N, F]`, or a `Bipartite` of two such arrays.
            edges: `[E]`, weights of the edges; 1 if left out.

        Raises:
            GraphError: an array does not fit the graph.
            LayerError: features are no numbers.
        """
        check_weights(edges, "GCN")
        if isinstance(graph, Graph) and graph.nested:
            edges = _scale_of_block(graph, edges)
        own = 1 if self.self_loops else 0
        scaled = paired(*degree_factors("GCN", graph, x, edges, own))
        return self.propagate(graph, scaled, edges=edges, weighted=edges is not None)

    @gnnjit.layer(static_argnames="weighted")
    def propagate(self, v: Any, e: Any, *, weighted: bool) -> jax.Array:
        """The layer: features with the vertices' factors in, new features out."""
        total = neighbours(v, e.src, e.data if weighted else None)
        if self.self_loops:
            total = total + own_term(v, weighted)
        out = self.linear(total)
        return out if self.bias is None else out + self.bias


def _scale_of_block(graph: Graph, weights: Any) -> jax.Array:
    """`float32[E]`, degree over sampled edges of the edge's destination: so the sum over a sample
    is that over all edges on average."""
    if weights is not None:
        raise LayerError(
            "GCN was given weights of the edges of a block of a sampled batch, expected none: the "
            "degrees that they add up to are those of the whole graph. Multiply by "
            "graph.gcn_norm(weights) of the whole graph in a layer of your own"
        )
    degree = graph.in_degree if graph.whole_degree is None else graph.whole_degree[: graph.num_dst]
    share = degree / jnp.maximum(graph.in_degree, 1).astype(jnp.float32)
    return share[graph.dst]
