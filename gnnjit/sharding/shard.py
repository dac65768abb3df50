"""`gnnjit.shard`: one graph over many devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy as np
from jax.sharding import AxisType, Mesh

from gnnjit.cost.link_model import Blocks, Way, choose, ways
from gnnjit.cost.partition_model import PartitionModel
from gnnjit.errors import GraphError, PlanError
from gnnjit.graph import Bipartite, Graph, TypedGraph, validate
from gnnjit.graph.edit import real_edges
from gnnjit.graph.members import Members
from gnnjit.partition.partition import Partition
from gnnjit.shapes import ArrayLike, HostArray
from gnnjit.sharding.build import Dealt, ShardPlan, build, plan, rows_on
from gnnjit.sharding.cut import VertexSets
from gnnjit.sharding.exchange import EXCHANGES
from gnnjit.sharding.measure_links import links_of
from gnnjit.sharding.report import ShardReport
from gnnjit.sharding.rows import Rows
from gnnjit.sharding.send_blocks import HaloLayout
from gnnjit.sharding.sharded_graph import ShardedGraph
from gnnjit.sharding.sharded_typed_graph import ShardedTypedGraph
from gnnjit.system.memory_budget import parse_size

__all__ = ["shard"]


@overload
def shard(
    graph: Graph,
    mesh: Mesh,
    axis: str | None = None,
    *,
    partition: str | Partition | ArrayLike | Bipartite = "auto",
    order: str = "auto",
    exchange: str = "auto",
    features: str | None = None,
    width: int = 64,
    cost: PartitionModel | None = None,
    memory_budget: int | str | None = None,
) -> ShardedGraph: ...
@overload
def shard(
    graph: TypedGraph,
    mesh: Mesh,
    axis: str | None = None,
    *,
    partition: str | Mapping[str, Any] = "auto",
    order: str = "auto",
    exchange: str = "auto",
    features: str | None = None,
    width: int = 64,
    cost: PartitionModel | None = None,
    memory_budget: int | str | None = None,
) -> ShardedTypedGraph: ...
def shard(
    graph: Any,
    mesh: Mesh,
    axis: str | None = None,
    *,
    partition: Any = "auto",
    order: str = "auto",
    exchange: str = "auto",
    features: str | None = None,
    width: int = 64,
    cost: PartitionModel | None = None,
    memory_budget: int | str | None = None,
) -> Any:
    """Deal the vertices of `graph` out to the devices along one axis of a mesh.

    Layers and compiled functions take the result where they take the graph, and arrays made by its
    `put` and `put_edges` where they take features: `layer(sharded, sharded.put(x), params)`.
    Values and gradients are those of one device, up to rounding. Each device holds its vertices,
    the edges that end there and, while it needs them, rows of other devices (NeuGraph, section 3.3;
    ROC, section 4; FlexGraph, section 5). Between layers, everything that JAX can do with sharded
    arrays goes. `sharded.report` shows the decisions.

    Of a graph with two vertex sets each set is dealt out, of a typed graph the vertices of each
    type, so that every device has its part of all of them. A type is cut once for all relations.

    Args:
        graph: a `Graph` or a `TypedGraph` with concrete edges.
        mesh: a mesh of all devices of all processes.
        axis: the axis of `mesh` that shards vertices; the first if left out.
        partition: which vertices go together. "vertices" and "edges": along `order`, equal numbers
            of vertices, or of edges that end there; "learned": along `order`, of equal cost by a
            model of what each vertex costs (ROC, section 4.2); "metis": few edges between shards
            (needs `pymetis`); "auto": "learned". Or a `Partition`, or the shard of each vertex,
            `int[N]`: of two vertex sets a `gnnjit.Bipartite` of both, of a typed graph a dictionary
            with one for each type.
        order: of vertices along which they are cut. "given": as they are numbered; "rcm": reverse
            Cuthill-McKee, neighbours close; "auto": the one of the two that cuts fewer edges. A
            `Partition` has its own, and "metis" needs none.
        exchange: how rows of other shards come to a device. "halo": those that its edges read, all
            at once; "cover": the same, but for sums over neighbours, sums for destinations travel
            instead of rows of sources where those are fewer (FlexGraph's partial aggregation; a
            minimum vertex cover); "ring": one shard after the other, so that a device never holds
            the rows of more than two; "all_gather": all rows; "auto": the fastest by measured rates
            that fits the budget. Without a budget, "auto" takes neither "all_gather" nor an
            exchange that holds the rows of more than four shards. Each relation has its own.
        features: the axis of `mesh` that splits features where each is aggregated by itself (graph
            sampling-based GCN, section V-B).
        width: the number of features (float32) of the arrays that travel, for "auto".
        cost: the model of vertex costs for "learned"; a model of usual costs if left out.
        memory_budget: bytes of each device, or "256MiB", for one array's rows of other shards.

    Returns:
        A `ShardedGraph`, or a `ShardedTypedGraph` of a typed graph.

    Raises:
        GraphError: a traced graph, a block of a sampled batch, an unknown name, an axis that is not
            in the mesh, a partition that does not fit.
        PlanError: no exchange fits the budget.
    """
    axis, mesh = _checked(graph, mesh, axis, features, cost)
    budget = None if memory_budget is None else parse_size(memory_budget)
    names, counts, relations = _taken_apart(graph)
    edges = [real_edges(g.src, g.dst, g.mask) for g, _ in relations]
    joined = _joined(edges, [ends for _, ends in relations], counts)
    sets = VertexSets(counts, *joined, mesh.shape[axis], width, cost)
    dealt, along = _dealt(sets, names, _wanted(partition, graph, names), order)
    typed = isinstance(graph, TypedGraph)
    rows = [rows_on(mesh, axis, Dealt.by(p)) if typed else None for p in dealt]
    devices = _Devices(mesh, axis, features, exchange, width, budget, along)
    parts = [
        devices.put(g, own, dealt[b], *((None, None) if a == b else (dealt[a], rows[a])))
        for (g, (a, b)), own in zip(relations, edges, strict=True)
    ]
    if isinstance(graph, TypedGraph):
        every = tuple(r for r in rows if r is not None)
        return ShardedTypedGraph(tuple(parts), every, graph.relations, graph.types, mesh, axis)
    return parts[0]


Ends = tuple[int, int]
"""The vertex sets of the sources and of the destinations, by number."""


def _taken_apart(graph: Any) -> tuple[Sequence[str], Sequence[int], list[tuple[Graph, Ends]]]:
    """The names and sizes of the vertex sets, and each relation with its ends."""
    if isinstance(graph, TypedGraph):
        at = {node_type: i for i, node_type in enumerate(graph.types)}
        relations = [(g, (at[first], at[last])) for (first, _, last), g in graph.items()]
        return graph.types, graph.sizes, relations
    if graph.bipartite:
        return ("src", "dst"), (graph.num_src, graph.num_dst), [(graph, (0, 1))]
    return ("",), (graph.num_nodes,), [(graph, (0, 0))]


def _joined(
    edges: Sequence[tuple[HostArray, HostArray]], ends: Sequence[Ends], counts: Sequence[int]
) -> tuple[HostArray, HostArray]:
    """The edges of all relations, of vertices in numbers that run on from set to set."""
    if len(counts) == 1 and len(edges) == 1:
        return edges[0]
    first, none = np.cumsum([0, *counts]), [np.zeros(0, np.int64)]
    src, dst = (
        np.concatenate(none + [e[k] + first[at[k]] for e, at in zip(edges, ends, strict=True)])
        for k in (0, 1)
    )
    return src, dst


def _wanted(partition: Any, graph: Any, names: Sequence[str]) -> list[Any]:
    """What is asked of each vertex set."""
    if isinstance(partition, str):
        return [partition] * len(names)
    if isinstance(graph, TypedGraph):
        if not isinstance(partition, Mapping) or set(partition) != set(names):
            got = validate.shown(partition)
            if isinstance(partition, Mapping):
                got = f"a dictionary of {', '.join(map(repr, partition)) or 'nothing'}"
            raise GraphError(
                f"partition is {got}, expected a name or a dictionary with a partition for each "
                f"vertex type: pass one for {', '.join(map(repr, names))}"
            )
        return [partition[t] for t in names]
    if not graph.bipartite:
        return [partition]
    if not isinstance(partition, Bipartite):
        raise GraphError(
            f"partition is {validate.shown(partition)}, expected a name or a gnnjit.Bipartite: "
            "pass gnnjit.Bipartite(src=..., dst=...), a partition of each vertex set"
        )
    return [partition.src, partition.dst]


def _dealt(
    sets: VertexSets, names: Sequence[str], wanted: Sequence[Any], order: str
) -> tuple[list[Partition], str]:
    """The partition of each vertex set, and the name of the order that was cut."""
    has_order = [isinstance(x, Partition) or _is_name(x, "metis") for x in wanted]
    along = sets.ordered(order, all(has_order))
    dealt = []
    for i, (name, x) in enumerate(zip(names, wanted, strict=True)):
        try:
            dealt.append(sets.partition(i, x))
        except GraphError as error:
            if not name:
                raise
            raise GraphError(f"vertices of {name!r}: {error}") from error
    return dealt, along


def _is_name(x: Any, name: str) -> bool:
    return isinstance(x, str) and x == name


@dataclasses.dataclass(frozen=True)
class _Devices:
    """Where relations are put, and what was asked for all of them."""

    mesh: Mesh
    axis: str
    features: str | None
    exchange: str
    width: int
    budget: int | None
    order: str

    def put(
        self,
        graph: Graph,
        edges: tuple[HostArray, HostArray],
        dealt: Partition,
        sources: Partition | None,
        rows: Rows | None,
    ) -> ShardedGraph:
        """The relation on the devices. `sources`: how they are cut, and `rows` where they lie, if
        they are another vertex set than the destinations."""
        mask = None if graph.mask is None else np.asarray(graph.mask)
        found = plan(*edges, dealt, mask, sources)
        way, every = _way(self.exchange, found, self.mesh, self.axis, 4 * self.width, self.budget)
        report = ShardReport(
            partition=dealt.method,
            order=self.order,
            vertices=tuple(dealt.sizes.tolist()),
            edges=tuple(found.counts.tolist()),
            cut=int(found.between.sum() - np.trace(found.between)),
            lower_bound=float(found.traffic().sum() / found.num_shards),
            width=self.width,
            ways=tuple(every),
            exchange=way,
            sources=None if sources is None else tuple(sources.sizes.tolist()),
        )
        where = {"features": self.features, "sources": rows}
        sharded = build(found, self.mesh, self.axis, way, **where)
        relations = None if graph.relations is None else sharded.put_edges(graph.relations)
        members = _members(graph, sharded)
        return dataclasses.replace(sharded, report=report, members=members, relations=relations)


def _members(graph: Graph, sharded: ShardedGraph) -> Members | None:
    """The graph of the vertex in each row, and whether that is real."""
    own = graph.members
    if own is None:
        return None
    put = sharded.put
    dst, src = (own.dst, own.real_dst), (own.src, own.real_src)
    if graph.bipartite:
        both = put(Bipartite(src, dst))
        dst, src = both.dst, both.src
    else:
        dst = put(dst)
    return Members(dst[0], src[0], dst[1], src[1], own.num_graphs, rising=False)


def _checked(
    graph: Any, mesh: Mesh, axis: str | None, features: str | None, cost: Any
) -> tuple[str, Mesh]:
    if not isinstance(graph, (Graph, TypedGraph)):
        raise GraphError(
            f"shard() got a {type(graph).__name__}, expected a gnnjit.Graph or a gnnjit.TypedGraph"
        )
    if isinstance(graph, Graph) and graph.nested:
        raise GraphError(
            f"shard() got {graph!r}, a block of a sampled batch, expected a whole graph: blocks "
            "differ from batch to batch; shard the graph that they are drawn from"
        )
    if not isinstance(mesh, Mesh):
        raise GraphError(
            f"shard() got a {type(mesh).__name__} as the mesh, expected a jax.sharding.Mesh: make "
            'one with jax.make_mesh((jax.device_count(),), ("shards",))'
        )
    axis = _axis(mesh, mesh.axis_names[0] if axis is None else axis, "axis")
    if features is not None and _axis(mesh, features, "features") == axis:
        raise GraphError(f"axis and features are both {axis!r}, expected two axes of the mesh")
    if not (cost is None or isinstance(cost, PartitionModel)):
        raise GraphError(
            f"cost is {validate.shown(cost)}, expected a PartitionModel or None: leave it out for "
            f"the usual costs"
        )
    if validate.is_traced(graph):
        raise GraphError(
            "shard() got a graph of traced edges, expected concrete ones: shard the graph before "
            "jit, and pass the result to the compiled function"
        )
    types = (AxisType.Auto,) * len(mesh.axis_names)
    return axis, Mesh(mesh.devices, mesh.axis_names, axis_types=types)


def _axis(mesh: Mesh, name: str, what: str) -> str:
    if name not in mesh.axis_names:
        raise GraphError(
            f"{what} is {validate.shown(name)}, expected an axis of the mesh: "
            f"{', '.join(mesh.axis_names)}"
        )
    return name


def _way(
    wanted: str, sharding_plan: ShardPlan, mesh: Mesh, axis: str, row: int, budget: int | None
) -> tuple[str, list[Way]]:
    """The exchange taken, and all that were compared."""
    if wanted not in ("auto", *EXCHANGES):
        names = ", ".join(("auto", *EXCHANGES))
        raise GraphError(f"exchange is {validate.shown(wanted)}, expected one of {names}")
    shards, rows = sharding_plan.num_shards, sharding_plan.dealt_src.num_rows

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
