"""Graphs from and to PyG's `Data` and `HeteroData`, read by their names: PyG is not imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gnnjit.errors import GraphError
from gnnjit.graph import Graph, TypedGraph
from gnnjit.graph.schema import shown_key
from gnnjit.graph.validate import cut, shown
from gnnjit.interop.plain import FromObject, built, checked, host_edges, required
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


def from_data(data: Any) -> FromObject:
    """The graph of a `Data`, its edges in their order, with its features.

    Arrays with a row for each edge, `edge_attr` or others whose names begin with "edge", are of the
    edges; others with a row for each vertex (`x`, `y`, `train_mask`) are of the vertices.

    Args:
        data: a `torch_geometric.data.Data` (any object with `edge_index`, `num_nodes`, `items`).

    Raises:
        GraphError: if it is no such object, or its edges are wrong.
    """
    required(data, ("edge_index", "num_nodes"), "from_data()", "a Data of PyG")
    if data.edge_index is None or data.num_nodes is None:
        raise GraphError(
            "from_data() got a Data without edge_index or num_nodes, expected both: leave "
            "transforms to sparse matrices out, and set data.num_nodes"
        )
    ends = np.asarray(on_host(data.edge_index))
    store = dict(data.items()) if hasattr(data, "items") else dict(data)
    of_edges = {k: v for k, v in store.items() if k.startswith("edge") and k != "edge_index"}
    of_nodes = {k: v for k, v in store.items() if not k.startswith("edge")}
    count = int(data.num_nodes)
    nodes = rows_of(of_nodes, count, "data")
    return built(ends.T, count, True, nodes, rows_of(of_edges, ends.shape[1], "data"))


def to_data(
    graph: Graph,
    data: Any,
    nodes: PyTree = None,
    edges: PyTree = None,
    *,
    tensor: Callable[[HostArray], Any] | None = None,
) -> Any:
    """Fill an empty `Data` with a graph; padding edges are left out.

    `to_data(graph, Data(), {"x": x}, {"edge_attr": w}, tensor=torch.from_numpy)`

    Args:
        graph: a concrete graph of one vertex set.
        data: a `Data()`, which is filled and returned.
        nodes: arrays `[N, ...]` by name; one alone is called `x`.
        edges: arrays `[E, ...]` by name, which begins with "edge"; one alone is `edge_weight`.
        tensor: what makes a tensor of an array of NumPy; left as they are if left out.

    Raises:
        GraphError: if the graph is traced, or features do not fit.
    """
    made = as_tensors(tensor)
    src, dst, mask = host_edges(graph, "to_data()")
    of_nodes, of_edges = checked(graph, nodes, edges, mask)
    data.num_nodes = graph.num_nodes
    data.edge_index = made(np.stack([src, dst]).astype(np.int64))
    for name, rows in of_nodes.items():
        setattr(data, name, made(rows))
    for name, rows in of_edges.items():
        setattr(data, name if name.startswith("edge") else f"edge_{name}", made(rows))
    return data


def from_hetero_data(data: Any) -> FromHetero:
    """The typed graph of a `HeteroData`, with its features.

    Arrays with one row for each vertex of a type, or each edge of a relation, come along under
    their names (`x`, `y`, `train_mask`, `edge_attr`); what else is stored is left out.

    Args:
        data: a `torch_geometric.data.HeteroData` (any object with `node_types`, `edge_types` and
            its stores), whose relations have an `edge_index`.

    Raises:
        GraphError: if it is no such object, a relation has no `edge_index` or a wrong one, or the
            number of vertices of a type is not known.
    """
    for name in ("node_types", "edge_types"):
        if not hasattr(data, name):
            raise GraphError(
                f"from_hetero_data() got a {cut(type(data).__name__)} without {name}, expected a "
                "HeteroData of PyG: Data of one type is read by from_data"
            )
    counts, nodes, ends, edges = {}, {}, {}, {}
    for node_type in data.node_types:
        count = data[node_type].num_nodes
        if count is None:
            raise GraphError(
                f"the HeteroData does not say how many vertices of type {node_type!r} it has, "
                f"expected num_nodes or features: set data[{node_type!r}].num_nodes"
            )
        counts[node_type] = int(count)
        nodes[node_type] = rows_of(dict(data[node_type].items()), int(count), f"data[{node_type}]")
    for key in map(tuple, data.edge_types):
        store = dict(data[key].items())
        if store.get("edge_index") is None:
            raise GraphError(
                f"the relation {shown_key(key)} of the HeteroData has no edge_index, expected "
                "int[2, E]: leave transforms to sparse matrices out"
            )
        ends[key] = on_host(store.pop("edge_index"))
    graph = TypedGraph.from_edges(ends, counts)
    for key, count in graph.num_edges.items():
        store = dict(data[key].items())
        del store["edge_index"]
        edges[key] = rows_of(store, count, f"data[{shown_key(key)}]")
    return FromHetero(graph, nodes, edges)


def to_hetero_data(
    graph: TypedGraph,
    data: Any,
    nodes: PyTree = None,
    edges: PyTree = None,
    *,
    tensor: Callable[[HostArray], Any] | None = None,
) -> Any:
    """Fill an empty `HeteroData` with a typed graph; padding edges are left out.

    `to_hetero_data(graph, HeteroData(), {"paper": x}, tensor=torch.from_numpy)`

    Args:
        graph: a concrete typed graph.
        data: a `HeteroData()`, which is filled and returned.
        nodes: for some vertex types an array `[vertices, ...]`, stored as `x`, or arrays by name.
        edges: for some relations an array `[edges, ...]`, stored as `edge_attr`, or arrays by name.
        tensor: what makes a tensor of an array of NumPy; left as they are if left out.

    Raises:
        GraphError: if the graph is traced, `data` has no stores, or features do not fit.
    """
    if not hasattr(data, "node_types"):
        raise GraphError(
            f"to_hetero_data() got {shown(data)} to fill, expected an empty HeteroData of PyG: "
            "pass torch_geometric.data.HeteroData()"
        )
    made, real = as_tensors(tensor), edges_of(graph)
    of_nodes = checked_nodes(graph, nodes)
    of_edges = checked_edges(graph, edges, "edge_attr")
    for node_type, count in graph.num_nodes.items():
        data[node_type].num_nodes = count
        for name, array in of_nodes.get(node_type, {}).items():
            setattr(data[node_type], name, made(array))
    for key, (src, dst, _) in real.items():
        data[key].edge_index = made(np.stack([src, dst]))
        for name, array in of_edges.get(key, {}).items():
            setattr(data[key], name, made(array))
    return data
