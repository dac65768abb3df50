"""The symmetric normalisation of edges by the degrees of their endpoints."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.errors import GraphError
from gnnjit.graph import hosting, validate
from gnnjit.graph.reading import is_number, read_array, shown_shape
from gnnjit.graph.structure import Structure
from gnnjit.graph.validate import cut
from gnnjit.shapes import ArrayLike, EdgeWeight, HostArray, VertexWeight


def gcn_factors(
    ends: tuple[Any, Any],
    mask: Any,
    structures: tuple[Structure | None, Structure],
    weights: ArrayLike | None,
) -> tuple[VertexWeight, VertexWeight]:
    """`(float32[num_src], float32[num_dst])`: degree ** -0.5, or 0 where that is not positive.

    The degree of both endpoints is the in-degree (weighted, if there are `weights`); the sources
    of a bipartite graph have only out-edges, so theirs is the out-degree.

    Args:
        ends: the edges' sources and destinations.
        structures: the edges by source, None where they have one vertex set, and by destination.
    """
    weights = _as_weights(weights, len(ends[0]))
    if hosting.on_host(ends, mask, structures, weights):
        return hosting.to_device(_on_host(ends, mask, structures, weights), ends[0])
    at_src, at_dst = (
        None if s is None else inverse_root(_weighted_degree(end, mask, s, weights))
        for end, s in zip(ends, structures, strict=True)
    )
    assert at_dst is not None
    return at_dst if at_src is None else at_src, at_dst


def _on_host(
    ends: tuple[Any, Any],
    mask: Any,
    structures: tuple[Structure | None, Structure],
    weights: Any,
) -> tuple[HostArray, HostArray]:
    """`gcn_factors` in NumPy."""

    def factor(end: Any, structure: Structure) -> HostArray:
        if weights is None:
            degree = np.diff(np.asarray(structure.indptr))
        else:
            real = slice(None) if mask is None else np.asarray(mask)
            parts = np.asarray(weights)[real]
            degree = np.bincount(np.asarray(end)[real], parts, minlength=structure.num_rows)
        some = degree > 0
        return np.where(some, np.where(some, degree, 1) ** -0.5, 0).astype(np.float32)

    by_src, by_dst = structures
    at_dst = factor(ends[1], by_dst)
    return at_dst if by_src is None else factor(ends[0], by_src), at_dst


def gcn_norm(
    ends: tuple[Any, Any],
    mask: Any,
    structures: tuple[Structure | None, Structure],
    weights: ArrayLike | None,
) -> EdgeWeight:
    """`float32[E]`: product of both endpoints' factors (and the edge's weight), 0 on padding.

    Args: as `gcn_factors`.
    """
    src, dst = ends
    weights = _as_weights(weights, len(src))
    if hosting.on_host(ends, mask, structures, weights):
        at_src, at_dst = _on_host(ends, mask, structures, weights)
        found = at_src[np.asarray(src)] * at_dst[np.asarray(dst)]
        found = found if weights is None else found * np.asarray(weights)
        found = found if mask is None else np.where(mask, found, np.float32(0))
        return hosting.to_device(found, src)
    at_src, at_dst = gcn_factors(ends, mask, structures, weights)
    norm = at_src[src] * at_dst[dst]
    if weights is not None:
        norm = norm * jnp.asarray(weights)
    return norm if mask is None else jnp.where(mask, norm, 0)


def _weighted_degree(end: Any, mask: Any, structure: Structure, weights: Any) -> VertexWeight:
    """`float32`: the sum of the weights of each vertex's edges, padding left out."""
    if weights is None:
        return structure.degree().astype(jnp.float32)
    weights = jnp.asarray(weights)
    if mask is not None:
        weights = jnp.where(mask, weights, 0)
    return jax.ops.segment_sum(weights, end, structure.num_rows)


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
