"""Embeddings of users and items, and what layers make of them."""

from __future__ import annotations

import jax
from flax import nnx

from gnnjit.graph import Graph
from gnnjit.nn.arguments import check_rngs, check_sizes
from gnnjit.nn.light_gcn import LightGCN
from gnnjit.nn.ngcf import NGCF

RECOMMENDERS = ("lightgcn", "ngcf")
"""What `Recommender` knows, by name."""


class Recommender(nnx.Module):
    """An embedding for each user and item, and the layers of LightGCN or NGCF over them.

    The score of a user and an item is the product of their rows of `model(graph)`.

    Args:
        model: a name in `RECOMMENDERS`.
        num_nodes: users and items together.
        hidden: width of the embeddings and of each layer.
        layers: steps of propagation.
        dropout: of what a layer of NGCF computes; without effect on LightGCN.
        rngs: draws the embeddings and weights.

    Raises:
        LayerError: a size or `rngs` is no such value.
        ValueError: on an unknown model.
    """

    def __init__(
        self,
        model: str,
        num_nodes: int,
        *,
        hidden: int = 64,
        layers: int = 3,
        dropout: float = 0.0,
        rngs: nnx.Rngs,
    ):
        if model not in RECOMMENDERS:
            raise ValueError(f"unknown model {model!r}, expected one of {', '.join(RECOMMENDERS)}")
        check_sizes("Recommender", num_nodes=num_nodes, hidden=hidden)
        check_rngs("Recommender", rngs)
        # As both authors draw them: normal of deviation 0.1, and Glorot's.
        draw = nnx.initializers.normal(0.1)
        if model == "ngcf":
            draw = nnx.initializers.glorot_uniform()
        self.embedding = nnx.Param(draw(rngs.params(), (num_nodes, hidden)))
        if model == "ngcf":
            self.layers: LightGCN | NGCF = NGCF(
                hidden, [hidden] * layers, dropout=dropout, normalize=True, rngs=rngs
            )
        else:
            self.layers = LightGCN(layers)

    def __call__(self, graph: Graph, *, key: jax.Array | None = None) -> jax.Array:
        """What is scored of all users and, behind them, items, `[N, F]`; deterministic without
        `key`.

        Args:
            graph: users and items as one vertex set, with an edge both ways for each interaction.
            key: for dropout.
        """
        if isinstance(self.layers, NGCF):
            return self.layers(graph, self.embedding[...], key=key)
        return self.layers(graph, self.embedding[...])
