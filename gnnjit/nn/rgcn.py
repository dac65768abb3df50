"""Relational graph convolution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import gnnjit
from gnnjit.graph.schema import Relation
from gnnjit.nn.arguments import check_flags, check_rngs, check_sizes
from gnnjit.nn.init import glorot
from gnnjit.nn.schema import check_schema, linear_of_types, of_relation, widths


class RGCN(nnx.Module):
    """`h'[v] = W_0 h[v] + sum over relations r of mean over (u -> v) in r of W_r h[u]`.

    Schlichtkrull et al., "Modeling Relational Data with Graph Convolutional Networks" (2018),
    equation 2 with `c = |N_r(v)|`; the nonlinearity is left to the caller. With `bases` the
    matrices of all relations are combinations of so many (equation 3), which all types must then
    be as wide for.

    Where we differ: vertices may have types, each with a `W_0`, a bias and a width of its own.

    Args:
        in_features: F, for all types or by type.
        out_features: F'.
        types, relations: those of the graph: `graph.types`, `graph.relations`.
        bases: B; None: a matrix for each relation.
        use_bias: whether a bias is added.
        rngs: draws the weights.

    Raises:
        LayerError: a size, flag, type, relation or `rngs` is no such value.
    """

    def __init__(
        self,
        in_features: int | Mapping[str, int],
        out_features: int,
        *,
        types: Sequence[str],
        relations: Sequence[Relation],
        bases: int | None = None,
        use_bias: bool = True,
        rngs: nnx.Rngs,
    ):
        check_schema("RGCN", types, relations)
        check_sizes("RGCN", out_features=out_features, bases=1 if bases is None else bases)
        check_flags("RGCN", use_bias=use_bias)
        check_rngs("RGCN", rngs)
        sizes = widths("RGCN", in_features, types)
        self.own = linear_of_types(sizes, out_features, rngs, use_bias)
        names = {of_relation(key): sizes[key[0]] for key in relations}
        if bases is None:
            self.basis = None
            self.weight = nnx.Dict(
                {r: nnx.Param(glorot(rngs.params(), (n, out_features))) for r, n in names.items()}
            )
            return
        check_sizes("RGCN", **{"in_features, with bases, of all types": _one_width(sizes)})
        shape = bases, next(iter(sizes.values())), out_features
        self.basis = nnx.Param(nnx.initializers.glorot_uniform(batch_axis=0)(rngs.params(), shape))
        self.weight = nnx.Dict({r: nnx.Param(glorot(rngs.params(), (1, bases))[0]) for r in names})

    @gnnjit.layer
    def __call__(self, v: Any, e: Any) -> jax.Array:
        """Called as `model(graph, x)`, with `x[type]: [N, F]`; gives `[N, F']` for each type."""
        out = self.own[e.dst_type](v)
        for r in e.relations:
            weight = self.weight[of_relation(r.key)][...]
            if self.basis is not None:
                weight = jnp.tensordot(weight, self.basis[...], axes=1)
            out += gnnjit.mean(r.src @ weight)
        return out


def _one_width(sizes: Mapping[str, int]) -> Any:
    found = set(sizes.values())
    return next(iter(found)) if len(found) == 1 else dict(sizes)
