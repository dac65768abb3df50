"""Typed graphs whose edges a device never holds together."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.errors import GraphError
from gnnjit.graph import Graph, schema
from gnnjit.graph.parted import PartedTypedGraph
from gnnjit.graph.reading import read_on_host
from gnnjit.graph.schema import Relation
from gnnjit.graph.validate import shown
from gnnjit.shapes import HostArray
from gnnjit.store import HostStore, VertexStore


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["rows", "place"],
    meta_fields=["relations", "types", "sizes", "counts", "num_parts", "shapes", "store"],
)
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class StreamedTypedGraph(PartedTypedGraph):
    """A typed graph with its edges in a store: a frozen pytree, passed to layers and compiled
    functions where a `TypedGraph` would be.

    A layer reads the edges into some vertices of a type, of all relations, computes these vertices,
    and forgets the edges; for a gradient it reads and computes them once more. So the device holds
    features and results, and the edges of one part with all that is computed on them. `edges=`
    given to a layer lies on the device.

    Attributes:
        shapes: for each type the arrays of a part of it, as `(tree, shapes)` (static).
        store: where the edges are (static). It must stay open.
        relations, types, sizes, counts, num_parts, rows, place: as of `PartedTypedGraph`.
    """

    rows: tuple[Any, ...]
    place: tuple[Any, ...]
    relations: tuple[Relation, ...]
    types: tuple[str, ...]
    sizes: tuple[int, ...]
    counts: tuple[int, ...]
    num_parts: int
    shapes: tuple[Any, ...]
    store: VertexStore

    @classmethod
    def from_edges(
        cls,
        edges: Mapping[Relation, Any],
        num_nodes: Mapping[str, int] | None = None,
        *,
        parts: int,
        store: VertexStore | None = None,
    ) -> StreamedTypedGraph:
        """Cut the edges of each relation by where they end, and keep them in a store.

        Args:
            edges, num_nodes: as of `TypedGraph.from_edges`.
            parts: of each type. Vertices are cut as they are numbered, where the sums of their
                edges are equal.
            store: empty, such as `gnnjit.store.DiskStore.create(folder)`; memory of the host if
                left out.

        Raises:
            GraphError: as of `TypedGraph.from_edges`, or `parts` is no whole number from 1.
            StoreError: as of the store.
        """
        if not isinstance(parts, int | np.integer) or isinstance(parts, bool) or parts < 1:
            raise GraphError(f"parts is {shown(parts)}, expected a whole number from 1")
        given = schema.checked_edges(edges)
        counts = schema.checked_counts(num_nodes, given, {})
        ends = {key: _read(key, pair, counts) for key, pair in given.items()}
        store = HostStore() if store is None else store
        rows, place, shapes = [], [], []
        for number, (node_type, count) in enumerate(counts.items()):
            into = {key: pair for key, pair in ends.items() if key[2] == node_type}
            own = _owners([dst for _, dst in into.values()], count, int(parts))
            table, at = _dealt(own, int(parts))
            rows.append(jnp.asarray(table))
            place.append(jnp.asarray(at))
            shapes.append(_write(store, f"typed.{number}", into, own, at, table.shape, counts))
        return cls(
            rows=tuple(rows),
            place=tuple(place),
            relations=tuple(given),
            types=tuple(counts),
            sizes=tuple(counts.values()),
            counts=tuple(len(src) for src, _ in ends.values()),
            num_parts=int(parts),
            shapes=tuple(shapes),
            store=store,
        )

    def read(self, node_type: str, number: Any) -> dict[Relation, tuple[Graph, jax.Array]]:
        """As `PartedTypedGraph` says; from the store, whenever the compiled program comes to it."""
        at = self.types.index(node_type)
        tree, shapes = self.shapes[at]

        def fetch(number: Any) -> list[np.ndarray]:
            found = []
            for k, shape in enumerate(shapes):
                first = int(number) * shape.shape[0]
                found.append(
                    self.store.read(_name(f"typed.{at}", k), first, first + shape.shape[0])
                )
            return found

        return jax.tree.unflatten(tree, jax.pure_callback(fetch, list(shapes), number))


def _read(key: Relation, pair: Any, counts: Mapping[str, int]) -> tuple[HostArray, HostArray]:
    with schema.named(key):
        # What `Graph` refuses is refused, of the whole relation and so by the user's numbers.
        first, last = counts[key[0]], counts[key[2]]
        src, dst = (read_on_host(name, x) for name, x in zip(("src", "dst"), pair, strict=True))
        Graph.from_edges(src, dst, num_src=first, num_dst=last)
    return src.astype(np.int32), dst.astype(np.int32)


def _owners(dst: list[HostArray], count: int, parts: int) -> HostArray:
    """`int[count]`, the part of each vertex, in order; a vertex costs as many as it has edges."""
    cost = np.ones(count)
    for ends in dst:
        cost += np.bincount(ends, minlength=count)
    middle = np.cumsum(cost) - cost / 2
    return (middle * parts / max(1.0, cost.sum())).astype(np.int64)


def _dealt(own: HostArray, parts: int) -> tuple[HostArray, HostArray]:
    """The vertex of each row of each part, and the row of each vertex."""
    size = np.bincount(own, minlength=parts)
    length = max(1, int(size.max()))
    begin = np.cumsum(size) - size
    vertex = np.arange(len(own))
    place = own * length + vertex - begin[own]
    rows = np.full(parts * length, len(own), np.int32)
    rows[place] = vertex
    return rows.reshape(parts, length), place.astype(np.int32)


def _write(
    store: VertexStore,
    name: str,
    into: Mapping[Relation, tuple[HostArray, HostArray]],
    own: HostArray,
    place: HostArray,
    shape: tuple[int, int],
    counts: Mapping[str, int],
) -> tuple[Any, tuple[Any, ...]]:
    """Put the parts of a type into the store. Returns their tree, and the shapes of one."""
    parts, length = shape
    sorted_edges = {}
    for key, (_, dst) in into.items():
        part = own[dst]
        order = np.argsort(part, kind="stable").astype(np.int32)
        sorted_edges[key] = order, np.searchsorted(part[order], np.arange(parts + 1))
    room = {key: max(1, int(np.diff(begin).max())) for key, (_, begin) in sorted_edges.items()}
    found: tuple[Any, tuple[Any, ...]] | None = None
    for number in range(parts):
        graphs = {}
        for key, (order, begin) in sorted_edges.items():
            (src, dst), edge = into[key], order[begin[number] : begin[number + 1]]
            missing = room[key] - len(edge)
            graph = Graph.from_edges(
                np.pad(src[edge], (0, missing)),
                np.pad(place[dst[edge]] - number * length, (0, missing)),
                num_src=counts[key[0]],
                num_dst=length,
                edge_mask=np.arange(room[key]) < len(edge),
            )
            numbers = np.pad(edge, (0, missing), constant_values=len(src))
            graphs[key] = _alike(graph), numbers
        leaves, tree = jax.tree.flatten(graphs)
        if found is None:
            shapes = tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in leaves)
            found = tree, shapes
            for k, leaf in enumerate(shapes):
                store.add(_name(name, k), parts * leaf.shape[0], leaf.shape[1:], leaf.dtype)
        for k, leaf in enumerate(leaves):
            store.write(_name(name, k), number * leaf.shape[0], np.asarray(leaf))
    assert found is not None
    for k in range(len(found[1])):
        store.seal(_name(name, k))
    return found


def _alike(graph: Graph) -> Graph:
    """Without degree buckets, whose shapes differ from part to part."""
    structures = {
        name: dataclasses.replace(getattr(graph, name), buckets=None)
        for name in ("in_structure", "out_structure")
    }
    return dataclasses.replace(graph, **structures)


def _name(name: str, number: int) -> str:
    return f"{name}.{number}"
