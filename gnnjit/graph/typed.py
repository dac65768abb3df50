"""Graphs of several vertex types, whose edges belong to relations between types."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from gnnjit.errors import GraphError
from gnnjit.graph import schema, validate
from gnnjit.graph.batching import batch
from gnnjit.graph.graph import Graph
from gnnjit.graph.padding import pad_rows
from gnnjit.graph.relational import Relational
from gnnjit.graph.schema import Relation
from gnnjit.graph.statistics import Statistics
from gnnjit.shapes import PyTree


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["graphs"],
    meta_fields=["relations", "types", "sizes"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class TypedGraph(Relational[Graph]):
    """A directed graph of several vertex types: a frozen pytree, to be passed as an argument.

    The vertices of each type are numbered from 0. Edges belong to relations `(source type, name,
    destination type)`. `TypedGraph.from_edges` makes one. `graph[relation]` is the `Graph` of one
    relation, bipartite unless it leads from a type to itself; a name alone will do where no other
    relation has it.

    Schlichtkrull et al., "Modeling Relational Data with Graph Convolutional Networks" (2018),
    section 2, has relations; that vertices have types too is Wang et al., "Heterogeneous Graph
    Attention Network" (2019), section 3.

    Attributes:
        graphs: the `Graph` of each relation.
        relations: their keys, in the order in which they were given (static).
        types: the vertex types (static).
        sizes: the number of vertices of each type (static).
    """

    graphs: tuple[Graph, ...]
    relations: tuple[Relation, ...]
    types: tuple[str, ...]
    sizes: tuple[int, ...]

    @classmethod
    def from_edges(
        cls,
        edges: Mapping[Relation, Any],
        num_nodes: Mapping[str, int] | None = None,
        *,
        edge_mask: Mapping[Relation, Any] | None = None,
    ) -> TypedGraph:
        """Make the graph of the edges of each relation.

        Args:
            edges: for each relation `(source type, name, destination type)` its edges
                `(src, dst)`, two `int[E]`, or one `int[2, E]`. There may be none.
            num_nodes: the vertices of each type; where a type is left out, the largest index of its
                relations plus one. Types without relations are named here alone.
            edge_mask: for some relations `bool[E]`, False on padding.

        Raises:
            GraphError: if a key is no relation, `num_nodes` or `edge_mask` has keys that do not
                fit, a count is missing for traced edges, or the edges of a relation are no edges
                (as `Graph.from_edges` says; the message names the relation).
        """
        edges = schema.checked_edges(edges)
        masks = schema.checked_masks(edge_mask, edges)
        counts = schema.checked_counts(num_nodes, edges, masks)
        graphs = []
        for key, (src, dst) in edges.items():
            first, _, last = key
            sizes: dict[str, Any] = {"num_nodes": counts[first]}
            if first != last:
                sizes = {"num_src": counts[first], "num_dst": counts[last]}
            with schema.named(key):
                graphs.append(Graph.from_edges(src, dst, edge_mask=masks.get(key), **sizes))
        return cls(tuple(graphs), tuple(edges), tuple(counts), tuple(counts.values()))

    @classmethod
    def from_graphs(
        cls, graphs: Mapping[Relation, Graph], num_nodes: Mapping[str, int] | None = None
    ) -> TypedGraph:
        """The typed graph of a `Graph` for each relation, as `graph[relation]` gives them.

        Args:
            graphs: for each relation its graph: bipartite, unless both types are the same.
            num_nodes: the vertices of types without relations, and of others if they are to be
                checked.

        Raises:
            GraphError: if a key is no relation, a graph is none or of the wrong kind, or two graphs
                have different numbers of vertices of a type.
        """
        counts = schema.counts_of_graphs(graphs, num_nodes)
        values = tuple(graphs.values())
        return cls(values, tuple(graphs), tuple(counts), tuple(counts.values()))

    @property
    def num_nodes(self) -> dict[str, int]:
        """The number of vertices of each type."""
        return dict(zip(self.types, self.sizes, strict=True))

    @property
    def lengths(self) -> dict[str, int]:
        """The length of arrays of each type's vertices: their number."""
        return self.num_nodes

    def with_relations(self, edges: Mapping[Relation, Any]) -> TypedGraph:
        """The graph with more relations between its types, after those that it has.

        Args:
            edges: a `Graph`, or edges as `from_edges` takes them, for each new relation.

        Raises:
            GraphError: as of `from_edges`, or if a relation is there already.
        """
        taken = [key for key in edges if key in self.relations]
        if taken:
            raise GraphError(
                f"the graph has a relation {schema.shown_key(taken[0])} already, expected a new "
                "one: give it another name"
            )
        made = {key: x for key, x in edges.items() if isinstance(x, Graph)}
        rest = {key: x for key, x in edges.items() if key not in made}
        if rest:
            schema.types_known(rest, self.types)
            made.update(TypedGraph.from_edges(rest, self.num_nodes).items())
        every = {**dict(self.items()), **{key: made[key] for key in edges}}
        return TypedGraph.from_graphs(every, self.num_nodes)

    def with_reverse(
        self, relations: Sequence[Any] | None = None, *, prefix: str = "rev_"
    ) -> TypedGraph:
        """The graph with each relation in both directions: beside `(a, name, b)` stands `(b,
        "rev_" + name, a)`, whose edge `i` is edge `i` reversed. Nothing is sorted anew.

        Args:
            relations: those to be reversed, by key or name; all if left out.
            prefix: of the names of the new relations.

        Raises:
            GraphError: if there is no such relation, or one of the new name already.
        """
        keys = self.relations if relations is None else [self.relation(r) for r in relations]
        return self.with_relations(
            {(last, prefix + name, first): self[first, name, last].reverse()
             for first, name, last in keys}
        )  # fmt: skip

    def with_self_relations(self, name: str = "self") -> TypedGraph:
        """The graph with a relation `(type, name, type)` for each type, which has an edge from each
        vertex to itself, so that reductions over all relations read the vertex too.

        Raises GraphError if a type has a relation of that name already.
        """
        loops = {}
        for node_type, count in self.num_nodes.items():
            rows = np.arange(count, dtype=validate.index_dtype(num_nodes=count))
            loops[node_type, name, node_type] = (rows, rows)
        return self.with_relations(loops)

    def reverse(self) -> TypedGraph:
        """The graph of all edges reversed: `(a, name, b)` becomes `(b, name, a)`."""
        return TypedGraph.from_graphs(
            {(last, name, first): graph.reverse() for (first, name, last), graph in self.items()},
            self.num_nodes,
        )

    def select(self, relations: Sequence[Any]) -> TypedGraph:
        """The graph of some relations, by key or name; all types stay.

        Raises GraphError if there is no such relation.
        """
        return TypedGraph.from_graphs(
            {key: self[key] for key in map(self.relation, relations)}, self.num_nodes
        )

    def pad(
        self,
        num_nodes: Mapping[str, int] | None = None,
        num_edges: Mapping[Any, int] | None = None,
    ) -> TypedGraph:
        """Append vertices without edges and padding edges, up to capacities, as `Graph.pad` does.

        Graphs that are padded to the same capacities share one compilation.

        Args:
            num_nodes: capacities of types; what the graph has where one is left out.
            num_edges: capacities of relations, by key or name; likewise.

        Raises:
            GraphError: if a type or relation is unknown, or a capacity below what the graph has.
        """
        wanted = dict(num_nodes or {})
        for node_type in wanted:
            schema.known_type(node_type, self.types)
        edges = {self.relation(key): n for key, n in (num_edges or {}).items()}
        graphs = {}
        for key, graph in self.items():
            first, last = wanted.get(key[0]), wanted.get(key[2])
            sizes = {"num_src": first, "num_dst": last} if graph.bipartite else {"num_nodes": last}
            with schema.named(key):
                graphs[key] = graph.pad(num_edges=edges.get(key), **sizes)
        return TypedGraph.from_graphs(graphs, schema.grown(self.num_nodes, wanted))

    def pad_nodes(self, x: Mapping[str, PyTree]) -> dict[str, PyTree]:
        """Features of each type with rows of zeros appended up to the number of its vertices.

        Raises GraphError if a type is unknown, or an array has more rows.
        """
        for node_type in x:
            schema.known_type(node_type, self.types)
        return {t: pad_rows(rows, self.num_nodes[t], f"x[{t!r}]") for t, rows in x.items()}

    def pad_edges(self, edges: Mapping[Any, PyTree]) -> dict[Relation, PyTree]:
        """Edge data of each relation with rows of zeros appended up to the number of its edges.

        Raises GraphError if a relation is unknown, or an array has more rows.
        """
        found = {self.relation(key): rows for key, rows in edges.items()}
        return {
            key: pad_rows(rows, self.num_edges[key], f"edges[{schema.shown_key(key)}]")
            for key, rows in found.items()
        }

    @classmethod
    def batch(cls, graphs: Sequence[TypedGraph]) -> tuple[TypedGraph, dict[str, jax.Array]]:
        """One graph that holds all of `graphs`, and for each type the number of each vertex's
        graph, `int32[N]`, for `jax.ops.segment_sum`. Features of a type are batched by
        `jnp.concatenate`, and so is the data of a relation.

        Raises GraphError if there are no graphs, or other types or relations than in the first.
        """
        graphs = schema.typed_graphs(graphs, cls)
        first = graphs[0]
        for i, graph in enumerate(graphs):
            schema.same_schema(i, (graph.types, graph.relations), (first.types, first.relations))
        joined = {key: batch([graph[key] for graph in graphs])[0] for key in first.relations}
        sizes = {t: [graph.num_nodes[t] for graph in graphs] for t in first.types}
        number = np.arange(len(graphs), dtype=np.int32)
        index = {t: np.repeat(number, counts) for t, counts in sizes.items()}
        totals = {t: sum(counts) for t, counts in sizes.items()}
        return cls.from_graphs(joined, totals), jax.device_put(index)

    def statistics(self) -> dict[Relation, Statistics]:
        """`Graph.statistics` of each relation. Raises GraphError if the graph is traced."""
        return {key: graph.statistics() for key, graph in self.items()}

    def __repr__(self) -> str:
        types = ", ".join(f"{n} {t}" for t, n in self.num_nodes.items())
        listed = [
            f"{schema.shown_key(key)}: {graph.num_edges} edges"
            + ("" if graph.mask is None else " (padded)")
            for key, graph in self.items()
        ]
        more = [f"{len(listed) - 8} more relations"] if len(listed) > 8 else []
        return f"TypedGraph({'; '.join([types, *listed[:8], *more])})"
