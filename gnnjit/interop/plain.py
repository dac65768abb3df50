"""What the conversions of graphs without types share: networkx, igraph, rustworkx, PyG's `Data`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gnnjit.errors import GraphError
from gnnjit.graph import Graph
from gnnjit.graph.reading import is_number
from gnnjit.graph.validate import check_leading, cut, is_traced
from gnnjit.shapes import HostArray


class FromObject(NamedTuple):
    """What a conversion of another library's graph returns.

    Attributes:
        graph: the graph; each edge of an undirected one goes both ways, first all as they come,
            then all back, a self loop once.
        nodes, edges: arrays by name, `[N, ...]` and `[E, ...]`, in NumPy.
        ids: what the library calls the vertices, in their order; None where it numbers them so.
    """

    graph: Graph
    nodes: dict[str, HostArray]
    edges: dict[str, HostArray]
    ids: list[Any] | None


def required(graph: Any, names: Iterable[str], call: str, expected: str) -> None:
    """Raises GraphError unless the object has these attributes."""
    for name in names:
        if not hasattr(graph, name):
            raise GraphError(
                f"{call} got a {cut(type(graph).__name__)} without {name}, expected {expected}"
            )


def built(
    pairs: Any, count: int, directed: bool, nodes: Any, edges: Any, ids: list[Any] | None = None
) -> FromObject:
    """Of `int[E, 2]` pairs, and columns of them; back edges are added where it is undirected."""
    ends = np.asarray(pairs, np.int64).reshape(-1, 2)
    if not directed:
        back = np.flatnonzero(ends[:, 0] != ends[:, 1])
        ends = np.concatenate([ends, ends[back, ::-1]])
        edges = {k: np.concatenate([v, v[back]]) for k, v in edges.items()}
    graph = Graph.from_edges(ends[:, 0], ends[:, 1], count)
    plain = ids is None or (
        all(isinstance(i, int) for i in ids) and ids == list(range(count))
    )  # fmt: skip
    return FromObject(graph, dict(nodes), dict(edges), None if plain else ids)


def columns(rows: Sequence[Any], default: str) -> dict[str, HostArray]:
    """Arrays of what each vertex or edge carries: a dictionary of attributes, or one number, which
    is called `default`. What is no number, or what some do not have, is left out."""
    if not len(rows):
        return {}
    if not all(isinstance(row, Mapping) for row in rows):
        rows = [{default: row} for row in rows]
    names = set(rows[0]).intersection(*(row.keys() for row in rows[1:]))
    found = {}
    for name in (name for name in rows[0] if name in names):
        array = numbers([row[name] for row in rows])
        if array is not None:
            found[str(name)] = array
    return found


def numbers(values: Sequence[Any]) -> HostArray | None:
    """As one array; None where they are no numbers, or not of one shape."""
    try:
        array = np.asarray(values)
    except ValueError:
        return None
    return array if is_number(array.dtype) else None


def host_edges(graph: Graph, what: str) -> tuple[HostArray, HostArray, Any]:
    """Endpoints of the real edges, and the mask that they are chosen by. Raises GraphError for a
    traced graph."""
    if is_traced(graph):
        raise GraphError(f"{what} got a traced graph, expected a concrete one: call it outside jit")
    mask = slice(None) if graph.mask is None else np.asarray(graph.mask)
    return np.asarray(graph.src)[mask], np.asarray(graph.dst)[mask], mask


def checked(
    graph: Graph, nodes: Any, edges: Any, mask: Any
) -> tuple[dict[str, HostArray], dict[str, HostArray]]:
    """Arrays of vertices and of real edges by name; one alone is called `x`, or `weight`. Raises
    GraphError where rows are too many or too few."""
    of_nodes = nodes if isinstance(nodes, Mapping) else {} if nodes is None else {"x": nodes}
    of_edges = edges if isinstance(edges, Mapping) else {} if edges is None else {"weight": edges}
    check_leading("nodes", dict(of_nodes), graph.num_nodes, "vertices", "pass one row per vertex")
    check_leading("edges", dict(of_edges), graph.num_edges, "edges", "pass one row per edge")
    return (
        {name: np.asarray(rows) for name, rows in of_nodes.items()},
        {name: np.asarray(rows)[mask] for name, rows in of_edges.items()},
    )


def attributes(arrays: Mapping[str, HostArray], count: int) -> list[dict[str, Any]]:
    """For each row its entries by name, as Python's numbers and lists."""
    lists = {name: array.tolist() for name, array in arrays.items()}
    return [{name: rows[i] for name, rows in lists.items()} for i in range(count)]
