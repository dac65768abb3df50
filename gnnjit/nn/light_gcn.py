"""Light graph convolution, for recommendation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
from flax import nnx

from gnnjit.errors import LayerError
from gnnjit.graph import Graph
from gnnjit.graph.validate import shown
from gnnjit.nn.arguments import check_numbers, check_sizes
from gnnjit.nn.edge_features import check_weights, check_whole
from gnnjit.nn.normalized import both_ways, degree_factors, normalized_sum, paired


class LightGCN(nnx.Module):
    """`z = sum over k of a_k h_k`, `h_{k+1}[v] = sum over (u -> v) of h_k[u] / sqrt(d[u] d[v])`.

    He et al., "LightGCN: Simplifying and Powering Graph Convolution Network for Recommendation"
    (2020), equations 3 and 4, for k from 0 to `steps`. It has no parameters: `h_0`, the embeddings
    of users and items, are those of the model that it is part of. The score of a user and an item
    is the dot product of their rows (equation 5).

    The graph is bipartite, from users to items, with a `Bipartite` of their embeddings; each step
    then runs both ways. Or it is one graph of users and, behind them, items, with an edge both ways
    for each interaction.

    Where we differ: weights of the edges may be given; degrees are then their sums.

    Args:
        steps: K.
        weights: `a_0, ..., a_K`; None: each `1 / (K + 1)`, as in the paper.

    Raises:
        LayerError: a number is no such value, or there are not `steps + 1` weights.
    """

    def __init__(self, steps: int = 3, *, weights: Sequence[float] | None = None):
        check_sizes("LightGCN", least=0, steps=steps)
        self.steps = int(steps)
        self.weights = _weights(self.steps, weights)

    def __call__(self, graph: Graph, x: Any, *, edges: jax.Array | None = None) -> Any:
        """The combined embeddings: `[N, F]`, or a `Bipartite` of two such arrays, as `x` is.

        Args:
            graph: a `Graph` or `ShardedGraph`.
            x: `[N, F]`, or a `Bipartite` of users and items.
            edges: `[E]`, weights of the edges; 1 if left out.

        Raises:
            GraphError: an array does not fit the graph.
            LayerError: features are no numbers, or the graph is a block of a sampled batch.
        """
        check_whole(graph, "LightGCN")
        check_weights(edges, "LightGCN")
        h, at = degree_factors("LightGCN", graph, x, edges, 0)
        total = jax.tree.map(lambda rows: self.weights[0] * rows, h)
        for weight in self.weights[1:]:
            h = both_ways(graph, paired(h, at), partial(normalized_sum, edges=edges))
            total = jax.tree.map(lambda t, rows, a=weight: t + a * rows, total, h)
        return total


def _weights(steps: int, weights: Any) -> tuple[float, ...]:
    if weights is None:
        return (1 / (steps + 1),) * (steps + 1)
    if isinstance(weights, str) or not isinstance(weights, Sequence) or len(weights) != steps + 1:
        raise LayerError(
            f"nn.LightGCN: weights is {shown(weights)}, expected {steps + 1} numbers, one for the "
            "embeddings and one for each step: pass a list of them"
        )
    for i, weight in enumerate(weights):
        check_numbers("LightGCN", **{f"weights[{i}]": weight})
    return tuple(weights)
