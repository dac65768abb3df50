"""Principal neighbourhood aggregation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from flax import nnx

import gnnjit
from gnnjit.errors import LayerError
from gnnjit.graph import Graph
from gnnjit.graph.validate import shown
from gnnjit.nn.arguments import check_choice, check_numbers, check_rngs, check_sizes
from gnnjit.nn.edge_features import edge_vector
from gnnjit.nn.init import glorot

Aggregator = Literal["mean", "min", "max", "std", "sum", "var"]
Scaler = Literal["identity", "amplification", "attenuation"]


class PNA(nnx.Module):
    """`h'[v] = W concat(h[v], s a) + b`, for all scalers s of the degree and all aggregators a over
    (u -> v) of `W_m concat(h[v], h[u]) + b_m`.

    Corso et al., "Principal Neighbourhood Aggregation for Graph Nets" (2020), equations 5 to 8: the
    scalers are 1, `log(d + 1) / delta` and `delta / log(d + 1)`, where `delta` is the mean of
    `log(d + 1)` over the vertices of the training graphs. With one linear map as M and U, and one
    tower, as PyG's `PNAConv` has by default. The nonlinearity is left to the caller.

    With `edge_features`, the message is `W_m concat(h[v], h[u], e[u, v]) + b_m`, where `e[u, v]`
    comes as `edges=`.

    Args:
        in_features, out_features: F and F'; messages are as wide as F.
        aggregators: some of "mean", "min", "max", "std", "sum", "var".
        scalers: some of "identity", "amplification", "attenuation".
        delta: as above, `jnp.log(graph.in_degree + 1).mean()`; None: that mean over the vertices
            with edges of the graph that the layer is called on.
        edge_features: width of the edges' features; None without.
        rngs: draws the weights.

    Raises:
        LayerError: a size, number, name or `rngs` is no such value.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        aggregators: Sequence[Aggregator] = ("mean", "min", "max", "std"),
        scalers: Sequence[Scaler] = ("identity", "amplification", "attenuation"),
        delta: float | None = None,
        edge_features: int | None = None,
        rngs: nnx.Rngs,
    ):
        check_sizes("PNA", in_features=in_features, out_features=out_features)
        check_sizes("PNA", edge_features=edge_features)
        self.aggregators = _names("aggregators", aggregators, get_args(Aggregator))
        self.scalers = _names("scalers", scalers, get_args(Scaler))
        _check_delta(delta)
        check_rngs("PNA", rngs)
        inputs = 2 * in_features + (edge_features or 0)
        parts = 1 + len(self.aggregators) * len(self.scalers)
        self.message = nnx.Linear(inputs, in_features, kernel_init=glorot, rngs=rngs)
        self.out = nnx.Linear(parts * in_features, out_features, kernel_init=glorot, rngs=rngs)
        self.delta = delta
        self.edge_features = edge_features

    def __call__(self, graph: Graph, x: Any, *, edges: jax.Array | None = None) -> jax.Array:
        """The new features, `[N, F']`.

        Args:
            graph: a `Graph` or `ShardedGraph`.
            x: `[N, F]`, or a `Bipartite` of two such arrays.
            edges: `[E, edge_features]`, where the module was made with `edge_features`.

        Raises:
            GraphError: an array does not fit the graph.
            LayerError: the edges' features have another width.
        """
        delta = _mean_log_degree(graph) if self.delta is None else self.delta
        return self.propagate(graph, x, delta, edges=edges)

    @gnnjit.layer
    def propagate(self, v: Any, e: Any, delta: Any) -> jax.Array:
        """The layer, of features and `delta`."""
        pair = [v, e.src]
        if self.edge_features is not None:
            pair.append(edge_vector(e.data, "PNA", self.edge_features))
        message = self.message(jnp.concatenate(pair))
        reduced = [getattr(gnnjit, name)(message) for name in self.aggregators]
        found, degree = jnp.concatenate(reduced), gnnjit.degree()
        scale = {
            "identity": 1,
            "amplification": jnp.log(degree + 1.0) / delta,
            "attenuation": delta / jnp.log(jnp.maximum(degree, 1) + 1.0),
        }
        scaled = [jnp.asarray(scale[name], found.dtype) * found for name in self.scalers]
        return self.out(jnp.concatenate([v, *scaled]))


def _mean_log_degree(graph: Graph) -> jax.Array:
    """Over the vertices with edges, since padding has none; 1 where there are none."""
    degree = graph.in_degree
    count = jnp.sum(degree > 0)
    total = jnp.sum(jnp.log(degree + 1.0))
    return jnp.where(count > 0, total / jnp.maximum(count, 1), 1.0)


def _names(what: str, names: Any, choices: tuple[str, ...]) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Sequence) or not names:
        raise LayerError(
            f"nn.PNA: {what} is {shown(names)}, expected some of "
            f"{', '.join(map(repr, choices))}: pass a list of them"
        )
    for i, name in enumerate(names):
        check_choice("PNA", f"{what}[{i}]", name, choices)
    return tuple(names)


def _check_delta(delta: Any) -> None:
    if delta is None:
        return
    check_numbers("PNA", delta=delta)
    if isinstance(delta, int | float) and delta <= 0:
        raise LayerError(
            f"nn.PNA: delta is {delta}, expected a positive number: pass "
            "jnp.log(graph.in_degree + 1).mean() of the training graphs"
        )
