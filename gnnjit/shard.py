"""`gnnjit.shard`: one graph over many devices."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.sharding import AxisType, Mesh

from gnnjit.errors import GraphError
from gnnjit.graph import Graph, validate
from gnnjit.graph.edit import real_edges
from gnnjit.graph.partition import Partition, balanced, equal_edges, equal_vertices, metis
from gnnjit.graph.shard_build import build, plan
from gnnjit.graph.sharded import EXCHANGES, ShardedGraph
from gnnjit.shapes import ArrayLike

PARTITIONS = ("auto", "vertices", "edges", "learned", "metis")

__all__ = ["shard"]


def shard(
    graph: Graph,
    mesh: Mesh,
    axis: str | None = None,
    *,
    partition: str | Partition | ArrayLike = "auto",
    exchange: str = "auto",
    features: str | None = None,
    memory_budget: int | str | None = None,
) -> ShardedGraph:
    """Deal the vertices of `graph` out to the devices along one axis of a mesh.

    Layers and compiled functions take the result where they take a `Graph`, and arrays that its
    `put` and `put_edges` made where they take features: `layer(sharded, sharded.put(x), params)`.
    Values and gradients are those of one device, up to rounding. Each device holds its vertices,
    the edges that end there, and what it needs of the others for as long as it needs it (NeuGraph,
    section 3.3; ROC, section 4; FlexGraph, section 5). Between layers, everything that JAX can do
    with sharded arrays goes.

    Args:
        graph: with concrete edges, and one vertex set.
        mesh: of all devices, of all processes.
        axis: the axis of `mesh` that shards vertices; the first if left out.
        partition: which vertices go together. "vertices" and "edges": as they are numbered, equal
            numbers of vertices, or of edges that end there; "learned": by what the learned model
            says that each vertex costs; "metis": few edges between shards (needs `pymetis`);
            "auto": "learned". A `Partition`, or the shard of each vertex, `int[N]`.
        exchange: how rows of other shards come: "all_gather", all of them at once; "halo", those
            that are used, at once; "ring", shard by shard, never more than two shards' rows on a
            device; "auto": the fastest by the cost model that fits the budget.
        features: the axis of `mesh` that splits features where each is aggregated by itself.
        memory_budget: bytes of each device for the rows of other shards.

    Raises:
        GraphError: a bipartite or traced graph, an unknown name, an axis that the mesh has not, a
            partition that does not fit.
    """
    if not isinstance(graph, Graph) or graph.bipartite:
        got = repr(graph) if isinstance(graph, Graph) else f"a {type(graph).__name__}"
        raise GraphError(f"shard() got {got}, expected a gnnjit.Graph with one vertex set")
    axis = _axis(mesh, mesh.axis_names[0] if axis is None else axis, "axis")
    if features is not None and _axis(mesh, features, "features") == axis:
        raise GraphError(f"axis and features are both {axis!r}, expected two axes of the mesh")
    if validate.is_traced(graph):
        raise GraphError(
            "shard() got a graph of traced edges, expected concrete ones: shard the graph before "
            "jit, and pass the result to the compiled function"
        )
    src, dst = (np.asarray(x) for x in real_edges(graph))
    dealt = _partition(partition, src, dst, graph.num_nodes, mesh.shape[axis])
    mask = None if graph.mask is None else np.asarray(graph.mask)
    found = plan(src, dst, dealt, mask)
    if exchange not in ("auto", *EXCHANGES):
        names = ", ".join(("auto", *EXCHANGES))
        raise GraphError(f"exchange is {exchange!r}, expected one of {names}")
    if exchange == "auto":
        exchange = "halo"
    types = (AxisType.Auto,) * len(mesh.axis_names)
    mesh = Mesh(mesh.devices, mesh.axis_names, axis_types=types)
    return build(found, mesh, axis, exchange, features=features)


def _axis(mesh: Mesh, name: str, what: str) -> str:
    if name not in mesh.axis_names:
        raise GraphError(
            f"{what} is {name!r}, expected an axis of the mesh: {', '.join(mesh.axis_names)}"
        )
    return name


def _partition(
    wanted: Any, src: np.ndarray, dst: np.ndarray, num_nodes: int, shards: int
) -> Partition:
    if not isinstance(wanted, (str, Partition)):
        wanted = Partition.of_assignment(wanted, shards)
    if isinstance(wanted, Partition):
        if wanted.num_shards != shards or len(wanted.order) != num_nodes:
            raise GraphError(
                f"partition deals {len(wanted.order)} vertices out to {wanted.num_shards} shards, "
                f"expected {num_nodes} vertices and {shards} shards"
            )
        return wanted
    degree = np.bincount(dst, minlength=num_nodes)
    match wanted:
        case "vertices":
            return equal_vertices(num_nodes, shards)
        case "edges":
            return equal_edges(degree, shards)
        case "auto" | "learned":
            return balanced(1.0 + degree, shards)
        case "metis":
            return metis(src, dst, num_nodes, shards)
    raise GraphError(f"partition is {wanted!r}, expected one of {', '.join(PARTITIONS)}, or arrays")
