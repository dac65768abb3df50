"""Cuts of a graph into parts: METIS, contiguous ranges of vertices, locality orders, migration.

In: the edges of a graph and the costs of its vertices. Out: a `Partition`, or an order of vertices.
`sharding` and `streaming` ask for cuts; nothing here knows about devices.
"""

from gnnjit.partition.partition import Partition

__all__ = ["Partition"]
