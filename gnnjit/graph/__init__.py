"""Graphs: edges, their two sorted structures, padding, batching, shards, statistics."""

from gnnjit.graph.batching import batch
from gnnjit.graph.edit import coalesce, symmetrize
from gnnjit.graph.graph import Bipartite, Graph
from gnnjit.graph.serialized import register
from gnnjit.graph.statistics import DegreeStatistics, Statistics
from gnnjit.graph.structure import Structure
from gnnjit.partition.partition import Partition
from gnnjit.sharding.sharded_graph import ShardedGraph

__all__ = [
    "Bipartite",
    "DegreeStatistics",
    "Graph",
    "Partition",
    "ShardedGraph",
    "Statistics",
    "Structure",
    "batch",
    "coalesce",
    "symmetrize",
]

register()
