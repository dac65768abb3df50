"""The symmetric normalisation of edges by the degrees of their endpoints."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.errors import GraphError
from gnnjit.graph import hosting, validate
from gnnjit.graph.reading import is_number, read_array, shown_shape
from gnnjit.graph.validate import cut
from gnnjit.shapes import ArrayLike, EdgeWeight, HostArray, VertexWeight


def parts(graph: Any, weights: ArrayLike | None) -> tuple[Any, Any, Any, Any]:
    """What the other functions take: the ends of the edges, their mask, degrees, and weights.

    Raises GraphError for weights on a block of a sampled batch, whose degrees are not in the block.
    """
    if not (graph.nested and graph.whole_degree is not None):
        degrees: Any = graph.out_degree if graph.bipartite else None, graph.in_degree
    elif weights is None:
        degrees = graph.whole_degree, graph.whole_degree[: graph.num_dst]
    else:
        raise GraphError(
            "a normalisation by weighted degrees was asked of a block of a sampled batch, expected "
            "none: normalise the weights on the whole graph, as edge data"
        )
    return (graph.src, graph.dst), graph.mask, degrees, weights


def gcn_factors(
    ends: tuple[Any, Any],
    mask: Any,
    degrees: tuple[Any, Any],
    weights: ArrayLike | None,
) -> tuple[VertexWeight, VertexWeight]:
    """`(float32[num_src], float32[num_dst])`: degree ** -0.5, or 0 where that is not positive.

    The degree of both endpoints is the in-degree (weighted, if there are `weights`); the sources
    of a bipartite graph have only out-edges, so theirs is the out-degree.

    Args:
        ends: the edges' sources and destinations.
        degrees: the number of edges of each source, None where there is one vertex set, and of each
            destination.
    """
    weights = _as_weights(weights, len(ends[0]))
    if hosting.on_host(ends, mask, degrees, weights):
        return hosting.to_device(_on_host(ends, mask, degrees, weights), ends[0])
    at_src, at_dst = (
        None if d is None else inverse_root(_weighted_degree(end, mask, d, weights))
        for end, d in zip(ends, degrees, strict=True)
    )
    assert at_dst is not None
    return at_dst if at_src is None else at_src, at_dst


def _on_host(
    ends: tuple[Any, Any],
    mask: Any,
    degrees: tuple[Any, Any],
    weights: Any,
) -> tuple[HostArray, HostArray]:
    """`gcn_factors` in NumPy."""

    def factor(end: Any, degree: Any) -> HostArray:
        degree = np.asarray(degree)
        if weights is not None:
            real = slice(None) if mask is None else np.asarray(mask)
            parts = np.asarray(weights)[real]
            degree = np.bincount(np.asarray(end)[real], parts, minlength=len(degree))
        some = degree > 0
        return np.where(some, np.where(some, degree, 1) ** -0.5, 0).astype(np.float32)

    of_src, of_dst = degrees
    at_dst = factor(ends[1], of_dst)
    return at_dst if of_src is None else factor(ends[0], of_src), at_dst


def gcn_norm(
    ends: tuple[Any, Any],
    mask: Any,
    degrees: tuple[Any, Any],
    weights: ArrayLike | None,
) -> EdgeWeight:
    """`float32[E]`: product of both endpoints' factors (and the edge's weight), 0 on padding.

    Args: as `gcn_factors`.
    """
    src, dst = ends
    weights = _as_weights(weights, len(src))
    if hosting.on_host(ends, mask, degrees, weights):
        at_src, at_dst = _on_host(ends, mask, degrees, weights)
        found = at_src[np.asarray(src)] * at_dst[np.asarray(dst)]
        found = found if weights is None else found * np.asarray(weights)
        found = found if mask is None else np.where(mask, found, np.float32(0))
        return hosting.to_device(found, src)
    at_src, at_dst = gcn_factors(ends, mask, degrees, weights)
    norm = at_src[src] * at_dst[dst]
    if weights is not None:
        norm = norm * jnp.asarray(weights)
    return norm if mask is None else jnp.where(mask, norm, 0)


def _weighted_degree(end: Any, mask: Any, degree: Any, weights: Any) -> VertexWeight:
    """`float32`: the sum of the weights of each vertex's edges, padding left out."""
    if weights is None:
        return jnp.asarray(degree).astype(jnp.float32)
    weights = jnp.asarray(weights)
    if mask is not None:
        weights = jnp.where(mask, weights, 0)
    return jax.ops.segment_sum(weights, end, len(degree))


def _as_weights(weights: Any, num_edges: int) -> Any:
    """`float32[E]`, in JAX if it was; None for none. Raises GraphError on another shape."""
    if weights is None:
        return None
    weights = read_array("weights", weights)
    hint = "pass arrays with one row per edge"
    validate.check_leading("weights", weights, num_edges, "edges", hint)
    if np.ndim(weights) != 1:
        raise GraphError(
            f"weights has shape {shown_shape(weights)}, expected ({num_edges},), one number "
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
