"""Times shards, learns vertex costs from that, and deals vertices out anew where it is uneven."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gnnjit.cost.partition_model import PartitionModel
from gnnjit.distributed.process_group import of_each
from gnnjit.errors import GraphError
from gnnjit.graph import Graph, TypedGraph
from gnnjit.graph.edit import real_edges
from gnnjit.partition.migrate import measured_costs
from gnnjit.partition.migrate import rebalance as balance
from gnnjit.partition.vertex_features import vertex_features
from gnnjit.shapes import HostArray
from gnnjit.sharding.shard import shard
from gnnjit.sharding.sharded_graph import ShardedGraph, local_part

__all__ = ["rebalance", "shard_seconds"]


def shard_seconds(fn: Callable[..., Any], *args: Any, repeats: int = 3) -> HostArray:
    """The time that `fn(*args)` takes on each shard alone, without the exchange.

    What all shards do together lasts as long as the slowest of them. A process times its shards
    one after the other on its first device. Of several processes each times its own shards, and all
    get all times.

    Args:
        fn: a pure function: a layer, a model, a step of training.
        args: what it is called with, a `ShardedGraph` and arrays on its shards among it.
        repeats: runs that are timed, after one that is not; the shortest counts.

    Returns:
        `float64[P]`, seconds for each of P shards.

    Raises:
        GraphError: no ShardedGraph, or more than one, among the arguments.
    """
    graph = _graph_of(args)
    compiled, seconds = jax.jit(fn), np.zeros(graph.num_shards)
    device = jax.local_devices()[0]
    owners = graph.sharding.addressable_devices_indices_map((graph.num_shards,)).values()
    for p in sorted({index[0].start or 0 for index in owners if index is not None}):
        alone = jax.tree.map(lambda x, p=p: _alone(graph, x, p, device), args, is_leaf=_is_graph)
        jax.block_until_ready(compiled(*alone))
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            jax.block_until_ready(compiled(*alone))
            times.append(time.perf_counter() - start)
        seconds[p] = min(times)
    return np.asarray(of_each(seconds), np.float64).max(axis=0)


def rebalance(
    graph: Graph,
    sharded: ShardedGraph,
    fn: Callable[..., Any],
    *args: Any,
    threshold: float = 1.1,
    cost: PartitionModel | None = None,
    plans: int = 8,
    seed: int = 0,
    repeats: int = 3,
) -> ShardedGraph:
    """Move vertices between the devices of a sharded graph, if its shards take unequal times.

    The shards are timed. If the slowest takes more than `threshold` times the mean, several plans
    move vertices from slow shards to others. Of the plans that balance, the one that cuts fewest
    edges is taken (FlexGraph, 2021, section 5). `new.put(old.get(x))` moves arrays from the old
    shards to the new ones.

    Args:
        graph: what `sharded` was made of.
        sharded: what `gnnjit.shard` gave.
        fn, args, repeats: what is timed, as in `shard_seconds`; `args` hold `sharded`.
        threshold: the largest time over the mean that needs no move.
        cost: the learned model of what vertices cost, as in `gnnjit.shard`. It learns from these
            times (ROC, 2020, section 4.1), and serves for other graphs too.
        plans: how many are tried.
        seed: of the plans.

    Returns:
        `sharded` itself where it is balanced, else a new `ShardedGraph`.

    Raises:
        GraphError: arguments that do not fit each other.
    """
    if getattr(graph, "bipartite", False) or isinstance(graph, TypedGraph):
        raise GraphError(
            f"rebalance() got {graph!r}, expected a Graph with one vertex set: time shards with "
            "gnnjit.sharding.rebalance.shard_seconds, and pass partition= to gnnjit.shard"
        )
    if not isinstance(graph, Graph) or graph.num_nodes != sharded.num_nodes:
        raise GraphError(
            f"rebalance() got {graph!r}, expected the graph that {sharded!r} was made of"
        )
    seconds = shard_seconds(fn, *args, repeats=repeats)
    src, dst = real_edges(graph.src, graph.dst, graph.mask)
    model, partition = cost or PartitionModel(), sharded.partition()
    width = sharded.report.width if sharded.report is not None else 64
    features = vertex_features(src, dst, graph.num_nodes, width, partition.order)
    for total, taken in zip(partition.totals(features), seconds, strict=True):
        model.observe(total, taken)
    costs = measured_costs(model.vertex_cost(features), partition, seconds)
    better = balance(src, dst, partition, costs, threshold, plans, seed)
    if better is partition:
        return sharded
    return shard(
        graph,
        sharded.mesh,
        sharded.axis,
        partition=better,
        exchange=sharded.exchange_name,
        features=sharded.features,
        width=width,
    )


def _graph_of(args: Any) -> ShardedGraph:
    found = [x for x in jax.tree.leaves(args, is_leaf=_is_graph) if _is_graph(x)]
    graphs = list({id(x): x for x in found}.values())
    if len(graphs) != 1:
        raise GraphError(
            f"the arguments hold {len(graphs)} sharded graphs, expected one: pass what "
            "gnnjit.shard(...) gave, and arrays of its vertices"
        )
    return graphs[0]


def _is_graph(x: Any) -> bool:
    return isinstance(x, ShardedGraph)


def _alone(graph: ShardedGraph, x: Any, p: int, device: Any) -> Any:
    """An argument, of one shard."""
    if _is_graph(x):
        return x.alone(p)
    sizes = graph.num_src, graph.num_dst, graph.num_edges
    on_shards = isinstance(x, jax.Array) and x.ndim and len(x) in sizes
    if on_shards and not x.is_fully_replicated:
        return local_part(x, p, device)
    if isinstance(x, jax.Array):
        mesh = Mesh(np.asarray([device]), (graph.axis,))
        return jax.device_put(np.asarray(x), NamedSharding(mesh, PartitionSpec()))
    return x
