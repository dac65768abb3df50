"""Checks of types and relations. Every message: what came, what was expected, what to do."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gnnjit.errors import GraphError
from gnnjit.graph import reading, validate
from gnnjit.graph.graph import Graph
from gnnjit.graph.padding import capacity

Relation = tuple[str, str, str]
"""The type of the sources, the name, the type of the destinations."""

MOST_SHOWN = 6
"""Types or relations in a message."""


def shown_key(key: Any) -> str:
    """A relation in a message."""
    if isinstance(key, tuple) and all(isinstance(part, str) for part in key):
        return "(" + ", ".join(f"'{validate.cut(part)}'" for part in key) + ")"
    return validate.shown(key)


def checked_edges(edges: Any) -> dict[Relation, tuple[Any, Any]]:
    """The two ends of each relation's edges. Raises GraphError on anything else."""
    if not isinstance(edges, Mapping):
        raise GraphError(
            f"from_edges() got {validate.shown(edges)}, expected a dictionary from relations to "
            "edges: pass {(source type, name, destination type): (src, dst)}"
        )
    found = {}
    for key, ends in edges.items():
        check_key(key)
        with named(key):
            found[key] = reading.endpoints(*_pair(ends))
    return found


def _pair(ends: Any) -> tuple[Any, Any]:
    if isinstance(ends, Mapping) or not (hasattr(ends, "__len__") or hasattr(ends, "shape")):
        raise GraphError(
            f"the edges are {validate.shown(ends)}, expected (src, dst): two arrays with one "
            "vertex per edge, or one of shape (2, num_edges)"
        )
    if isinstance(ends, tuple | list) and len(ends) == 2:
        return ends[0], ends[1]
    return ends, None


def check_key(key: Any) -> None:
    """Raises GraphError unless `key` is a relation: three texts, none of them empty."""
    parts = key if isinstance(key, tuple) else ()
    if len(parts) == 3 and all(isinstance(part, str) and part for part in parts):
        return
    hint = ""
    if isinstance(key, str):
        hint = "; a name alone does not say which types it connects"
    elif isinstance(key, list):
        hint = "; a list is no key of a dictionary"
    raise GraphError(
        f"a relation is {shown_key(key)}, expected (source type, name, destination type), three "
        f"texts that are not empty{hint}: write ('author', 'writes', 'paper')"
    )


def checked_masks(masks: Any, edges: Mapping[Relation, Any]) -> dict[Relation, Any]:
    """The masks by relation. Raises GraphError where a key is none of the relations."""
    if masks is None:
        return {}
    if not isinstance(masks, Mapping):
        raise GraphError(
            f"edge_mask is {validate.shown(masks)}, expected a dictionary from relations to masks: "
            "pass {relation: bool[num_edges]}"
        )
    return {resolve(key, tuple(edges), "edge_mask"): mask for key, mask in masks.items()}


def checked_counts(
    num_nodes: Any, edges: Mapping[Relation, tuple[Any, Any]], masks: Mapping[Relation, Any]
) -> dict[str, int]:
    """The number of vertices of each type: as given, else the largest index plus one.

    Raises GraphError if `num_nodes` is no dictionary of counts, has none of a type whose edges are
    traced, or names no type of the relations where all that it names look like misspelt ones.
    """
    given = _given_counts(num_nodes)
    types = dict.fromkeys([*given, *(t for first, _, last in edges for t in (first, last))])
    missing = [t for t in types if t not in given]
    unused = [t for t in given if all(t not in (key[0], key[2]) for key in edges)]
    if (
        num_nodes is not None
        and missing
        and (like := difflib.get_close_matches(missing[0], unused))
    ):
        raise GraphError(
            f"num_nodes has no {missing[0]!r}, a type of the relations, but it has {like[0]!r}, "
            "which no relation has: write the same name in both"
        )
    return {t: given[t] if t in given else _inferred(t, edges, masks) for t in types}


def _given_counts(num_nodes: Any) -> dict[str, int]:
    if num_nodes is None:
        return {}
    if not isinstance(num_nodes, Mapping):
        raise GraphError(
            f"num_nodes is {validate.shown(num_nodes)}, expected a dictionary from vertex types to "
            "numbers: pass {'author': 100, 'paper': 300}"
        )
    for node_type in num_nodes:
        if not isinstance(node_type, str) or not node_type:
            raise GraphError(
                f"num_nodes has the key {validate.shown(node_type)}, expected the name of a vertex "
                "type: write {'author': 100}"
            )
    return {t: validate.as_count(f"num_nodes[{t!r}]", n) for t, n in num_nodes.items()}


def _inferred(
    node_type: str, edges: Mapping[Relation, tuple[Any, Any]], masks: Mapping[Relation, Any]
) -> int:
    count = 0
    for key, ends in edges.items():
        for place, end in zip((0, 2), ends, strict=True):
            if key[place] != node_type:
                continue
            if validate.is_traced(end, masks.get(key)):
                raise GraphError(
                    f"num_nodes has no {node_type!r} and edges of {shown_key(key)} are traced, "
                    "expected a static size: their largest index is unknown inside jit, so pass "
                    f"num_nodes={{{node_type!r}: ...}}"
                )
            mask = None if masks.get(key) is None else np.asarray(masks[key], bool)
            index = np.asarray(end)
            with named(key):
                if mask is not None and mask.shape != index.shape:
                    reading.as_mask(mask, len(index))
                validate.plausible_count("src" if place == 0 else "dst", index, mask)
            count = max(count, validate.inferred_count(index, mask))
    return count


def counts_of_graphs(graphs: Any, num_nodes: Any) -> dict[str, int]:
    """The number of vertices of each type, which the graphs of its relations agree on."""
    if not isinstance(graphs, Mapping):
        raise GraphError(
            f"from_graphs() got {validate.shown(graphs)}, expected a dictionary from relations to "
            "graphs: pass {(source type, name, destination type): graph}"
        )
    counts = _given_counts(num_nodes)
    said = {t: "num_nodes" for t in counts}
    for key, graph in graphs.items():
        check_key(key)
        _check_kind(key, graph)
        for node_type, count in ((key[0], graph.num_src), (key[2], graph.num_dst)):
            if counts.setdefault(node_type, count) != count:
                raise GraphError(
                    f"{shown_key(key)} has {count} vertices of type {node_type!r}, but "
                    f"{said[node_type]} has {counts[node_type]}, expected one number of vertices "
                    "for a type: make all graphs of the same vertices"
                )
            said.setdefault(node_type, shown_key(key))
    return counts


def _check_kind(key: Relation, graph: Any) -> None:
    if not isinstance(graph, Graph):
        raise GraphError(
            f"{shown_key(key)} is {validate.shown(graph)}, expected a gnnjit.Graph: make one by "
            "gnnjit.Graph.from_edges, or pass edges to TypedGraph.from_edges"
        )
    same = key[0] == key[2]
    if graph.bipartite is same or graph.nested:
        kind = "two vertex sets" if graph.bipartite else "one vertex set"
        wanted = "one vertex set: pass num_nodes=" if same else (
            "two vertex sets: pass num_src= and num_dst="
        )  # fmt: skip
        raise GraphError(f"{shown_key(key)} has a graph of {kind}, expected one of {wanted}")


def resolve(given: Any, relations: Sequence[Relation], what: str) -> Relation:
    """The relation of a key, or of a name that no other relation has."""
    if given in relations:
        return given
    found = [key for key in relations if key[1] == given] if isinstance(given, str) else []
    if len(found) == 1:
        return found[0]
    if found:
        raise GraphError(
            f"{what} names {given!r}, which {len(found)} relations are called, expected one: pass "
            f"the whole key, as in {shown_key(found[0])}"
        )
    raise GraphError(
        f"{what} names {shown_key(given)}, which is no relation of the graph; it has "
        f"{_listed(map(shown_key, relations))}: pass one of these"
    )


def known_type(node_type: Any, types: Sequence[str]) -> None:
    """Raises GraphError unless it is one of the types."""
    if node_type not in types:
        raise GraphError(
            f"{validate.shown(node_type)} is no vertex type of the graph; it has "
            f"{_listed(map(repr, types))}: pass one of these"
        )


def types_known(relations: Iterable[Any], types: Sequence[str]) -> None:
    """Raises GraphError unless each key is a relation between these types."""
    for key in relations:
        check_key(key)
        known_type(key[0], types)
        known_type(key[2], types)


def features_for_types(x: Any, types: Sequence[str], what: str) -> None:
    """Raises GraphError unless `x` is a dictionary with these types as its keys."""
    if not isinstance(x, Mapping):
        example = ", ".join(f"{t!r}: ..." for t in types[:2])
        raise GraphError(
            f"{what} is {validate.shown(x)}, expected a dictionary from vertex types to features: "
            f"pass {{{example}}}"
        )
    for node_type in x:
        if node_type not in types:
            raise GraphError(
                f"{what} has features of {validate.shown(node_type)}, which is no vertex type of "
                f"the graph; it has {_listed(map(repr, types))}: leave it out, or rename it"
            )
    missing = [t for t in types if t not in x]
    if missing:
        raise GraphError(
            f"{what} has no features of {_listed(map(repr, missing))}, expected some for each "
            f"vertex type: pass {what}[{missing[0]!r}], which may be None where no layer reads it"
        )


def data_for_relations(edges: Any, relations: Sequence[Relation], what: str) -> dict[Relation, Any]:
    """Edge data by key. Raises GraphError unless it is a dictionary of some of the relations."""
    if edges is None:
        return {}
    if not isinstance(edges, Mapping):
        raise GraphError(
            f"{what} is {validate.shown(edges)}, expected a dictionary from relations to the data "
            f"of their edges: pass {{relation: array}}"
        )
    found: dict[Relation, Any] = {}
    for given, data in edges.items():
        key = resolve(given, relations, what)
        if key in found:
            raise GraphError(
                f"{what} has two entries for {shown_key(key)}, expected one: name it by its key"
            )
        found[key] = data
    return found


def typed_graphs(graphs: Any, kind: type) -> list[Any]:
    """The graphs as a list. Raises GraphError unless there is one, and all are typed."""
    if isinstance(graphs, kind) or not hasattr(graphs, "__iter__"):
        raise GraphError(
            f"batch() got {validate.shown(graphs)}, expected several graphs: pass a list of them"
        )
    every = list(graphs)
    if not every:
        raise GraphError("batch() got no graphs, expected at least one: pass a non-empty list")
    for i, graph in enumerate(every):
        if not isinstance(graph, kind):
            raise GraphError(
                f"batch() got {validate.shown(graph)} as graph {i}, expected a gnnjit.TypedGraph: "
                "batch graphs of one type by gnnjit.graph.batch"
            )
    return every


def same_schema(number: int, own: tuple[Any, Any], first: tuple[Any, Any]) -> None:
    """Raises GraphError unless graph `number` has the types and relations of the first."""
    for kind, mine, theirs in zip(("types", "relations"), own, first, strict=True):
        if set(mine) != set(theirs):
            show = repr if kind == "types" else shown_key
            raise GraphError(
                f"batch() got graph {number} with the {kind} {_listed(map(show, mine))}, expected "
                f"those of graph 0, {_listed(map(show, theirs))}: give each graph every relation, "
                "which may have no edges"
            )


def grown(present: Mapping[str, int], wanted: Mapping[str, int]) -> dict[str, int]:
    """The sizes of types after padding. Raises GraphError if one is below what there is."""
    return {t: capacity(f"num_nodes[{t!r}]", wanted.get(t), n) for t, n in present.items()}


@contextlib.contextmanager
def named(key: Relation) -> Iterator[None]:
    """Errors about a relation's graph say which relation it is."""
    try:
        yield
    except GraphError as error:
        raise GraphError(f"relation {shown_key(key)}: {error}") from error


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    if not every:
        return "none"
    more = [f"{len(every) - MOST_SHOWN} more"] if len(every) > MOST_SHOWN else []
    return ", ".join([*every[:MOST_SHOWN], *more])
