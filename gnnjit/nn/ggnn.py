"""Gated graph neural network."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import gnnjit
from gnnjit.errors import LayerError
from gnnjit.graph import Graph
from gnnjit.graph.validate import refuse_sparse
from gnnjit.nn.arguments import check_rngs, check_sizes, float_features
from gnnjit.nn.edge_features import check_one_set
from gnnjit.nn.init import glorot


class GGNN(nnx.Module):
    """`steps` times `h[v] = GRU(h[v], a[v])`, `a[v] = sum over (u -> v) of W[type] h[u] + b[type]`.

    Li, Tarlow, Brockschmidt & Zemel, "Gated Graph Sequence Neural Networks" (2016), section 3.2,
    equations 1 to 6; the benchmark GG-NN of NeuGraph (2019), section 5. Features of fewer than
    `features` entries are padded with zeros (equation 1).

    Where we differ: the paper sends along both directions of an edge, with own weights; here an
    edge in the other direction is an edge of another type.

    Args:
        features: width of a vertex's state.
        steps: how often it is updated.
        edge_types: number of matrices `W`.
        rngs: draws the weights.

    Raises:
        LayerError: a size or `rngs` is no such value.
    """

    def __init__(self, features: int, *, steps: int = 2, edge_types: int = 1, rngs: nnx.Rngs):
        check_sizes("GGNN", features=features, edge_types=edge_types)
        check_sizes("GGNN", least=0, steps=steps)
        check_rngs("GGNN", rngs)

        def linear(width: int, use_bias: bool = False) -> nnx.Linear:
            return nnx.Linear(features, width, use_bias=use_bias, kernel_init=glorot, rngs=rngs)

        self.message = linear(edge_types * features, use_bias=True)
        self.gates_in = linear(2 * features, use_bias=True)
        self.gates_own = linear(2 * features)
        self.candidate_in = linear(features, use_bias=True)
        self.candidate_own = linear(features)
        self.features = features
        self.steps = steps
        self.edge_types = edge_types

    def __call__(self, graph: Graph, x: jax.Array, *, edges: jax.Array | None = None) -> jax.Array:
        """The state after all steps, `[N, features]`.

        Args:
            graph: a graph of one vertex set, as each step reads what the one before it wrote.
            x: `[N, F]`, F at most `features`.
            edges: `int[E]`, the type of each edge, below their number; needed where there are
                several.

        Raises:
            GraphError: an array does not fit the graph.
            LayerError: features or types are none, or `edges` is missing.
        """
        check_one_set(graph, x, "GGNN")
        refuse_sparse("GGNN: x", x)
        x = float_features("GGNN", x)
        if x.shape[1] > self.features:
            raise LayerError(
                f"GGNN was given x of shape {list(x.shape)}, expected [num_nodes, F] with F at "
                f"most {self.features}, its features: apply a linear layer before, or make it wider"
            )
        h = jnp.pad(x, ((0, 0), (0, self.features - x.shape[1])))
        for _ in range(self.steps):
            h = self.step(graph, h, edges=edges)
        return h

    @gnnjit.layer
    def step(self, v: jax.Array, e: Any) -> jax.Array:
        """The layer of one step."""
        messages = self.message(e.src).reshape(self.edge_types, self.features)
        a = gnnjit.sum(messages[0] if self.edge_types == 1 else messages[e.data])
        update, reset = jnp.split(jax.nn.sigmoid(self.gates_in(a) + self.gates_own(v)), 2)
        candidate = jnp.tanh(self.candidate_in(a) + self.candidate_own(reset * v))
        return (1 - update) * v + update * candidate
