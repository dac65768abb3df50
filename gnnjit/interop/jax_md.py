"""Neighbour lists of jax-md, as they are: dense, sparse and ordered; inside `jit` too."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from gnnjit.graph import Graph
from gnnjit.graph.pairs import with_pairs
from gnnjit.graph.validate import is_traced
from gnnjit.interop.plain import required

FROM = "interop.jax_md.from_neighbor_list"


def from_neighbor_list(neighbors: Any) -> Graph:
    """The graph of a neighbour list: an edge `u -> v` for each neighbour `u` of `v`, both ways.

    Places that hold no neighbour, which jax-md marks with the number of particles, are padding. The
    list also has pairs between its cutoff and its threshold: weigh edges by their distance. Where
    `neighbors.did_buffer_overflow`, edges are missing.

    Args:
        neighbors: a `jax_md.partition.NeighborList`, or what has its `idx`, `reference_position`
            and `format`. Nothing of jax-md is imported.

    Raises:
        GraphError: it has no such attributes.
    """
    required(neighbors, ("idx", "reference_position", "format"), FROM, "a jax-md NeighborList")
    idx = jnp.asarray(neighbors.idx)
    count = neighbors.reference_position.shape[0]
    kind = getattr(neighbors.format, "name", str(neighbors.format))
    if kind == "Dense":
        src, dst = idx.reshape(-1), jnp.repeat(jnp.arange(count, dtype=idx.dtype), idx.shape[1])
    else:
        src, dst = idx
    if kind == "OrderedSparse":  # each pair once
        src, dst = jnp.concatenate([src, dst]), jnp.concatenate([dst, src])
    real = (src < count) & (dst < count)
    if not is_traced(idx):  # sorted on the host, whatever they are
        return Graph.from_edges(src, dst, num_nodes=count, edge_mask=real)
    by = "dst" if kind == "Dense" else None
    graph = Graph.from_edges(
        src, dst, num_nodes=count, edge_mask=real, sorted_by=by, symmetric=True
    )
    return with_pairs(graph, by)
