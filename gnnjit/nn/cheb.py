"""Chebyshev spectral graph convolution."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import gnnjit
from gnnjit.errors import LayerError
from gnnjit.graph import Graph
from gnnjit.graph.validate import shown
from gnnjit.nn.arguments import check_numbers, check_rngs, check_sizes
from gnnjit.nn.edge_features import check_one_set, check_weights
from gnnjit.nn.init import glorot
from gnnjit.nn.normalized import degree_factors, neighbours, paired


class Cheb(nnx.Module):
    """`H' = sum over k of T_k(L) H W_k + b`, with Chebyshev's polynomials `T_0 = 1`, `T_1(L) = L`,
    `T_k(L) = 2 L T_{k-1}(L) - T_{k-2}(L)` and `L = 2 / lambda_max (I - D^-1/2 A D^-1/2) - I`.

    Defferrard, Bresson & Vandergheynst, "Convolutional Neural Networks on Graphs with Fast
    Localized Spectral Filtering" (2016), equations 4 and 5, for k from 0 to `terms - 1`. A vertex
    sees those that are `terms - 1` hops away. The nonlinearity is left to the caller.

    Where we differ: a bias; as in PyG (`ChebConv`) `lambda_max` is 2, the largest that it can be,
    unless it is given. Self loops of the graph stand in A; PyG's module takes them away.

    Args:
        in_features, out_features: F and F'.
        terms: K, the number of polynomials.
        lambda_max: the largest eigenvalue of the Laplacian.
        rngs: draws the weights.

    Raises:
        LayerError: a size, number or `rngs` is no such value.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        terms: int = 3,
        lambda_max: float = 2.0,
        rngs: nnx.Rngs,
    ):
        check_sizes("Cheb", in_features=in_features, out_features=out_features, terms=terms)
        check_numbers("Cheb", lambda_max=lambda_max)
        if isinstance(lambda_max, int | float) and lambda_max <= 0:
            raise LayerError(
                f"nn.Cheb: lambda_max is {shown(lambda_max)}, expected a positive number: pass the "
                "largest eigenvalue of the Laplacian, or 2, its bound"
            )
        check_rngs("Cheb", rngs)
        self.linear = nnx.Linear(
            int(terms) * in_features, out_features, kernel_init=glorot, rngs=rngs
        )
        self.terms = int(terms)
        self.lambda_max = lambda_max

    def __call__(self, graph: Graph, x: jax.Array, *, edges: jax.Array | None = None) -> jax.Array:
        """The new features, `[N, F']`.

        Args:
            graph: a graph of one vertex set, as each step reads what the one before it wrote.
            x: `[N, F]`.
            edges: `[E]`, weights of the edges; 1 if left out.

        Raises:
            GraphError: an array does not fit the graph.
            LayerError: features are no numbers, or there are two vertex sets.
        """
        check_one_set(graph, x, "Cheb")
        check_weights(edges, "Cheb")
        now, at = degree_factors("Cheb", graph, x, edges, 0)
        found = [now]
        for k in range(1, self.terms):
            rows = {"now": paired(now, at), "before": found[k - 2]} if k > 1 else paired(now, at)
            step = self.first if k == 1 else self.next
            now = step(graph, rows, edges=edges, weighted=edges is not None)
            found.append(now)
        return self.linear(jnp.concatenate(found, axis=-1))

    @gnnjit.layer(static_argnames="weighted")
    def first(self, v: Any, e: Any, *, weighted: bool) -> jax.Array:
        """`L h`."""
        return self._laplacian(v, neighbours(v, e.src, e.data if weighted else None))

    @gnnjit.layer(static_argnames="weighted")
    def next(self, v: Any, e: Any, *, weighted: bool) -> jax.Array:
        """`2 L h_k - h_{k-1}`."""
        near = neighbours(v["now"], e.src["now"], e.data if weighted else None)
        return 2 * self._laplacian(v["now"], near) - v["before"]

    def _laplacian(self, v: Any, near: jax.Array) -> jax.Array:
        scale = 2 / self.lambda_max
        return (scale - 1) * v[0] - scale * near
