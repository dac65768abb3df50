"""Hierarchical dependency graphs over the devices of a mesh, cut by their roots.

Wang et al., "FlexGraph" (2021), section 5.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from gnnjit.errors import GraphError
from gnnjit.graph import Bipartite
from gnnjit.graph.validate import is_traced, shown
from gnnjit.neighborhood.hdg import HDG
from gnnjit.neighborhood.owners import owners
from gnnjit.partition import Partition
from gnnjit.shapes import ArrayLike, HostArray, PyTree
from gnnjit.sharding import ShardedGraph
from gnnjit.sharding.build import Dealt, rows_on
from gnnjit.sharding.rows import Rows
from gnnjit.sharding.shard import shard as shard_graph


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["levels", "edges", "at", "joined", "rows", "instance_types"],
    meta_fields=["num_types", "longest", "types", "root_type"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class ShardedHDG:
    """An HDG whose roots, each with its instances, are dealt out to devices: a frozen pytree.

    It is called as an `HDG` is, with what `put` gave for `x`, and `get` brings the result back.
    Only the lowest level reads rows of other devices.

    Attributes:
        levels: the levels, from the bottom up; layers take them as other sharded graphs.
        edges: as of `HDG`, on the shards.
        at: for each level the row of the root of each destination, among the roots of its shard;
            None where destinations are roots.
        joined: for each source of the lowest level its row among those of all types on its shard;
            None without types.
        rows: where the vertices of each type lie.
        instance_types: as of `HDG`, for the rows of instances.
        num_types, longest, types, root_type: as of `HDG` (static).
    """

    levels: tuple[ShardedGraph, ...]
    edges: tuple[PyTree, ...]
    at: tuple[Any, ...]
    joined: Any
    rows: tuple[Rows, ...]
    instance_types: Any
    num_types: int
    longest: int
    types: tuple[str, ...]
    root_type: str | None

    @property
    def num_levels(self) -> int:
        """The levels: 1 to 3."""
        return len(self.levels)

    def __call__(self, x: PyTree, *stages: Callable[..., Any]) -> PyTree:
        """Aggregate and update, as `HDG` does. `x`: what `put` gave.

        Raises GraphError where there are fewer stages, or more, than levels and an update.
        """
        count = len(self.levels)
        if len(stages) not in (count, count + 1):
            raise GraphError(
                f"an HDG of {count} levels was called with {len(stages)} stages, expected {count}, "
                f"or {count + 1} with the update: pass one layer for each level, from the bottom up"
            )
        h, roots = self.features(x)
        for level, data, at, stage in zip(self.levels, self.edges, self.at, stages, strict=False):
            given = {} if data is None else {"edges": data}
            if level.bipartite:
                h = Bipartite(h, roots if at is None else _local(level, roots, at))
            h = stage(level, h, **given)
        return h if len(stages) == count else stages[-1](roots, h)

    def features(self, x: PyTree) -> tuple[PyTree, PyTree]:
        """The rows of all vertices, as the lowest level has them, and of the roots."""
        if not self.types:
            return x, x
        some = [jax.tree.map(jnp.asarray, x[t]) for t in self.types]
        first, spec = self.levels[0], PartitionSpec(self.levels[0].axis)
        specs = spec, *(jax.tree.map(lambda _: spec, rows) for rows in some)
        join = jax.shard_map(_join, mesh=first.mesh, in_specs=specs, out_specs=specs[1])
        return join(self.joined, *some), x[self.root_type]

    def apply(self, fn: Callable[..., PyTree], *args: Any) -> PyTree:
        """`fn(hdg, *args)`, as of `HDG`."""
        return fn(self, *args)

    def mean_of_roots(self, rows: PyTree) -> PyTree:
        """The mean over all roots of a pytree of rows of roots, padding left out."""
        last = self.levels[-1]
        total = jax.tree.map(lambda a: last.without_padding(a).sum(axis=0), rows)
        return jax.tree.map(lambda a: a / max(1, last.num_nodes), total)

    def put(self, hdg: HDG, x: PyTree) -> PyTree:
        """`x`, as `hdg` takes it, on the shards: a dictionary by type where it is one.

        Raises GraphError where `x` does not fit the vertices.
        """
        hdg.check_rows(x)
        last = self.levels[-1]
        if not self.types:
            return last.put(x)
        named = zip(self.types, self.rows, strict=True)
        return {t: _put(x[t], rows, last) for t, rows in named}

    def get(self, y: PyTree) -> PyTree:
        """What the last stage gave, as NumPy arrays `[roots, ...]`, in every process."""
        return self.levels[-1].get(y)

    def get_features(self, x: PyTree) -> PyTree:
        """`x`, or its gradient, as it was before `put`, as NumPy arrays in every process."""
        if not self.types:
            return self.get(x)
        named = zip(self.types, self.rows, strict=True)
        return {t: jax.tree.map(rows.get, x[t]) for t, rows in named}


def _put(x: PyTree, rows: Rows, level: ShardedGraph) -> PyTree:
    return jax.tree.map(lambda a: rows.put(a, level.sharding), x)


def _join(at: Any, *some: PyTree) -> PyTree:
    return jax.tree.map(lambda *rows: jnp.concatenate(rows)[at], *some)


def shard(
    hdg: HDG,
    mesh: Mesh,
    axis: str | None = None,
    *,
    partition: ArrayLike | None = None,
    exchange: str = "auto",
) -> ShardedHDG:
    """Deal the roots of an HDG out to the devices along one axis of a mesh, each with its HDG.

    Args:
        hdg: a concrete HDG.
        mesh, axis, exchange: as of `gnnjit.shard`.
        partition: the shard of each root, `int[roots]`. If left out, roots are cut as they are
            numbered, where the sums of their costs are equal; a root costs as many as
            it has edges in all levels: the vertices of its neighbours, as FlexGraph's `sum of n m`.

    Raises:
        GraphError: `hdg` is none, `partition` is not such, or as of `gnnjit.shard`.
    """
    if not isinstance(hdg, HDG) or is_traced(hdg):
        got = "a traced HDG" if isinstance(hdg, HDG) else shown(hdg)
        raise GraphError(f"shard() got {got}, expected a concrete HDG: shard outside jit")
    axis = mesh.axis_names[0] if axis is None else axis
    if axis not in mesh.axis_names:
        raise GraphError(f"axis is {shown(axis)}, expected one of the mesh: {mesh.axis_names}")
    count = mesh.shape[axis]
    own = owners(hdg, count, partition)
    below = Partition.of_assignment(_of_vertices(hdg, own, count), count)
    place = _places(Partition.of_assignment(own, count))
    parts = []
    for level, data, roots in zip(hdg.levels, hdg.edges, hdg.roots(), strict=True):
        cut = Partition.of_assignment(own if roots is None else own[roots], count)
        wanted: Any = Bipartite(below, cut) if level.bipartite else cut
        made = shard_graph(level, mesh, axis, partition=wanted, exchange=exchange)
        at = None if roots is None else made.put(place[roots])
        parts.append((made, None if data is None else made.put_edges(data), at))
        below = cut  # what this level gives lies where the next one reads it
    levels, edges, at = zip(*parts, strict=True)
    rows, joined = _rows_of_types(hdg, own, levels[0])
    kind = hdg.instance_types
    return ShardedHDG(
        levels=levels,
        edges=edges,
        at=at,
        joined=joined,
        rows=rows,
        instance_types=None if kind is None else levels[0].put(np.asarray(kind)),
        num_types=hdg.num_types,
        longest=hdg.longest,
        types=hdg.types,
        root_type=hdg.root_type,
    )


def _rows_of_types(hdg: HDG, own: HostArray, lowest: ShardedGraph) -> tuple[tuple[Rows, ...], Any]:
    """Where the vertices of each type lie; and, for the sources of the lowest level, the row of
    each among those of all types, one type after the other, on its shard."""
    if not hdg.types:
        return (), None
    found, at, before = [], [], 0
    for part in np.split(_of_vertices(hdg, own, lowest.num_shards), np.cumsum(hdg.sizes)[:-1]):
        cut = Partition.of_assignment(part, lowest.num_shards)
        rows = rows_on(lowest.mesh, lowest.axis, Dealt.by(cut))
        found.append(rows)
        at.append(before + _places(cut))
        before += rows.length
    joined = lowest.rows("src").put(np.concatenate(at).astype(np.int32), lowest.sharding)
    return tuple(found), joined


def _of_vertices(hdg: HDG, own: HostArray, shards: int) -> HostArray:
    """The shard of each vertex: with its root, and of other types in equal numbers."""
    if not hdg.types:
        return own
    parts = [
        own if t == hdg.root_type else np.arange(n) * shards // max(1, n)
        for t, n in zip(hdg.types, hdg.sizes, strict=True)
    ]
    return np.concatenate(parts)


def _places(cut: Partition) -> HostArray:
    """`int32[N]`, the row of each vertex among those of its shard."""
    place = np.empty(len(cut.order), np.int32)
    sizes = np.diff(cut.bounds)
    place[cut.order] = np.arange(len(cut.order)) - np.repeat(cut.bounds[:-1], sizes)
    return place


def _local(level: ShardedGraph, roots: PyTree, at: Any) -> PyTree:
    """The features of the root of each destination, which lies on the same device."""
    spec = PartitionSpec(level.axis)
    pick = jax.shard_map(lambda x, i: x[i], mesh=level.mesh, in_specs=(spec, spec), out_specs=spec)
    return jax.tree.map(lambda x: pick(jnp.asarray(x), at), roots)
