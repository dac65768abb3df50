"""Many graphs side by side as one graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.errors import GraphError
from gnnjit.graph import hosting, validate
from gnnjit.graph.graph import Bipartite, Graph
from gnnjit.graph.members import End, joined
from gnnjit.graph.relations import joined as joined_relations


def batch(graphs: Sequence[Graph]) -> tuple[Graph, Any]:
    """One graph that holds all of `graphs`, vertices and edges one graph after the other.

    Features are batched by `jnp.concatenate`. Padding edges stay padding, and so do vertices that
    `Graph.pad` added. The graph remembers its `num_graphs` graphs: layers on it take `globals=`,
    and `gnnjit.readout` reduces into each graph. A batch among `graphs` counts as its graphs.

    Returns:
        The graph, and the number of each vertex's graph, `int32[N]` (for bipartite graphs a
        `Bipartite` of one for the sources and one for the destinations), sorted, for
        `jax.ops.segment_sum(x, graph_index, graph.num_graphs)`.

    Raises:
        GraphError: if there are no graphs, or bipartite and other graphs are mixed, or graphs of
            different numbers of relations.
    """
    try:
        graphs = list(graphs)
    except TypeError as error:
        raise GraphError(
            f"batch() got {validate.shown(graphs)}, expected several graphs: pass a list of them"
        ) from error
    for i, graph in enumerate(graphs):
        if not isinstance(graph, Graph):
            raise GraphError(
                f"batch() got {validate.shown(graph)} as graph {i}, expected a gnnjit.Graph: pass "
                f"a list of graphs"
            )
    if not graphs:
        raise GraphError("batch() got no graphs, expected at least one: pass a non-empty list")
    if len({g.bipartite for g in graphs}) > 1:
        kinds = ["bipartite" if g.bipartite else "one vertex set" for g in graphs]
        raise GraphError(
            f"batch() got {kinds.count('bipartite')} bipartite graphs and "
            f"{kinds.count('one vertex set')} of one vertex set, expected one kind: "
            f"batch them apart"
        )
    num_src, num_dst = [g.num_src for g in graphs], [g.num_dst for g in graphs]
    mask, relations = _masks(graphs), joined_relations(graphs)
    src = _shifted([g.src for g in graphs], num_src)
    dst = _shifted([g.dst for g in graphs], num_dst)
    of_dst = _owner(graphs, "dst")
    if graphs[0].bipartite:
        sizes: Any = {"num_src": sum(num_src), "num_dst": sum(num_dst)}
        of_src = _owner(graphs, "src")
        index: Any = Bipartite(of_src, of_dst)
    else:
        sizes, index, of_src = {"num_nodes": sum(num_dst)}, of_dst, None
    graph = Graph.from_edges(src, dst, edge_mask=mask, **sizes)
    members = joined(graphs, of_src, of_dst, sum(g.num_graphs for g in graphs))
    if hosting.on_host(members):
        members = hosting.to_device(members)
    pairs = _joined_pairs(graphs)
    return dataclasses.replace(graph, members=members, relations=relations, pairs=pairs), index


def _joined_pairs(graphs: list[Graph]) -> Graph | None:
    """`Graph.pairs` of a batch; None where a graph has none."""
    pairs = [g.pairs for g in graphs if g.pairs is not None]
    if len(pairs) < len(graphs):
        return None
    return dataclasses.replace(batch(pairs)[0], members=None)


def _shifted(arrays: list[Any], counts: list[int]) -> Any:
    """`arrays` joined, each with the sum of the counts before it added."""
    offsets = np.cumsum([0, *counts[:-1]])
    dtype = validate.index_dtype(num_nodes=sum(counts))
    xp: Any = np if hosting.on_host(arrays) else jnp
    return xp.concatenate(
        [
            xp.asarray(array).astype(dtype) + dtype.type(offset)
            for array, offset in zip(arrays, offsets, strict=True)
        ]
    )


def _masks(graphs: list[Graph]) -> Any:
    """The masks joined; None if no graph has one."""
    if all(g.mask is None for g in graphs):
        return None
    return hosting.concatenated(
        [np.ones(g.num_edges, bool) if g.mask is None else g.mask for g in graphs]
    )


def _owner(graphs: list[Graph], end: End) -> jax.Array:
    """The number of each vertex's graph."""
    first = np.cumsum([0, *(g.num_graphs for g in graphs)])
    parts = []
    for graph, offset in zip(graphs, first[:-1].astype(np.int32), strict=True):
        rows = graph.num_src if end == "src" else graph.num_dst
        inner = None if graph.members is None else graph.members.of(end, graph.bipartite)[0]
        parts.append(np.full(rows, offset) if inner is None else inner + offset)
    return hosting.to_device(hosting.concatenated(parts))
