"""A hierarchical dependency graph from the neighbours that a selection found."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from gnnjit.graph.by_destination import ByDestination
from gnnjit.neighborhood.hdg import HDG, Level, num_bytes
from gnnjit.neighborhood.report import Selected
from gnnjit.shapes import HostArray, PyTree


@dataclasses.dataclass(frozen=True, eq=False)
class Neighbors:
    """The neighbours of all roots, by root, then by type.

    Attributes:
        offset: `int64[roots * types + 1]`, the first neighbour of each root and type.
        vertex: `int[E]`, the neighbours, or the vertices of instance after instance.
        size: the vertices of each instance, one number or `int64[instances + 1]`, where each one's
            begin; None where a neighbour is a vertex.
        data: `[E]`, what edges to vertices hold, or None.
        names: of the types; () where neighbours have none.
        found: `int[types]`, the neighbours there are, where not all are kept.
        cap: of a root and type, or None.
    """

    offset: HostArray
    vertex: HostArray
    size: int | HostArray | None = None
    data: HostArray | None = None
    names: Sequence[str] = ()
    found: Sequence[int] | None = None
    cap: int | None = None

    @property
    def num_types(self) -> int:
        return max(1, len(self.names))

    @property
    def num_roots(self) -> int:
        return (len(self.offset) - 1) // self.num_types

    @property
    def longest(self) -> int:
        """The most vertices of an instance."""
        if self.size is None or isinstance(self.size, int):
            return self.size or 1
        return int(np.diff(self.size).max(initial=1))


def assemble(
    by: str,
    graph: PyTree,
    found: Neighbors,
    *,
    types: Sequence[str] = (),
    sizes: Sequence[int],
    root_type: str | None = None,
) -> HDG:
    """The HDG. `types`, `sizes` and `root_type` are as there; `by` says who selected from `graph`.

    Raises GraphError where a level has more edges than indices can number.
    """
    parts, edges, kinds = stored(found, sum(sizes), two_sets=bool(types))
    return HDG(
        parts=parts,
        edges=edges,
        relations=kinds,
        num_types=found.num_types,
        longest=found.longest,
        types=tuple(types),
        sizes=tuple(sizes),
        root_type=root_type,
        selected=_selected(by, graph, found),
    )


def stored(
    found: Neighbors, num_vertices: int, two_sets: bool
) -> tuple[tuple[Level, ...], tuple[Any, ...], tuple[str, ...]]:
    """What an HDG keeps of each level, the data of its edges, and what tells them apart.

    Args:
        num_vertices: of all types.
        two_sets: whether roots are other rows than vertices.
    """
    parts, edges, kinds = _below_schema(found, num_vertices, two_sets)
    if found.names:
        offset = np.arange(found.num_roots + 1) * found.num_types
        size = int(offset[-1])
        top = ByDestination.of(offset, None, num_src=size, fan_in=found.num_types)
        parts, edges, kinds = [*parts, top], [*edges, None], [*kinds, "type"]
    return tuple(parts), tuple(edges), tuple(kinds)


def _below_schema(
    found: Neighbors, num_vertices: int, two_sets: bool
) -> tuple[list[Level], list[Any], list[str]]:
    kind = "type" if found.names else ""
    if found.size is None:
        two_sets = two_sets or bool(found.names)
        part = ByDestination.of(
            found.offset, found.vertex, num_src=num_vertices, bipartite=two_sets
        )
        return [part], [found.data], [kind]
    count, size = int(found.offset[-1]), found.size
    fan_in = size if isinstance(size, int) else None
    begin = np.arange(count + 1) * size if isinstance(size, int) else size
    leaf = ByDestination.of(begin, found.vertex, num_src=num_vertices, fan_in=fan_in)
    middle = ByDestination.of(found.offset, None, num_src=count)
    return [leaf, middle], [None, None], ["position", kind]


def _selected(by: str, graph: PyTree, found: Neighbors) -> Selected:
    kept = np.diff(found.offset).reshape(-1, found.num_types)
    there = kept.sum(0) if found.found is None else found.found
    names = found.names or ("neighbours",)
    rows = tuple(
        (name, int(kept[:, i].sum()), int(there[i]), int(kept[:, i].max(initial=0)))
        for i, name in enumerate(names)
    )
    count = int(found.offset[-1])
    entries = len(found.vertex) + count * (1 + (found.num_types > 1))
    return Selected(by, rows, found.cap, num_bytes(graph), 4 * entries)
