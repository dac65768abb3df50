"""A graph over the devices of a mesh: each holds some vertices, and the edges that end there."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gnnjit.errors import GraphError
from gnnjit.graph import validate
from gnnjit.graph.graph import Graph
from gnnjit.graph.structure import Structure
from gnnjit.shapes import ArrayLike, EdgeMask, HostArray, PyTree

EXCHANGES = ("all_gather", "halo", "ring")
"""How the rows of other shards come to a device."""


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["send", "returned"],
    meta_fields=["heights", "at_once"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class Halo:
    """Used rows alone travel, each once per shard that uses it; then every source that a shard
    reads lies in one table: its own rows first, the blocks that came after them.

    Attributes:
        send: `int[P, K]`, own rows in the order in which they are sent, block by block; what is
            sent beyond a block's rows is padding, which no edge reads.
        returned: what comes back of a reduction into sources, as a structure: row r owns the
            entries of `send` that are r.
        heights: static, rows of each block. `at_once`, block q goes to shard q and all are equal;
            else block s - 1 goes to the shard s before this one.
        at_once: whether one `all_to_all` moves all blocks, or one `ppermute` each.
    """

    send: Any
    returned: Structure
    heights: tuple[int, ...]
    at_once: bool


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["starts", "counts"], meta_fields=["capacity"]
)
@dataclasses.dataclass(frozen=True, eq=False)
class Ring:
    """The rows of a shard pass from device to device, whole; never more than two shards' rows are
    on one (NeuGraph, section 3.3). Edges are sorted by how far the shard of their source is.

    Attributes:
        starts, counts: `int[P, P]`, of shard p, by distance: its first edge, and their number.
        capacity: static, (most edges at distance 0, most at any other).
    """

    starts: Any
    counts: Any
    capacity: tuple[int, int]


@functools.partial(jax.tree_util.register_dataclass, data_fields=[], meta_fields=[])
@dataclasses.dataclass(frozen=True, eq=False)
class AllGather:
    """Every device gets every row."""


Exchange = AllGather | Halo | Ring


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=[
        "vertex", "edge", "sizes", "edge_counts", "out_degree", "src", "dst",
        "in_structure", "out_structure", "exchange",
    ],
    meta_fields=[
        "mesh", "axis", "features", "num_nodes", "num_given", "num_rows", "num_slots", "num_sources"
    ],
)  # fmt: skip
@dataclasses.dataclass(frozen=True, eq=False)
class ShardedGraph:
    """A directed graph whose vertices are dealt out to the devices along one axis of a mesh.

    A frozen pytree of arrays that are sharded over that axis, to be passed to layers and compiled
    functions where a `Graph` would be. Made by `gnnjit.shard`. Shard p has `num_rows` rows for its
    vertices and `num_slots` for the edges that end there, padding last; arrays of vertices are
    `[P * num_rows, ...]`, of edges `[P * num_slots, ...]`: `put`, `put_edges`, `get` and
    `get_edges` take them there and back. What is computed of padding is no result: `vertex_mask`
    tells it, and `put` fills it with zeros, so that a loss with weights that were `put` too does
    not see it.

    Attributes:
        vertex: `int32[P * num_rows]`, the user's number of each row's vertex; 0 in padding.
        edge: `int32[P * num_slots]`, that of each slot's edge; 0 in padding.
        sizes, edge_counts: `int32[P]`, vertices and edges of each shard.
        mesh, axis: the devices, and the axis that shards vertices.
        features: the axis of the mesh that splits features in aggregations, if any.
        num_nodes, num_given: the vertices and edges of the graph, its padding included.
        num_src, num_dst, num_edges: lengths of the arrays of vertices and edges, with padding.
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
    mesh: Mesh
    axis: str
    features: str | None
    num_nodes: int
    num_given: int
    num_rows: int
    num_slots: int
    num_sources: int

    bipartite = False

    @property
    def num_shards(self) -> int:
        return self.mesh.shape[self.axis]

    @property
    def num_dst(self) -> int:
        return self.num_shards * self.num_rows

    num_src = num_dst

    @property
    def num_edges(self) -> int:
        return self.num_shards * self.num_slots

    @property
    def spec(self) -> PartitionSpec:
        """Of arrays of vertices or edges."""
        return PartitionSpec(self.axis)

    @property
    def sharding(self) -> NamedSharding:
        """Of arrays of vertices or edges."""
        return NamedSharding(self.mesh, self.spec)

    @property
    def vertex_mask(self) -> jax.Array:
        """`bool[P * num_rows]`, False in padding."""
        return _real(self.sizes, self.num_rows)

    @property
    def mask(self) -> EdgeMask:
        """`bool[P * num_slots]`, False in padding."""
        return _real(self.edge_counts, self.num_slots)

    @property
    def in_degree(self) -> jax.Array:
        """`int32[P * num_rows]`: edges that end at each vertex, 0 in padding."""
        return self.degree("in")

    def degree(self, space: Any = "in") -> jax.Array:
        """`int32[P * num_rows]`: the number of edges of each vertex; `space` as in `Graph.degree`.

        Raises GraphError on any other `space`.
        """
        name = getattr(space, "value", space)
        if name in ("out", "src"):
            return self.out_degree
        if name not in ("in", "dst"):
            raise GraphError(
                f"degree() got {space!r}, expected one of 'in', 'dst', 'out', 'src': pass 'in' for "
                f"the edges that end at a vertex"
            )
        of_rows = jnp.diff(self.in_structure.indptr, axis=-1)
        if of_rows.ndim == 3:  # by distance
            of_rows = of_rows.sum(axis=1)
        return of_rows.reshape(-1).astype(jnp.int32)

    def numbers(self, space: Any) -> jax.Array:
        """`int32`, the user's numbers of the vertices or edges."""
        return self.edge if getattr(space, "value", space) == "edge" else self.vertex

    def check(self, x: PyTree, space: Any, what: str) -> None:
        """Raises GraphError unless every array in `x` has one row per element of `space`, padding
        included."""
        edges = getattr(space, "value", space) == "edge"
        count, kind = (self.num_edges, "slots of edges") if edges else (self.num_dst, "rows")
        put = "put_edges" if edges else "put"
        validate.check_leading(
            what, x, count, f"{kind} on its shards", f"pass what graph.{put}(...) gave"
        )

    # -- the user's arrays --------------------------------------------------------------------

    def put(self, x: PyTree) -> PyTree:
        """`x`, a pytree of `[num_nodes, ...]`, on the shards: `[P * num_rows, ...]`, zeros in
        padding. Traced arrays stay in the program. Raises GraphError on other lengths."""
        what = "pass arrays with one row per vertex of the whole graph"
        validate.check_leading("x", x, self.num_nodes, "vertices", what)
        return jax.tree.map(lambda a: self._put(a, self.vertex, self.sizes, self.num_rows), x)

    def put_edges(self, edges: PyTree) -> PyTree:
        """`edges`, a pytree of `[E, ...]` in the order in which edges were given, on the shards:
        `[P * num_slots, ...]`, zeros in padding. Raises GraphError on other lengths."""
        what = "pass arrays with one row per edge of the whole graph"
        validate.check_leading("edges", edges, self.num_given, "edges", what)
        counts, slots = self.edge_counts, self.num_slots
        return jax.tree.map(lambda a: self._put(a, self.edge, counts, slots), edges)

    def get(self, y: PyTree) -> PyTree:
        """`y`, a pytree of `[P * num_rows, ...]`, as NumPy arrays `[num_nodes, ...]` by the user's
        numbers, in every process; traced ones stay in the program. Raises GraphError on other
        lengths."""
        self.check(y, "dst", "y")
        return jax.tree.map(lambda a: self._get(a, self.vertex, self.sizes, self.num_nodes), y)

    def get_edges(self, y: PyTree) -> PyTree:
        """`y`, a pytree of `[P * num_slots, ...]`, as NumPy arrays `[E, ...]` in the order in which
        edges were given, 0 where their list has padding. Raises GraphError on other lengths."""
        self.check(y, "edge", "y")
        counts, length = self.edge_counts, self.num_given
        return jax.tree.map(lambda a: self._get(a, self.edge, counts, length), y)

    def _put(self, x: ArrayLike, number: Any, sizes: Any, length: int) -> jax.Array:
        if validate.is_traced(x, number):
            real = _real(sizes, length)
            rows = jnp.asarray(x)
            rows = rows[number] if len(rows) else jnp.resize(rows, (len(number), *rows.shape[1:]))
            real = real.reshape((-1,) + (1,) * (rows.ndim - 1))
            return jnp.where(real, rows, jnp.zeros_like(rows))
        host = np.asarray(x)
        at = {i: np.asarray(s) for i, s in _shards(number)}
        count = {i: int(np.asarray(s)[0]) for i, s in _shards(sizes)}

        def part(index: Any) -> HostArray:
            start = index[0].start or 0
            rows = np.zeros((length, *host.shape[1:]), host.dtype)
            real = count[start // length]
            rows[:real] = host[at[start][:real]]
            return rows

        shape = (self.num_shards * length, *host.shape[1:])
        return jax.make_array_from_callback(shape, self.sharding, part)

    def _get(self, y: Any, number: Any, sizes: Any, count: int) -> Any:
        if validate.is_traced(y, number):
            at = jnp.where(_real(sizes, len(number) // self.num_shards), number, count)
            return jnp.zeros((count, *y.shape[1:]), y.dtype).at[at].set(y, mode="drop")
        values, numbers = _on_host(y), _on_host(number)
        length = len(values) // self.num_shards
        real = np.arange(length) < _on_host(sizes)[:, None]
        real = real.reshape(-1)
        out = np.zeros((count, *values.shape[1:]), values.dtype)
        out[numbers[real]] = values[real]
        return out

    def __repr__(self) -> str:
        kind = type(self.exchange).__name__
        return (
            f"ShardedGraph({self.num_nodes} vertices on {self.num_shards} shards of "
            f"{self.num_rows}, {self.num_slots} edges each, {kind})"
        )


def _shards(x: Any) -> list[tuple[int, Any]]:
    """First row and data of each part of `x` that this process holds."""
    return [(s.index[0].start or 0, s.data) for s in x.addressable_shards]


def _on_host(x: Any) -> HostArray:
    """All of a sharded array, in every process."""
    if getattr(x, "is_fully_addressable", True):
        return np.asarray(x)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(x, tiled=True))


def _real(sizes: Any, length: int) -> jax.Array:
    return (jnp.arange(length) < sizes[:, None]).reshape(-1)


@dataclasses.dataclass(frozen=True, eq=False)
class Shard:
    """What one device has of a `ShardedGraph`, while a program runs there.

    Attributes:
        graph: of a distance: of a `Ring`, the edges whose sources are on the shard so far away;
            otherwise all that end here, and sources are the rows of the table.
        edge_count: `int32[]`.
        num_rows, num_edges: slots for vertices and edges. The rest is as in `ShardedGraph`.
    """

    graph: Callable[[Any], Graph]
    exchange: Exchange
    vertex: Any
    edge: Any
    in_degree: Any
    out_degree: Any
    edge_count: Any
    num_rows: int
    num_edges: int

    @property
    def num_src(self) -> int:
        return self.num_rows

    num_dst = num_src

    @property
    def mask(self) -> Any:
        return jnp.arange(self.num_edges) < self.edge_count

    def degree(self, space: Any) -> Any:
        return self.in_degree if getattr(space, "value", space) == "dst" else self.out_degree

    def numbers(self, space: Any) -> Any:
        return self.edge if getattr(space, "value", space) == "edge" else self.vertex


def local(sharded: ShardedGraph) -> Shard:
    """This device's part, within a `shard_map` over the axis of `sharded`."""
    inward, outward, exchange = jax.tree.map(
        lambda x: x[0], (sharded.in_structure, sharded.out_structure, sharded.exchange)
    )
    degree = jnp.diff(inward.indptr)
    if isinstance(exchange, Ring):
        graph = functools.partial(_at_distance, sharded, exchange, inward, outward)
        degree = degree.sum(axis=0)
    else:
        graph = functools.partial(_whole, sharded, inward, outward)
    return Shard(
        graph,
        exchange,
        sharded.vertex,
        sharded.edge,
        degree.astype(jnp.int32),
        sharded.out_degree,
        sharded.edge_counts[0],
        sharded.num_rows,
        sharded.num_slots,
    )


def _whole(sharded: ShardedGraph, inward: Structure, outward: Structure, _: Any = None) -> Graph:
    mask = jnp.arange(sharded.num_slots) < sharded.edge_counts[0]
    return _graph(sharded, sharded.src, sharded.dst, mask, inward, outward, sharded.num_slots)


def _at_distance(
    sharded: ShardedGraph, ring: Ring, inward: Structure, outward: Structure, distance: Any
) -> Graph:
    capacity = ring.capacity[0 if isinstance(distance, int) and distance == 0 else 1]
    start, count = ring.starts[distance], ring.counts[distance]

    def cut(x: Any) -> Any:
        return jax.lax.dynamic_slice_in_dim(x, start, capacity)

    slot = jnp.arange(capacity, dtype=sharded.src.dtype)
    mask = slot < count

    def structure(s: Structure) -> Structure:
        edge = jnp.where(mask, cut(s.edge), slot)
        return Structure(s.indptr[distance], cut(s.neighbor), edge)

    src, dst = cut(sharded.src), cut(sharded.dst)
    return _graph(sharded, src, dst, mask, structure(inward), structure(outward), capacity)


def _graph(
    sharded: ShardedGraph, src: Any, dst: Any, mask: Any, inward: Any, outward: Any, edges: int
) -> Graph:
    return Graph(
        src=src,
        dst=dst,
        mask=mask,
        in_structure=inward,
        out_structure=outward,
        dropped=None,
        num_src=sharded.num_sources,
        num_dst=sharded.num_rows,
        num_edges=edges,
        bipartite=True,
    )
