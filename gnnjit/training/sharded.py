"""Training over many devices: which ones, and what lies on them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gnnjit.data import Dataset
from gnnjit.distributed.process_group import on_host
from gnnjit.errors import GraphError
from gnnjit.sharding import ShardedGraph, ShardedTypedGraph
from gnnjit.sharding.shard import shard
from gnnjit.training.errors import TrainError
from gnnjit.training.processes import processes
from gnnjit.training.tasks import Batch, split_weights

AXIS = "shards"
MOST = 1024
"""Devices of a process: JAX makes a thread and more for each part of the CPU."""


@dataclasses.dataclass(frozen=True)
class Spread:
    """What was asked for.

    Attributes:
        devices: how many; None for all, of all processes.
        partition, exchange: as of `gnnjit.shard`.
    """

    devices: int | None
    partition: str = "auto"
    exchange: str = "auto"

    def __str__(self) -> str:
        return f"devices {self.devices}, partition {self.partition}, exchange {self.exchange}"

    def mesh(self) -> Mesh:
        """Raises TrainError where there are fewer devices, or some would be left out of several
        processes."""
        found = jax.devices()
        if self.devices is None:
            return Mesh(np.asarray(found), (AXIS,))
        if jax.process_count() > 1 and len(found) != self.devices:
            raise TrainError(
                f"devices is {self.devices}, and the {jax.process_count()} processes have "
                f"{_these(found)} together: leave out --devices, or start processes that have "
                "as many as are wanted (gnnjit launch --devices-per-process)"
            )
        if len(found) < self.devices:
            raise TrainError(
                f"devices is {self.devices}, and JAX has {_these(found)}: ask for at most "
                f"{len(found)}{_how_to_get(self.devices, found)}"
            )
        return Mesh(np.asarray(found[: self.devices]), (AXIS,))


def provide(devices: int | None) -> None:
    """Let JAX take the CPU of this process for several devices, so that all processes together have
    so many. It does nothing where JAX has used its devices, or was told how many to take."""
    if devices is None or devices < 1:
        return  # what is wrong is told later
    if devices > MOST * processes():
        raise TrainError(f"devices is {devices}, expected at most {MOST} in each process")
    if devices % processes():
        return
    if getattr(jax.config, "jax_num_cpu_devices") > 0:  # noqa: B009, of which types know nothing
        return
    try:
        jax.config.update("jax_num_cpu_devices", devices // processes())
    except RuntimeError:
        return  # how many there are is looked at when they are needed


def _these(found: list[Any]) -> str:
    platform = found[0].platform
    return f"{len(found)} {platform.upper()} device{'s' * (len(found) != 1)}"


def _how_to_get(wanted: int, found: list[Any]) -> str:
    if found[0].platform != "cpu":
        return ", or run on more hosts"
    return (
        ", or have JAX take the CPU for more before anything is computed: "
        f'jax.config.update("jax_num_cpu_devices", {wanted}), or JAX_NUM_CPU_DEVICES={wanted}'
    )


class ShardedTask:
    """A graph over devices whose vertices are labelled: the whole graph is every batch.

    Attributes:
        graph: the graph.
    """

    def __init__(self, batch: Batch) -> None:
        """`batch`: of a graph on shards, and arrays on these."""
        self.graph: ShardedGraph | ShardedTypedGraph = batch.graph
        self._batch = batch

    @classmethod
    def of(cls, dataset: Dataset, spread: Spread) -> ShardedTask:
        """Shard a dataset that every process has in memory. Raises TrainError."""
        mesh = spread.mesh()
        try:
            graph = shard(dataset.graph, mesh, partition=spread.partition, exchange=spread.exchange)
        except GraphError as error:
            raise TrainError(f"{dataset.name} cannot be sharded: {error}") from error
        labels, target = (dataset.y, split_weights(dataset)), dataset.target or ""
        if isinstance(graph, ShardedTypedGraph):
            labels = graph.put({target: labels})[target]
        else:
            labels = graph.put(labels)
        return cls(Batch(graph, graph.put(dataset.x), *labels))

    @property
    def everywhere(self) -> NamedSharding:
        """The sharding of what is the same on all devices."""
        return NamedSharding(self.graph.mesh, PartitionSpec())

    def train_batches(self, seed: int, epoch: int) -> Iterator[Batch]:
        yield self._batch

    def eval_batches(self) -> list[Batch]:
        return [self._batch]

    def figures(self) -> dict[str, Any]:
        """What is reported of them; of a typed graph, of all types and relations together."""
        graph = self.graph
        if isinstance(graph, ShardedTypedGraph):
            reports = [part.report for part in graph.graphs]
            vertices = np.sum([on_host(rows.sizes) for rows in graph.rows], axis=0)
        else:
            reports, vertices = [graph.report], np.asarray(graph.report.vertices)
        none = np.zeros(graph.num_shards, np.int64)
        edges = np.sum([none, *(report.edges for report in reports)], axis=0)

        def named(what: str) -> str:
            return ", ".join(dict.fromkeys(getattr(report, what) for report in reports))

        return {
            "devices": graph.num_shards,
            "processes": jax.process_count(),
            "partition": named("partition"),
            "order": named("order"),
            "exchange": named("exchange"),
            "rows_per_shard": vertices.tolist(),
            "edges_per_shard": edges.tolist(),
            "cut_edges": sum(report.cut for report in reports),
            "imbalance": float(edges.max() / edges.mean()) if edges.any() else 1.0,
        }


def replicated(tree: Any, sharding: NamedSharding) -> Any:
    """The same on all devices; every process has the same values."""

    def put(leaf: Any) -> Any:
        if jax.numpy.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.prng_key):
            return jax.random.wrap_key_data(put(jax.random.key_data(leaf)))
        host = np.asarray(leaf)
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return jax.tree.map(put, tree)


def on_one_device(tree: Any) -> Any:
    """What `replicated` gave, on the default device of this process alone."""

    def put(leaf: Any) -> Any:
        if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(put(jax.random.key_data(leaf)))
        return jax.numpy.asarray(np.asarray(leaf))

    return jax.tree.map(put, tree)
