"""Graphs from and to python-igraph, read by its names: igraph is not imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gnnjit.graph import Graph
from gnnjit.interop.plain import FromObject, built, checked, host_edges, numbers, required
from gnnjit.shapes import PyTree


def from_igraph(graph: Any) -> FromObject:
    """The graph of an igraph graph, with the attributes that are numbers; `name` gives the ids.

    Args:
        graph: an `igraph.Graph` (any object with its methods).

    Raises:
        GraphError: if it is no such object.
    """
    names = ("get_edgelist", "vcount", "is_directed", "vs", "es")
    required(graph, names, "from_igraph()", "a graph of igraph")
    of_nodes = {str(name): numbers(graph.vs[name]) for name in graph.vs.attributes()}
    of_edges = {str(name): numbers(graph.es[name]) for name in graph.es.attributes()}
    ids = list(graph.vs["name"]) if "name" in graph.vs.attributes() else None
    return built(
        graph.get_edgelist(),
        graph.vcount(),
        graph.is_directed(),
        {name: rows for name, rows in of_nodes.items() if rows is not None and name != "name"},
        {name: rows for name, rows in of_edges.items() if rows is not None},
        ids,
    )


def to_igraph(
    graph: Graph, make: Callable[..., Any], nodes: PyTree = None, edges: PyTree = None
) -> Any:
    """A directed graph of igraph; padding edges are left out.

    `to_igraph(graph, igraph.Graph, {"x": x})`

    Args:
        graph: a concrete graph of one vertex set.
        make: `igraph.Graph`.
        nodes: arrays `[N, ...]` by name; one alone is called `x`.
        edges: arrays `[E, ...]` by name; one alone is called `weight`.

    Raises:
        GraphError: if the graph is traced, or features do not fit.
    """
    src, dst, mask = host_edges(graph, "to_igraph()")
    of_nodes, of_edges = checked(graph, nodes, edges, mask)
    pairs = list(zip(src.tolist(), dst.tolist(), strict=True))
    result = make(n=graph.num_nodes, edges=pairs, directed=True)
    for name, rows in of_nodes.items():
        result.vs[name] = rows.tolist()
    for name, rows in of_edges.items():
        result.es[name] = rows.tolist()
    return result
