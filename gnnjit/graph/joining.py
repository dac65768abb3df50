"""The edges of several relations between the same vertices as one graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from gnnjit.graph import hosting, order, relations
from gnnjit.graph.graph import Graph
from gnnjit.graph.relations import Relations


def joined(graphs: Sequence[Graph]) -> Graph:
    """The graph of the edges of all `graphs`, graph after graph. The relation of an edge is the
    number of its graph. They have the same vertices; what else they know of these is left out.

    Known edges are sorted on the host, traced ones on the device.
    """
    first, counts = graphs[0], [g.num_edges for g in graphs]
    number = np.repeat(np.arange(len(graphs), dtype=np.int32), counts)
    ends = [[g.src for g in graphs], [g.dst for g in graphs]]
    src, dst = (hosting.concatenated(arrays) for arrays in ends)
    mask = None
    if any(g.mask is not None for g in graphs):
        masks = [np.ones(g.num_edges, bool) if g.mask is None else g.mask for g in graphs]
        mask = hosting.concatenated(masks)
    if hosting.on_host(src, dst, mask):
        sizes: dict[str, Any] = {"num_nodes": first.num_dst}
        if first.bipartite:
            sizes = {"num_src": first.num_src, "num_dst": first.num_dst}
        return Graph.from_edges(
            src, dst, edge_mask=mask, relation=number, num_relations=len(graphs), **sizes
        )
    real = jnp.ones(len(number), bool) if mask is None else mask
    known, rows = jnp.asarray(number), (first.num_src, first.num_dst)
    into, outward = order.traced_structures(src, dst, real, rows, None, False)
    # In a row, edges stand in their order: relation after relation.
    degree = relations.degrees_along(into.edge, known, dst, real)
    return Graph(
        src=src, dst=dst, mask=mask, in_structure=into, out_structure=outward, dropped=None,
        num_src=first.num_src, num_dst=first.num_dst, num_edges=len(number),
        bipartite=first.bipartite, relations=Relations(known, degree, len(graphs)),
    )  # fmt: skip
