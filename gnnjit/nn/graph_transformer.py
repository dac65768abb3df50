"""Graph transformer."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import gnnjit
from gnnjit.nn.arguments import check_flags, check_rate, check_rngs, check_sizes
from gnnjit.nn.attention import attend, merge_heads
from gnnjit.nn.edge_features import edge_vector
from gnnjit.nn.init import glorot


class GraphTransformer(nnx.Module):
    """`h'[v] = W_own h[v] + sum over (u -> v) of alpha[u, v] W_value h[u]`, per head, where
    `alpha = softmax over u of (W_query h[v]) . (W_key h[u]) / sqrt(F')`.

    Shi et al., "Masked Label Prediction: Unified Message Passing Model for Semi-Supervised
    Classification" (2021), equations 3 and 4; heads side by side, or their mean with
    `concat=False`. With `beta`, a gate takes the place of the sum (equation 5):
    `b W_own h[v] + (1 - b) m`, where m is the second term and
    `b = sigmoid(w . concat(m, W_own h[v], m - W_own h[v]))`. All maps but `w` carry a bias; the
    nonlinearity is left to the caller.

    With `edge_features`, `W_edge e[u, v]` is added to the key and to the value, where `e[u, v]`
    comes as `edges=`.

    Where we differ: no layer normalisation after the gate.

    Args:
        in_features, out_features: F, and F' of one head.
        heads, concat, dropout, edge_features, rngs: as in `GAT`.
        beta: whether the gate is there.

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
        beta: bool = False,
        dropout: float = 0.0,
        edge_features: int | None = None,
        rngs: nnx.Rngs,
    ):
        sizes = {"in_features": in_features, "out_features": out_features, "heads": heads}
        check_sizes("GraphTransformer", **sizes, edge_features=edge_features)
        check_rate("GraphTransformer", dropout)
        check_flags("GraphTransformer", concat=concat, beta=beta)
        check_rngs("GraphTransformer", rngs)

        def linear(inputs: int, outputs: int, use_bias: bool = True) -> nnx.Linear:
            return nnx.Linear(inputs, outputs, use_bias=use_bias, kernel_init=glorot, rngs=rngs)

        width = heads * out_features
        self.query, self.key, self.value = (linear(in_features, width) for _ in range(3))
        self.own = linear(in_features, width if concat else out_features)
        self.gate = linear(3 * self.own.out_features, 1, use_bias=False) if beta else None
        self.edge = None if edge_features is None else linear(edge_features, width, use_bias=False)
        self.shape = (heads, out_features)
        self.concat = concat
        self.dropout = dropout

    @gnnjit.layer
    def __call__(self, v: Any, e: Any, *, key: jax.Array | None = None) -> jax.Array:
        """Called as `model(graph, x, key=None)`; deterministic without `key`.

        `x` is `[N, F]`, or a `Bipartite` of two such arrays; with `edge_features`, `edges` is
        `[E, edge_features]`. The result is `[N, heads * F']`, or `[N, F']` with `concat=False`.
        """
        z_q, z_k, z_v = (
            linear(h).reshape(self.shape)
            for linear, h in ((self.query, v), (self.key, e.src), (self.value, e.src))
        )
        if self.edge is not None:
            data = edge_vector(e.data, "GraphTransformer", self.edge.in_features)
            z_e = self.edge(data).reshape(self.shape)
            z_k, z_v = z_k + z_e, z_v + z_e
        score = jnp.sum(z_q * z_k, axis=-1) / self.shape[1] ** 0.5
        out = merge_heads(attend(score, None, z_v, z_q, self.dropout, key), self.concat)
        own = self.own(v)
        if self.gate is None:
            return own + out
        gate = jax.nn.sigmoid(self.gate(jnp.concatenate([out, own, out - own])))
        return gate * own + (1 - gate) * out
