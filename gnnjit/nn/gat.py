"""Graph attention."""

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


class GAT(nnx.Module):
    """`h'[v] = sum over (u -> v), and v itself, of alpha[u, v] W h[u] + b`, per head, where
    `alpha = softmax over u of leaky_relu(a_src . W h[u] + a_dst . W h[v])`.

    Veličković et al., "Graph Attention Networks" (2018), equations 3 and 4; heads side by side
    (equation 5), or their mean (equation 6) with `concat=False`. The nonlinearity is left to the
    caller. `dropout` acts on the coefficients (section 3.3) when a `key` is given.

    The neighbourhood of the paper holds the vertex itself: that term is part of the layer, so the
    graph needs no self loops. With `self_loops=False` the graph is taken as it is.

    With `edge_features`, the score is `leaky_relu(... + a_edge . W_edge e[u, v])`, where `e[u, v]`
    comes as `edges=`; for the vertex itself it is the mean over its in-edges, as in PyG's
    GATConv (`edge_dim`).

    Args:
        in_features, out_features: F, and F' of one head.
        heads: their number.
        concat: heads side by side, else their mean.
        dropout: rate for the coefficients, from 0 to 1.
        negative_slope: of the leaky ReLU.
        self_loops: whether each vertex counts among its own neighbours.
        edge_features: width of the edges' features; None without.
        rngs: draws the weights.

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
        check_sizes("GAT", in_features=in_features, out_features=out_features, heads=heads)
        check_sizes("GAT", edge_features=edge_features)
        check_rate("GAT", dropout)
        check_numbers("GAT", negative_slope=negative_slope)
        check_flags("GAT", concat=concat, self_loops=self_loops)
        check_rngs("GAT", rngs)
        self.linear = nnx.Linear(
            in_features, heads * out_features, use_bias=False, kernel_init=glorot, rngs=rngs
        )
        self.attend_src = nnx.Param(per_head(rngs, heads, out_features))
        self.attend_dst = nnx.Param(per_head(rngs, heads, out_features))
        self.bias = nnx.Param(jnp.zeros(heads * out_features if concat else out_features))
        some = edge_features is not None
        width = heads * out_features
        self.edge = (
            nnx.Linear(edge_features, width, use_bias=False, kernel_init=glorot, rngs=rngs)
            if some
            else None
        )
        self.attend_edge = nnx.Param(per_head(rngs, heads, out_features)) if some else None
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
        z_u, z_v = (self.linear(h).reshape(self.shape) for h in (e.src, v))
        s_u = jnp.sum(z_u * self.attend_src[...], axis=-1)
        s_v = jnp.sum(z_v * self.attend_dst[...], axis=-1)
        score, own = s_u + s_v, jnp.sum(z_v * self.attend_src[...], axis=-1) + s_v
        if self.edge is not None:
            s_e = self._edge_score(e.data)
            score, own = score + s_e, own + gnnjit.mean(s_e)
        score = jax.nn.leaky_relu(score, self.negative_slope)
        own = jax.nn.leaky_relu(own, self.negative_slope) if self.self_loops else None
        out = attend(score, own, z_u, z_v, self.dropout, key)
        return merge_heads(out, self.concat) + self.bias

    def _edge_score(self, data: jax.Array) -> jax.Array:
        assert self.edge is not None
        assert self.attend_edge is not None
        z = self.edge(edge_vector(data, "GAT", self.edge.in_features)).reshape(self.shape)
        return jnp.sum(z * self.attend_edge[...], axis=-1)
