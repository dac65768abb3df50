"""Graph attention with dynamic scores."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import gnnjit
from gnnjit.nn.arguments import check_flags, check_numbers, check_rate, check_rngs, check_sizes
from gnnjit.nn.attention import attend, merge_heads
from gnnjit.nn.edge_features import edge_vector
from gnnjit.nn.init import glorot, per_head


class GATv2(nnx.Module):
    """`h'[v] = sum over (u -> v), and v itself, of alpha[u, v] W_src h[u] + b`, per head, where
    `alpha = softmax over u of a . leaky_relu(W_src h[u] + W_dst h[v])`.

    Brody, Alon & Yahav, "How Attentive are Graph Attention Networks?" (2022), equation 7: the
    paper's one matrix on `concat(h[v], h[u])` in two halves, of which that of `u` is also the
    value. Both carry a bias, as in the paper's code. The nonlinearity is left to the caller.

    With `edge_features`, `W_edge e[u, v]` is added inside the leaky ReLU, where `e[u, v]` comes as
    `edges=`.

    Args:
        in_features, out_features: F, and F' of one head.
        heads, concat, dropout, negative_slope, self_loops, edge_features, rngs: as in `GAT`.

    Raises:
        LayerError: a size, number, flag or `rngs` is no such value.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        heads: int = 1,
        concat: bool = True,
        dropout: float = 0.0,
        negative_slope: float = 0.2,
        self_loops: bool = True,
        edge_features: int | None = None,
        rngs: nnx.Rngs,
    ):
        check_sizes("GATv2", in_features=in_features, out_features=out_features, heads=heads)
        check_sizes("GATv2", edge_features=edge_features)
        check_rate("GATv2", dropout)
        check_numbers("GATv2", negative_slope=negative_slope)
        check_flags("GATv2", concat=concat, self_loops=self_loops)
        check_rngs("GATv2", rngs)
        width = heads * out_features
        self.src = nnx.Linear(in_features, width, kernel_init=glorot, rngs=rngs)
        self.dst = nnx.Linear(in_features, width, kernel_init=glorot, rngs=rngs)
        self.attention = nnx.Param(per_head(rngs, heads, out_features))
        self.bias = nnx.Param(jnp.zeros(width if concat else out_features))
        self.edge = (
            None
            if edge_features is None
            else nnx.Linear(edge_features, width, use_bias=False, kernel_init=glorot, rngs=rngs)
        )
        self.shape = (heads, out_features)
        self.concat = concat
        self.dropout = dropout
        self.negative_slope = negative_slope
        self.self_loops = self_loops

    @gnnjit.layer
    def __call__(self, v: Any, e: Any, *, key: jax.Array | None = None) -> jax.Array:
        """Called as `model(graph, x, key=None)`; deterministic without `key`.

        `x` is `[N, F]`, or a `Bipartite` of two such arrays; with `edge_features`, `edges` is
        `[E, edge_features]`. The result is `[N, heads * F']`, or `[N, F']` with `concat=False`.
        """
        z_u, z_v = self.src(e.src).reshape(self.shape), self.dst(v).reshape(self.shape)
        own_value = self.src(v).reshape(self.shape)
        to_v, to_itself = z_u + z_v, own_value + z_v
        if self.edge is not None:
            data = edge_vector(e.data, "GATv2", self.edge.in_features)
            z_e = self.edge(data).reshape(self.shape)
            to_v, to_itself = to_v + z_e, to_itself + gnnjit.mean(z_e)
        own = self._score(to_itself) if self.self_loops else None
        out = attend(self._score(to_v), own, z_u, own_value, self.dropout, key)
        return merge_heads(out, self.concat) + self.bias

    def _score(self, z: jax.Array) -> jax.Array:
        return jnp.sum(self.attention[...] * jax.nn.leaky_relu(z, self.negative_slope), axis=-1)
