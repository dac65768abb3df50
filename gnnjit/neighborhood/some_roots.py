"""The neighbourhoods of some roots, cut out of an HDG and padded to given sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from gnnjit.neighborhood.assemble import Neighbors, stored
from gnnjit.neighborhood.hdg import HDG
from gnnjit.sample.induced import offsets_of
from gnnjit.shapes import HostArray


def neighbors_of(hdg: HDG) -> Neighbors:
    """What a concrete HDG was assembled from: the neighbours of all roots."""
    lowest, *above = (level.in_structure for level in hdg.levels)
    begin, vertex = np.asarray(lowest.indptr), np.asarray(lowest.neighbor)
    vertex, data = vertex[: begin[-1]], hdg.edges[0]
    if data is not None:
        data = np.asarray(data)[np.asarray(lowest.edge)[: begin[-1]]]
    names = [name for name, *_ in hdg.selected.rows] if hdg.relations[-1] == "type" else ()
    if hdg.relations[0] != "position":
        return Neighbors(begin, vertex, data=data, names=names)
    size = getattr(hdg.parts[0], "fan_in", None)
    size = begin if size is None else size
    return Neighbors(np.asarray(above[0].indptr), vertex, size, names=names)


def cut(found: Neighbors, roots: HostArray) -> Neighbors:
    """The neighbours of some roots, `int[n]`."""
    groups = (roots[:, None] * found.num_types + np.arange(found.num_types)).reshape(-1)
    count = np.diff(found.offset)[groups]
    at, size = ranges(found.offset[groups], count), found.size
    offset, data = offsets_of(count), None if found.data is None else found.data[at]
    if size is None:
        return dataclasses.replace(found, offset=offset, vertex=found.vertex[at], data=data)
    if isinstance(size, int):
        vertex = found.vertex.reshape(-1, size)[at].reshape(-1)
        return dataclasses.replace(found, offset=offset, vertex=vertex)
    lengths = np.diff(size)[at]
    vertex = found.vertex[ranges(size[at], lengths)]
    return dataclasses.replace(found, offset=offset, vertex=vertex, size=offsets_of(lengths))


def ranges(first: HostArray, count: HostArray) -> HostArray:
    """`first[0], first[0] + 1, ...`, `count[0]` numbers, and so on."""
    before = np.cumsum(count) - count
    return np.repeat(first - before, count) + np.arange(int(count.sum()))


@dataclasses.dataclass(frozen=True)
class Room:
    """How many roots, neighbours and vertices of neighbours the padded HDG of some roots has."""

    roots: int
    neighbors: int
    vertices: int

    @classmethod
    def for_all(cls, parts: Sequence[Neighbors]) -> Room:
        """Enough for each of the parts, and for the root that has their padding."""
        vertices = max(len(p.vertex) for p in parts)
        longest = max(p.longest for p in parts)
        neighbors = max(int(p.offset[-1]) - (len(p.vertex) - vertices) // longest for p in parts)
        return cls(1 + max(p.num_roots for p in parts), neighbors, vertices)


def padded(found: Neighbors, room: Room) -> Neighbors:
    """With roots after the others, of which the last has all that is missing of the room: vertex 0,
    in instances that are no longer than others."""
    roots, types = room.roots - found.num_roots, found.num_types
    more = room.neighbors - int(found.offset[-1])
    without = np.repeat(found.offset[-1:], (roots - 1) * types)
    offset = np.concatenate([found.offset, without, np.repeat(room.neighbors, types)])
    size, data = found.size, found.data
    if isinstance(size, int):
        missing = more * size
    else:
        missing = room.vertices - len(found.vertex)
        if size is not None:
            own = np.diff(np.linspace(0, missing, more + 1).astype(np.int64))
            size = np.append(size, size[-1] + np.cumsum(own))
    if data is not None:
        data = np.pad(data, ((0, missing), *((0, 0),) * (data.ndim - 1)))
    vertex = np.pad(found.vertex, (0, missing))
    return dataclasses.replace(found, offset=offset, vertex=vertex, size=size, data=data)


def of_roots(hdg: HDG, found: Neighbors, roots: HostArray) -> HDG:
    """The HDG of neighbours of `hdg`'s, whose first roots are `roots` and whose others are padding,
    which stands for the vertex 0."""
    parts, edges, _ = stored(found, sum(hdg.sizes), two_sets=True)
    numbers = np.pad(roots, (0, found.num_roots - len(roots))).astype(np.int32)
    edges = jax.tree.map(np.asarray, edges)
    return dataclasses.replace(hdg, parts=parts, edges=edges, root=numbers)
