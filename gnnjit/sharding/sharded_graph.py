"""A graph over the devices of a mesh: each holds some vertices, and the edges that end there."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gnnjit.distributed.process_group import on_host
from gnnjit.errors import GraphError
from gnnjit.graph import Bipartite, validate
from gnnjit.graph.graph import Graph
from gnnjit.graph.members import Members, check_globals
from gnnjit.graph.relations import Relations
from gnnjit.graph.structure import Structure
from gnnjit.partition.partition import Partition
from gnnjit.shapes import EdgeMask, PyTree
from gnnjit.sharding.exchange import AllGather, Cover, Exchange, Halo, Ring
from gnnjit.sharding.rows import Rows, parts_here


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=[
        "vertex", "edge", "sizes", "edge_counts", "out_degree", "src", "dst",
        "in_structure", "out_structure", "exchange", "cover", "members", "relations", "sources",
    ],
    meta_fields=[
        "mesh", "axis", "features", "num_nodes", "num_given", "num_rows", "num_slots",
        "num_sources", "alone_of", "report",
    ],
)  # fmt: skip
@dataclasses.dataclass(frozen=True, eq=False)
class ShardedGraph:
    """A directed graph whose vertices are dealt out to the devices along one axis of a mesh.

    Sources and destinations may be two vertex sets, each with its own cut.

    A frozen pytree of arrays that are sharded over that axis, to be passed to layers and compiled
    functions where a `Graph` would be. Made by `gnnjit.shard`. Shard p has `num_rows` rows for its
    vertices and `num_slots` slots for the edges that end there, padding last; arrays of vertices
    are `[P * num_rows, ...]`, of edges `[P * num_slots, ...]`: `put`, `put_edges`, `get` and
    `get_edges` convert to and from them. Ignore values of padding: `vertex_mask` is False there,
    and `put` fills it with zeros, so that a loss with weights that were `put` too leaves it out.

    Attributes:
        vertex: `int32[P * num_rows]`, the user's number of each row's vertex; 0 in padding.
        edge: `int32[P * num_slots]`, the user's number of each slot's edge; 0 in padding.
        sizes, edge_counts: `int32[P]`, vertices and edges of each shard.
        mesh, axis: the devices, and the axis that shards vertices.
        features: the axis of the mesh that splits features in aggregations, if any.
        num_nodes, num_given: the vertices and edges of the graph, its padding included; of two
            vertex sets, the destinations.
        num_src, num_dst, num_edges: lengths of the arrays of vertices and edges, with padding.
        alone_of: in a result of `alone`, the number of shards of the whole graph.
        report: the decisions of `gnnjit.shard`, to be printed.
        members: which graph of a batch the vertex of each row belongs to; None where all belong to
            one graph.
        relations: the relation of the edge in each slot; None where edges have none.
        sources: where the sources lie, if they are another vertex set; `vertex`, `sizes` and
            `num_rows` are then those of the destinations. None where there is one vertex set.
    """

    vertex: Any
    edge: Any
    sizes: Any
    edge_counts: Any
    out_degree: Any
    src: Any
    dst: Any
    in_structure: Structure
    out_structure: Structure
    exchange: Exchange
    cover: Cover | None
    mesh: Mesh
    axis: str
    features: str | None
    num_nodes: int
    num_given: int
    num_rows: int
    num_slots: int
    num_sources: int
    alone_of: int | None = None
    report: Any = None
    members: Members | None = None
    relations: Relations | None = None
    sources: Rows | None = None

    nested = False

    @property
    def bipartite(self) -> bool:
        """Whether sources and destinations are two vertex sets."""
        return self.sources is not None

    @property
    def num_shards(self) -> int:
        """P, the number of shards."""
        return self.mesh.shape[self.axis]

    def rows(self, space: Any = "dst") -> Rows:
        """Where the elements of a space lie: "dst", "src" or "edge"."""
        name = getattr(space, "value", space)
        if name == "edge":
            return Rows(self.edge, self.edge_counts, self.num_given, self.num_slots)
        if name == "src" and self.sources is not None:
            return self.sources
        return Rows(self.vertex, self.sizes, self.num_nodes, self.num_rows)

    @property
    def num_dst(self) -> int:
        """The length of arrays of destinations, padding included: `P * num_rows`."""
        return self.num_shards * self.num_rows

    @property
    def num_src(self) -> int:
        """The length of arrays of sources, padding included."""
        return self.num_shards * self.rows("src").length

    @property
    def num_edges(self) -> int:
        """The length of arrays of edges, padding included: `P * num_slots`."""
        return self.num_shards * self.num_slots

    @property
    def num_graphs(self) -> int:
        """The graphs of a batch; 1 of any other graph."""
        return 1 if self.members is None else self.members.num_graphs

    @property
    def exchange_name(self) -> str:
        """How rows come from other shards, by the name that `gnnjit.shard` takes."""
        return self.exchange.name if self.cover is None else "cover"

    @property
    def place(self) -> tuple[Mesh, str, str | None]:
        """The mesh, and its axes for vertices and features."""
        return self.mesh, self.axis, self.features

    @property
    def spec(self) -> PartitionSpec:
        """How arrays of vertices and edges are split: along their first axis."""
        return PartitionSpec(self.axis)

    @property
    def sharding(self) -> NamedSharding:
        """Where arrays of vertices and edges lie."""
        return NamedSharding(self.mesh, self.spec)

    def sharding_of(self, rows: bool) -> NamedSharding:
        """Where an array lies: with `rows`, one of vertices or edges; else one that all share."""
        return self.sharding if rows else NamedSharding(self.mesh, PartitionSpec())

    @property
    def vertex_mask(self) -> jax.Array:
        """`bool[P * num_rows]`, False in padding; of two vertex sets, that of the destinations."""
        return self.rows().mask

    def without_padding(self, x: Any, space: Any = "dst") -> jax.Array:
        """`x`, an array of vertices, with zeros in padding, whatever is there."""
        return self.rows(space).without_padding(x)

    @property
    def mask(self) -> EdgeMask:
        """`bool[P * num_slots]`, False in padding."""
        return self.rows("edge").mask

    @property
    def in_degree(self) -> jax.Array:
        """`int32[P * num_rows]`: edges that end at each vertex, 0 in padding."""
        return self.degree("in")

    def degree(self, space: Any = "in") -> jax.Array:
        """`int32[num_dst]` or `[num_src]`: the number of edges of each vertex; `space` as in
        `Graph.degree`.

        Raises GraphError on any other `space`.
        """
        name = validate.space_name(space)
        if name in ("out", "src"):
            return self.out_degree
        if name not in ("in", "dst"):
            raise GraphError(
                f"degree() got {validate.shown(space)}, expected one of 'in', 'dst', 'out', 'src': "
                f"pass 'in' for the edges that end at a vertex"
            )
        of_rows = jnp.diff(self.in_structure.indptr, axis=-1)
        if of_rows.ndim == 3:  # by stop of a ring
            of_rows = of_rows.sum(axis=1)
        return of_rows.reshape(-1).astype(jnp.int32)

    def numbers(self, space: Any) -> jax.Array:
        """The user's number of the vertex in each row, or with space "edge" of the edge in each
        slot, 0 in padding: `int32[num_dst]`, `[num_src]` or `[num_edges]`."""
        return self.rows(space).number

    def check(self, x: PyTree, space: Any, what: str) -> None:
        """Raises GraphError unless every array in `x` has one row per element of `space`, padding
        included; for the space "graph", one per graph."""
        name = getattr(space, "value", space)
        if name == "graph":
            check_globals(self.num_graphs, x, what)
            return
        rows, kind, put = self.rows(name), "rows", "put(...)"
        if name == "edge":
            kind, put = "slots of edges", "put_edges(...)"
        elif self.bipartite:
            kind = "rows of sources" if name == "src" else "rows of destinations"
            put = "put(gnnjit.Bipartite(...))"
        count, hint = self.num_shards * rows.length, f"pass what graph.{put} gave"
        validate.check_leading(what, x, count, f"{kind} on its shards", hint)

    def partition(self) -> Partition:
        """Which vertices are on which shard, and in which order; of two vertex sets, that of the
        destinations."""
        sizes, vertex = on_host(self.sizes), on_host(self.vertex)
        real = np.arange(self.num_rows) < sizes[:, None]
        return Partition(vertex[real.reshape(-1)], np.cumsum([0, *sizes]), "given")

    def alone(self, shard: int) -> ShardedGraph:
        """One shard as a graph on one device, for timing: it reads local rows, or zeros, in place
        of the rows of other shards, so that what it computes is no result.

        Raises GraphError where another process holds the shard.
        """
        device = self.mesh.devices.flat[0]
        mesh = Mesh(np.asarray([device]), (self.axis,))

        def part(x: Any) -> Any:
            return local_part(x, shard, device)

        graph = dataclasses.replace(jax.tree.map(part, self), mesh=mesh, features=None)
        return dataclasses.replace(graph, alone_of=self.num_shards, report=None)

    # -- the user's arrays --------------------------------------------------------------------

    def put(self, x: PyTree) -> PyTree:
        """`x`, a pytree of `[num_nodes, ...]`, on the shards: `[P * num_rows, ...]`, zeros in
        padding. Of two vertex sets a `Bipartite` of both, or a pytree of the destinations alone.
        Traced arrays stay in the program. Raises GraphError on other lengths."""
        if isinstance(x, Bipartite):
            return Bipartite(self._put(x.src, "src", "x.src"), self._put(x.dst, "dst", "x.dst"))
        return self._put(x, "dst", "x")

    def put_edges(self, edges: PyTree) -> PyTree:
        """`edges`, a pytree of `[E, ...]` in the order in which edges were given, on the shards:
        `[P * num_slots, ...]`, zeros in padding. Raises GraphError on other lengths."""
        return self._put(edges, "edge", "edges")

    def get(self, y: PyTree) -> PyTree:
        """`y`, a pytree of `[P * num_rows, ...]`, as NumPy arrays `[num_nodes, ...]` by the user's
        numbers, in every process; of two vertex sets a `Bipartite` of both, or the destinations
        alone. Traced arrays stay in the program. Raises GraphError on other lengths."""
        if isinstance(y, Bipartite):
            return Bipartite(self._get(y.src, "src", "y.src"), self._get(y.dst, "dst", "y.dst"))
        return self._get(y, "dst", "y")

    def get_edges(self, y: PyTree) -> PyTree:
        """`y`, a pytree of `[P * num_slots, ...]`, as NumPy arrays `[E, ...]` in the order in which
        edges were given, 0 where their list has padding. Raises GraphError on other lengths."""
        return self._get(y, "edge", "y")

    def _put(self, x: PyTree, space: str, what: str) -> PyTree:
        rows, kind, one = self.rows(space), "vertices", "vertex"
        if space == "edge":
            kind, one = "edges", "edge"
        elif self.bipartite:
            one = "source" if space == "src" else "destination"
            kind = one + "s"
        hint = f"pass arrays with one row per {one} of the whole graph"
        validate.check_leading(what, x, rows.count, kind, hint)
        return jax.tree.map(lambda a: rows.put(a, self.sharding), x)

    def _get(self, y: PyTree, space: str, what: str) -> PyTree:
        self.check(y, space, what)
        return jax.tree.map(self.rows(space).get, y)

    def __repr__(self) -> str:
        vertices, rows = f"{self.num_nodes} vertices", f"{self.num_rows}"
        if self.sources is not None:
            vertices = f"{self.sources.count} sources and {self.num_nodes} destinations"
            rows = f"{self.sources.length} and {self.num_rows}"
        return (
            f"ShardedGraph({vertices} on {self.num_shards} shards of {rows}, {self.num_slots} "
            f"edges each, {self.exchange_name})"
        )


def local_part(x: Any, shard: int, device: Any) -> Any:
    """The rows of `x` on one shard, on a device.

    Raises GraphError where another process holds them.
    """
    rows = {at // max(len(data), 1): data for at, data in parts_here(x)}
    if shard not in rows:
        raise GraphError(
            f"shard {shard} is in another process, expected one of {sorted(rows)}: ask there"
        )
    return jax.device_put(rows[shard], device)


AnyGraph = Graph | ShardedGraph
"""The graphs that layers take."""


def _refuse(_: Any) -> Any:
    raise GraphError(
        "a sharded graph is an argument of an exported function, and it names the devices of this "
        "process. Export a function of its arrays: f(leaves) with leaves, tree = "
        "jax.tree.flatten(graph), which calls jax.tree.unflatten(tree, leaves)"
    )


def refuse_exports() -> None:
    """Make `jax.export` refuse sharded graphs as arguments, with this error."""
    for kind in (AllGather, Cover, Halo, Ring, Rows, ShardedGraph):
        export.register_pytree_node_serialization(
            kind,
            serialized_name=f"gnnjit.{kind.__name__}",
            serialize_auxdata=_refuse,
            deserialize_auxdata=_refuse,
        )
