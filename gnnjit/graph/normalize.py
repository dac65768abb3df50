"""The symmetric normalisation of edges by the degrees of their endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.errors import GraphError
from gnnjit.graph import hosting
from gnnjit.graph.reading import is_number, read_array, shown_shape
from gnnjit.graph.structure import Structure
from gnnjit.graph.validate import cut
from gnnjit.shapes import ArrayLike, EdgeWeight, HostArray, VertexWeight

if TYPE_CHECKING:
    from gnnjit.graph.graph import Graph


def gcn_factors(
    graph: Graph, weights: ArrayLike | None = None
) -> tuple[VertexWeight, VertexWeight]:
    """`(float32[num_src], float32[num_dst])`: degree ** -0.5, or 0 where that is not positive.

    The degree of both endpoints is the in-degree (weighted, if there are `weights`); the sources
    of a bipartite graph have only out-edges, so theirs is the out-degree.
    """
    if hosting.on_host(graph, weights):
        return hosting.to_device(_on_host(graph, weights), graph.src)
    into_dst = inverse_root(weighted_degree(graph, weights, "in"))
    if not graph.bipartite:
        return into_dst, into_dst
    return inverse_root(weighted_degree(graph, weights, "out")), into_dst


def _on_host(graph: Graph, weights: ArrayLike | None) -> tuple[HostArray, HostArray]:
    """`gcn_factors` in NumPy."""

    def factor(end: Any, structure: Structure) -> HostArray:
        if weights is None:
            degree = np.diff(np.asarray(structure.indptr))
        else:
            real = slice(None) if graph.mask is None else np.asarray(graph.mask)
            parts = np.asarray(_as_weights(graph, weights))[real]
            degree = np.bincount(np.asarray(end)[real], parts, minlength=structure.num_rows)
        some = degree > 0
        return np.where(some, np.where(some, degree, 1) ** -0.5, 0).astype(np.float32)

    into_dst = factor(graph.dst, graph.in_structure)
    if not graph.bipartite:
        return into_dst, into_dst
    return factor(graph.src, graph.out_structure), into_dst


def gcn_norm(graph: Graph, weights: ArrayLike | None = None) -> EdgeWeight:
    """`float32[E]`: product of both endpoints' factors (and the edge's weight), 0 on padding."""
    if hosting.on_host(graph, weights):
        at_src, at_dst = _on_host(graph, weights)
        found = at_src[np.asarray(graph.src)] * at_dst[np.asarray(graph.dst)]
        found = found if weights is None else found * np.asarray(_as_weights(graph, weights))
        found = found if graph.mask is None else np.where(graph.mask, found, np.float32(0))
        return hosting.to_device(found, graph.src)
    at_src, at_dst = gcn_factors(graph, weights)
    norm = at_src[graph.src] * at_dst[graph.dst]
    if weights is not None:
        norm = norm * jnp.asarray(_as_weights(graph, weights))
    return norm if graph.mask is None else jnp.where(graph.mask, norm, 0)


def weighted_degree(graph: Graph, weights: ArrayLike | None, space: str) -> VertexWeight:
    """`float32`: the sum of the weights of each vertex's edges, padding left out."""
    if weights is None:
        return graph.degree(space).astype(jnp.float32)
    weights = jnp.asarray(_as_weights(graph, weights))
    if graph.mask is not None:
        weights = jnp.where(graph.mask, weights, 0)
    rows, count = (graph.dst, graph.num_dst) if space == "in" else (graph.src, graph.num_src)
    return jax.ops.segment_sum(weights, rows, count)


def _as_weights(graph: Graph, weights: Any) -> Any:
    """`float32[E]`, in JAX if it was. Raises GraphError on another shape."""
    weights = read_array("weights", weights)
    graph.check(weights, "edge", "weights")
    if np.ndim(weights) != 1:
        raise GraphError(
            f"weights has shape {shown_shape(weights)}, expected ({graph.num_edges},), one number "
            f"per edge: pass one column of the edge data"
        )
    if not is_number(weights.dtype) or jnp.issubdtype(weights.dtype, np.complexfloating):
        raise GraphError(
            f"weights has dtype {cut(str(weights.dtype))}, expected real numbers: pass one per edge"
        )
    return weights.astype(np.float32)


def inverse_root(degree: VertexWeight) -> VertexWeight:
    """degree ** -0.5; 0, with a zero gradient, where the degree is not positive."""
    some = degree > 0
    return jnp.where(some, jax.lax.rsqrt(jnp.where(some, degree, 1)), 0)
