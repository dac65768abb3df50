"""Relational graph attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from flax import nnx

import gnnjit
from gnnjit.graph.schema import Relation
from gnnjit.nn.arguments import (
    check_choice,
    check_flags,
    check_numbers,
    check_rate,
    check_rngs,
    check_sizes,
)
from gnnjit.nn.attention import attend, merge_heads
from gnnjit.nn.init import glorot
from gnnjit.nn.schema import check_schema, of_relation, widths

Attention = Literal["across", "within"]
Scores = Literal["additive", "multiplicative"]


class RGAT(nnx.Module):
    """`h'[v] = sum over relations r, and (u -> v) in r, of alpha[r, u, v] W_r h[u] + b`, per head,
    where alpha is the softmax over all edges into v ("across" relations) or over those of r
    ("within"), of `leaky_relu(q_r[v] + k_r[u])` ("additive") or `q_r[v] . k_r[u]`
    ("multiplicative").

    Busbridge et al., "Relational Graph Attention Networks" (2019), equations 1 to 7: ARGAT and
    WIRGAT. `k_r[u] = K_r W_r h[u]`, a number for additive scores and as long as F' for
    multiplicative ones. Heads side by side, or their mean with `concat=False`; the nonlinearity is
    left to the caller. A vertex without edges gets the bias.

    Where we differ: `q_r[v] = Q_r h[v]` has one matrix instead of the paper's product `Q_r W_r`,
    since types may have different widths; each type has a bias of its own.

    Args:
        in_features: F, for all types or by type.
        out_features: F', of one head.
        heads: their number.
        types, relations: those of the graph: `graph.types`, `graph.relations`.
        attention: "across" or "within".
        scores: "additive" or "multiplicative".
        concat: heads side by side, else their mean.
        dropout: rate for the coefficients, from 0 to 1.
        negative_slope: of the leaky ReLU.
        rngs: draws the weights.

    Raises:
        LayerError: a size, number, flag, name, type, relation or `rngs` is no such value.
    """

    def __init__(
        self,
        in_features: int | Mapping[str, int],
        out_features: int,
        *,
        heads: int = 1,
        types: Sequence[str],
        relations: Sequence[Relation],
        attention: Attention = "across",
        scores: Scores = "additive",
        concat: bool = True,
        dropout: float = 0.0,
        negative_slope: float = 0.2,
        rngs: nnx.Rngs,
    ):
        check_schema("RGAT", types, relations)
        check_sizes("RGAT", out_features=out_features, heads=heads)
        check_choice("RGAT", "attention", attention, get_args(Attention))
        check_choice("RGAT", "scores", scores, get_args(Scores))
        check_flags("RGAT", concat=concat)
        check_rate("RGAT", dropout)
        check_numbers("RGAT", negative_slope=negative_slope)
        check_rngs("RGAT", rngs)
        sizes = widths("RGAT", in_features, types)
        width = heads * out_features
        length = 1 if scores == "additive" else out_features
        per_head = nnx.initializers.glorot_uniform(batch_axis=0)

        def of_each(make: Any) -> nnx.Dict:
            return nnx.Dict({of_relation(key): nnx.Param(make(key)) for key in relations})

        self.weight = of_each(lambda key: glorot(rngs.params(), (sizes[key[0]], width)))
        self.query = of_each(lambda key: glorot(rngs.params(), (sizes[key[2]], heads * length)))
        self.key = of_each(lambda _: per_head(rngs.params(), (heads, out_features, length)))
        out = width if concat else out_features
        self.bias = nnx.Dict({t: nnx.Param(jnp.zeros(out)) for t in types})
        self.shape = heads, out_features
        self.attention, self.scores = attention, scores
        self.concat, self.dropout, self.negative_slope = concat, dropout, negative_slope

    @gnnjit.layer
    def __call__(self, v: Any, e: Any, *, key: jax.Array | None = None) -> jax.Array:
        """Called as `model(graph, x, key=None)`, with `x[type]: [N, F]`; gives `[N, heads * F']`
        for each type, or `[N, F']` with `concat=False`. Deterministic without `key`."""

        def value(r: Any) -> jax.Array:
            return (r.src @ self.weight[of_relation(r.key)][...]).reshape(self.shape)

        def score(r: Any) -> jax.Array:
            name = of_relation(r.key)
            k = jnp.einsum("hf,hfd->hd", value(r), self.key[name][...])
            q = (v @ self.query[name][...]).reshape(k.shape)
            if self.scores == "multiplicative":
                return jnp.sum(q * k, axis=-1)
            return jax.nn.leaky_relu(q + k, self.negative_slope)[:, 0]

        out = jnp.zeros(self.shape, v.dtype)
        if self.attention == "across" and e.relations:
            out += attend(e.map(score), None, e.map(value), out, self.dropout, key)
        else:
            for i, r in enumerate(e.relations):
                own_key = None if key is None else jax.random.fold_in(key, i)
                out += attend(score(r), None, value(r), out, self.dropout, own_key)
        return merge_heads(out, self.concat) + self.bias[e.dst_type]
