"""The neighbourhoods that a graph's edges are."""

from __future__ import annotations

from typing import Any

from gnnjit.errors import SampleError
from gnnjit.graph import Graph
from gnnjit.graph.validate import shown
from gnnjit.neighborhood.hdg import HDG, num_bytes
from gnnjit.neighborhood.report import Selected


def direct(graph: Graph) -> HDG:
    """Neighbours are the sources of a vertex's in-edges: one level, the graph itself.

    So one model runs over these neighbourhoods and over others.

    Args:
        graph: of one vertex set.

    Raises:
        SampleError: `graph` is none.
    """
    if not isinstance(graph, Graph) or graph.bipartite:
        raise SampleError(
            f"direct: got {shown(graph)}, expected a gnnjit.Graph of one vertex set: call layers "
            f"on other graphs themselves"
        )
    degree: Any = graph.in_degree
    edges, size = graph.num_edges, num_bytes(graph)
    rows = (("neighbours", edges, edges, int(degree.max()) if len(degree) else 0),)
    return HDG(
        parts=(graph,),
        edges=(None,),
        relations=("",),
        num_types=1,
        longest=1,
        types=(),
        sizes=(graph.num_nodes,),
        root_type=None,
        selected=Selected("direct", rows, None, size, 8 * edges),
    )
