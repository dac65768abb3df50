"""The nearest vertices of each, by brute force in chunks of rows: exact, and of a static size."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.errors import GraphError
from gnnjit.geometry.box import displacement, read_box, read_positions
from gnnjit.geometry.radius import read_graphs
from gnnjit.graph import Graph
from gnnjit.graph.validate import as_count
from gnnjit.shapes import ArrayLike

DISTANCES = 1 << 22
"""Distances in memory at a time, about."""


def nearest(
    positions: ArrayLike,
    k: int,
    *,
    box: Any = None,
    graph_index: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    loops: bool = False,
) -> Graph:
    """The graph of an edge to each vertex from each of its k nearest, also inside `jit`.

    Every pair is looked at: for a hundred thousand vertices and more in few dimensions, `radius` is
    faster. Of equally near vertices the one of the lower number comes first.

    Args:
        positions: `[N, D]`.
        k: edges of each vertex.
        box: the sides of a periodic orthogonal box, a number or `[D]`; 0: a side is open.
        graph_index: `int[N]`, which graph of a batch each vertex belongs to; neighbours are of the
            same.
        mask: `bool[N]`, False on padding, which has no edges.
        loops: whether a vertex counts as a neighbour of its own.

    Returns:
        a graph of `N * k` edges, sorted by destination, each vertex's by distance. Where a graph
        has too few vertices, or some are padding, edges are padding too.

    Raises:
        GraphError: an argument is none of these, or k is larger than the other vertices are many.
    """
    x = read_positions(positions)
    sides = read_box(box, x.shape[1])
    k = as_count("k", k)
    others = x.shape[0] - (not loops)
    if k > max(0, others) or k == 0:
        raise GraphError(
            f"k is {k}, expected 1 to {max(0, others)}, the neighbours that a vertex of "
            f"{x.shape[0]} can have"
        )
    graphs = read_graphs(graph_index, x.shape[0])
    src, real = _nearest(x, k, sides, graphs, mask, bool(loops))
    every = graphs is None and mask is None
    dst = np.repeat(np.arange(x.shape[0], dtype=np.int32), k)
    return Graph.from_edges(
        src.reshape(-1), dst, num_nodes=x.shape[0], sorted_by="dst",
        edge_mask=None if every else real.reshape(-1),
    )  # fmt: skip


@functools.partial(jax.jit, static_argnames=("k", "sides", "loops"))
def _nearest(
    x: jax.Array, k: int, sides: tuple[float, ...] | None, graphs: Any, mask: Any, loops: bool
) -> tuple[jax.Array, jax.Array]:
    """`int[N, k]`, and `bool[N, k]`: False where there are fewer."""
    count = x.shape[0]
    x, vertices = jax.lax.stop_gradient(x), jnp.arange(count, dtype=jnp.int32)
    real = jnp.ones(count, bool) if mask is None else jnp.asarray(mask, bool)
    graph = jnp.zeros(count, jnp.int32) if graphs is None else jnp.asarray(graphs)

    def row(v: jax.Array) -> tuple[jax.Array, jax.Array]:
        way = displacement(x, x[v], sides)
        wanted = real & real[v] & (graph == graph[v])
        if not loops:
            wanted &= vertices != v
        near, found = jax.lax.top_k(jnp.where(wanted, -jnp.square(way).sum(axis=-1), -jnp.inf), k)
        return found.astype(jnp.int32), near > -jnp.inf

    return jax.lax.map(row, vertices, batch_size=max(1, min(count, DISTANCES // count)))
