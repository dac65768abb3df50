"""Metapaths as they are given, and the edges of each of their steps."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from gnnjit.errors import GraphError, SampleError
from gnnjit.graph import Graph, TypedGraph
from gnnjit.graph.schema import Relation, shown_key
from gnnjit.graph.validate import shown
from gnnjit.sample.adjacency import Adjacency, read_only
from gnnjit.sample.frontier import at_least_one
from gnnjit.sample.induced import offsets_of
from gnnjit.shapes import HostArray


@dataclasses.dataclass(frozen=True, eq=False)
class Metapath:
    """One metapath.

    Attributes:
        name: in reports.
        steps: the in-edges of each step, from the root on.
        far: the number of vertices of the type that it starts at, the far end.
        first: for each vertex along the path, the root last, the number of its type's first vertex.
    """

    name: str
    steps: tuple[Adjacency, ...]
    far: int
    first: tuple[int, ...]

    @property
    def length(self) -> int:
        """The vertices of an instance."""
        return len(self.steps) + 1


@dataclasses.dataclass(frozen=True, eq=False)
class Paths:
    """Metapaths to roots of one type; `types`, `sizes` and `root_type` as of `HDG`."""

    paths: tuple[Metapath, ...]
    types: tuple[str, ...]
    sizes: tuple[int, ...]
    root_type: str | None


def read_paths(where: str, graph: Any, paths: Any) -> Paths:
    """Raises SampleError where there are none, or one does not compose, or names what is not in the
    graph."""
    if isinstance(paths, str) or not isinstance(paths, Sequence) or not len(paths):
        raise SampleError(
            f"{where}: paths is {shown(paths)}, expected a list of metapaths: pass "
            f"[['directs', 'rev_directs']], or the numbers of steps on a graph without types"
        )
    if isinstance(graph, TypedGraph):
        return _typed(where, graph, paths)
    adjacency = Adjacency.of(where, graph)
    found = [_untyped(where, i, graph, adjacency, path) for i, path in enumerate(paths)]
    return Paths(tuple(found), (), (graph.num_nodes,), None)


def _typed(where: str, graph: TypedGraph, paths: Sequence[Any]) -> Paths:
    relations = [_relations(where, i, graph, path) for i, path in enumerate(paths)]
    root_type = relations[0][-1][2]
    for i, keys in enumerate(relations):
        for one, other in itertools.pairwise(keys):
            if one[2] != other[0]:
                raise SampleError(
                    f"{where}: paths[{i}] does not compose: {shown_key(one)} ends at {one[2]!r}, "
                    f"{shown_key(other)} starts at {other[0]!r}, expected the same type: edges "
                    f"lead to the root, which is last"
                )
        if keys[-1][2] != root_type:
            raise SampleError(
                f"{where}: paths[{i}] ends at {keys[-1][2]!r} and paths[0] at {root_type!r}, "
                f"expected roots of one type: make an HDG for each type of roots"
            )
    on_paths = {t for keys in relations for key in keys for t in (key[0], key[2])}
    types = tuple(t for t in graph.types if t in on_paths)
    sizes = tuple(graph.num_nodes[t] for t in types)
    first = dict(zip(types, np.cumsum([0, *sizes]).tolist(), strict=False))
    made = {
        key: Adjacency.of(where, graph[key], two_sets=True) for keys in relations for key in keys
    }
    found = [
        Metapath(
            " - ".join([*(key[0] for key in keys), root_type]),
            tuple(made[key] for key in reversed(keys)),
            graph.num_nodes[keys[0][0]],
            tuple(first[t] for t in (*(key[0] for key in keys), root_type)),
        )
        for keys in relations
    ]
    return Paths(tuple(found), types, sizes, root_type)


def _relations(where: str, number: int, graph: TypedGraph, path: Any) -> list[Relation]:
    name = f"{where}: paths[{number}]"
    if isinstance(path, str) or not isinstance(path, Sequence) or not len(path):
        raise SampleError(
            f"{name} is {shown(path)}, expected a sequence of relations, or of types: write "
            f"['directs', 'rev_directs']"
        )
    if all(part in graph.types for part in path):
        if len(path) == 1:
            raise SampleError(
                f"{name} is one type, {path[0]!r}, expected at least two: write "
                f"[{path[0]!r}, ..., {path[0]!r}]"
            )
        return [_between(name, graph, *pair) for pair in itertools.pairwise(path)]
    try:
        return [graph.relation(tuple(p) if isinstance(p, list) else p) for p in path]
    except GraphError as error:
        raise SampleError(f"{name}: {error}") from error


def _between(name: str, graph: TypedGraph, first: str, last: str) -> Relation:
    found = [key for key in graph.relations if (key[0], key[2]) == (first, last)]
    if len(found) != 1:
        there = ", ".join(map(shown_key, found)) or "no relation"
        raise SampleError(
            f"{name}: {there} leads from {first!r} to {last!r}, expected one relation: write the "
            f"metapath as relations, or add reversed ones by graph.with_reverse()"
        )
    return found[0]


def _untyped(where: str, number: int, graph: Graph, all_edges: Adjacency, path: Any) -> Metapath:
    name, count = f"{where}: paths[{number}]", graph.num_relations
    if isinstance(path, int | np.integer) and not isinstance(path, bool):
        steps = [all_edges] * at_least_one(where, f"paths[{number}]", int(path))
        shown_as = f"{len(steps)} step{'s' * (len(steps) > 1)}"
    elif isinstance(path, Sequence) and not isinstance(path, str) and len(path) and count:
        steps = [_of_relation(name, graph, all_edges, number) for number in reversed(path)]
        shown_as = "relations " + " - ".join(map(str, path))
    else:
        wanted = f"numbers of relations below {count}" if count else "a number of steps"
        raise SampleError(f"{name} is {shown(path)}, expected {wanted}: write 2 for two steps")
    return Metapath(shown_as, tuple(steps), graph.num_nodes, (0,) * (len(steps) + 1))


def _of_relation(name: str, graph: Graph, all_edges: Adjacency, relation: Any) -> Adjacency:
    whole = isinstance(relation, int | np.integer) and not isinstance(relation, bool)
    if not whole or not 0 <= relation < graph.num_relations:
        raise SampleError(
            f"{name} has the relation {shown(relation)}, expected a number from 0 to "
            f"{graph.num_relations - 1}: number relations as the graph does"
        )
    assert graph.relations is not None
    here: HostArray = np.asarray(graph.relations.number)[all_edges.edge] == relation
    rows = np.repeat(np.arange(all_edges.num_nodes), all_edges.degree())
    indptr = offsets_of(np.bincount(rows[here], minlength=all_edges.num_nodes))
    parts = indptr.astype(all_edges.indptr.dtype), all_edges.neighbor[here], all_edges.edge[here]
    indptr, neighbor, edge = map(read_only, parts)
    return Adjacency(indptr, neighbor, edge)
