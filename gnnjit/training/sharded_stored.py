"""A stored dataset over devices: each process reads the rows of its own shards, and keeps the edges
that end there. All of them pass over the edges, a block at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from gnnjit.cost.partition_model import PartitionModel
from gnnjit.data.stored.dataset import StoredDataset
from gnnjit.distributed.process_group import of_each
from gnnjit.partition.partition import Partition, balanced, equal_edges, equal_vertices
from gnnjit.shapes import HostArray
from gnnjit.sharding.build import build, shards_here
from gnnjit.sharding.build_streamed import streamed_plan
from gnnjit.sharding.report import ShardReport
from gnnjit.training.errors import TrainError
from gnnjit.training.sharded import AXIS, ShardedTask, Spread
from gnnjit.training.tasks import SPLITS, Batch

EDGES = 1 << 20
"""Edges that are read at once."""
WIDTH = 64
LINE = 16
"""Numbers of 4 bytes in a line of memory."""


def shard_stored(stored: StoredDataset, spread: Spread) -> ShardedTask:
    """The task; each process has only its own shards of the arrays. All have the O(N) arrays that
    say where each vertex is.

    Raises:
        TrainError: "metis", or "cover", which need all edges in one process.
        StoreError: as `VertexStore.read`.
    """
    for what, wanted, other in (
        (spread.partition, "metis", "partition='learned', along the order of the store"),
        (spread.exchange, "cover", "exchange='halo'"),
    ):
        if what == wanted:
            raise TrainError(
                f"{stored.name} is in a store, whose edges no process holds, and {wanted!r} needs "
                f"them all: choose {other}"
            )
    mesh = spread.mesh()
    mesh = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,))
    partition = _partition(stored, spread.partition, mesh.shape[AXIS])
    plan = streamed_plan(
        stored.edges(EDGES),
        partition,
        shards_here(mesh, AXIS),
        vertex=lambda start, stop: stored.store.read("vertex", start, stop),
        summed=_over_processes,
    )
    exchange = "halo" if spread.exchange == "auto" else spread.exchange
    between = plan.between
    report = ShardReport(
        partition=partition.method,
        order=f"of the store ({stored.method})",
        vertices=tuple(partition.sizes.tolist()),
        edges=tuple(plan.counts.tolist()),
        cut=int(between.sum() - np.trace(between)),
        lower_bound=float(plan.traffic().sum() / plan.num_shards),
        width=WIDTH,
        ways=(),
        exchange=exchange,
    )
    graph = dataclasses.replace(build(plan, mesh, AXIS, exchange), report=report)

    def rows(read: Callable[[int, int], HostArray]) -> Any:
        return _on_shards(graph, partition, read)

    def reader(name: str) -> Callable[[int, int], HostArray]:
        return lambda start, stop: stored.store.read(name, start, stop)

    def weights(start: int, stop: int) -> HostArray:
        masks = [stored.store.read(f"{split}_mask", start, stop) for split in SPLITS]
        return np.stack(masks, axis=1).astype(np.float32)

    return ShardedTask(Batch(graph, rows(reader("x")), rows(reader("y")), rows(weights)))


def _partition(stored: StoredDataset, wanted: str, shards: int) -> Partition:
    """Contiguous in the rows of the store."""
    if wanted == "vertices":
        return equal_vertices(stored.num_nodes, shards)
    degree = np.zeros(stored.num_nodes, np.int64)
    for start in range(0, stored.num_edges, EDGES):
        stop = min(start + EDGES, stored.num_edges)
        dst = stored.store.read("edge.dst", start, stop)
        degree += np.bincount(dst, minlength=stored.num_nodes)
    if wanted == "edges":
        return equal_edges(degree, shards)
    # As `vertex_features`, where no two sources of a vertex follow each other.
    lines = degree * (WIDTH // LINE)
    features = np.stack([np.ones_like(degree), degree, degree, degree, lines], axis=1)
    return balanced(PartitionModel().vertex_cost(features), shards)


def _on_shards(graph: Any, partition: Partition, read: Callable[[int, int], HostArray]) -> Any:
    """Rows of the store, each shard's read by the process that has it; zeros in padding."""
    like, length = read(0, 0), graph.num_rows

    def part(index: Any) -> HostArray:
        p = (index[0].start or 0) // length
        start, stop = int(partition.bounds[p]), int(partition.bounds[p + 1])
        out = np.zeros((length, *like.shape[1:]), like.dtype)
        out[: stop - start] = read(start, stop)
        return out

    shape = (graph.num_shards * length, *like.shape[1:])
    return jax.make_array_from_callback(shape, graph.sharding, part)


def _over_processes(x: HostArray) -> HostArray:
    # Numbers of rows, which fit 32 bits.
    return of_each(x.astype(np.int32)).astype(np.int64).sum(axis=0)
