"""Graphs: edges, their two sorted structures, padding, batching, statistics.

In: arrays of edges, of NumPy, JAX and other libraries. Out: a `Graph`, a pytree that layers take.
Everything may import it; it knows neither layers nor devices.
"""

from gnnjit.graph.batching import batch
from gnnjit.graph.edit import coalesce, symmetrize
from gnnjit.graph.graph import Bipartite, Graph
from gnnjit.graph.serialized import register
from gnnjit.graph.statistics import DegreeStatistics, Statistics
from gnnjit.graph.structure import Structure
from gnnjit.graph.typed import TypedGraph

__all__ = [
    "Bipartite",
    "DegreeStatistics",
    "Graph",
    "Statistics",
    "Structure",
    "TypedGraph",
    "batch",
    "coalesce",
    "symmetrize",
]

register()
