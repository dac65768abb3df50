"""GraphSAGE."""

from __future__ import annotations

from typing import Any, Literal, get_args

import jax
from flax import nnx

import gnnjit
from gnnjit.graph import Graph
from gnnjit.nn.arguments import check_choice, check_flags, check_rngs, check_sizes
from gnnjit.nn.edge_features import check_weights
from gnnjit.nn.init import glorot
from gnnjit.nn.unit import unit

Aggregator = Literal["mean", "sum", "max", "pool"]


class SAGE(nnx.Module):
    """`h'[v] = W_own h[v] + W (aggregate over (u -> v) of h[u]) + b`.

    Hamilton, Ying & Leskovec, "Inductive Representation Learning on Large Graphs" (2017),
    algorithm 1, lines 4 and 5: the two matrices are the two halves of the paper's one on
    `concat(h[v], aggregate)`. `normalize` is its line 7, each row divided by its L2 norm. The
    nonlinearity is left to the caller.

    Weights of the edges may be given as `edges=`. Each `h[u]` (with "pool": each value that the
    maximum is taken of) is multiplied by the weight of its edge, as in DGL's SAGEConv and PyG's
    GraphConv; the mean divides by the number of edges, not by the sum of the weights.

    Where we differ: no LSTM aggregator, since its result depends on the order of the edges.

    Args:
        in_features, out_features: F and F'.
        aggregator: "mean" (section 3.3), "sum", "max", or "pool", the maximum of
            `relu(W_pool h[u] + b_pool)` (equation 3).
        normalize: divide each row of the result by its L2 norm.
        rngs: draws the weights.

    Raises:
        LayerError: a size, flag, name or `rngs` is no such value.
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
        check_sizes("SAGE", in_features=in_features, out_features=out_features)
        check_choice("SAGE", "aggregator", aggregator, get_args(Aggregator))
        check_flags("SAGE", normalize=normalize)
        check_rngs("SAGE", rngs)
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
        check_weights(edges, "SAGE")
        return self.propagate(graph, x, edges=edges, weighted=edges is not None)

    @gnnjit.layer(static_argnames="weighted")
    def propagate(self, v: Any, e: Any, *, weighted: bool) -> jax.Array:
        """The layer, without `normalize`."""
        message = e.src if self.pool is None else jax.nn.relu(self.pool(e.src))
        out = self.own(v) + self.neighbors(
            self._aggregate(e.data * message if weighted else message)
        )
        return unit(out) if self.normalize else out

    def _aggregate(self, message: jax.Array) -> jax.Array:
        """What the neighbours contribute, per vertex."""
        return {"mean": gnnjit.mean, "sum": gnnjit.sum}.get(self.aggregator, gnnjit.max)(message)
