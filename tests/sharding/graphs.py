"""The same function on one device and on the shards of a graph, for tests that compare them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from edge_lists import EdgeList
from jax.sharding import Mesh

import gnnjit
from gnnjit.sharding.exchange import EXCHANGES as EXCHANGES
from gnnjit.sharding.sharded_graph import ShardedGraph


def mesh(shards: int) -> Mesh:
    """A mesh of the first `shards` devices; `tests/conftest.py` makes 8 of the processor."""
    if len(jax.devices()) < shards:
        pytest.skip(f"needs {shards} devices")
    return Mesh(np.asarray(jax.devices()[:shards]), ("shards",))


class Edges(EdgeList):
    """An edge list that can be sharded."""

    def shard(self, shards: int, exchange: str, partition: Any = "vertices") -> ShardedGraph:
        if partition in PARTITIONS:
            partition = PARTITIONS[partition](self, shards)
        return gnnjit.shard(self.graph(), mesh(shards), partition=partition, exchange=exchange)


edges, random_edges = Edges.of, Edges.random


GRAPHS = {
    "hub": random_edges(13, 45),
    "isolated": edges([0, 1, 1, 9], [1, 9, 0, 0], 11),
    "self loops": edges([0, 1, 2, 0, 5, 8], [0, 1, 2, 1, 5, 8], 9),
    "duplicates": edges([0, 0, 0, 8, 8, 5], [7, 7, 7, 2, 2, 5], 9),
    "no edges": edges([], [], 9),
    "fewer vertices than devices": edges([0, 1, 1, 2], [1, 0, 1, 2], 3),
    "one vertex": edges([0, 0], [0, 0], 1),
    "sources on one side": edges([0, 0, 1, 2, 2], [8, 7, 8, 7, 6], 9),
}


def _touched(e: Edges) -> np.ndarray:
    """`bool[N]`: the vertices that have an edge."""
    found = np.zeros(e.num_nodes, bool)
    found[e.src] = found[e.dst] = True
    return found


PARTITIONS: dict[Any, Callable[[Edges, int], np.ndarray]] = {
    "at random": lambda e, n: np.random.default_rng(3).integers(0, n, e.num_nodes),
    "empty shards": lambda e, n: np.where(np.arange(e.num_nodes) % 3, n - 1, n // 2),
    "edges within one shard": lambda e, n: np.where(_touched(e), 0, np.arange(e.num_nodes) % n),
    "shards without edges": lambda e, n: np.where(
        np.isin(np.arange(e.num_nodes), e.dst), n - 1, np.arange(e.num_nodes) % n
    ),
}
"""Besides the names that `gnnjit.shard` knows: the shard of each vertex."""


@dataclasses.dataclass(frozen=True)
class Out:
    """Results by what they have a row for; any may be None."""

    vertex: Any = None
    edge: Any = None
    shared: Any = None


jax.tree_util.register_dataclass(Out, ["vertex", "edge", "shared"], [])

Function = Callable[..., Out]
"""`fn(graph, x, d, p)`, of features, edge data and parameters."""


@functools.cache
def value_and_gradients(fn: Function) -> Callable[..., Any]:
    """`(out, gradients)` of `fn`, compiled once for all graphs of a shape; the loss weighs rows,
    and those of padding with 0."""

    def loss(args: Any, graph: Any, weights: Any) -> Any:
        out = fn(graph, *args)
        total = sum(jnp.sum(jnp.cos(y)) for y in jax.tree.leaves(out.shared))
        for rows, weight in ((out.vertex, weights[0]), (out.edge, weights[1])):
            for y in jax.tree.leaves(rows):
                total += jnp.sum(jnp.cos(y) * weight.reshape((-1,) + (1,) * (y.ndim - 1)))
        return total, out

    def run(graph: Any, weights: Any, *args: Any) -> Any:
        (_, out), (x, d, p) = jax.value_and_grad(loss, has_aux=True)(args, graph, weights)
        return out, Out(x, d, p)

    return jax.jit(run)


def on_host(graph: Any, out: Out) -> Out:
    """By the user's numbers."""
    if isinstance(graph, ShardedGraph):
        out = Out(graph.get(out.vertex), graph.get_edges(out.edge), out.shared)
    return jax.tree.map(np.asarray, out)


def put(graph: Any, x: Any, d: Any, p: Any) -> Any:
    if isinstance(graph, ShardedGraph):
        return graph.put(x), graph.put_edges(d), p
    return x, d, p


def weights(e: Edges) -> tuple[np.ndarray, np.ndarray]:
    """What the rows of vertices, and those of edges, weigh in a loss."""
    rng = np.random.default_rng(7)
    return tuple(rng.uniform(0.5, 1, n).astype(np.float32) for n in (e.num_nodes, len(e.src)))


def run(graph: Any, e: Edges, compiled: Any, args: Any) -> Any:
    *rows, _ = put(graph, *weights(e), None)
    return jax.tree.map(
        lambda out: on_host(graph, out),
        compiled(graph, tuple(rows), *put(graph, *args)),
        is_leaf=lambda x: isinstance(x, Out),
    )


def assert_same(got: Any, want: Any, rtol: float = 2e-4, atol: float = 2e-5) -> None:
    """Equal trees of equal dtypes and shapes; numbers up to rounding, which may change order."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        exact = not jnp.issubdtype(a.dtype, jnp.inexact)
        wide = [x if exact else x.astype(np.float64) for x in (a, b)]
        np.testing.assert_allclose(*wide, rtol=0 if exact else rtol, atol=0 if exact else atol)


def assert_alike(fn: Function, e: Edges, sharded: ShardedGraph, *args: Any) -> None:
    """Values and gradients of `fn` are those of one device; `args` are `x`, `d` and `p`."""
    compiled = value_and_gradients(fn)
    want = run(e.graph(), e, compiled, args)
    assert_same(run(sharded, e, compiled, args), want)
