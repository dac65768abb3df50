"""Typed graphs whose edges come in parts: those into some vertices of a type, then the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from gnnjit.errors import GraphError
from gnnjit.graph.graph import Graph
from gnnjit.graph.relational import Relational
from gnnjit.graph.schema import Relation, shown_key


class PartedTypedGraph(Relational[Graph]):
    """What a layer asks of a typed graph that it sees part by part.

    The vertices of each type are dealt out to `num_parts` parts of `R` rows each, the last of them
    padding. A part of a type has all edges that end at its vertices, of all relations.

    Attributes:
        relations, types: as of `TypedGraph` (static).
        sizes: the number of vertices of each type (static).
        counts: the number of edges of each relation (static).
        num_parts: how many parts each type has (static).
        rows: for each type `int32[num_parts, R]`, the vertex of each row; their number on padding.
        place: for each type `int32[vertices]`, the row of each vertex among those of all parts.
    """

    sizes: tuple[int, ...]
    counts: tuple[int, ...]
    num_parts: int
    rows: tuple[Any, ...]
    place: tuple[Any, ...]

    @property
    def lengths(self) -> Mapping[str, int]:
        return dict(zip(self.types, self.sizes, strict=True))

    @property
    def num_nodes(self) -> dict[str, int]:
        """The number of vertices of each type."""
        return dict(self.lengths)

    @property
    def num_edges(self) -> dict[Relation, int]:
        """The number of edges of each relation."""
        return dict(zip(self.relations, self.counts, strict=True))

    def read(self, node_type: str, number: Any) -> dict[Relation, tuple[Graph, jax.Array]]:
        """For each relation into a type its edges into part `number`, as the graph from all of its
        sources to the part's rows, and the number of each edge; that of all on padding."""
        raise NotImplementedError

    def __getitem__(self, relation: Any) -> Graph:
        key = shown_key(self.relation(relation))
        raise GraphError(
            f"the graph of {key} was asked for, whose edges lie in a store: layers read them part "
            "by part; make a TypedGraph to look at them"
        )

    def _rows_of(self, node_type: str) -> tuple[str, str]:
        return f"vertices of type {node_type!r}", "pass arrays with one row per vertex"

    def _edges_of(self, key: Relation) -> tuple[str, str]:
        return f"edges of {shown_key(key)}", "pass arrays with one row per edge"

    def __repr__(self) -> str:
        types = ", ".join(f"{n} {t}" for t, n in self.lengths.items())
        edges = [f"{n} {shown_key(k)}" for k, n in self.num_edges.items()]
        more = [f"{len(edges) - 8} more relations"] if len(edges) > 8 else []
        listed = "; ".join([types, *edges[:8], *more])
        return f"{type(self).__name__}({listed}; {self.num_parts} parts of each type)"
