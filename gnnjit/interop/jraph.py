"""Graphs from and to jraph's `GraphsTuple`: senders are sources, receivers are destinations."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.errors import GraphError
from gnnjit.graph import Graph
from gnnjit.graph.validate import is_traced
from gnnjit.shapes import ArrayLike, PyTree


class FromGraphsTuple(NamedTuple):
    """What `from_graphs_tuple` returns: the batch as one graph, and what belongs to it.

    Attributes:
        graph: all graphs of the batch side by side.
        nodes, edges, globals: the pytrees as they came: `[N, ...]`, `[E, ...]`, `[G, ...]` or None.
        n_node, n_edge: `int[G]`, vertices and edges of each graph, padding graphs included.
        graph_index: `int32[N]`, the graph of each vertex.
        graph_mask: `bool[G]`, False on padding graphs; None if the batch is not padded.
    """

    graph: Graph
    nodes: PyTree
    edges: PyTree
    globals: PyTree
    n_node: jax.Array
    n_edge: jax.Array
    graph_index: jax.Array
    graph_mask: jax.Array | None


def from_graphs_tuple(graphs: Any, *, padded: bool = False) -> FromGraphsTuple:
    """The graph of a `GraphsTuple`, concrete or traced.

    Args:
        graphs: a `jraph.GraphsTuple` (any object with its fields).
        padded: True if it comes from `jraph.pad_with_graphs` (which leaves no mark of its own).
            The edges of the padding graphs then become padding edges.

    Raises:
        GraphError: if edges or vertices are missing, counts do not add up, or indices are wrong.
    """
    if graphs.senders is None or graphs.receivers is None:
        raise GraphError(
            "the GraphsTuple has no senders or no receivers, expected both: "
            "set them to arrays of shape [num_edges]"
        )
    num_nodes = _num_nodes(graphs)
    num_edges = len(graphs.senders)
    n_node, n_edge = jnp.asarray(graphs.n_node), jnp.asarray(graphs.n_edge)
    _check_counts(n_node, n_edge, num_nodes, num_edges)
    graph_mask = edge_mask = None
    if padded:
        graph_mask = _real_graphs(n_node)
        edge_mask = jnp.arange(num_edges) < jnp.sum(jnp.where(graph_mask, n_edge, 0))
    index = jnp.arange(len(n_node), dtype=jnp.int32)
    return FromGraphsTuple(
        graph=Graph.from_edges(graphs.senders, graphs.receivers, num_nodes, edge_mask=edge_mask),
        nodes=graphs.nodes,
        edges=graphs.edges,
        globals=graphs.globals,
        n_node=n_node,
        n_edge=n_edge,
        graph_index=jnp.repeat(index, n_node, total_repeat_length=num_nodes),
        graph_mask=graph_mask,
    )


def to_graphs_tuple(
    graph: Graph,
    nodes: PyTree = None,
    edges: PyTree = None,
    globals: PyTree = None,
    n_node: ArrayLike | None = None,
    n_edge: ArrayLike | None = None,
) -> Any:
    """The `jraph.GraphsTuple` of a graph: one graph, or several if `n_node` and `n_edge` say so.

    Padding edges must be the edges of the padding graphs at the end; they come back from its first
    vertex to itself, as jraph makes them.

    Args:
        graph: a graph of one vertex set.
        nodes, edges, globals: pytrees of `[N, ...]`, `[E, ...]`, `[G, ...]`.
        n_node, n_edge: `int[G]`, as `from_graphs_tuple` returns them.

    Raises:
        GraphError: if jraph is not installed, the graph is bipartite, features do not fit, counts
            do not add up, or padding edges are not those of the padding graphs.
    """
    jraph = _jraph()
    num_nodes, num_edges = graph.num_nodes, graph.num_edges
    graph.check(nodes, "dst", "nodes")
    graph.check(edges, "edge", "edges")
    if graph.mask is not None and (n_node is None or n_edge is None):
        raise GraphError(
            "the graph has padding edges and n_node or n_edge is missing, expected both, with the "
            "padding as the last graph: pass those of from_graphs_tuple(..., padded=True)"
        )
    n_node = jnp.asarray([num_nodes] if n_node is None else n_node, jnp.int32)
    n_edge = jnp.asarray([num_edges] if n_edge is None else n_edge, jnp.int32)
    _check_counts(n_node, n_edge, num_nodes, num_edges)
    src, dst = _endpoints(graph, n_node, n_edge)
    return jraph.GraphsTuple(
        nodes=nodes,
        edges=edges,
        globals=globals,
        senders=src,
        receivers=dst,
        n_node=n_node,
        n_edge=n_edge,
    )


def _endpoints(graph: Graph, n_node: jax.Array, n_edge: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sources and destinations, those of padding edges at the padding graph's first vertex."""
    if graph.mask is None:
        return graph.src, graph.dst
    real = _real_graphs(n_node)
    _check_mask(graph.mask, jnp.sum(jnp.where(real, n_edge, 0)))
    first = jnp.sum(jnp.where(real, n_node, 0)).astype(graph.src.dtype)
    return jnp.where(graph.mask, graph.src, first), jnp.where(graph.mask, graph.dst, first)


def _jraph() -> Any:
    try:
        import jraph
    except ImportError as error:
        raise GraphError(
            "jraph is not installed, expected it for a GraphsTuple: pip install jraph"
        ) from error
    return jraph


def _num_nodes(graphs: Any) -> int:
    """The number of vertices: the rows of the features, else the sum of `n_node`."""
    leaves = jax.tree.leaves(graphs.nodes)
    if leaves:
        return leaves[0].shape[0]
    if is_traced(graphs.n_node):
        raise GraphError(
            "the GraphsTuple is traced and has no nodes, expected an array of known size: set "
            "nodes to zeros of shape [num_nodes, 0]"
        )
    return int(np.sum(graphs.n_node))


def _check_counts(n_node: jax.Array, n_edge: jax.Array, num_nodes: int, num_edges: int) -> None:
    if n_node.shape != n_edge.shape or n_node.ndim != 1:
        raise GraphError(
            f"n_node has shape {n_node.shape} and n_edge has shape {n_edge.shape}, expected one "
            f"count per graph in both: pass two arrays of shape [num_graphs]"
        )
    if is_traced(n_node, n_edge):
        return
    for name, counts, expected in (("n_node", n_node, num_nodes), ("n_edge", n_edge, num_edges)):
        total = int(np.sum(np.asarray(counts)))
        if total != expected:
            kind = "vertices" if name == "n_node" else "edges"
            raise GraphError(
                f"{name} adds up to {total}, but there are {expected} {kind}: pass one count per "
                f"graph, padding graphs included"
            )


def _real_graphs(n_node: jax.Array) -> jax.Array:
    """`bool[G]`: False from the padding graph on, the last graph that has vertices."""
    index = jnp.arange(len(n_node))
    return index < jnp.max(jnp.where(n_node > 0, index, 0), initial=0)


def _check_mask(mask: jax.Array, num_real: jax.Array) -> None:
    if is_traced(mask, num_real):
        return
    expected = np.arange(len(mask)) < int(num_real)
    wrong = np.asarray(mask) != expected
    if wrong.any():
        at = int(wrong.argmax())
        state = "real" if mask[at] else "padding"
        raise GraphError(
            f"edge {at} is {state}, expected {int(num_real)} real edges and then the padding "
            f"graph's: reorder the edges or correct n_edge"
        )
