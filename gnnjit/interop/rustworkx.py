"""Graphs from and to rustworkx, read by its names: rustworkx is not imported."""

from __future__ import annotations

from typing import Any

from gnnjit.graph import Graph
from gnnjit.interop.plain import (
    FromObject,
    attributes,
    built,
    checked,
    columns,
    host_edges,
    required,
)
from gnnjit.shapes import PyTree


def from_rustworkx(graph: Any) -> FromObject:
    """The graph of a rustworkx graph, with what its vertices and edges carry: numbers, called `x`
    and `weight`, or dictionaries of them.

    Args:
        graph: a `PyDiGraph` or `PyGraph` (any object with their methods).

    Raises:
        GraphError: if it is no such object.
    """
    names = ("node_indices", "weighted_edge_list", "nodes")
    required(graph, names, "from_rustworkx()", "a graph of rustworkx")
    ids = list(graph.node_indices())
    number = {name: i for i, name in enumerate(ids)}
    edges = list(graph.weighted_edge_list())
    return built(
        [(number[u], number[v]) for u, v, _ in edges],
        len(ids),
        hasattr(graph, "predecessors"),
        columns(list(graph.nodes()), "x"),
        columns([carried for _, _, carried in edges], "weight"),
        ids,
    )


def to_rustworkx(graph: Graph, empty: Any, nodes: PyTree = None, edges: PyTree = None) -> Any:
    """Fill an empty `PyDiGraph`, whose vertices and edges carry dictionaries; padding edges are
    left out.

    `to_rustworkx(graph, rustworkx.PyDiGraph(), {"x": x})`

    Args:
        graph: a concrete graph of one vertex set.
        empty: which is filled and returned.
        nodes: arrays `[N, ...]` by name; one alone is called `x`.
        edges: arrays `[E, ...]` by name; one alone is called `weight`.

    Raises:
        GraphError: if the graph is traced, or features do not fit.
    """
    required(empty, ("add_nodes_from", "add_edges_from"), "to_rustworkx()", "a PyDiGraph")
    src, dst, mask = host_edges(graph, "to_rustworkx()")
    of_nodes, of_edges = checked(graph, nodes, edges, mask)
    empty.add_nodes_from(attributes(of_nodes, graph.num_nodes))
    rows = attributes(of_edges, len(src))
    empty.add_edges_from(list(zip(src.tolist(), dst.tolist(), rows, strict=True)))
    return empty
