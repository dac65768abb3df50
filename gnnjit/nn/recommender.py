"""Embeddings of users and items, and what layers make of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from gnnjit.nn.arguments import check_rngs, check_sizes
from gnnjit.nn.init import glorot
from gnnjit.nn.light_gcn import LightGCN
from gnnjit.nn.ngcf import NGCF
from gnnjit.nn.pinsage import PinSage
from gnnjit.nn.unit import unit

RECOMMENDERS = ("lightgcn", "ngcf", "pinsage")
"""What `Recommender` knows, by name."""

TEMPERATURE = 0.15
"""Of PinSage's scores: with cosines alone, a softmax could not prefer one item to all others."""


class Recommender(nnx.Module):
    """An embedding for each user and item, and the layers of LightGCN, NGCF or PinSage over them.

    NGCF's layers have the form of its authors' code. Where we differ: the first matrix of each
    layer starts as the identity, so that its first term is a mean over the neighbours, and
    embeddings start as LightGCN's do; the authors draw both from Glorot's uniform distribution.

    The score of a user and an item is the product of their rows of `model(graph)`. With PinSage
    those are the embedding plus `G2 relu(G1 h + g)` of the last layer's `h` (Ying et al. 2018,
    algorithm 2), all of one length, so that scores are cosines over `TEMPERATURE`. Where we differ:
    their vertices have features, not an embedding of their own; and rows have any length.

    Args:
        model: a name in `RECOMMENDERS`.
        num_nodes: users and items together.
        hidden: width of the embeddings and of each layer.
        layers: steps of propagation.
        dropout: of what a layer of NGCF computes; without effect on the others.
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
        # LightGCN's authors draw them so; with Glorot's, NGCF learns less in as many steps.
        draw = glorot if model == "pinsage" else nnx.initializers.normal(0.1)
        self.embedding = nnx.Param(draw(rngs.params(), (num_nodes, hidden)))
        if model == "ngcf":
            self.layers: LightGCN | NGCF | nnx.List = NGCF(
                hidden, [hidden] * layers, dropout=dropout, normalize=True, rngs=rngs
            )
            for linear in self.layers.own:
                linear.kernel[...] = jnp.eye(hidden)
        elif model == "pinsage":
            self.layers = nnx.List(PinSage(hidden, hidden, rngs=rngs) for _ in range(layers))
            self.inner = nnx.Linear(hidden, hidden, kernel_init=glorot, rngs=rngs)
            self.outer = nnx.Linear(hidden, hidden, use_bias=False, kernel_init=glorot, rngs=rngs)
        else:
            self.layers = LightGCN(layers)

    def __call__(self, graph: Any, *, key: jax.Array | None = None) -> jax.Array:
        """What is scored of all users and, behind them, items, `[N, F]`; deterministic without
        `key`.

        Args:
            graph: users and items as one vertex set, with an edge both ways for each interaction;
                with PinSage the `gnnjit.neighborhood.random_walks` over it.
            key: for dropout.
        """
        if isinstance(self.layers, nnx.List):
            h = self.embedding[...]
            for layer in self.layers:
                h = graph(h, layer)
            rows = self.embedding[...] + self.outer(jax.nn.relu(self.inner(h)))
            return jax.vmap(unit)(rows) / TEMPERATURE**0.5
        if isinstance(self.layers, NGCF):
            return self.layers(graph, self.embedding[...], key=key)
        return self.layers(graph, self.embedding[...])
