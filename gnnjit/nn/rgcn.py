"""Relational graph convolution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import gnnjit
from gnnjit.errors import LayerError
from gnnjit.graph.schema import Relation
from gnnjit.nn.arguments import check_choice, check_flags, check_rngs, check_sizes
from gnnjit.nn.init import glorot
from gnnjit.nn.schema import check_schema, linear_of_types, of_relation, widths

FEW = 8
"""Features to a basis at least where messages are made of the bases, not of relations' matrices."""

stacked = nnx.initializers.glorot_uniform(batch_axis=0)


class RGCN(nnx.Module):
    """`h'[v] = W_0 h[v] + sum over relations r of mean over (u -> v) in r of W_r h[u]`.

    Schlichtkrull et al., "Modeling Relational Data with Graph Convolutional Networks" (2018),
    equation 2 with `c = |N_r(v)|`, or with `mean="all"` that of section 5.2, `c = sum over r of
    |N_r(v)|`: one mean over the edges of all relations; the nonlinearity is left to the caller.
    With `bases` the matrices of all relations are combinations of so many (equation 3), which all
    types must then be as wide for. With `blocks` each matrix is block-diagonal (equation 4).

    It is made for a typed graph (`types`, `relations`), or for a graph whose edges have relations
    by number (`num_relations`), as knowledge graphs have hundreds of.

    Where we differ: vertices may have types, each with a `W_0`, a bias and a width of its own.

    Args:
        in_features: F, for all types or by type.
        out_features: F'.
        types, relations: those of a typed graph: `graph.types`, `graph.relations`.
        num_relations: R, of a graph whose edges have relations by number: `graph.num_relations`.
        bases: B; None: a matrix for each relation.
        blocks: blocks of each matrix, of relations by number; both widths are multiples of it.
        mean: "relation" or "all", of relations by number: the edges that a mean is over.
        use_bias: whether a bias is added.
        rngs: draws the weights.

    Raises:
        LayerError: a size, flag, choice, type, relation or `rngs` is no such value, or both or
            neither of the two kinds of graphs are named, or both `bases` and `blocks` are.
    """

    def __init__(
        self,
        in_features: int | Mapping[str, int],
        out_features: int,
        *,
        types: Sequence[str] | None = None,
        relations: Sequence[Relation] | None = None,
        num_relations: int | None = None,
        bases: int | None = None,
        blocks: int | None = None,
        mean: str = "relation",
        use_bias: bool = True,
        rngs: nnx.Rngs,
    ):
        check_choice("RGCN", "mean", mean, ("relation", "all"))
        _check_kind(types, relations, num_relations, bases, blocks, mean)
        given = {"bases": bases, "blocks": blocks, "num_relations": num_relations}
        check_sizes("RGCN", out_features=out_features)
        check_sizes("RGCN", **{k: v for k, v in given.items() if v is not None})
        check_flags("RGCN", use_bias=use_bias)
        check_rngs("RGCN", rngs)
        self.num_relations = num_relations
        self.mean = mean
        if num_relations is not None:
            check_sizes("RGCN", in_features=in_features)
            self._numbered(int(in_features), out_features, bases, blocks, use_bias, rngs)  # type: ignore
            return
        check_schema("RGCN", types, relations)
        sizes = widths("RGCN", in_features, types)  # type: ignore[arg-type]
        self.own = linear_of_types(sizes, out_features, rngs, use_bias)
        names = {of_relation(key): sizes[key[0]] for key in relations or ()}
        if bases is None:
            self.basis = None
            self.weight = nnx.Dict(
                {r: nnx.Param(glorot(rngs.params(), (n, out_features))) for r, n in names.items()}
            )
            return
        check_sizes("RGCN", **{"in_features, with bases, of all types": _one_width(sizes)})
        shape = bases, next(iter(sizes.values())), out_features
        self.basis = nnx.Param(stacked(rngs.params(), shape))
        self.weight = nnx.Dict({r: nnx.Param(glorot(rngs.params(), (1, bases))[0]) for r in names})

    def _numbered(
        self, wide: int, out: int, bases: int | None, blocks: int | None, bias: bool,
        rngs: nnx.Rngs,
    ) -> None:  # fmt: skip
        """`weight: [R, F, F']`, or `[R, bases]`, or `[R, blocks, F / blocks, F' / blocks]`."""
        self.own = nnx.Linear(wide, out, use_bias=bias, kernel_init=glorot, rngs=rngs)
        shape: tuple[int, ...] = (wide, out)
        if blocks is not None:
            if wide % blocks or out % blocks:
                raise LayerError(
                    f"nn.RGCN: in_features is {wide} and out_features {out}, expected multiples of "
                    f"blocks={blocks}: pass a number of blocks that divides both"
                )
            shape = blocks, wide // blocks, out // blocks
        if bases is None:
            self.basis, key = None, rngs.params()
            init = nnx.initializers.glorot_uniform(batch_axis=tuple(range(len(shape) - 1)))
            self.weight = nnx.Param(init(key, (self.num_relations, *shape)))
            return
        self.basis = nnx.Param(stacked(rngs.params(), (bases, wide, out)))
        self.weight = nnx.Param(glorot(rngs.params(), (self.num_relations, bases)))

    @gnnjit.layer
    def __call__(self, v: Any, e: Any) -> Any:
        """Called as `model(graph, x)`. On a typed graph `x[type]: [N, F]` gives `[N, F']` for each
        type, on one with relations by number `x: [N, F]` gives `[N, F']`."""
        if self.num_relations is not None:
            return self._of_numbers(v, e)
        own: Any = self.own
        out = own[e.dst_type](v)
        for r in e.relations:
            weight = self.weight[of_relation(r.key)][...]
            if self.basis is not None:
                weight = jnp.tensordot(weight, self.basis[...], axes=1)
            out += gnnjit.mean(r.src @ weight)
        return out

    def _of_numbers(self, v: Any, e: Any) -> jax.Array:
        if e.num_relations != self.num_relations:
            raise LayerError(
                f"nn.RGCN was made for {self.num_relations} relations, but the graph has "
                f"{e.num_relations}: pass num_relations=graph.num_relations"
            )
        weight = self.weight[...]
        if self.basis is not None:
            bases = self.basis[...]
            if FEW * len(bases) <= len(v):
                of_bases = jnp.einsum("i,bij->bj", e.src, bases)
                message = weight[e.relation] @ of_bases
            else:
                message = e.src @ jnp.einsum("rb,bij->rij", weight, bases)[e.relation]
        elif weight.ndim == 4:
            parts = e.src.reshape(weight.shape[1], -1)
            message = jnp.einsum("bi,bij->bj", parts, weight[e.relation]).reshape(-1)
        else:
            message = e.src @ weight[e.relation]
        if self.mean == "all":
            return self.own(v) + gnnjit.mean(message)
        return self.own(v) + gnnjit.sum(message / e.relation_degree)


def _one_width(sizes: Mapping[str, int]) -> Any:
    found = set(sizes.values())
    return next(iter(found)) if len(found) == 1 else dict(sizes)


def _check_kind(
    types: Any, relations: Any, number: Any, bases: Any, blocks: Any, mean: str
) -> None:
    """Raises LayerError unless one kind of graph is named, and its options."""
    typed = types is not None or relations is not None
    if typed == (number is not None):
        got = "relations and num_relations" if typed else "neither relations nor num_relations"
        raise LayerError(
            f"nn.RGCN got {got}, expected those of one kind of graph: pass types= and relations= "
            "of a typed graph, or num_relations= of a graph whose edges have relations by number"
        )
    if blocks is not None and (typed or bases is not None):
        other = "bases" if bases is not None else "types"
        raise LayerError(
            f"nn.RGCN got both blocks and {other}, expected blocks with num_relations alone: "
            f"leave one of them out"
        )
    if typed and mean != "relation":
        raise LayerError(
            f"nn.RGCN got mean={mean!r} and types, expected it with num_relations alone: leave it "
            "out"
        )
