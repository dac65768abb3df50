"""A full block of a graph network."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import gnnjit
from gnnjit.errors import LayerError
from gnnjit.nn.arguments import check_rngs, check_sizes
from gnnjit.nn.edge_features import edge_vector
from gnnjit.nn.init import glorot


class GraphNet(nnx.Module):
    """`e' = f_e(e, h[u], h[v], g)`, then `h'[v] = f_v(sum over (u -> v) of e', h[v], g)`, then
    `g' = f_g(sum over edges of e', sum over vertices of h', g)`, each f an MLP with one hidden
    layer of its arguments side by side.

    Battaglia et al., "Relational inductive biases, deep learning, and graph networks" (2018),
    algorithm 1 and section 4.2, with sums as aggregations. Features of the edges `e` and of each
    graph `g` are left out where their width is None; new ones are computed all the same, so blocks
    can follow each other.

    Args:
        in_features, hidden, out_features: F, the width of the hidden layers, and F' of all three
            results.
        edge_features, global_features: widths of the edges' and of the graphs' features; None
            without.
        rngs: draws the weights.

    Raises:
        LayerError: a size or `rngs` is no such value.
    """

    def __init__(
        self,
        in_features: int,
        hidden: int,
        out_features: int,
        *,
        edge_features: int | None = None,
        global_features: int | None = None,
        rngs: nnx.Rngs,
    ):
        check_sizes("GraphNet", in_features=in_features, hidden=hidden, out_features=out_features)
        check_sizes("GraphNet", edge_features=edge_features)
        if global_features is not None:
            check_sizes("GraphNet", global_features=global_features)
        check_rngs("GraphNet", rngs)

        def mlp(inputs: int) -> nnx.Dict:
            widths = {"hidden": (inputs, hidden), "out": (hidden, out_features)}
            return nnx.Dict(
                {n: nnx.Linear(*w, kernel_init=glorot, rngs=rngs) for n, w in widths.items()}
            )

        of_graph = global_features or 0
        self.edge = mlp((edge_features or 0) + 2 * in_features + of_graph)
        self.node = mlp(out_features + in_features + of_graph)
        self.whole = mlp(2 * out_features + of_graph)
        self.edge_features = edge_features
        self.global_features = global_features

    @gnnjit.layer
    def __call__(self, v: Any, e: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Called as `model(graph, x, edges=..., globals=...)`: `x` is `[N, F]`, `edges`
        `[E, edge_features]` and `globals` `[G, global_features]`, a row for each graph of a batch.
        The results are those of vertices `[N, F']`, edges `[E, F']` and graphs `[G, F']`."""
        data, shared = [], []
        if self.edge_features is not None:
            data = [edge_vector(e.data, "GraphNet", self.edge_features)]
        if self.global_features is not None:
            shared = [self._of_graph(e.globals)]
        edge = _apply(self.edge, [*data, e.src, v, *shared])
        node = _apply(self.node, [gnnjit.sum(edge), v, *shared])
        pooled = [gnnjit.readout.sum(edge), gnnjit.readout.sum(node)]
        return node, edge, _apply(self.whole, [*pooled, *shared])

    def _of_graph(self, features: jax.Array) -> jax.Array:
        features = jnp.atleast_1d(features)
        if features.shape != (self.global_features,):
            raise LayerError(
                f"GraphNet was given globals= of {list(features.shape)} per graph, expected "
                f"[{self.global_features}], its global_features: pass globals of shape "
                "[num_graphs, global_features]"
            )
        return features


def _apply(mlp: nnx.Dict, values: list[jax.Array]) -> jax.Array:
    return mlp["out"](jax.nn.relu(mlp["hidden"](jnp.concatenate(values))))
