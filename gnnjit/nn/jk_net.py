"""Jumping knowledge over rings of hops."""

from __future__ import annotations

from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from flax import nnx

import gnnjit
from gnnjit.errors import LayerError
from gnnjit.neighborhood import side_by_side
from gnnjit.neighborhood.stages import AnyHDG
from gnnjit.nn.arguments import check_choice, check_rngs, check_sizes
from gnnjit.nn.init import glorot

Jump = Literal["concat", "max", "attention"]


class JKNet(nnx.Module):
    """`h'[v] = jump over i of h_i[v]`, where `h_i[v] = relu(W_i mean over u at distance i of x[u] +
    b_i)` for i = 1 ... k, and `h_0[v] = relu(W_0 x[v] + b_0)`.

    Xu et al., "Representation Learning on Graphs with Jumping Knowledge Networks" (2018), section
    4, as Wang et al., "FlexGraph" (2021), section 3.2, express it: each vertex has k neighbours,
    and the i-th is all vertices at distance i. Each vertex chooses how far it looks. Where we
    differ from Xu et al.: they jump between the results of k stacked layers, each of which mixes
    all distances up to its own.

    Args:
        in_features, out_features: F and F'.
        hops: k, those of `gnnjit.neighborhood.hops`.
        jump: "max" over the k + 1, "concat" (the result has `(k + 1) F'` features), or
            "attention", their mean under a softmax of `q . h_i`.
        rngs: draws the weights.

    Raises:
        LayerError: a size, name or `rngs` is no such value.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        hops: int,
        jump: Jump = "max",
        rngs: nnx.Rngs,
    ):
        check_sizes("JKNet", in_features=in_features, out_features=out_features, hops=hops)
        check_choice("JKNet", "jump", jump, get_args(Jump))
        check_rngs("JKNet", rngs)
        kernels = [glorot(rngs.params(), (in_features, out_features)) for _ in range(hops + 1)]
        self.kernel = nnx.Param(jnp.stack(kernels))
        self.bias = nnx.Param(jnp.zeros((hops + 1, out_features)))
        self.query = nnx.Param(glorot(rngs.params(), (out_features, 1))[:, 0])
        self.jump = jump

    def __call__(self, hdg: AnyHDG, x: jax.Array) -> jax.Array:
        """The new features, `[N, F']`, or `[N, (k + 1) F']`.

        Args:
            hdg: `gnnjit.neighborhood.hops(graph, k)`.
            x: `[N, F]`.

        Raises:
            LayerError: `hdg` has other levels, or another number of rings.
            GraphError: `x` does not fit it.
        """
        wanted = self.kernel.shape[0] - 1
        if hdg.num_levels != 2 or hdg.num_types != wanted:
            raise LayerError(
                f"nn.JKNet: got {hdg}, expected rings of {wanted} hops: pass "
                f"gnnjit.neighborhood.hops(graph, {wanted})"
            )
        return hdg(x, self.ring, side_by_side, self.update)

    @gnnjit.layer
    def ring(self, v: Any, e: Any) -> jax.Array:
        """The mean of each ring."""
        return gnnjit.mean(e.src)

    def update(self, roots: jax.Array, rings: jax.Array) -> jax.Array:
        """The jump."""
        every = jnp.concatenate([roots[:, None], rings], axis=1)
        h = jax.nn.relu(jnp.einsum("nkf,kfo->nko", every, self.kernel[...]) + self.bias[...])
        if self.jump == "max":
            return h.max(axis=1)
        if self.jump == "concat":
            return h.reshape(len(h), -1)
        return jnp.einsum("nk,nko->no", jax.nn.softmax(h @ self.query[...]), h)
