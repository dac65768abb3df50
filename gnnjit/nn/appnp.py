"""Predictions, propagated by personalised PageRank."""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx

import gnnjit
from gnnjit.graph import Graph
from gnnjit.nn.arguments import check_flags, check_rate, check_sizes
from gnnjit.nn.edge_features import check_one_set, check_weights
from gnnjit.nn.normalized import degree_factors, neighbours, own_term, paired


class APPNP(nnx.Module):
    """`h_{k+1}[v] = (1 - alpha) (sum over (u -> v), and v itself, of h_k[u] / sqrt(d[u] d[v])) +
    alpha h_0[v]`, k times.

    Gasteiger, Bojchevski & Günnemann, "Predict then Propagate: Graph Neural Networks meet
    Personalized PageRank" (2019), equation 4. It has no parameters: `h_0` are the predictions of
    the model that it stands behind, an MLP in the paper; the softmax is left to the caller.
    `dropout` acts on the normalised adjacency matrix, anew in each step, when a `key` is given.

    As in `GCN`, the vertex's own term is part of the layer, degrees count it, and weights of the
    edges may be given.

    Args:
        steps: K.
        alpha: the probability of a jump back to `h_0`, from 0 to 1.
        dropout: rate for the coefficients, from 0 to 1.
        self_loops: whether each vertex counts among its own neighbours.

    Raises:
        LayerError: a number or flag is no such value.
    """

    def __init__(
        self,
        steps: int = 10,
        alpha: float = 0.1,
        *,
        dropout: float = 0.0,
        self_loops: bool = True,
    ):
        check_sizes("APPNP", least=0, steps=steps)
        check_rate("APPNP", alpha, "alpha", "the probability of a jump back")
        check_rate("APPNP", dropout)
        check_flags("APPNP", self_loops=self_loops)
        self.steps = int(steps)
        self.alpha = alpha
        self.dropout = dropout
        self.self_loops = self_loops

    def __call__(
        self,
        graph: Graph,
        x: jax.Array,
        *,
        edges: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """The propagated predictions, `[N, F]`; deterministic without `key`.

        Args:
            graph: a graph of one vertex set, as each step reads what the one before it wrote.
            x: `[N, F]`.
            edges: `[E]`, weights of the edges; 1 if left out.
            key: for dropout.

        Raises:
            GraphError: an array does not fit the graph.
            LayerError: features are no numbers, or there are two vertex sets.
        """
        check_one_set(graph, x, "APPNP")
        check_weights(edges, "APPNP")
        first, at = degree_factors("APPNP", graph, x, edges, 1 if self.self_loops else 0)
        h = first
        for i in range(self.steps):
            own_key = None if key is None else jax.random.fold_in(key, i)
            pair = {"now": paired(h, at), "first": first}
            h = self.step(graph, pair, edges=edges, weighted=edges is not None, key=own_key)
        return h

    @gnnjit.layer(static_argnames="weighted")
    def step(self, v: Any, e: Any, *, weighted: bool, key: jax.Array | None) -> jax.Array:
        """The layer of one step."""
        weight = e.data if weighted else None
        (h_v, at_v), (h_u, at_u) = v["now"], e.src["now"]
        if key is None:
            near = neighbours(v["now"], e.src["now"], weight)
            own = own_term(v["now"], weighted)
        else:
            share = at_v * at_u if weight is None else at_v * at_u * weight
            share, own_share = gnnjit.dropout((share, at_v * at_v), self.dropout, key)
            near, own = gnnjit.sum(share * h_u), own_share * h_v
        total = near + own if self.self_loops else near
        return (1 - self.alpha) * total + self.alpha * v["first"]
