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
from gnnjit.graph.reading import read_on_host
from gnnjit.graph.validate import is_traced, shown
from gnnjit.neighborhood.hdg import HDG
from gnnjit.partition import Partition
from gnnjit.shapes import ArrayLike, HostArray, PyTree
from gnnjit.sharding import ShardedGraph
from gnnjit.sharding.shard import shard as shard_graph


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["levels", "edges", "at"],
    meta_fields=[],
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
    """

    levels: tuple[ShardedGraph, ...]
    edges: tuple[PyTree, ...]
    at: tuple[Any, ...]

    def __call__(self, x: tuple[PyTree, PyTree], *stages: Callable[..., Any]) -> PyTree:
        """Aggregate and update, as `HDG` does. `x`: what `put` gave.

        Raises GraphError where there are fewer stages, or more, than levels and an update.
        """
        count = len(self.levels)
        if len(stages) not in (count, count + 1):
            raise GraphError(
                f"an HDG of {count} levels was called with {len(stages)} stages, expected {count}, "
                f"or {count + 1} with the update: pass one layer for each level, from the bottom up"
            )
        h, roots = x
        for level, data, at, stage in zip(self.levels, self.edges, self.at, stages, strict=False):
            given = {} if data is None else {"edges": data}
            if level.bipartite:
                h = Bipartite(h, roots if at is None else _local(level, roots, at))
            h = stage(level, h, **given)
        return h if len(stages) == count else stages[-1](roots, h)

    def put(self, hdg: HDG, x: PyTree) -> tuple[PyTree, PyTree]:
        """The features of all vertices and of the roots on the shards, of `x` as `hdg` takes it.

        Raises GraphError where `x` does not fit the vertices.
        """
        every, roots = hdg.features(x)
        first, last = self.levels[0], self.levels[-1]
        if not first.bipartite:
            placed = first.put(every)
            return placed, placed
        below = jax.tree.map(lambda a: first.rows("src").put(a, first.sharding), every)
        return below, last.put(roots)

    def get(self, y: PyTree) -> PyTree:
        """What the last stage gave, as NumPy arrays `[roots, ...]`, in every process."""
        return self.levels[-1].get(y)


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
    own = _owners(hdg, count, partition)
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
    return ShardedHDG(levels, edges, at)


def _owners(hdg: HDG, shards: int, partition: Any) -> HostArray:
    """`int[roots]`, the shard of each."""
    if partition is not None:
        own = read_on_host("partition", partition)
        if own.shape != (hdg.num_roots,):
            raise GraphError(
                f"partition has shape {own.shape}, expected ({hdg.num_roots},): pass the shard of "
                f"each root"
            )
        return own
    cost = np.ones(hdg.num_roots)
    for level, roots in zip(hdg.levels, hdg.roots(), strict=True):
        degree = np.asarray(level.in_degree)
        at = np.arange(hdg.num_roots) if roots is None else roots
        cost += np.bincount(at, degree, hdg.num_roots)
    total = np.cumsum(cost)
    middle = total - cost / 2  # whoever has the middle of a root has the root
    return (middle * shards / max(1.0, cost.sum())).astype(np.int64)


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
