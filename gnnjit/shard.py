"""`gnnjit.shard`: one graph over many devices."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.sharding import AxisType, Mesh

from gnnjit.graph import Graph, partition
from gnnjit.graph.edit import real_edges
from gnnjit.graph.shard_build import build, plan
from gnnjit.graph.sharded import ShardedGraph


def shard(
    graph: Graph,
    mesh: Mesh,
    axis: str | None = None,
    *,
    exchange: str = "halo",
    features: str | None = None,
    cut: Any = None,
) -> ShardedGraph:
    axis = mesh.axis_names[0] if axis is None else axis
    mesh = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))
    src, dst = (np.asarray(x) for x in real_edges(graph))
    parts = mesh.shape[axis]
    cut = partition.equal_vertices(graph.num_nodes, parts) if cut is None else cut
    return build(plan(src, dst, cut), mesh, axis, exchange, features=features)
