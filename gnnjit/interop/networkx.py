"""Graphs from and to networkx, read by its names: networkx is imported only to read its files."""

from __future__ import annotations

import importlib
import io
from pathlib import Path
from typing import Any

from gnnjit.errors import DataError
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

READERS: dict[str, tuple[tuple[str, ...], str]] = {
    "graphml": ((".graphml",), "read_graphml"),
    "gexf": ((".gexf",), "read_gexf"),
    "gml": ((".gml",), "read_gml"),
    "pajek": ((".net", ".pajek"), "read_pajek"),
}
"""Kinds of files: endings, and the function of networkx that reads them."""


def from_networkx(graph: Any) -> FromObject:
    """The graph of a networkx graph, with the numbers that all its vertices or edges have.

    Vertices are numbered in the order of `graph.nodes`, edges in that of `graph.edges`.

    Args:
        graph: a `Graph`, `DiGraph`, `MultiGraph` or `MultiDiGraph` (any object with its methods).

    Raises:
        GraphError: if it is no such object.
    """
    names = ("nodes", "edges", "is_directed", "is_multigraph")
    required(graph, names, "from_networkx()", "a graph of networkx")
    ids = list(graph.nodes)
    number = {name: i for i, name in enumerate(ids)}
    edges = list(graph.edges(data=True))
    return built(
        [(number[u], number[v]) for u, v, _ in edges],
        len(ids),
        graph.is_directed(),
        columns([graph.nodes[name] for name in ids], "x"),
        columns([data for _, _, data in edges], "weight"),
        ids,
    )


def to_networkx(graph: Graph, empty: Any, nodes: PyTree = None, edges: PyTree = None) -> Any:
    """Fill an empty graph of networkx; padding edges are left out.

    `to_networkx(graph, networkx.MultiDiGraph(), {"x": x})`: a `DiGraph` keeps one of parallel
    edges.

    Args:
        graph: a concrete graph of one vertex set.
        empty: which is filled and returned.
        nodes: arrays `[N, ...]` by name; one alone is called `x`.
        edges: arrays `[E, ...]` by name; one alone is called `weight`.

    Raises:
        GraphError: if the graph is traced, or features do not fit.
    """
    required(empty, ("add_nodes_from", "add_edges_from"), "to_networkx()", "a graph of networkx")
    src, dst, mask = host_edges(graph, "to_networkx()")
    of_nodes, of_edges = checked(graph, nodes, edges, mask)
    empty.add_nodes_from(enumerate(attributes(of_nodes, graph.num_nodes)))
    rows = attributes(of_edges, len(src))
    empty.add_edges_from(zip(src.tolist(), dst.tolist(), rows, strict=True))
    return empty


def read_with_networkx(raw: bytes, kind: str, path: Path) -> Any:
    """The graph in a file of the kinds of `READERS`, as networkx reads it.

    Raises DataError where networkx is not installed, or refuses the file.
    """
    try:
        networkx = importlib.import_module("networkx")
    except ImportError as error:
        raise DataError(
            f"{path}: files of {kind} are read by networkx, which is not installed: pip install "
            "networkx, or save the edges as text."
        ) from error
    try:
        return getattr(networkx, READERS[kind][1])(io.BytesIO(raw))
    except Exception as error:  # parsers of XML and of networkx have errors of their own
        raise DataError(
            f"{path}: networkx cannot read it ({type(error).__name__}: {str(error)[:200]}), "
            f"expected a file of {kind}. Is it damaged, or of another kind? Pass kind=."
        ) from error
