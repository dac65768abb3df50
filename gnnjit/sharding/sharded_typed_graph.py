"""A typed graph over the devices of a mesh: each holds some vertices of every type."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gnnjit.graph import schema, validate
from gnnjit.graph.relational import Relational
from gnnjit.graph.schema import Relation
from gnnjit.shapes import PyTree
from gnnjit.sharding.rows import Rows
from gnnjit.sharding.sharded_graph import ShardedGraph


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["graphs", "rows"],
    meta_fields=["relations", "types", "mesh", "axis"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class ShardedTypedGraph(Relational[ShardedGraph]):
    """A typed graph whose vertices are dealt out to the devices along one axis of a mesh, those of
    each type by a cut of their own.

    A frozen pytree, to be passed to layers and compiled functions where a `TypedGraph` would be.
    Made by `gnnjit.shard`. `graph[relation]` is the `ShardedGraph` of one relation. Arrays of a
    type's vertices and of a relation's edges have padding, as those of a `ShardedGraph`: `put`,
    `put_edges`, `get` and `get_edges` convert dictionaries of them. Ignore values of padding.

    Attributes:
        graphs: the `ShardedGraph` of each relation.
        rows: where the vertices of each type lie.
        relations, types: as of `TypedGraph` (static).
        mesh, axis: the devices, and the axis that shards vertices (static).
    """

    graphs: tuple[ShardedGraph, ...]
    rows: tuple[Rows, ...]
    relations: tuple[Relation, ...]
    types: tuple[str, ...]
    mesh: Mesh
    axis: str

    @property
    def num_shards(self) -> int:
        """P, the number of shards."""
        return self.mesh.shape[self.axis]

    @property
    def num_nodes(self) -> dict[str, int]:
        """The number of vertices of each type, without the padding of shards."""
        return {t: rows.count for t, rows in self.of_types().items()}

    @property
    def lengths(self) -> dict[str, int]:
        """The length of arrays of each type's vertices, padding included."""
        return {t: self.num_shards * rows.length for t, rows in self.of_types().items()}

    @property
    def vertex_mask(self) -> dict[str, jax.Array]:
        """For each type `bool[length]`, False in padding."""
        return {t: rows.mask for t, rows in self.of_types().items()}

    @property
    def sharding(self) -> NamedSharding:
        """Where arrays of vertices and edges lie: split along their first axis."""
        return NamedSharding(self.mesh, PartitionSpec(self.axis))

    @property
    def report(self) -> str:
        """The decisions of `gnnjit.shard`, relation by relation, to be printed."""
        parts = [f"{schema.shown_key(key)}: {graph.report}" for key, graph in self.items()]
        return "\n\n".join(parts)

    def of_types(self) -> dict[str, Rows]:
        """Where the vertices of each type lie."""
        return dict(zip(self.types, self.rows, strict=True))

    def put(self, x: Mapping[str, PyTree]) -> dict[str, PyTree]:
        """`x`, for some types a pytree of `[vertices, ...]`, on the shards, with zeros in padding.
        Traced arrays stay in the program.

        Raises GraphError if a type is unknown, or an array has another length.
        """
        found = {}
        for node_type, rows in self._of_types(x, "x").items():
            own = self.of_types()[node_type]
            kind = f"vertices of type {node_type!r}"
            hint = "pass arrays with one row per vertex of the whole graph"
            validate.check_leading(f"x[{node_type!r}]", rows, own.count, kind, hint)
            found[node_type] = jax.tree.map(lambda a, own=own: own.put(a, self.sharding), rows)
        return found

    def get(self, y: Mapping[str, PyTree]) -> dict[str, PyTree]:
        """`y`, for some types a pytree of arrays on the shards, as NumPy arrays `[vertices, ...]`
        by the user's numbers, in every process; traced ones stay in the program.

        Raises GraphError if a type is unknown, or an array has another length.
        """
        found = {}
        for node_type, rows in self._of_types(y, "y").items():
            kind, hint = self._rows_of(node_type)
            length = self.lengths[node_type]
            validate.check_leading(f"y[{node_type!r}]", rows, length, kind, hint)
            found[node_type] = jax.tree.map(self.of_types()[node_type].get, rows)
        return found

    def put_edges(self, edges: Mapping[Any, PyTree]) -> dict[Relation, PyTree]:
        """Data of the edges of some relations, by key or name, on the shards: for each a pytree of
        `[E, ...]` in the order in which its edges were given.

        Raises GraphError if a relation is unknown, or an array has another length.
        """
        found = schema.data_for_relations(edges, self.relations, "edges")
        placed = {}
        for key, rows in found.items():
            with schema.named(key):
                placed[key] = self[key].put_edges(rows)
        return placed

    def get_edges(self, y: Mapping[Any, PyTree]) -> dict[Relation, PyTree]:
        """Arrays of the edges of some relations, as NumPy arrays `[E, ...]` in the order in which
        their edges were given.

        Raises GraphError if a relation is unknown, or an array has another length.
        """
        found = schema.data_for_relations(y, self.relations, "y")
        placed = {}
        for key, rows in found.items():
            with schema.named(key):
                placed[key] = self[key].get_edges(rows)
        return placed

    def _of_types(self, x: Any, what: str) -> Mapping[str, PyTree]:
        if isinstance(x, Mapping):
            for node_type in x:
                schema.known_type(node_type, self.types)
            return x
        schema.features_for_types(x, self.types, what)
        return x

    def _rows_of(self, node_type: str) -> tuple[str, str]:
        return f"rows of type {node_type!r} on its shards", "pass what graph.put(...) gave"

    def _edges_of(self, key: Relation) -> tuple[str, str]:
        kind = f"slots of edges of {schema.shown_key(key)} on its shards"
        return kind, "pass what graph.put_edges(...) gave"

    def __repr__(self) -> str:
        types = ", ".join(f"{n} {t}" for t, n in self.num_nodes.items())
        ways = [f"{schema.shown_key(k)}: {g.exchange_name}" for k, g in self.items()]
        more = [f"{len(ways) - 8} more relations"] if len(ways) > 8 else []
        listed = "; ".join([types, *ways[:8], *more])
        return f"ShardedTypedGraph({listed}; {self.num_shards} shards)"
