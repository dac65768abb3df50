"""Heterogeneous graph transformer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import gnnjit
from gnnjit.errors import LayerError
from gnnjit.graph.schema import Relation
from gnnjit.nn.arguments import check_rngs, check_sizes
from gnnjit.nn.schema import AnyTypedGraph, check_schema, linear_of_types, of_relation, widths


class HGT(nnx.Module):
    """`h'[v] = g A gelu(sum over (u -> v) of alpha[u, v] M_r m[u]) + (1 - g) h[v]`, over the edges
    of all relations r, per head, where `alpha = softmax over all u of mu_r (W_r k[u] . q[v]) /
    sqrt(F' / heads)`.

    Hu et al., "Heterogeneous Graph Transformer" (2020), equations 3 to 5, without relative
    temporal encoding. `k, q, m, A` are linear maps of each vertex type, `W_r, M_r` matrices and
    `mu_r` numbers of each relation. The gate `g` of the skip connection, a number of each type, is
    that of the authors' code; there is no skip connection where F is not F'.

    Args:
        in_features: F, for all types or by type.
        out_features: F', of all heads together.
        heads: their number, which divides F'.
        types, relations: those of the graph: `graph.types`, `graph.relations`.
        rngs: draws the weights.

    Raises:
        LayerError: a size, type, relation or `rngs` is no such value, or heads do not divide F'.
    """

    def __init__(
        self,
        in_features: int | Mapping[str, int],
        out_features: int,
        *,
        heads: int = 1,
        types: Sequence[str],
        relations: Sequence[Relation],
        rngs: nnx.Rngs,
    ):
        check_schema("HGT", types, relations)
        check_sizes("HGT", out_features=out_features, heads=heads)
        check_rngs("HGT", rngs)
        check_heads("HGT", out_features, heads)
        sizes = widths("HGT", in_features, types)
        self.key, self.query, self.value = (
            linear_of_types(sizes, out_features, rngs) for _ in range(3)
        )
        self.out = linear_of_types(dict.fromkeys(types, out_features), out_features, rngs)
        shape = heads, out_features // heads, out_features // heads
        draw = nnx.initializers.glorot_uniform(batch_axis=0)
        names = [of_relation(key) for key in relations]
        self.attend, self.message = (
            nnx.Dict({r: nnx.Param(draw(rngs.params(), shape)) for r in names}) for _ in range(2)
        )
        self.prior = nnx.Dict({r: nnx.Param(jnp.ones(heads)) for r in names})
        self.skip = nnx.Dict(
            {t: nnx.Param(jnp.ones(())) for t, n in sizes.items() if n == out_features}
        )
        self.shape = shape[:2]

    def __call__(self, graph: AnyTypedGraph, x: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """The new features, `[N, F']` for each type.

        Args:
            graph: a typed graph, sharded or streamed ones too.
            x: for each type `[N, F]`.

        Raises:
            GraphError: an array does not fit the graph.
        """
        graph.check_nodes(x)
        projected = {}  # once for all relations
        for t, rows in x.items():
            maps = {"key": self.key[t], "query": self.query[t], "value": self.value[t]}
            heads = {name: linear(rows).reshape(-1, *self.shape) for name, linear in maps.items()}
            projected[t] = heads | {"own": rows}
        return self.propagate(graph, projected)

    @gnnjit.layer
    def propagate(self, v: Any, e: Any) -> jax.Array:
        """The layer, of projected features."""

        def score(r: Any) -> jax.Array:
            name = of_relation(r.key)
            key = jnp.einsum("hd,hdf->hf", r.src["key"], self.attend[name][...])
            score = jnp.sum(key * v["query"], axis=-1)
            return score * self.prior[name][...] / self.shape[1] ** 0.5

        def message(r: Any) -> jax.Array:
            return jnp.einsum("hd,hdf->hf", r.src["value"], self.message[of_relation(r.key)][...])

        weight = gnnjit.softmax(e.map(score))
        total = gnnjit.sum(weight[:, None] * e.map(message)).reshape(-1)
        out = self.out[e.dst_type](jax.nn.gelu(total, approximate=False))
        if e.dst_type not in self.skip:
            return out
        gate = jax.nn.sigmoid(self.skip[e.dst_type][...])
        return gate * out + (1 - gate) * v["own"]


def check_heads(module: str, out_features: int, heads: int) -> None:
    """Raises LayerError unless heads divide the features."""
    if out_features % heads:
        raise LayerError(
            f"nn.{module}: {heads} heads do not divide out_features={out_features}, expected a "
            "multiple: out_features is the width of all heads together"
        )
