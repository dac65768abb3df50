"""Values of graphs: reduced from the vertices of each, and read by them.

The vertices of a batch stand graph after graph, so "vertex of graph" is a bipartite graph whose
edges are sorted: reductions into graphs, and the gradients of reading their values, are `aggregate`
over it, on whatever lowering takes that. Where there is one graph they are reductions of arrays;
where vertices have another order, on shards and in streams, JAX's segment operations. XLA cuts both
for shards, and both run block by block.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gnnjit.graph import Graph, Structure
from gnnjit.ir.interpret import extreme
from gnnjit.ir.program import Program, Reduce, Value
from gnnjit.ir.space import Space
from gnnjit.lower.aggregate import aggregate
from gnnjit.sharding.sharded_graph import AnyGraph, ShardedGraph


def members(graph: AnyGraph, space: Space) -> tuple[Any, Any]:
    """The graph of each vertex (None: all are of one), and whether it is real (None: all are)."""
    own = graph.members
    ids, real = (
        (None, None)
        if own is None
        else own.of("src" if space is Space.SRC else "dst", graph.bipartite)
    )
    if isinstance(graph, ShardedGraph):
        on_shard = graph.rows(space).mask
        real = on_shard if real is None else real & on_shard
    return ids, real


def pool(graph: AnyGraph, kind: str, x: Any, counts: Sequence[Any] = ()) -> Any:
    """`x`, a value of destinations, reduced over those of each graph: `[num_graphs, ...]`; 0 where
    a graph has none. `counts` as of `gnnjit.ir.program.Pool`."""
    _, real = members(graph, Space.DST)
    if kind == "sum":
        return _total(graph, _where(real, x, 0))
    taking_part = real
    if counts:
        taking_part = counts[0] > 0 if real is None else real & (counts[0] > 0)
    if taking_part is None:
        taking_part = jnp.ones(x.shape[:1], jnp.bool_)
    weight = counts[1] if counts else jnp.ones((), jnp.int32)
    return _extreme(kind)(graph, x, taking_part, weight)


def num_vertices(graph: AnyGraph) -> Any:
    """`int32[num_graphs]`: the vertices of each graph, padding not counted."""
    return pool(graph, "sum", jnp.ones(graph.num_dst, jnp.int32))


def of_graph(graph: AnyGraph, x: Any, space: Space) -> Any:
    """The value of each vertex's graph. Padding reads that of the first graph, which is a number
    that the user meant; no gradient comes from it."""
    rows, (_, real) = _read(graph, x, space), members(graph, space)
    if real is None:
        return rows
    return jnp.where(_column(real, rows), rows, jax.lax.stop_gradient(x[:1]))


def without_padding(graph: AnyGraph, x: Any, space: Space) -> Any:
    """`x` of vertices, with zeros in padding, whatever is there; random keys, which have no zero,
    as they are."""
    if jnp.issubdtype(x.dtype, jax.dtypes.extended):
        return x
    return _where(members(graph, space)[1], x, 0)


@functools.cache
def _extreme(kind: str) -> Callable[..., Any]:
    """The extremes of what takes part. Vertices that attain one share its gradient, by weight; all
    do, where it is NaN."""

    @jax.custom_jvp
    def extreme_of(graph: AnyGraph, x: Any, taking_part: Any, weight: Any) -> Any:
        worst = extreme(x.dtype, -1 if kind == "max" else 1)
        found = _largest(graph, kind, _where(taking_part, x, worst))
        some = _total(graph, taking_part.astype(jnp.int32)) > 0
        return _where(some, found, 0)

    @extreme_of.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        graph, x, taking_part, weight = primals
        best = extreme_of(*primals)
        attained = _read(graph, best, Space.DST)
        attains = (x == attained) | (attained != attained)
        share = _where(taking_part, jnp.where(attains, weight, 0), 0)
        dtype = jnp.float32 if x.dtype in (jnp.bfloat16, jnp.float16) else x.dtype
        count = jnp.maximum(_total(graph, share), 1)
        part = share.astype(dtype) / _read(graph, count, Space.DST).astype(dtype)
        return best, _total(graph, tangents[1] * part.astype(x.dtype))

    return extreme_of


def _total(graph: AnyGraph, x: Any) -> Any:
    """The sum over the vertices of each graph, padding included; half precision in float32."""
    if graph.num_graphs == 1:
        return jnp.sum(x, axis=0, dtype=x.dtype, keepdims=True)
    if not _rises(graph):
        wide = x.astype(jnp.float32) if x.dtype in (jnp.bfloat16, jnp.float16) else x
        ids, _ = members(graph, Space.DST)
        return jax.ops.segment_sum(wide, ids, graph.num_graphs).astype(x.dtype)
    return _reduced(graph, "sum", x)


def _largest(graph: AnyGraph, kind: str, x: Any) -> Any:
    """The extreme of the vertices of each graph, padding included. It is not differentiated."""
    if graph.num_graphs == 1:
        if not x.shape[0]:
            return jnp.zeros((1, *x.shape[1:]), x.dtype)
        return (jnp.max if kind == "max" else jnp.min)(x, axis=0, keepdims=True)
    if not _rises(graph):
        reduce = jax.ops.segment_max if kind == "max" else jax.ops.segment_min
        return reduce(x, members(graph, Space.DST)[0], graph.num_graphs)
    return _reduced(graph, kind, x)


def _rises(graph: AnyGraph) -> bool:
    """Whether the vertices stand graph after graph."""
    return graph.members is not None and graph.members.rising


def _reduced(graph: AnyGraph, kind: str, x: Any) -> Any:
    value = Value(tuple(x.shape[1:]), x.dtype, Space.EDGE)
    body = Program((value,), (), (value,), "body")
    return aggregate(_membership(graph, Space.DST), body, (Reduce(kind, Space.DST),), [x])[0]


def _read(graph: AnyGraph, x: Any, space: Space) -> Any:
    """The value of each vertex's graph, also for padding."""
    count = graph.num_src if space is Space.SRC else graph.num_dst
    if graph.num_graphs == 1:
        return jnp.broadcast_to(x, (count, *x.shape[1:]))
    if not _rises(graph):
        return x[members(graph, space)[0]]
    value = Value(tuple(x.shape[1:]), x.dtype, Space.DST)
    body = Program((value,), (), (value,), "body")
    return aggregate(_membership(graph, space), body, (None,), [x])[0]


def _membership(graph: AnyGraph, space: Space) -> Graph:
    """The bipartite graph of an edge from each vertex to its graph. Vertices are in rising order of
    their graphs, so nothing has to be sorted."""
    ids, _ = members(graph, space)
    count = ids.shape[-1]
    number = jnp.arange(count, dtype=ids.dtype)
    starts = jnp.searchsorted(ids, jnp.arange(graph.num_graphs + 1, dtype=ids.dtype))
    one_each = jnp.arange(count + 1, dtype=ids.dtype)
    return Graph(
        src=number,
        dst=ids,
        mask=None,
        in_structure=Structure(starts.astype(ids.dtype), number, number),
        out_structure=Structure(one_each, ids, number),
        dropped=None,
        num_src=count,
        num_dst=graph.num_graphs,
        num_edges=count,
        bipartite=True,
    )


def _where(keep: Any, x: Any, otherwise: Any) -> Any:
    """`x`, replaced in the rows that are not kept."""
    if keep is None:
        return x
    return jnp.where(_column(keep, x), x, jnp.asarray(otherwise, x.dtype))


def _column(rows: Any, like: Any) -> Any:
    return rows.reshape((-1,) + (1,) * (like.ndim - 1))
