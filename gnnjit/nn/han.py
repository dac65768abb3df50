"""Heterogeneous graph attention."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import gnnjit
from gnnjit.graph.schema import Relation
from gnnjit.nn.arguments import check_numbers, check_rate, check_rngs, check_sizes
from gnnjit.nn.attention import attend
from gnnjit.nn.hgt import check_heads
from gnnjit.nn.init import per_head
from gnnjit.nn.schema import (
    AnyTypedGraph,
    check_schema,
    linear_of_types,
    of_relation,
    real_rows,
    widths,
)


class HAN(nnx.Module):
    """`h'[v] = sum over relations r of beta_r z_r[v]`, `z_r[v] = relu(sum over (u -> v) in r of
    alpha[u, v] W h[u])`, per head, where `alpha = softmax over u in r of leaky_relu(a_r . W h[u] +
    b_r . W h[v])` and `beta = softmax over r of the mean over v of q . tanh(K z_r[v] + k)`.

    Wang et al., "Heterogeneous Graph Attention Network" (2019), equations 1 to 9: attention to the
    neighbours of each relation, then to relations. The paper's relations are meta-paths from a type
    to itself. Vertices without relations get zeros. Padding takes no part in the mean.

    Args:
        in_features: F, for all types or by type.
        out_features: F', of all heads together.
        heads: their number, which divides F'.
        types, relations: those of the graph: `graph.types`, `graph.relations`.
        semantic_features: the length of `q`.
        dropout: rate for the coefficients `alpha`, from 0 to 1.
        negative_slope: of the leaky ReLU.
        rngs: draws the weights.

    Raises:
        LayerError: a size, number, type, relation or `rngs` is no such value, or heads do not
            divide F'.
    """

    def __init__(
        self,
        in_features: int | Mapping[str, int],
        out_features: int,
        *,
        heads: int = 1,
        types: Sequence[str],
        relations: Sequence[Relation],
        semantic_features: int = 128,
        dropout: float = 0.0,
        negative_slope: float = 0.2,
        rngs: nnx.Rngs,
    ):
        check_schema("HAN", types, relations)
        check_sizes("HAN", out_features=out_features, heads=heads)
        check_sizes("HAN", semantic_features=semantic_features)
        check_heads("HAN", out_features, heads)
        check_rate("HAN", dropout)
        check_numbers("HAN", negative_slope=negative_slope)
        check_rngs("HAN", rngs)
        self.linear = linear_of_types(widths("HAN", in_features, types), out_features, rngs)
        self.shape = heads, out_features // heads
        self.attend_src, self.attend_dst = (
            nnx.Dict({of_relation(k): nnx.Param(per_head(rngs, *self.shape)) for k in relations})
            for _ in range(2)
        )
        self.semantic = nnx.Linear(out_features, semantic_features, rngs=rngs)
        self.query = nnx.Param(per_head(rngs, 1, semantic_features)[0])
        self.dropout = dropout
        self.negative_slope = negative_slope

    def __call__(
        self, graph: AnyTypedGraph, x: Mapping[str, jax.Array], *, key: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        """The new features, `[N, F']` for each type; deterministic without `key`.

        Args:
            graph: a typed graph.
            x: for each type `[N, F]`.
            key: for dropout.

        Raises:
            GraphError: an array does not fit the graph.
        """
        graph.check_nodes(x)
        z = self.projected(graph, x)  # once for all relations
        of_relations = self.neighbours(graph, z, key=key)
        return {t: self.weighted(found, real_rows(graph, t)) for t, found in of_relations.items()}

    @gnnjit.layer
    def projected(self, v: Any, e: Any) -> jax.Array:
        """`W h` of each vertex, `[F']`."""
        own: Any = self.linear
        return own[e.dst_type](v)

    @gnnjit.layer
    def neighbours(
        self, v: Any, e: Any, *, key: jax.Array | None = None
    ) -> list[tuple[jax.Array, jax.Array]]:
        """Of each relation its attention at this vertex, of `W h`, `[F']`, and `tanh(K z + k)`."""
        found = []
        for i, r in enumerate(e.relations):
            z_u, z_v = r.src.reshape(self.shape), v.reshape(self.shape)
            name = of_relation(r.key)
            score = jnp.sum(z_u * self.attend_src[name][...], axis=-1)
            score += jnp.sum(z_v * self.attend_dst[name][...], axis=-1)
            score = jax.nn.leaky_relu(score, self.negative_slope)
            own_key = None if key is None else jax.random.fold_in(key, i)
            out = attend(score, None, z_u, z_v, self.dropout, own_key)
            z = jax.nn.relu(out).reshape(-1)
            found.append((z, jnp.tanh(self.semantic(z))))
        return found or [(jnp.zeros_like(v), jnp.zeros(self.semantic.out_features))]

    def weighted(
        self, of_relations: list[tuple[jax.Array, jax.Array]], real: jax.Array | None
    ) -> jax.Array:
        """`[N, F']`: the attention to relations, the same at all vertices. `real: bool[N]`, False
        on padding."""
        if len(of_relations) == 1:
            return of_relations[0][0]
        hidden = jnp.stack([mean_of_rows(hidden, real) for _, hidden in of_relations])
        shares = jax.nn.softmax(hidden @ self.query[...])
        terms = zip(shares, of_relations, strict=True)
        return functools.reduce(jnp.add, (share * z for share, (z, _) in terms))


def mean_of_rows(x: jax.Array, real: jax.Array | None) -> jax.Array:
    """`[N, F] -> [F]`; of rows that are not `real`, nothing; 0 where none is."""
    if real is None:
        return x.sum(axis=0) / max(len(x), 1)
    return jnp.where(real[:, None], x, 0).sum(axis=0) / jnp.maximum(real.sum(), 1)
