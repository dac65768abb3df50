"""What a loader yields."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax

from gnnjit.graph import TypedGraph
from gnnjit.shapes import PyTree


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["graphs", "x", "y", "mask", "seeds", "vertices", "num_real", "edges", "weight",
                 "edge_weight", "label", "tree", "number"],
    meta_fields=["shape"],
)  # fmt: skip
@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """A sampled part of a graph, padded to one of a few shapes: a frozen pytree.

    Numbers of vertices in it are those of the batch: row `i` of `x` is vertex `vertices[i]` of the
    graph. A batch has labels for each seed; where no seeds are, as in a sampled subgraph, for each
    vertex. R stands for the label rows.

    Of a typed graph, `graphs` holds one `TypedGraph` for all layers; `x`, `vertices`, `num_real`
    and `tree` are dictionaries from types, `edges` is one from relations, and seeds are rows of
    their type: of links, those at which the relation starts and ends.

    Attributes:
        graphs: the graph of each layer, in the order in which layers are applied; of a subgraph
            one, for all layers.
        x: pytree of `[n, ...]`, features of the vertices; zeros on padding.
        y: pytree of `[R, ...]`, labels; zeros on padding.
        mask: `bool[R]`, the label rows that count.
        seeds: `int32[R]`, the vertex that each seed is, which is also its row in what the last
            layer returns; `int32[R, 2]`, both ends of each pair, of links; 0 on padding. None where
            seeds are no vertices.
        vertices: `int[n]`, global numbers; on padding N, one past the last, so that JAX drops what
            is scattered there.
        num_real: `int32[L + 1]`, vertices up to and with each hop, `int32[1]` of a subgraph: after
            layer k of L, the first `num_real[L - k]` rows are real.
        edges: pytree of `[e, ...]`, data of edges, of which a layer takes the first rows:
            see `edges_of`.
        weight: `float32[n]`, of each vertex in the loss; 0 on padding. None where all are alike.
        edge_weight: `float32[e]`, of each edge in a mean; 0 on padding. None where all are alike.
        label: `float32[R]`, 1 of a link and 0 of a negative; None but for links. Negatives that are
            edges after all do not count in `mask`, and `y` is that of the link.
        tree: `int32[n]`, the seed whose tree, or the graph, that a vertex is in; of links, the end:
            all sources first, then all destinations, then those of the negatives. On padding the
            number of trees. None where seeds share vertices.
        number: `int32[3]`, epoch, number in the epoch, and part (0 unless a batch was split).
        shape: number of the shape that it is padded to (static); None without padding.
    """

    graphs: tuple[Any, ...]
    x: PyTree
    y: PyTree
    mask: jax.Array
    seeds: jax.Array | None
    vertices: Any
    num_real: Any
    edges: PyTree
    weight: jax.Array | None
    edge_weight: jax.Array | None
    label: jax.Array | None
    tree: Any
    number: jax.Array
    shape: int | None

    def edges_of(self, layer: int) -> PyTree:
        """Pytree of `[graphs[layer].num_edges, ...]`: the data of the edges of one graph."""
        graph = self.graphs[layer]
        if isinstance(graph, TypedGraph):
            return self.edges
        return jax.tree.map(lambda leaf: leaf[: graph.num_edges], self.edges)
