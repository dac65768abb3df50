"""Graphs over several devices: the parts, what they exchange, and the choice of both.

In: a `Graph` or a `TypedGraph`, and a partition. Out: a `ShardedGraph` or a `ShardedTypedGraph`,
which layers take like any graph. The communication itself is lowered in `lower/sharded`.
"""

from gnnjit.sharding.sharded_graph import ShardedGraph, refuse_exports
from gnnjit.sharding.sharded_typed_graph import ShardedTypedGraph

__all__ = ["ShardedGraph", "ShardedTypedGraph"]

refuse_exports()
