"""Edges in both directions: one of each two."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from gnnjit.graph import hosting, validate


def with_pairs(graph: Any, sorted_by: str | None = None) -> Any:
    """A graph of edges in both directions, with its `pairs`: one of each two, `u -> v` and
    `v -> u`; without them where a known edge is a loop, which goes back by itself. Traced edges
    must have no loops.

    With padding, pairs have half the places, filled or not: graphs of one shape stay alike.

    sorted_by: as of `Graph.from_edges`.
    """
    src, dst, mask = graph.src, graph.dst, graph.mask
    traced = validate.is_traced(src, dst, mask)
    if not traced:
        src, dst, mask = np.asarray(src), np.asarray(dst), hosting.read(mask)
        if ((src == dst) & (True if mask is None else mask)).any():
            return graph
    picked = (src < dst) == ((src ^ dst) & 1 == 0)  # a vertex is at both ends about as often
    if mask is None:
        at, real = np.flatnonzero(picked), None
    else:
        places, picked = len(src) // 2, picked & mask
        real = np.arange(places) < picked.sum()
        if traced:
            (at,) = jnp.nonzero(picked, size=places, fill_value=0)
        else:
            at = np.flatnonzero(picked)
            at = np.pad(at, (0, places - len(at)))
    pairs = type(graph).from_edges(
        src[at], dst[at], graph.num_nodes, edge_mask=real, sorted_by=sorted_by
    )
    return dataclasses.replace(graph, pairs=pairs)
