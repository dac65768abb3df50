"""Graphs over several devices: the parts, what they exchange, and the choice of both.

In: a `Graph` and a partition. Out: a `ShardedGraph`, which layers take like any graph. The
communication itself is lowered in `lower/sharded`.
"""

from gnnjit.sharding.sharded_graph import ShardedGraph, refuse_exports

__all__ = ["ShardedGraph"]

refuse_exports()
