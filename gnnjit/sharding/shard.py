"""`gnnjit.shard`: one graph over many devices."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from jax.sharding import AxisType, Mesh

from gnnjit.cost.link_model import Blocks, Way, choose, ways
from gnnjit.cost.partition_model import PartitionModel
from gnnjit.errors import GraphError, PlanError
from gnnjit.graph import Graph, TypedGraph, validate
from gnnjit.graph.edit import real_edges
from gnnjit.graph.members import Members
from gnnjit.partition.locality import order_vertices
from gnnjit.partition.partition import (
    Partition,
    balanced,
    cut_edges,
    equal_edges,
    equal_vertices,
    metis,
)
from gnnjit.partition.vertex_features import vertex_features
from gnnjit.shapes import ArrayLike, HostArray
from gnnjit.sharding.build import ShardPlan, build, plan
from gnnjit.sharding.exchange import EXCHANGES
from gnnjit.sharding.measure_links import links_of
from gnnjit.sharding.report import ShardReport
from gnnjit.sharding.send_blocks import HaloLayout
from gnnjit.sharding.sharded_graph import ShardedGraph
from gnnjit.system.memory_budget import parse_size

PARTITIONS = ("auto", "vertices", "edges", "learned", "metis")
ORDERS = ("auto", "given", "rcm")

__all__ = ["shard"]


def shard(
    graph: Graph,
    mesh: Mesh,
    axis: str | None = None,
    *,
    partition: str | Partition | ArrayLike = "auto",
    order: str = "auto",
    exchange: str = "auto",
    features: str | None = None,
    width: int = 64,
    cost: PartitionModel | None = None,
    memory_budget: int | str | None = None,
) -> ShardedGraph:
    """Deal the vertices of `graph` out to the devices along one axis of a mesh.

    Layers and compiled functions take the result where they take a `Graph`, and arrays made by its
    `put` and `put_edges` where they take features: `layer(sharded, sharded.put(x), params)`.
    Values and gradients are those of one device, up to rounding. Each device holds its vertices,
    the edges that end there and, while it needs them, rows of other devices (NeuGraph, section 3.3;
    ROC, section 4; FlexGraph, section 5). Between layers, everything that JAX can do with sharded
    arrays goes. `sharded.report` shows the decisions.

    Args:
        graph: a graph with concrete edges and one vertex set.
        mesh: a mesh of all devices of all processes.
        axis: the axis of `mesh` that shards vertices; the first if left out.
        partition: which vertices go together. "vertices" and "edges": along `order`, equal numbers
            of vertices, or of edges that end there; "learned": along `order`, of equal cost by a
            model of what each vertex costs (ROC, section 4.2); "metis": few edges between shards
            (needs `pymetis`); "auto": "learned". Or a `Partition`, or the shard of each vertex,
            `int[N]`.
        order: of vertices along which they are cut. "given": as they are numbered; "rcm": reverse
            Cuthill-McKee, neighbours close; "auto": the one of the two that cuts fewer edges. A
            `Partition` has its own, and "metis" needs none.
        exchange: how rows of other shards come to a device. "halo": those that its edges read, all
            at once; "cover": the same, but for sums over neighbours, sums for destinations travel
            instead of rows of sources where those are fewer (FlexGraph's partial aggregation; a
            minimum vertex cover); "ring": one shard after the other, so that a device never holds
            the rows of more than two; "all_gather": all rows; "auto": the fastest by measured rates
            that fits the budget. Without a budget, "auto" takes neither "all_gather" nor an
            exchange that holds the rows of more than four shards.
        features: the axis of `mesh` that splits features where each is aggregated by itself (graph
            sampling-based GCN, section V-B).
        width: the number of features (float32) of the arrays that travel, for "auto".
        cost: the model of vertex costs for "learned"; a model of usual costs if left out.
        memory_budget: bytes of each device, or "256MiB", for one array's rows of other shards.

    Returns:
        A `ShardedGraph`.

    Raises:
        GraphError: a bipartite or traced graph, an unknown name, an axis that is not in the mesh, a
            partition that does not fit.
        PlanError: no exchange fits the budget.
    """
    graph, axis, mesh = _checked(graph, mesh, axis, features)
    src, dst = real_edges(graph.src, graph.dst, graph.mask)
    shards, num_nodes = mesh.shape[axis], graph.num_nodes
    by_name = isinstance(partition, str)
    ordered = partition == "metis" if by_name else isinstance(partition, Partition)
    by, along = _order(order, ordered, src, dst, num_nodes, shards)
    if not (cost is None or isinstance(cost, PartitionModel)):
        raise GraphError(
            f"cost is {validate.shown(cost)}, expected a PartitionModel or None: leave it out for "
            f"the usual costs"
        )
    dealt = _partition(partition, src, dst, num_nodes, shards, by, width, cost)
    mask = None if graph.mask is None else np.asarray(graph.mask)
    sharding_plan = plan(src, dst, dealt, mask)
    budget = None if memory_budget is None else parse_size(memory_budget)
    way, every = _way(exchange, sharding_plan, mesh, axis, 4 * width, budget)
    report = ShardReport(
        partition=dealt.method,
        order=along,
        vertices=tuple(dealt.sizes.tolist()),
        edges=tuple(sharding_plan.counts.tolist()),
        cut=cut_edges(src, dst, dealt),
        lower_bound=float(sharding_plan.traffic().sum() / shards),
        width=width,
        ways=tuple(every),
        exchange=way,
    )
    sharded = build(sharding_plan, mesh, axis, way, features=features)
    relations = None if graph.relations is None else sharded.put_edges(graph.relations)
    members = _members(graph, sharded)
    return dataclasses.replace(sharded, report=report, members=members, relations=relations)


def _members(graph: Graph, sharded: ShardedGraph) -> Members | None:
    """The graph of the vertex in each row, and whether that is real."""
    own = graph.members
    if own is None:
        return None
    index, real = sharded.put(own.dst), sharded.put(own.real_dst)
    return Members(index, None, real, None, own.num_graphs, rising=False)


def _checked(
    graph: Any, mesh: Mesh, axis: str | None, features: str | None
) -> tuple[Graph, str, Mesh]:
    if isinstance(graph, TypedGraph):
        raise GraphError(
            "shard() got a TypedGraph, and typed graphs are not sharded yet, expected a Graph with "
            "one vertex set: that of a relation from a type to itself is graph[relation]"
        )
    if not isinstance(graph, Graph) or graph.bipartite:
        got = repr(graph) if isinstance(graph, Graph) else f"a {type(graph).__name__}"
        raise GraphError(f"shard() got {got}, expected a gnnjit.Graph with one vertex set")
    if not isinstance(mesh, Mesh):
        raise GraphError(
            f"shard() got a {type(mesh).__name__} as the mesh, expected a jax.sharding.Mesh: make "
            'one with jax.make_mesh((jax.device_count(),), ("shards",))'
        )
    axis = _axis(mesh, mesh.axis_names[0] if axis is None else axis, "axis")
    if features is not None and _axis(mesh, features, "features") == axis:
        raise GraphError(f"axis and features are both {axis!r}, expected two axes of the mesh")
    if validate.is_traced(graph):
        raise GraphError(
            "shard() got a graph of traced edges, expected concrete ones: shard the graph before "
            "jit, and pass the result to the compiled function"
        )
    types = (AxisType.Auto,) * len(mesh.axis_names)
    return graph, axis, Mesh(mesh.devices, mesh.axis_names, axis_types=types)


def _axis(mesh: Mesh, name: str, what: str) -> str:
    if name not in mesh.axis_names:
        raise GraphError(
            f"{what} is {validate.shown(name)}, expected an axis of the mesh: "
            f"{', '.join(mesh.axis_names)}"
        )
    return name


def _order(
    wanted: str, ordered: bool, src: HostArray, dst: HostArray, num_nodes: int, shards: int
) -> tuple[HostArray | None, str]:
    """The vertices in order (None: as they are), and its name; `ordered`: by the partition."""
    if not (isinstance(wanted, str) and wanted in ORDERS):
        raise GraphError(f"order is {validate.shown(wanted)}, expected one of {', '.join(ORDERS)}")
    if ordered or wanted == "given" or shards == 1:
        return None, "given"
    by = order_vertices(src, dst, num_nodes, method="rcm").vertex
    if wanted == "auto":
        cuts = [cut_edges(src, dst, equal_vertices(num_nodes, shards, o)) for o in (None, by)]
        if cuts[0] <= cuts[1]:
            return None, "given"
    return by, "rcm"


def _partition(
    wanted: Any,
    src: HostArray,
    dst: HostArray,
    num_nodes: int,
    shards: int,
    order: HostArray | None,
    width: int,
    cost: PartitionModel | None,
) -> Partition:
    if not isinstance(wanted, (str, Partition)):
        same = order is None or len(order) != np.size(wanted)
        wanted = Partition.of_assignment(wanted, shards, order=None if same else order)
    if isinstance(wanted, Partition):
        if wanted.num_shards != shards or len(wanted.order) != num_nodes:
            raise GraphError(
                f"partition deals {len(wanted.order)} vertices out to {wanted.num_shards} shards, "
                f"expected {num_nodes} vertices and {shards} shards"
            )
        return wanted
    match wanted:
        case "vertices":
            return equal_vertices(num_nodes, shards, order)
        case "edges":
            return equal_edges(np.bincount(dst, minlength=num_nodes), shards, order)
        case "auto" | "learned":
            features = vertex_features(src, dst, num_nodes, width, order)
            return balanced((cost or PartitionModel()).vertex_cost(features), shards, order)
        case "metis":
            return metis(src, dst, num_nodes, shards)
    raise GraphError(
        f"partition is {validate.shown(wanted)}, expected one of {', '.join(PARTITIONS)}, a "
        "Partition, or the shard of each vertex"
    )


def _way(
    wanted: str, sharding_plan: ShardPlan, mesh: Mesh, axis: str, row: int, budget: int | None
) -> tuple[str, list[Way]]:
    """The exchange taken, and all that were compared."""
    if wanted not in ("auto", *EXCHANGES):
        names = ", ".join(("auto", *EXCHANGES))
        raise GraphError(f"exchange is {validate.shown(wanted)}, expected one of {names}")
    shards, rows = sharding_plan.num_shards, sharding_plan.dealt.num_rows

    def weighed(blocks: HaloLayout) -> Blocks:
        heights = tuple(block.height for block in blocks.blocks)
        held = blocks.total + blocks.entries
        return Blocks(heights, blocks.at_once, blocks.moved / shards, held)

    # Rates are measured, and a cover is computed, only where the choice depends on them.
    links = links_of(mesh, axis) if wanted == "auto" else None
    cover = None
    if wanted in ("auto", "cover"):
        cover = weighed(sharding_plan.covered.rows), weighed(sharding_plan.covered.sums)
    hops = sum(run.count for run in sharding_plan.runs)
    every = ways(links, shards, rows, row, hops, weighed(sharding_plan.halo), cover)
    if wanted == "auto":
        return choose(every, rows, row, budget).name, every
    taken = next(way for way in every if way.name == wanted)
    if budget is not None and taken.rows * row > budget:
        raise PlanError(
            f"exchange={wanted!r} holds {taken.rows * row} bytes of other shards' rows, "
            f'memory_budget is {budget}: pass that much, another exchange, or "auto"'
        )
    return wanted, every
