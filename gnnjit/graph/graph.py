"""The graph: edges in the order in which they were given, and sorted by either endpoint."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from gnnjit.errors import GraphError
from gnnjit.graph import (
    edit,
    hosting,
    making,
    normalize,
    order,
    padding,
    pairs,
    reading,
    relations,
    validate,
)
from gnnjit.graph.bipartite import Bipartite
from gnnjit.graph.members import Members, check_globals
from gnnjit.graph.relations import Relations
from gnnjit.graph.statistics import Statistics, compute_statistics
from gnnjit.graph.structure import Structure
from gnnjit.shapes import ArrayLike, EdgeIndex, EdgeMask, EdgeWeight, PyTree, VertexWeight


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=[
        "src", "dst", "mask", "in_structure", "out_structure", "dropped", "whole_degree", "members",
        "relations", "pairs",
    ],
    meta_fields=["num_src", "num_dst", "num_edges", "bipartite", "nested", "fan_in"],
)  # fmt: skip
@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    """A directed graph `src[i] -> dst[i]`: a frozen pytree, to be passed as an argument.

    `Graph.from_edges` makes one. Padding edges have a False `mask` and both endpoints 0; they
    are in no row of either structure.

    Attributes:
        src, dst: `int[E]`, the endpoints, in the order in which the edges were given.
        mask: `bool[E]`, False on padding; None where every edge is real.
        in_structure: edges sorted by destination.
        out_structure: edges sorted by source.
        dropped: see `num_dropped`; None where the edges were concrete.
        num_src, num_dst: the numbers of vertices (static).
        num_edges: the number of edges, padding included (static).
        bipartite: whether sources and destinations are two vertex sets (static).
        nested: whether destination `i` is source `i`, as in the blocks of a sampled batch (static).
            Such a graph counts as bipartite, and layers take one array of the sources' features.
        whole_degree: `int[num_src]`, the in-edges of each source in the graph that a block was
            sampled from; None for other graphs.
        members: which graph of a batch each vertex belongs to, and which vertices are padding; None
            where all belong to one graph.
        fan_in: set where edge `i` leads from source `i` to destination `i // fan_in` (static).
        pairs: one edge of each two `u -> v`, `v -> u`, where concrete edges were said to be
            `symmetric` and none is a loop, and of graphs that a radius gives; else None. What both
            compute alike, layers compute once.
    """

    src: EdgeIndex
    dst: EdgeIndex
    mask: EdgeMask | None
    in_structure: Structure
    out_structure: Structure
    dropped: jax.Array | None
    num_src: int
    num_dst: int
    num_edges: int
    bipartite: bool
    nested: bool = False
    whole_degree: jax.Array | None = None
    members: Members | None = None
    relations: Relations | None = None
    fan_in: int | None = None
    pairs: Graph | None = None

    @classmethod
    def from_edges(
        cls,
        src: ArrayLike,
        dst: ArrayLike | None = None,
        num_nodes: int | None = None,
        *,
        num_src: int | None = None,
        num_dst: int | None = None,
        edge_mask: ArrayLike | None = None,
        sorted_by: str | None = None,
        symmetric: bool = False,
        relation: ArrayLike | None = None,
        num_relations: int | None = None,
    ) -> Graph:
        """Make the graph of the edges `src[i] -> dst[i]`.

        Concrete edges (lists, NumPy, JAX arrays, what reads as an array) are checked and sorted on
        the host. Traced edges (inside `jit`, `vmap`, `scan`) are sorted on the device; the sizes
        must then be given. No error can be raised on traced values, so a traced edge with an
        endpoint out of range becomes padding. Particle codes use this to mark "no neighbour", by
        the index `num_nodes`. `num_dropped` counts such edges.

        Args:
            src, dst: `int[E]`, the endpoints; or an edge list `int[2, E]` alone.
            num_nodes: the number of vertices; the largest index plus one if left out.
            num_src, num_dst: the same for two vertex sets (either makes the graph bipartite).
            edge_mask: `bool[E]`, False marks padding, whose endpoints may be anything.
            sorted_by: "dst" or "src" if the numbers of that endpoint never fall from one edge to
                the next; padding may stand anywhere. It saves a sort of traced edges. Those are
                checked on the device, and sorted after all if they fall.
            symmetric: True if each edge `u -> v` has an edge `v -> u`, padding left out, as in
                undirected graphs and full neighbour lists of molecular dynamics. Concrete edges get
                `pairs`. Of traced ones it saves a sort. Those are not checked: gradients are wrong
                if it does not hold.
            relation: `int[E]`, the relation of each edge, which layers read as `e.relation`. An
                edge whose traced relation is out of range becomes padding, too.
            num_relations: the number of relations; the largest one plus one if left out.

        Raises:
            GraphError: if an index or a relation is out of range, not an integer or not in one
                dimension, if lengths differ, if a count is no integer >= 0, is missing for traced
                edges, needs 64-bit integers while JAX has them off, or is given for one vertex set
                and for two, or if concrete edges are not as `sorted_by` and `symmetric` say.
        """
        bipartite = num_src is not None or num_dst is not None
        n_src, n_dst = validate.resolve_counts(num_nodes, num_src, num_dst)
        order.check_options(sorted_by, symmetric, bipartite)
        src, dst = reading.endpoints(src, dst)
        validate.same_length(src, dst)
        mask = None if edge_mask is None else reading.as_mask(edge_mask, src.shape[0])
        given, mask = relations.read(relation, num_relations, src.shape[0], mask)
        traced = validate.is_traced(src, dst, mask)
        make = making.from_traced if traced else making.from_concrete
        said = sorted_by, bool(symmetric)
        graph = cls(**make(src, dst, mask, (n_src, n_dst), bipartite, said))
        if symmetric and not traced:
            graph = pairs.with_pairs(graph)
        return relations.attached(graph, given)

    @property
    def num_nodes(self) -> int:
        """The number of vertices. Raises GraphError where there are two vertex sets."""
        if self.bipartite:
            raise GraphError(
                f"num_nodes asked of a bipartite graph with {self.num_src} sources and "
                f"{self.num_dst} destinations, expected one vertex set: use num_src or num_dst"
            )
        return self.num_dst

    @property
    def num_graphs(self) -> int:
        """The graphs of a batch, those without vertices included; 1 of any other graph."""
        return 1 if self.members is None else self.members.num_graphs

    @property
    def num_relations(self) -> int:
        """The relations of the edges, those without edges included; 0 where edges have none."""
        return 0 if self.relations is None else self.relations.count

    def num_dropped(self) -> jax.Array:
        """`int[]`: edges that `from_edges` made padding since an endpoint was out of range.

        Edges that `edge_mask` marked as padding are not counted. It is 0 for concrete edges, where
        an index out of range is an error.
        """
        if self.dropped is None:
            return hosting.to_device(np.zeros((), self.src.dtype))
        return self.dropped

    def reverse(self) -> Graph:
        """The graph of the edges `dst[i] -> src[i]`, edges in the same order; no sorting."""
        return dataclasses.replace(
            self,
            src=self.dst,
            dst=self.src,
            in_structure=self.out_structure,
            out_structure=self.in_structure,
            num_src=self.num_dst,
            num_dst=self.num_src,
            nested=False,
            fan_in=None,
            whole_degree=None,
            members=None if self.members is None else self.members.reversed(self.bipartite),
            relations=relations.reversed_of(self.relations, self.src, self.mask, self.num_src),
        )

    def at_both_ends(self, x: PyTree) -> PyTree:
        """Features for both vertex sets: of a nested graph a `Bipartite` of `x`, `[num_src, ...]`,
        and its first `num_dst` rows; `x` itself where it is a `Bipartite`, or the graph another.

        Raises:
            GraphError: if the graph is nested and an array has not `num_src` rows.
        """
        if not self.nested or isinstance(x, Bipartite):
            return x
        self.check(x, "src", "x")
        return Bipartite(x, jax.tree.map(lambda leaf: leaf[: self.num_dst], x))

    def degree(self, space: Any = "in") -> jax.Array:
        """`int[N]`: the number of edges of each vertex, padding not counted.

        Args:
            space: "in" or "dst" for in-edges per destination, "out" or "src" for out-edges per
                source.

        Raises:
            GraphError: on any other `space`.
        """
        name = validate.space_name(space)
        if name in ("in", "dst"):
            return self.in_structure.degree()
        if name in ("out", "src"):
            return self.out_structure.degree()
        raise GraphError(
            f"degree() got {validate.shown(space)}, expected one of 'in', 'dst', 'out', 'src': "
            f"pass 'in' for the edges that end at a vertex"
        )

    @property
    def in_degree(self) -> jax.Array:
        """`int[num_dst]`: edges that end at each destination."""
        return self.in_structure.degree()

    @property
    def out_degree(self) -> jax.Array:
        """`int[num_src]`: edges that start at each source."""
        return self.out_structure.degree()

    def gcn_norm(self, weights: ArrayLike | None = None) -> EdgeWeight:
        """`float32[E]`: weights of the symmetric normalisation D^-1/2 A D^-1/2; 0 on padding.

        Kipf & Welling 2017 (equation 2, "renormalization trick"), for the graph as it is: add the
        self loops first. An edge u -> v gets `1 / sqrt(d(u) * d(v))` with in-degrees `d`, as in
        PyG; in a bipartite graph `d(u)` is the out-degree, in a block of a sampled batch degrees
        are those of the whole graph. Where a degree is 0 (a directed graph) the weight is 0.

        Args:
            weights: `float[E]`, edge weights to be normalised (degrees are then their sums); 1 if
                left out.

        Raises:
            GraphError: if `weights` has not one entry per edge.
        """
        return normalize.gcn_norm(*normalize.parts(self, weights))

    def gcn_factors(self, weights: ArrayLike | None = None) -> tuple[VertexWeight, VertexWeight]:
        """`(float32[num_src], float32[num_dst])`: the vertex factors whose product is `gcn_norm`.

        `gcn_norm()[i] == at_src[src[i]] * at_dst[dst[i]]`: a layer that multiplies by one before
        and by the other after the sum needs no edge weights.
        """
        return normalize.gcn_factors(*normalize.parts(self, weights))

    def with_self_loops(
        self, edges: PyTree | None = None, *, fill: Any = 1.0, missing_only: bool = True
    ) -> Any:
        """The graph with a self loop at every vertex.

        The new edges come after all present ones, by vertex. Self loops that are there stay, with
        their data (PyG's `add_remaining_self_loops`, except that it moves them to the end and
        merges duplicates). On a traced graph `num_nodes` edges are appended, those not needed as
        padding.

        Args:
            edges: pytree of `[E, ...]`, to be extended for the new edges.
            fill: what the new edges hold, broadcast to each array's trailing shape; or "mean",
                "sum" (or "add"), "max", "min", "mul" of the data of the edges into the vertex (0
                where there are none, 1 for "mul"), as PyG's `fill_value`.
            missing_only: False gives every vertex one more self loop.

        Returns:
            The graph, or `(graph, edges)` if `edges` are given.

        Raises:
            GraphError: if the graph is bipartite or has relations, or `edges` or `fill` does not
                fit it.
        """
        edit.check_fill(fill)
        advice = "add v @ w in the layer, or append the loops to the edges, as a relation"
        relations.refuse(self, "with_self_loops", advice)
        if self.bipartite:
            raise GraphError(
                f"with_self_loops() on a bipartite graph with {self.num_src} sources and "
                f"{self.num_dst} destinations, expected one vertex set: add the vertex's own "
                f"features in the layer instead"
            )
        new, new_mask = np.arange(self.num_nodes, dtype=self.src.dtype), None
        if missing_only:
            new, new_mask = edit.self_loops_to_add(self.src, self.dst, self.mask, self.num_nodes)
        mask = None
        if self.mask is not None or new_mask is not None:
            old_mask = np.ones(self.num_edges, bool) if self.mask is None else self.mask
            new_mask = np.ones(len(new), bool) if new_mask is None else new_mask
            mask = hosting.concatenated([old_mask, new_mask])
        src, dst = (hosting.concatenated([end, new]) for end in (self.src, self.dst))
        graph = Graph.from_edges(src, dst, self.num_nodes, edge_mask=mask)
        graph = dataclasses.replace(graph, dropped=self.dropped, members=self.members)
        if edges is None:
            return graph
        self.check(edges, "edge", "edges")
        return graph, edit.append_rows(edges, self.dst, self.mask, self.in_structure, new, fill)

    def to_undirected(self) -> Graph:
        """The graph with every edge in both directions, duplicates merged, padding left out.

        Edges are sorted by destination, then source; `symmetrize` also tells where each came from.

        Raises:
            GraphError: if the graph is bipartite, traced or has relations.
        """
        num_nodes = self.num_nodes
        advice = "append the edges dst -> src as relations of their own, relation + num_relations"
        relations.refuse(self, "to_undirected", advice)
        edges = (self.src, self.dst)
        if not validate.is_traced(self):
            edges = edit.real_edges(*edges, self.mask)
        src, dst, _ = edit.symmetrize(*edges)
        graph = Graph.from_edges(src, dst, num_nodes)
        return dataclasses.replace(graph, members=self.members)

    def pad(
        self,
        num_nodes: int | None = None,
        num_edges: int | None = None,
        *,
        num_src: int | None = None,
        num_dst: int | None = None,
        num_graphs: int | None = None,
    ) -> Graph:
        """Append vertices without edges, padding edges and graphs without vertices, up to
        capacities. No readout counts the new vertices.

        Graphs that are padded to the same capacities share one compilation: the result always has a
        `mask`, and never degree buckets, whose shapes depend on the degrees.

        Args:
            num_nodes: the capacity for vertices; what the graph has if left out.
            num_edges: the capacity for edges; likewise.
            num_src, num_dst: the capacities of a bipartite graph's two vertex sets.
            num_graphs: the capacity for graphs of a batch.

        Raises:
            GraphError: if a capacity is below what the graph has, is not an integer, or names
                the wrong vertex sets; if there is no vertex for padding to point at.
        """
        present = self.num_src, self.num_dst, self.num_edges
        wanted = num_nodes, num_edges, num_src, num_dst
        graphs = padding.capacity("num_graphs", num_graphs, self.num_graphs)
        sizes = padding.capacities(present, self.bipartite, *wanted)
        return padding.padded(self, *sizes, graphs)

    def pad_nodes(self, x: PyTree) -> PyTree:
        """`x` with rows of zeros appended up to `num_nodes` (per vertex set, for a `Bipartite`).

        Raises:
            GraphError: if an array has more rows, or the graph is bipartite and `x` is not.
        """
        if isinstance(x, Bipartite):
            return Bipartite(
                padding.pad_rows(x.src, self.num_src, "x.src"),
                padding.pad_rows(x.dst, self.num_dst, "x.dst"),
            )
        return padding.pad_rows(x, self.num_nodes, "x")

    def pad_edges(self, edges: PyTree) -> PyTree:
        """`edges` with rows of zeros appended up to `num_edges`. Raises GraphError on more."""
        return padding.pad_rows(edges, self.num_edges, "edges")

    def statistics(self) -> Statistics:
        """Counts that tell what the graph is like. Raises GraphError if it is traced."""
        if validate.is_traced(self):
            raise GraphError(
                "statistics() was called on a traced graph, expected a concrete one: call it "
                "outside jit"
            )
        src, dst = edit.real_edges(self.src, self.dst, self.mask)
        return compute_statistics(
            src,
            dst,
            np.asarray(self.in_degree),
            np.asarray(self.out_degree),
            bipartite=self.bipartite,
            num_padding=self.num_edges - len(src),
            num_bytes=sum(leaf.nbytes for leaf in jax.tree.leaves(self)),
        )

    def structure(self, space: Any) -> Structure:
        """The edges, sorted by their endpoint in `space`: "src" or "dst".

        Raises GraphError on any other `space`.
        """
        name = validate.space_name(space)
        if name not in ("src", "dst"):
            raise GraphError(
                f"structure() got {validate.shown(space)}, expected 'src' or 'dst': name the "
                f"endpoint that edges are sorted by"
            )
        return self.in_structure if name == "dst" else self.out_structure

    def check(self, x: PyTree, space: Any, what: str) -> None:
        """Raises GraphError unless every array in `x` has one row per element of `space`.

        Args:
            x: a pytree of arrays.
            space: "src", "dst", "edge" or "graph" (or an enumeration member with such a value).
            what: the name of `x` in the message.
        """
        given, space = space, validate.space_name(space)
        if space not in ("src", "dst", "edge", "graph"):
            raise GraphError(
                f"check() got the space {validate.shown(given)}, expected 'src', 'dst', 'edge' or "
                f"'graph': name what there is a row for"
            )
        if space == "graph":
            check_globals(self.num_graphs, x, what)
            return
        if space == "edge":
            count, kind = self.num_edges, "edges"
        else:
            count = {"src": self.num_src, "dst": self.num_dst}[space]
            kind = {"src": "sources", "dst": "destinations"}[space]
            kind = kind if self.bipartite else "vertices"
        noun = "edge" if space == "edge" else "vertex"
        validate.check_leading(what, x, count, kind, f"pass arrays with one row per {noun}")

    def __repr__(self) -> str:
        if self.bipartite:
            vertices = f"{self.num_src} sources, {self.num_dst} destinations"
        else:
            vertices = f"{self.num_dst} vertices"
        padded = "" if self.mask is None else ", padded"
        padded += "" if self.relations is None else f", {self.num_relations} relations"
        padded += "" if self.num_graphs == 1 else f", {self.num_graphs} graphs"
        return f"Graph({vertices}, {self.num_edges} edges{padded})"
