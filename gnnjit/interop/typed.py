"""What the conversions of typed graphs from and to PyG and DGL share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from gnnjit.errors import GraphError
from gnnjit.graph import TypedGraph
from gnnjit.graph.reading import is_number, read_on_host
from gnnjit.graph.schema import Relation, data_for_relations, known_type, shown_key
from gnnjit.graph.validate import check_leading, is_traced, shown
from gnnjit.shapes import HostArray


class FromHetero(NamedTuple):
    """What a conversion of a heterogeneous graph returns.

    Attributes:
        graph: the graph.
        nodes: for each vertex type its arrays by name, `[vertices, ...]`, in NumPy.
        edges: for each relation its arrays by name, `[edges, ...]`, in NumPy.
    """

    graph: TypedGraph
    nodes: dict[str, dict[str, HostArray]]
    edges: dict[Relation, dict[str, HostArray]]


def rows_of(store: Mapping[Any, Any], count: int, what: str) -> dict[str, HostArray]:
    """The arrays of numbers in a store that have `count` rows; what else it holds is left out."""
    found = {}
    for name, value in store.items():
        shape = getattr(value, "shape", None)
        if shape is None or tuple(shape[:1]) != (count,):
            continue
        array = read_on_host(f"{what}.{name}", on_host(value))
        if is_number(array.dtype):
            found[str(name)] = array
    return found


def on_host(value: Any) -> Any:
    """A tensor of torch as NumPy reads it: without gradient, in the memory of the host."""
    for method in ("detach", "cpu"):
        value = getattr(value, method, lambda value=value: value)()
    return value


def edges_of(graph: TypedGraph) -> dict[Relation, tuple[HostArray, HostArray, Any]]:
    """The real edges of each relation, and the mask that they are chosen by."""
    if is_traced(graph):
        raise GraphError("the typed graph is traced, expected a concrete one: convert outside jit")
    found = {}
    for key, relation in graph.items():
        mask = slice(None) if relation.mask is None else np.asarray(relation.mask)
        src, dst = np.asarray(relation.src)[mask], np.asarray(relation.dst)[mask]
        found[key] = (src.astype(np.int64), dst.astype(np.int64), mask)
    return found


def checked_nodes(graph: TypedGraph, nodes: Any) -> dict[str, dict[str, HostArray]]:
    """Arrays of vertices by type and name. An array alone is called `x`."""
    if nodes is not None and not isinstance(nodes, Mapping):
        raise GraphError(
            f"nodes is {shown(nodes)}, expected a dictionary from vertex types to arrays: pass "
            "{'author': x}"
        )
    found = {}
    for node_type, arrays in (nodes or {}).items():
        known_type(node_type, graph.types)
        arrays = arrays if isinstance(arrays, Mapping) else {"x": arrays}
        what, kind = f"nodes[{node_type!r}]", f"vertices of type {node_type!r}"
        hint = "pass arrays with one row for each vertex"
        check_leading(what, dict(arrays), graph.num_nodes[node_type], kind, hint)
        found[node_type] = {name: np.asarray(a) for name, a in arrays.items()}
    return found


def checked_edges(graph: TypedGraph, edges: Any, name: str) -> dict[Relation, dict[str, HostArray]]:
    """Arrays of edges by relation and name, padding left out. An array alone is called `name`."""
    found = {}
    for key, arrays in data_for_relations(edges, graph.relations, "edges").items():
        arrays = arrays if isinstance(arrays, Mapping) else {name: arrays}
        what, kind = f"edges[{shown_key(key)}]", f"edges of {shown_key(key)}"
        hint = "pass arrays with one row for each edge"
        check_leading(what, dict(arrays), graph.num_edges[key], kind, hint)
        mask = graph[key].mask
        real = slice(None) if mask is None else np.asarray(mask)
        found[key] = {name: np.asarray(a)[real] for name, a in arrays.items()}
    return found


def as_tensors(tensor: Callable[[HostArray], Any] | None) -> Callable[[HostArray], Any]:
    """What makes the other library's array of one of NumPy; nothing, if left out."""
    if tensor is None:
        return lambda array: array
    if not callable(tensor):
        raise GraphError(f"tensor is {shown(tensor)}, expected a function: pass torch.from_numpy")
    return lambda array: tensor(np.array(array))
