"""A classifier of vertices that have no features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from gnnjit.graph import Graph
from gnnjit.nn.arguments import check_rngs, check_sizes


class Embedded(nnx.Module):
    """A classifier whose features are an embedding of each vertex, which is learned.

    That is the same as features that tell each vertex from all others (the identity matrix) and a
    linear map of them; it knows the vertices of one graph.

    Args:
        num_nodes: N.
        width: of the embedding, F.
        build: makes the classifier of vertices with F features.
        rngs: draws the embedding, normal of deviation 0.1, and what `build` draws.

    Raises:
        LayerError: a size or `rngs` is no such value.
    """

    def __init__(
        self, num_nodes: int, width: int, build: Callable[[nnx.Rngs], Any], rngs: nnx.Rngs
    ):
        check_sizes("Embedded", num_nodes=num_nodes, width=width)
        check_rngs("Embedded", rngs)
        draw = nnx.initializers.normal(0.1)
        self.embedding = nnx.Param(draw(rngs.params(), (num_nodes, width)))
        self.model = build(rngs)

    def __call__(self, graph: Graph, x: Any, *, key: jax.Array | None = None) -> jax.Array:
        """What the classifier says of the embedding; `x` is not read."""
        return self.model(graph, self.embedding[...], key=key)
