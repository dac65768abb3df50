"""Typed graphs from and to DGL's heterographs, read by their names: DGL is not imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gnnjit.errors import GraphError
from gnnjit.graph import TypedGraph
from gnnjit.graph.validate import cut, shown
from gnnjit.interop.typed import (
    FromHetero,
    as_tensors,
    checked_edges,
    checked_nodes,
    edges_of,
    on_host,
    rows_of,
)
from gnnjit.shapes import HostArray, PyTree


def from_heterograph(heterograph: Any) -> FromHetero:
    """The typed graph of a DGL graph, with its features (`ndata` and `edata`) by name.

    Args:
        heterograph: a `dgl.DGLGraph` (any object with its methods), of one type or several.

    Raises:
        GraphError: if it is no such object, or its edges are wrong.
    """
    for name in ("ntypes", "canonical_etypes", "num_nodes", "edges", "nodes"):
        if not hasattr(heterograph, name):
            raise GraphError(
                f"from_heterograph() got a {cut(type(heterograph).__name__)} without {name}, "
                "expected a graph of DGL: pass a dgl.DGLGraph"
            )
    counts = {t: int(heterograph.num_nodes(t)) for t in heterograph.ntypes}
    nodes = {
        t: rows_of(dict(heterograph.nodes[t].data), count, f"nodes[{t!r}]")
        for t, count in counts.items()
    }
    keys = [tuple(key) for key in heterograph.canonical_etypes]
    ends = {}
    for key in keys:
        src, dst = heterograph.edges(order="eid", etype=key)[:2]
        ends[key] = (on_host(src), on_host(dst))
    graph = TypedGraph.from_edges(ends, counts)
    edges = {
        key: rows_of(dict(heterograph.edges[key].data), graph.num_edges[key], f"edges[{key}]")
        for key in keys
    }
    return FromHetero(graph, nodes, edges)


def to_heterograph(
    graph: TypedGraph,
    heterograph: Callable[..., Any],
    nodes: PyTree = None,
    edges: PyTree = None,
    *,
    tensor: Callable[[HostArray], Any] | None = None,
) -> Any:
    """A DGL graph of a typed graph; padding edges are left out.

    `to_heterograph(graph, dgl.heterograph, {"paper": x}, tensor=torch.from_numpy)`

    Args:
        graph: a concrete typed graph.
        heterograph: `dgl.heterograph`.
        nodes: for some vertex types an array `[vertices, ...]`, stored as `x`, or arrays by name.
        edges: for some relations an array `[edges, ...]`, stored as `w`, or arrays by name.
        tensor: what makes a tensor of an array of NumPy; left as they are if left out.

    Raises:
        GraphError: if the graph is traced, `heterograph` is no function, or features do not fit.
    """
    if not callable(heterograph):
        raise GraphError(
            f"to_heterograph() got {shown(heterograph)}, expected a function that makes the graph: "
            "pass dgl.heterograph"
        )
    made, real = as_tensors(tensor), edges_of(graph)
    of_nodes, of_edges = checked_nodes(graph, nodes), checked_edges(graph, edges, "w")
    ends = {key: (made(src), made(dst)) for key, (src, dst, _) in real.items()}
    result = heterograph(ends, num_nodes_dict=graph.num_nodes)
    for node_type, arrays in of_nodes.items():
        for name, array in arrays.items():
            result.nodes[node_type].data[name] = made(array)
    for key, arrays in of_edges.items():
        for name, array in arrays.items():
            result.edges[key].data[name] = made(array)
    return result
