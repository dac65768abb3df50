"""The symmetric normalisation of edges by the degrees of their endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from gnnjit.shapes import ArrayLike, EdgeWeight, VertexWeight

if TYPE_CHECKING:
    from gnnjit.graph.graph import Graph


def gcn_factors(
    graph: Graph, weights: ArrayLike | None = None
) -> tuple[VertexWeight, VertexWeight]:
    """`(float32[num_src], float32[num_dst])`: degree ** -0.5, or 0 where that is not positive.

    The degree of both endpoints is the in-degree (weighted, if there are `weights`); the sources
    of a bipartite graph have only out-edges, so theirs is the out-degree.
    """
    into_dst = inverse_root(weighted_degree(graph, weights, "in"))
    if not graph.bipartite:
        return into_dst, into_dst
    return inverse_root(weighted_degree(graph, weights, "out")), into_dst


def gcn_norm(graph: Graph, weights: ArrayLike | None = None) -> EdgeWeight:
    """`float32[E]`: product of both endpoints' factors (and the edge's weight), 0 on padding."""
    at_src, at_dst = gcn_factors(graph, weights)
    norm = at_src[graph.src] * at_dst[graph.dst]
    if weights is not None:
        norm = norm * jnp.asarray(weights, jnp.float32)
    return norm if graph.mask is None else jnp.where(graph.mask, norm, 0)


def weighted_degree(graph: Graph, weights: ArrayLike | None, space: str) -> VertexWeight:
    """`float32`: the sum of the weights of each vertex's edges, padding left out."""
    if weights is None:
        return graph.degree(space).astype(jnp.float32)
    graph.check(weights, "edge", "weights")
    weights = jnp.asarray(weights, jnp.float32)
    if graph.mask is not None:
        weights = jnp.where(graph.mask, weights, 0)
    rows, count = (graph.dst, graph.num_dst) if space == "in" else (graph.src, graph.num_src)
    return jax.ops.segment_sum(weights, rows, count)


def inverse_root(degree: VertexWeight) -> VertexWeight:
    """degree ** -0.5; 0, with a zero gradient, where the degree is not positive."""
    some = degree > 0
    return jnp.where(some, jax.lax.rsqrt(jnp.where(some, degree, 1)), 0)
