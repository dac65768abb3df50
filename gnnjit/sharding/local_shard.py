"""One device's shard of a graph over many devices."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from gnnjit.graph.graph import Graph
from gnnjit.graph.structure import Structure
from gnnjit.sharding.exchange import Cover, Exchange, Ring
from gnnjit.sharding.sharded_graph import ShardedGraph


@dataclasses.dataclass(frozen=True, eq=False)
class LocalShard:
    """One device's part of a `ShardedGraph`, while a program runs there.

    Attributes:
        graph: from the stop of a `Ring` to the edges whose sources pass by there; with any other
            exchange, to all edges of the shard, whose sources are rows of the table.
        edge_count: `int32[]`, edges without padding.
        num_src, num_dst, num_edges: rows for sources and destinations and slots for edges, with
            padding. The rest is as in `ShardedGraph`.
    """

    graph: Callable[[Any], Graph]
    exchange: Exchange
    cover: Cover | None
    number: Mapping[str, Any]
    in_degree: Any
    out_degree: Any
    edge_count: Any
    num_src: int
    num_dst: int
    num_edges: int

    @property
    def mask(self) -> Any:
        return jnp.arange(self.num_edges) < self.edge_count

    def degree(self, space: Any) -> Any:
        return self.in_degree if getattr(space, "value", space) == "dst" else self.out_degree

    def numbers(self, space: Any) -> Any:
        return self.number[getattr(space, "value", space)]


def local(sharded: ShardedGraph) -> LocalShard:
    """The shard of this device, within a `shard_map` over the axis of `sharded`."""
    parts = sharded.in_structure, sharded.out_structure, sharded.exchange, sharded.cover
    inward, outward, exchange, cover = jax.tree.map(lambda x: x[0], parts)
    degree = jnp.diff(inward.indptr)
    if isinstance(exchange, Ring):
        graph = functools.partial(_at_stop, sharded, exchange, inward, outward)
        degree = degree.sum(axis=0)
    else:
        graph = functools.partial(_whole, sharded, inward, outward)
    return LocalShard(
        graph,
        exchange,
        cover,
        {space: sharded.numbers(space) for space in ("src", "dst", "edge")},
        degree.astype(jnp.int32),
        sharded.out_degree,
        sharded.edge_counts[0],
        sharded.rows("src").length,
        sharded.num_rows,
        sharded.num_slots,
    )


def shapes(sharded: ShardedGraph) -> Graph:
    """The graph that one device traverses, its arrays as `ShapeDtypeStruct`s."""

    def part(x: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((x.shape[0] // sharded.num_shards, *x.shape[1:]), x.dtype)

    return jax.eval_shape(lambda own: local(own).graph(0), jax.tree.map(part, sharded))


def _whole(sharded: ShardedGraph, inward: Structure, outward: Structure, _: Any = None) -> Graph:
    mask = jnp.arange(sharded.num_slots) < sharded.edge_counts[0]
    return _graph(sharded, sharded.src, sharded.dst, mask, inward, outward, sharded.num_slots)


def _at_stop(
    sharded: ShardedGraph, ring: Ring, inward: Structure, outward: Structure, stop: Any
) -> Graph:
    capacity = ring.capacity[0 if isinstance(stop, int) and stop == 0 else 1]
    start, count = ring.starts[stop], ring.counts[stop]

    def cut(x: Any) -> Any:
        return jax.lax.dynamic_slice_in_dim(x, start, capacity)

    slot = jnp.arange(capacity, dtype=sharded.src.dtype)
    mask = slot < count

    def structure(s: Structure) -> Structure:
        edge = jnp.where(mask, cut(s.edge), slot)
        return Structure(s.indptr[stop], cut(s.neighbor), edge)

    src, dst = cut(sharded.src), cut(sharded.dst)
    return _graph(sharded, src, dst, mask, structure(inward), structure(outward), capacity)


def _graph(
    sharded: ShardedGraph, src: Any, dst: Any, mask: Any, inward: Any, outward: Any, edges: int
) -> Graph:
    return Graph(
        src=src,
        dst=dst,
        mask=mask,
        in_structure=inward,
        out_structure=outward,
        dropped=None,
        num_src=sharded.num_sources,
        num_dst=sharded.num_rows,
        num_edges=edges,
        bipartite=True,
    )
