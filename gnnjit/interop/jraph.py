"""Graphs from and to jraph's `GraphsTuple`: senders are sources, receivers are destinations."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.errors import GraphError
from gnnjit.graph import Graph, hosting
from gnnjit.graph.members import Members
from gnnjit.graph.reading import as_indices, is_integer, read_array, shown_shape
from gnnjit.graph.validate import check_leading, cut, is_traced
from gnnjit.shapes import ArrayLike, PyTree

INDICES = ("senders", "receivers", "n_node", "n_edge")


class FromGraphsTuple(NamedTuple):
    """What `from_graphs_tuple` returns: the batch as one graph, and what belongs to it.

    Attributes:
        graph: all graphs of the batch side by side.
        nodes, edges, globals: the pytrees as they came: `[N, ...]`, `[E, ...]`, `[G, ...]` or None.
        n_node, n_edge: `int[G]`, vertices and edges of each graph, padding graphs included.
        graph_index: `int32[N]`, the graph of each vertex, which `graph` remembers too.
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
    """The graph of a `GraphsTuple`, concrete or traced: a batch of its graphs, padding graphs among
    them, so that a layer takes its `globals`.

    Args:
        graphs: a `jraph.GraphsTuple` (any object with its fields).
        padded: True if it comes from `jraph.pad_with_graphs` (which leaves no mark of its own).
            The edges of the padding graphs then become padding edges.

    Raises:
        GraphError: if edges or vertices are missing, counts do not add up, or indices are wrong.
    """
    for field in INDICES:
        if getattr(graphs, field, None) is None:
            raise GraphError(
                f"the GraphsTuple has no {field}, expected an array: make one with all of senders, "
                f"receivers, n_node and n_edge"
            )
    senders, receivers = (as_indices(n, getattr(graphs, n)) for n in INDICES[:2])
    n_node, n_edge = (_as_counts(n, getattr(graphs, n)) for n in INDICES[2:])
    num_nodes, num_edges = _num_nodes(graphs), len(senders)
    _check_counts(n_node, n_edge, num_nodes, num_edges)
    check_leading("nodes", graphs.nodes, num_nodes, "vertices", "pass one row per vertex")
    check_leading("edges", graphs.edges, num_edges, "edges", "pass one row per edge")
    check_leading("globals", graphs.globals, len(n_node), "graphs", "pass one row per graph")
    _check_endpoints(senders, receivers, n_node, n_edge)
    graph_mask = edge_mask = None
    on_host = hosting.on_host(n_node, n_edge)
    xp: Any = np if on_host else jnp
    if padded:
        graph_mask = _real_graphs(xp.asarray(n_node))
        edge_mask = xp.arange(num_edges) < xp.sum(xp.where(graph_mask, xp.asarray(n_edge), 0))
    index = xp.arange(len(n_node), dtype=np.int32)
    if on_host:
        owner = np.repeat(index, np.asarray(n_node))
    else:
        owner = jnp.repeat(index, n_node, total_repeat_length=num_nodes)
    placed: Any = (n_node, n_edge, owner, graph_mask)
    n_node, n_edge, owner, graph_mask = hosting.to_device(placed) if on_host else placed
    graph = Graph.from_edges(senders, receivers, num_nodes, edge_mask=edge_mask)
    if len(index):
        graph = dataclasses.replace(graph, members=Members(dst=owner, num_graphs=len(index)))
    return FromGraphsTuple(
        graph=graph,
        nodes=graphs.nodes,
        edges=graphs.edges,
        globals=graphs.globals,
        n_node=n_node,
        n_edge=n_edge,
        graph_index=owner,
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
    vertices = _as_counts("n_node", [num_nodes] if n_node is None else n_node)
    pairs = _as_counts("n_edge", [num_edges] if n_edge is None else n_edge)
    _check_counts(vertices, pairs, num_nodes, num_edges)
    check_leading("globals", globals, len(vertices), "graphs", "pass one row per graph")
    src, dst = _endpoints(graph, vertices, pairs)
    if hosting.on_host(src, dst, vertices, pairs):
        counts = np.asarray(vertices).astype(np.int32), np.asarray(pairs).astype(np.int32)
        src, dst, vertices, pairs = hosting.to_device((src, dst, *counts), graph.src)
    else:
        vertices, pairs = (jnp.asarray(n, jnp.int32) for n in (vertices, pairs))
    return jraph.GraphsTuple(
        nodes=nodes,
        edges=edges,
        globals=globals,
        senders=src,
        receivers=dst,
        n_node=vertices,
        n_edge=pairs,
    )


def _endpoints(graph: Graph, n_node: Any, n_edge: Any) -> tuple[Any, Any]:
    """Sources and destinations, those of padding edges at the padding graph's first vertex."""
    if graph.mask is None:
        return graph.src, graph.dst
    on_host = hosting.on_host(graph.mask, graph.src, graph.dst, n_node, n_edge)
    xp: Any = np if on_host else jnp
    mask, src, dst = (xp.asarray(x) for x in (graph.mask, graph.src, graph.dst))
    n_node, n_edge = xp.asarray(n_node), xp.asarray(n_edge)
    real = _real_graphs(n_node)
    _check_mask(mask, xp.sum(xp.where(real, n_edge, 0)))
    first = xp.sum(xp.where(real, n_node, 0)).astype(graph.src.dtype)
    return xp.where(mask, src, first), xp.where(mask, dst, first)


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
    if leaves and np.shape(leaves[0]):
        return np.shape(leaves[0])[0]
    if is_traced(graphs.n_node):
        raise GraphError(
            "the GraphsTuple is traced and has no nodes, expected an array of known size: set "
            "nodes to zeros of shape [num_nodes, 0]"
        )
    return int(np.sum(graphs.n_node))


def _as_counts(name: str, value: Any) -> Any:
    """One whole number for each graph. Raises GraphError on anything else."""
    array = read_array(name, value)
    if array.size and not is_integer(array.dtype):
        raise GraphError(
            f"{name} has dtype {cut(str(array.dtype))}, expected integers: pass the size of each "
            f"graph"
        )
    return array if array.size else array.astype(np.int32)


def _check_counts(n_node: Any, n_edge: Any, num_nodes: int, num_edges: int) -> None:
    if n_node.shape != n_edge.shape or n_node.ndim != 1:
        raise GraphError(
            f"n_node has shape {shown_shape(n_node)} and n_edge has shape {shown_shape(n_edge)}, "
            f"expected one count per graph in both: pass two arrays of shape [num_graphs]"
        )
    if is_traced(n_node, n_edge):
        return
    for name, counts, expected in (("n_node", n_node, num_nodes), ("n_edge", n_edge, num_edges)):
        counts = np.asarray(counts)
        if (counts < 0).any():
            at = int((counts < 0).argmax())
            raise GraphError(
                f"{name}[{at}] is {counts[at]}, expected 0 or more: pass the size of each graph"
            )
        total = int(np.sum(counts, dtype=object))
        if total != expected:
            kind = "vertices" if name == "n_node" else "edges"
            raise GraphError(
                f"{name} adds up to {total}, but there are {expected} {kind}: pass one count per "
                f"graph, padding graphs included"
            )


def _check_endpoints(senders: Any, receivers: Any, n_node: Any, n_edge: Any) -> None:
    """Raises GraphError unless each edge is between vertices of its own graph."""
    if is_traced(senders, receivers, n_node, n_edge):
        return
    n_node, n_edge = np.asarray(n_node), np.asarray(n_edge)
    last = np.repeat(np.cumsum(n_node), n_edge)
    first = last - np.repeat(n_node, n_edge)
    for name, index in (("senders", np.asarray(senders)), ("receivers", np.asarray(receivers))):
        if len(index) != len(last):
            raise GraphError(
                f"{name} has {len(index)} entries, expected {len(last)}, the sum of n_edge: pass "
                f"one per edge"
            )
        outside = (index < first) | (index >= last)
        if outside.any():
            at = int(outside.argmax())
            graph = int(np.repeat(np.arange(len(n_node)), n_edge)[at])
            raise GraphError(
                f"{name}[{at}] is {index[at]}, but edge {at} belongs to graph {graph}, whose "
                f"vertices are {first[at]} to {last[at] - 1}: correct n_node and n_edge, or number "
                f"vertices over the whole batch, as jraph.batch does"
            )


def _real_graphs(n_node: Any) -> Any:
    """`bool[G]`: False from the padding graph on, the last graph that has vertices."""
    xp: Any = np if isinstance(n_node, np.ndarray) else jnp
    index = xp.arange(len(n_node))
    return index < xp.max(xp.where(n_node > 0, index, 0), initial=0)


def _check_mask(mask: Any, num_real: Any) -> None:
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
