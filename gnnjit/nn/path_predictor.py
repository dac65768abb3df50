"""Links of a graph of one relation, by the paths that lead from one end to the other."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import gnnjit
from gnnjit.graph import Graph
from gnnjit.nn.arguments import check_rngs, check_sizes

POPULAR = -8.0
"""The logarithm of what a vertex scores at first beside the paths to it: it tells ties apart."""

LONGER = -3.0
"""The logarithm of what a path of one more edge scores at first."""


class PathPredictor(nnx.Module):
    """A score for each vertex: the weights of all paths of 2 to `hops` edges from the one asked.

    Zhu et al., "Neural Bellman-Ford Networks" (2021), section 3, with representations of width 1:
    `z_0[v]` is 1 at the vertex that is asked, `z_{k+1}[v] = sum over (u -> v) of a_k(u) z_k[u]`,
    and the score of v is `log(b_0(v) + sum over k >= 2 of b_k(v) z_k[v])`. Weights `a_k` and `b_k`
    are positive functions of a vertex's numbers of links as head and as tail, which a network with
    one hidden layer learns for each way to ask. There is no embedding of a vertex.

    It begins as resource allocation (Zhou et al. 2009): the common neighbours of both ends, each
    by one over its degree; then popularity decides.

    Where we differ: messages are numbers, one for both directions of an edge; the direct edge, a
    path of length 1, is left out, since it is what is asked for.

    Args:
        hops: K, edges of the longest path, at least 2.
        hidden: width of the network for the weights.
        rngs: draws its weights.

    Raises:
        LayerError: a size or `rngs` is no such value.
    """

    def __init__(self, hops: int = 3, *, hidden: int = 16, rngs: nnx.Rngs):
        check_sizes("PathPredictor", least=2, hops=hops)
        check_sizes("PathPredictor", hidden=hidden)
        check_rngs("PathPredictor", rngs)
        self.hops, outputs = int(hops), 2 * int(hops)
        draw = nnx.initializers.normal(1.0)
        self.inner = nnx.Linear(3, hidden, kernel_init=draw, bias_init=draw, rngs=rngs)
        few = nnx.initializers.normal(0.01)
        self.outer = nnx.Linear(hidden, 2 * outputs, use_bias=False, kernel_init=few, rngs=rngs)
        # Of a_0 to a_{K-1}, b_0, and b_2 to b_K: the power of the degree, and the logarithm.
        powers = [0.0] + [-1.0] * (hops - 1) + [1.0] + [0.0] * (hops - 1)
        levels = [0.0] * hops + [POPULAR] + [LONGER * k for k in range(hops - 1)]
        self.power = nnx.Param(jnp.tile(jnp.array(powers), (2, 1)))
        self.level = nnx.Param(jnp.tile(jnp.array(levels), (2, 1)))

    def __call__(
        self, graph: Graph, vertex: jax.Array, of_tail: jax.Array, *, kept: jax.Array | None = None
    ) -> jax.Array:
        """`float32[Q, N]`, the scores of all vertices as the other end of a link.

        Args:
            graph: known links both ways, with relation 0 from head to tail and 1 back.
            vertex: `int[Q]`, the end that is known.
            of_tail: `bool[Q]`, whether the tail is asked for, else the head.
            kept: `[E]`, 0 for edges that are left out, else 1; None: all are there.
        """
        kept = jnp.ones(graph.num_edges) if kept is None else kept
        ways, hops = self._ways(graph, kept), self.hops

        def weight(i: int) -> jax.Array:
            """`[N, Q]`."""
            return jnp.where(of_tail, ways[1, :, i][:, None], ways[0, :, i][:, None])

        reached = jax.nn.one_hot(vertex, graph.num_dst, axis=0)
        total = weight(hops)
        for k in range(hops):
            reached = _pass_on(graph, weight(k) * reached, edges=kept)
            if k:
                total = total + weight(hops + k) * reached
        return jnp.log(total).T

    def _ways(self, graph: Graph, kept: jax.Array) -> jax.Array:
        """`[2, N, 2 K]`, the weights of vertices where heads are asked for, and tails."""
        degrees = _degrees(graph, jnp.zeros(graph.num_dst), edges=kept)
        degree = jnp.maximum(degrees.sum(axis=1, keepdims=True), 1)
        seen = jnp.concatenate([jnp.log1p(degrees), jnp.log(degree)], axis=1) / 3
        learned = self.outer(jnp.tanh(self.inner(seen))).reshape(len(seen), 2, -1)
        logarithm = learned.swapaxes(0, 1) + self.level[...][:, None]
        return jnp.exp(logarithm + self.power[...][:, None] * jnp.log(degree))


@gnnjit.layer
def _pass_on(v: Any, e: Any) -> Any:
    return gnnjit.sum(e.data * e.src)


@gnnjit.layer
def _degrees(v: Any, e: Any) -> Any:
    """As tail, and as head."""
    forth = jnp.where(e.relation == 0, e.data, 0)
    return jnp.stack([gnnjit.sum(forth), gnnjit.sum(e.data - forth)])
