"""Graphs: edges, their two sorted structures, padding, batching, statistics."""

from gnnjit.graph.graph import Bipartite, Graph
from gnnjit.graph.structure import Structure

__all__ = ["Bipartite", "Graph", "Structure"]
