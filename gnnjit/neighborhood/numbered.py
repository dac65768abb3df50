"""What the edges of a level are told apart by, as the relations of its graph."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from gnnjit.graph import Graph, hosting
from gnnjit.graph.relations import Relations
from gnnjit.graph.validate import is_traced


def numbered(graph: Graph, kind: str, count: int) -> Graph:
    """The graph of a level with the relations that its edges have.

    Args:
        kind: "position", the place of the edge among those of its destination; "type", that of the
            neighbour type; "" for none.
        count: of positions or types.
    """
    if not kind or graph.relations is not None:
        return graph
    traced = is_traced(graph)
    xp: Any = jnp if traced else np
    dst, first = xp.asarray(graph.dst), xp.asarray(graph.in_structure.indptr)
    edge = xp.arange(graph.num_edges, dtype=dst.dtype)
    if kind == "position":
        number, degree = edge - first[dst], xp.ones(graph.num_edges, np.int32)
    elif graph.fan_in is not None:
        number, degree = edge % dst.dtype.type(max(1, count)), xp.ones(graph.num_edges, np.int32)
    else:
        number, degree = dst % dst.dtype.type(max(1, count)), xp.diff(first)[dst]
    if graph.mask is not None:
        degree = degree * xp.asarray(graph.mask)
    found = Relations(number.astype(np.int32), degree.astype(np.int32), count)
    found = found if traced else hosting.to_device(found, graph.dst)
    return dataclasses.replace(graph, relations=found)
