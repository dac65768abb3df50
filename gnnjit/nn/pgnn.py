"""Positions relative to anchor sets."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import gnnjit
from gnnjit.errors import LayerError
from gnnjit.neighborhood import side_by_side
from gnnjit.neighborhood.stages import AnyHDG
from gnnjit.nn.arguments import check_rngs, check_sizes
from gnnjit.nn.init import glorot


class PGNN(nnx.Module):
    """`h'[v] = mean over sets i of M_i[v]` and `z[v]_i = w . M_i[v]`, where `M_i[v] = relu(W
    concat(s(v, u) h[u], h[v]) + b)` and u is the vertex of set i that is nearest to v.

    You, Ying & Leskovec, "Position-aware Graph Neural Networks" (2019), algorithm 1 and section
    5.3, as the authors' code has it. A set that does not reach v gives `W concat(0, h[v])`.
    Layers pass on `h'`; the last one's `z` is the position, which the authors' code divides by its
    L2 norm before pairs of vertices are compared.

    Args:
        in_features, out_features: F and F'.
        rngs: draws the weights.

    Raises:
        LayerError: a size or `rngs` is no such value.
    """

    def __init__(self, in_features: int, out_features: int, *, rngs: nnx.Rngs):
        check_sizes("PGNN", in_features=in_features, out_features=out_features)
        check_rngs("PGNN", rngs)
        self.message = nnx.Linear(2 * in_features, out_features, kernel_init=glorot, rngs=rngs)
        self.position = nnx.Linear(out_features, 1, kernel_init=glorot, rngs=rngs)

    def __call__(self, hdg: AnyHDG, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The new features, `[N, F']`, and the positions, `[N, sets]`.

        Args:
            hdg: `gnnjit.neighborhood.anchors(graph)`.
            x: `[N, F]`.

        Raises:
            LayerError: `hdg` is no such.
            GraphError: `x` does not fit it.
        """
        if hdg.num_levels != 2 or hdg.edges[0] is None:
            raise LayerError(
                f"nn.PGNN: got {hdg}, expected anchor sets: pass gnnjit.neighborhood.anchors(graph)"
            )
        return hdg(x, self.messages, self.sets)

    @gnnjit.layer
    def messages(self, v: Any, e: Any) -> jax.Array:
        """`M_i[v]`, for each vertex and set."""
        near = gnnjit.sum(e.data * e.src)
        return jax.nn.relu(self.message(jnp.concatenate([near, v])))

    def sets(self, level: Any, ends: gnnjit.Bipartite) -> tuple[jax.Array, jax.Array]:
        """Over the sets of each vertex, which the schema level has side by side."""
        found = side_by_side(level, ends)
        return found.mean(axis=1), self.position(found)[..., 0]
