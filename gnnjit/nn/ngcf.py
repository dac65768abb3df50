"""Neural graph collaborative filtering."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import gnnjit
from gnnjit.errors import LayerError
from gnnjit.graph import Graph
from gnnjit.graph.validate import shown
from gnnjit.nn.arguments import (
    check_choice,
    check_flags,
    check_numbers,
    check_rate,
    check_rngs,
    check_sizes,
)
from gnnjit.nn.edge_features import check_weights, check_whole
from gnnjit.nn.init import glorot
from gnnjit.nn.normalized import both_ways, degree_factors, neighbours, paired

FORMS = ("code", "paper")


class NGCF(nnx.Module):
    """`z = concat(h_0, ..., h_L)`, with layers over users and items: Wang et al., "Neural Graph
    Collaborative Filtering" (2019), in one of two forms.

    - "code", as the authors' code has it: `h_{l+1}[v] = leaky_relu(W_1 m[v] + b_1) + leaky_relu(W_2
      (m[v] * h_l[v]) + b_2)`, `m[v]` the mean of `h_l` over v and the vertices u with an edge
      `u -> v`.
    - "paper", equation 7: `h_{l+1}[v] = leaky_relu(W_1 (h_l[v] + m[v]) + W_2 (m[v] * h_l[v]))`,
      `m[v] = sum over (u -> v) of h_l[u] / sqrt(d[u] d[v])`.

    `h_0`, the embeddings of users and items, are those of the model that it is part of. The score
    of a user and an item is the dot product of their rows (equation 10).

    The graph is bipartite, from users to items, with a `Bipartite` of their embeddings; each layer
    then runs both ways. Or it is one graph of users and, behind them, items, with an edge both ways
    for each interaction.

    Where we differ: weights of the edges may be given; degrees are then their sums, and a vertex
    weighs 1 in its own mean. As in the authors' code, `dropout` acts on what a layer computes, and
    `normalize` divides each row of `h_1, ..., h_L` in z by its L2 norm. The paper and the code
    drop edges too (section 3.4.2); here none are dropped. Biases start at 0, in the code at random.

    Args:
        in_features: F.
        hidden: the width of each layer, as in `[64, 64, 64]`.
        form: "code" or "paper".
        dropout: rate, from 0 to 1, where a `key` is given.
        negative_slope: of the leaky ReLU.
        normalize: divide the rows by their L2 norms.
        rngs: draws the weights.

    Raises:
        LayerError: a size, number, form, flag or `rngs` is no such value.
    """

    def __init__(
        self,
        in_features: int,
        hidden: Sequence[int],
        *,
        form: str = "code",
        dropout: float = 0.0,
        negative_slope: float = 0.2,
        normalize: bool = False,
        rngs: nnx.Rngs,
    ):
        check_sizes("NGCF", in_features=in_features)
        _check_widths(hidden)
        check_choice("NGCF", "form", form, FORMS)
        check_rate("NGCF", dropout)
        check_numbers("NGCF", negative_slope=negative_slope)
        check_flags("NGCF", normalize=normalize)
        check_rngs("NGCF", rngs)
        widths = [in_features, *hidden]
        self.own, self.both = (
            nnx.List(
                nnx.Linear(i, o, use_bias=form == "code", kernel_init=glorot, rngs=rngs)
                for i, o in itertools.pairwise(widths)
            )
            for _ in range(2)
        )
        self.form = form
        self.dropout = dropout
        self.negative_slope = negative_slope
        self.normalize = normalize

    def __call__(
        self,
        graph: Graph,
        x: Any,
        *,
        edges: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> Any:
        """The combined embeddings: `[N, F + sum(hidden)]`, or a `Bipartite` of two such arrays, as
        `x` is; deterministic without `key`.

        Args:
            graph: a `Graph` or `ShardedGraph`.
            x: `[N, F]`, or a `Bipartite` of users and items.
            edges: `[E]`, weights of the edges; 1 if left out.
            key: for dropout.

        Raises:
            GraphError: an array does not fit the graph.
            LayerError: features are no numbers, or the graph is a block of a sampled batch.
        """
        check_whole(graph, "NGCF")
        check_weights(edges, "NGCF")
        h, at = degree_factors("NGCF", graph, x, edges, int(self.form == "code"))
        found = [h]
        for level in range(len(self.own)):
            keys = iter(jax.random.split(jax.random.fold_in(key, level)) if key is not None else [])

            def step(g: Any, x: Any, level: int = level, keys: Any = keys) -> jax.Array:
                weighted, key = edges is not None, next(keys, None)
                return self.propagate(g, x, edges=edges, level=level, weighted=weighted, key=key)

            h = both_ways(graph, paired(h, at), step)
            found.append(jax.tree.map(_unit, h) if self.normalize else h)
        return jax.tree.map(lambda *rows: jnp.concatenate(rows, axis=-1), *found)

    @gnnjit.layer(static_argnames=("level", "weighted"))
    def propagate(self, v: Any, e: Any, *, level: int, weighted: bool, key: Any) -> jax.Array:
        """One layer, of features with the vertices' factors: `[F']` of `hidden[level]`."""
        own, at = v
        first, second = self.own[level], self.both[level]
        if self.form == "code":
            at = at if weighted else jax.lax.stop_gradient(at)
            u, _ = e.src
            mean = at * (at * (own + gnnjit.sum(e.data * u if weighted else u)))
            out = self._leaky(first(mean)) + self._leaky(second(mean * own))
        else:
            near = neighbours(v, e.src, e.data if weighted else None)
            out = self._leaky(first(own + near) + second(own * near))
        return out if key is None else gnnjit.dropout(out, self.dropout, key)

    def _leaky(self, x: jax.Array) -> jax.Array:
        return jax.nn.leaky_relu(x, self.negative_slope)


def _unit(rows: jax.Array) -> jax.Array:
    square = jnp.sum(rows * rows, axis=-1, keepdims=True)
    some = square > 0  # a row of zeros stays zero, with a zero gradient
    return jnp.where(some, rows * jax.lax.rsqrt(jnp.where(some, square, 1)), rows)


def _check_widths(hidden: Any) -> None:
    if isinstance(hidden, str) or not isinstance(hidden, Sequence):
        raise LayerError(
            f"nn.NGCF: hidden is {shown(hidden)}, expected the widths of the layers: pass a list, "
            "as in [64, 64, 64]"
        )
    for i, width in enumerate(hidden):
        check_sizes("NGCF", **{f"hidden[{i}]": width})
