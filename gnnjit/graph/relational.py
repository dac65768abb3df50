"""What typed graphs in memory and on shards have in common: types, relations, and their graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from gnnjit.graph import schema, validate
from gnnjit.graph.schema import Relation
from gnnjit.shapes import PyTree

G = TypeVar("G")


class Relational(Generic[G]):
    """A graph for each relation `(source type, name, destination type)` between vertex types."""

    graphs: tuple[G, ...]
    relations: tuple[Relation, ...]
    types: tuple[str, ...]

    @property
    def lengths(self) -> Mapping[str, int]:
        """The length of arrays of each type's vertices."""
        raise NotImplementedError

    @property
    def num_edges(self) -> dict[Relation, int]:
        """The length of arrays of each relation's edges: their number, padding included."""
        counted: Any = self.items()
        return {key: graph.num_edges for key, graph in counted}

    def items(self) -> Sequence[tuple[Relation, G]]:
        """Each relation, and its graph."""
        return list(zip(self.relations, self.graphs, strict=True))

    def __getitem__(self, relation: Any) -> G:
        return self.graphs[self.relations.index(self.relation(relation))]

    def __contains__(self, relation: Any) -> bool:
        return relation in self.relations or relation in [key[1] for key in self.relations]

    def relation(self, given: Any) -> Relation:
        """The key of a relation, given by that key, or by its name where no other has it.

        Raises GraphError where there is no such relation, or several.
        """
        return schema.resolve(given, self.relations, "relation")

    def into(self, node_type: str) -> tuple[Relation, ...]:
        """The relations that end at a type. Raises GraphError on an unknown type."""
        schema.known_type(node_type, self.types)
        return tuple(key for key in self.relations if key[2] == node_type)

    def out_of(self, node_type: str) -> tuple[Relation, ...]:
        """The relations that start at a type. Raises GraphError on an unknown type."""
        schema.known_type(node_type, self.types)
        return tuple(key for key in self.relations if key[0] == node_type)

    def check_nodes(self, x: Any, what: str = "x") -> None:
        """Raises GraphError unless `x` is a dictionary of features for every type, with one row for
        each vertex in each array."""
        schema.features_for_types(x, self.types, what)
        for node_type, count in self.lengths.items():
            kind, hint = self._rows_of(node_type)
            validate.check_leading(f"{what}[{node_type!r}]", x[node_type], count, kind, hint)

    def check_edges(self, edges: Any, what: str = "edges") -> dict[Relation, PyTree]:
        """Edge data by relation key, from data by key or name.

        Raises GraphError unless `edges` is a dictionary of some of the relations, and each array
        has one row for each edge of its relation.
        """
        found = schema.data_for_relations(edges, self.relations, what)
        for key, rows in found.items():
            name = f"{what}[{schema.shown_key(key)}]"
            kind, hint = self._edges_of(key)
            validate.check_leading(name, rows, self.num_edges[key], kind, hint)
        return found

    def _rows_of(self, node_type: str) -> tuple[str, str]:
        """What the rows of a type are, and what to pass where there are others."""
        hint = f"pass arrays with one row for each vertex of type {node_type!r}"
        return f"vertices of type {node_type!r}", hint

    def _edges_of(self, key: Relation) -> tuple[str, str]:
        hint = "pass arrays with one row for each edge, in the order of the edges"
        return f"edges of {schema.shown_key(key)}", hint
