"""Attention to metapath instances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import gnnjit
from gnnjit.errors import LayerError
from gnnjit.graph import Bipartite
from gnnjit.graph.validate import shown
from gnnjit.neighborhood import HDG, ShardedHDG, side_by_side
from gnnjit.neighborhood.stages import AnyHDG
from gnnjit.nn.arguments import check_choice, check_rate, check_rngs, check_sizes
from gnnjit.nn.dropped import dropped
from gnnjit.nn.init import glorot, per_head
from gnnjit.nn.schema import linear_of_types, widths

Encoder = Literal["mean", "rotation"]


class MAGNN(nnx.Module):
    """`h'[v] = W sum over metapaths P of beta_P h_P[v] + b`, where `h_P[v] = elu(sum over instances
    i of P at v of alpha_i z_i)`, per head, `alpha = softmax over i of leaky_relu(a_P . z_v + b_P .
    z_i)`, `beta = softmax over P of q . mean over v of tanh(K h_P[v] + k)`; `z_v` is a linear map
    of the features for each type, and `z_i` encodes the `z` of the vertices of an instance.

    Fu, Zhang, Meng & King, "MAGNN: Metapath Aggregated Graph Neural Network for Heterogeneous Graph
    Embedding" (2020), equations 1 to 11. Encoders: "mean" (equation 3), and "rotation" (equation
    5), `o_0 = z_0, o_j = z_j + o_{j-1} * r_Pj`, the last one over the number of vertices, of pairs
    of features as complex numbers and `|r| = 1`. Where we differ: there is no nonlinearity after
    `W`; without `relations` each step of each metapath has its own `r`, in place of one for each
    relation, and shorter metapaths are turned as a whole by the steps that they do not have.

    Args:
        in_features: F, for all types or by type; None where `x` is `z`, `hidden` wide.
        out_features: F'.
        hidden: of one head, for `z`.
        heads: their number.
        types: of vertices, `hdg.types`.
        paths: the number of metapaths, `hdg.num_types`.
        longest: the most vertices of an instance, `hdg.longest`.
        encoder: of instances.
        relations: for each metapath a number for each step, the far end's first: k for the k-th
            relation, from 1 on, -k where a step goes against it and turns back. Left out, each step
            has its own `r`.
        semantic_features: the length of `q`.
        dropout: of `z`, where a key is given.
        rngs: draws the weights.

    Raises:
        LayerError: a size, name, type or `rngs` is no such value, `hidden` is odd and instances are
            rotated, or `relations` does not fit `paths` and `longest`.
    """

    def __init__(
        self,
        in_features: int | Mapping[str, int] | None,
        out_features: int,
        *,
        hidden: int,
        heads: int = 1,
        types: Sequence[str],
        paths: int,
        longest: int = 3,
        encoder: Encoder = "rotation",
        relations: Sequence[Sequence[int]] | None = None,
        semantic_features: int = 128,
        dropout: float = 0.0,
        rngs: nnx.Rngs,
    ):
        check_sizes("MAGNN", out_features=out_features, hidden=hidden, heads=heads, paths=paths)
        check_sizes("MAGNN", longest=longest, semantic_features=semantic_features)
        check_choice("MAGNN", "encoder", encoder, get_args(Encoder))
        check_rate("MAGNN", dropout)
        check_rngs("MAGNN", rngs)
        if encoder == "rotation" and hidden % 2:
            raise LayerError(
                f"nn.MAGNN: hidden is {hidden} and encoder 'rotation', expected an even number: "
                f"features are pairs"
            )
        projected = {} if in_features is None else widths("MAGNN", in_features, types)
        self.linear = linear_of_types(projected, hidden, rngs)
        self.attend_root, self.attend_instance = (
            nnx.Param(jnp.stack([per_head(rngs, heads, hidden) for _ in range(paths)]))
            for _ in range(2)
        )
        self.relations = _checked(relations, paths, longest)
        turns: tuple[int, ...] = (paths, longest - 1)
        if self.relations is not None:
            turns = (max(abs(k) for steps in self.relations for k in steps),)
        self.angle = nnx.Param(_angles(rngs, *turns, hidden // 2))
        self.paths, self.longest = paths, longest
        self.semantic = nnx.Linear(heads * hidden, semantic_features, rngs=rngs)
        self.query = nnx.Param(per_head(rngs, 1, semantic_features)[0])
        self.out = nnx.Linear(heads * hidden, out_features, kernel_init=glorot, rngs=rngs)
        self.encoder, self.dropout = encoder, dropout

    def __call__(
        self, hdg: AnyHDG, x: Mapping[str, jax.Array], *, key: jax.Array | None = None
    ) -> jax.Array:
        """The new features of the roots, `[roots, F']`.

        Args:
            hdg: `gnnjit.neighborhood.metapaths(graph, paths)` of a typed graph.
            x: for each of its types `[N, F]`.
            key: for dropout; deterministic without.

        Raises:
            LayerError: `hdg` is no such, or has other metapaths.
            GraphError: an array does not fit the graph.
        """
        return self.out(self.embed(hdg, x, key=key))

    def embed(
        self, hdg: AnyHDG, x: Mapping[str, jax.Array], *, key: jax.Array | None = None
    ) -> jax.Array:
        """`[roots, heads * hidden]`, what `W` is applied to: `sum over P of beta_P h_P[v]`. Takes
        and raises the same as a call."""
        paths, longest = self.paths, self.longest
        if (hdg.num_levels, hdg.num_types, hdg.longest) != (3, paths, longest):
            raise LayerError(
                f"nn.MAGNN: got {hdg} with at most {hdg.longest} vertices of an instance, expected "
                f"{paths} metapaths of at most {longest}: pass paths=hdg.num_types and "
                f"longest=hdg.longest where the module is made"
            )
        z = {t: x[t] for t in hdg.types if t in x}
        if len(self.linear):
            z = {t: self.linear[t](rows) for t, rows in z.items()}
        z = {t: dropped(rows, self.dropout, key, i) for i, (t, rows) in enumerate(z.items())}
        return self.metapaths(hdg, hdg.apply(self.by_path, z))

    def by_path(self, hdg: HDG | ShardedHDG, z: Mapping[str, jax.Array]) -> jax.Array:
        """`[roots, paths, heads * hidden]`: the `h_P`."""
        kind = hdg.instance_types

        def encode(level: Any, ends: Bipartite) -> jax.Array:
            if self.encoder == "mean" or kind is None:
                return self.mean(level, ends)
            return self.rotated(level, Bipartite(ends.src, kind), self.turns())

        return hdg(z, encode, self.instances, side_by_side)

    def turns(self) -> jax.Array:
        """`[paths * longest, hidden]`, cosines and sines: a vertex is turned by all steps between
        it and the root."""
        angle = jnp.cumsum(self.steps()[:, ::-1], axis=1)[:, ::-1]
        angle = jnp.pad(angle, ((0, 0), (0, 1), (0, 0))).reshape(-1, angle.shape[-1])
        return jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], axis=-1)

    def steps(self) -> jax.Array:
        """`[paths, longest - 1, hidden / 2]`, the angle of each step; 0 after a metapath's end."""
        if self.relations is None:
            return self.angle[...]
        number = np.zeros((self.paths, self.longest - 1), np.int32)
        for path, steps in enumerate(self.relations):
            number[path, : len(steps)] = steps
        sign, at = np.sign(number)[..., None], np.maximum(abs(number), 1) - 1
        return jnp.asarray(sign) * self.angle[...][at]

    @gnnjit.layer
    def mean(self, v: Any, e: Any) -> jax.Array:
        """Instances as the means of their vertices."""
        return gnnjit.mean(e.src)

    @gnnjit.layer
    def rotated(self, v: Any, e: Any, table: jax.Array) -> jax.Array:
        """Instances as the means of their vertices, each turned; `v` is the metapath."""
        cos, sin = jnp.split(table[v * self.longest + e.relation], 2)
        a, b = jnp.split(e.src, 2)
        return gnnjit.mean(jnp.concatenate([a * cos - b * sin, a * sin + b * cos]))

    @gnnjit.layer
    def instances(self, v: Any, e: Any) -> jax.Array:
        """`[heads * hidden]`: attention of the root to the instances of a metapath."""
        score = self.attend_root[...][e.relation] @ v
        score += self.attend_instance[...][e.relation] @ e.src
        weight = gnnjit.softmax(jax.nn.leaky_relu(score, 0.2))
        return jax.nn.elu(gnnjit.sum(weight[:, None] * e.src)).reshape(-1)

    def metapaths(self, hdg: AnyHDG, h: jax.Array) -> jax.Array:
        """`[roots, heads * hidden]`: attention to metapaths, the same at all roots."""
        scores = hdg.mean_of_roots(jnp.tanh(self.semantic(h))) @ self.query[...]
        return jnp.einsum("p,npf->nf", jax.nn.softmax(scores), h)


def _angles(rngs: nnx.Rngs, *shape: int) -> jax.Array:
    return jax.random.uniform(rngs.params(), shape, minval=-jnp.pi, maxval=jnp.pi)


def _checked(relations: Any, paths: int, longest: int) -> tuple[tuple[int, ...], ...] | None:
    """As tuples. Raises LayerError unless there is a number that is not 0 for each step of each
    metapath."""
    if relations is None:
        return None
    fits = (
        isinstance(relations, Sequence)
        and len(relations) == paths
        and all(isinstance(steps, Sequence) and 0 < len(steps) < longest for steps in relations)
        and all(isinstance(k, int) and k for steps in relations for k in steps)
    )
    if not fits:
        raise LayerError(
            f"nn.MAGNN: relations is {shown(relations)}, expected {paths} lists of 1 to "
            f"{longest - 1} numbers, from 1 on, negative where a step goes against its "
            f"relation: write [[1, -1], ...]"
        )
    return tuple(tuple(steps) for steps in relations)
