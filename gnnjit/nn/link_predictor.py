"""Embeddings of the entities of a knowledge graph, R-GCN over them, and scores of facts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from gnnjit.graph import Graph
from gnnjit.nn.arguments import check_rate, check_rngs, check_sizes
from gnnjit.nn.rgcn import RGCN

LINK_MODELS = ("rgcn",)
"""What `LinkPredictor` knows, by name."""


class LinkPredictor(nnx.Module):
    """An embedding for each entity, R-GCN over the known facts, and DistMult.

    Schlichtkrull et al., "Modeling Relational Data with Graph Convolutional Networks" (2018),
    section 4, with the mean of section 5.2, over all relations. The score of a fact (head,
    relation, tail) is `sum(h[head] * w[relation] * h[tail])` with `h = model(graph)` and
    `w = model.relation`. A relation r is passed along both ways, from tails to heads as `r + R`.

    Where we differ: embeddings start as normal numbers of deviation 0.1, not 1 as in DGL's example,
    since Adam, which moves each by the learning rate at most, takes long to leave those behind.

    Args:
        model: a name in `LINK_MODELS`.
        num_nodes, num_relations: N and R.
        hidden: width of the embeddings and layers.
        layers: their number.
        blocks: of each relation's matrix, which divide `hidden`; the paper has blocks of 5 x 5.
        dropout: of what a layer computes.
        rngs: draws the weights.

    Raises:
        LayerError: a size, number or `rngs` is no such value.
        ValueError: on an unknown model, or where the blocks do not divide `hidden`.
    """

    def __init__(
        self,
        model: str,
        num_nodes: int,
        num_relations: int,
        *,
        hidden: int = 500,
        layers: int = 2,
        blocks: int | None = None,
        dropout: float = 0.0,
        rngs: nnx.Rngs,
    ):
        if model not in LINK_MODELS:
            raise ValueError(f"unknown model {model!r}, expected one of {', '.join(LINK_MODELS)}")
        if blocks is None:
            blocks = hidden // 5 if hidden % 5 == 0 else 1
        check_sizes("LinkPredictor", num_nodes=num_nodes, num_relations=num_relations)
        check_sizes("LinkPredictor", hidden=hidden, layers=layers, blocks=blocks)
        check_rate("LinkPredictor", dropout)
        check_rngs("LinkPredictor", rngs)
        if hidden % blocks:
            raise ValueError(f"blocks is {blocks}, expected a divisor of hidden, {hidden}")
        draw = nnx.initializers.normal(0.1)
        self.embedding = nnx.Param(draw(rngs.params(), (num_nodes, hidden)))
        self.layers = nnx.List(
            RGCN(
                hidden,
                hidden,
                num_relations=2 * num_relations,
                blocks=blocks,
                mean="all",
                rngs=rngs,
            )
            for _ in range(layers)
        )
        wide = nnx.initializers.variance_scaling(2.0, "fan_avg", "uniform")
        self.relation = nnx.Param(wide(rngs.params(), (num_relations, hidden)))
        self.dropout = dropout

    def __call__(
        self, graph: Graph, vertices: jax.Array | None = None, *, key: jax.Array | None = None
    ) -> jax.Array:
        """The entities' rows, `[N, F]`; deterministic without `key`.

        Args:
            graph: known facts, both ways, with 2 R relations; `r + R` from tail to head.
            vertices: `int[n]`, the entity that each vertex of the graph is, where it is a part of
                all: the rows are those of these, `[n, F]`. N or more on padding, whose embedding is
                0. All entities, as they are numbered, if left out.
            key: for dropout.
        """
        h = self.embedding[...]
        if vertices is not None:
            h = h.at[vertices].get(mode="fill", fill_value=0)
        for i, layer in enumerate(self.layers):
            called: Any = layer
            h = called(graph, h)
            h = h if i == len(self.layers) - 1 else jax.nn.relu(h)
            if key is not None and self.dropout:
                keep = jax.random.bernoulli(jax.random.fold_in(key, i), 1 - self.dropout, h.shape)
                h = jnp.where(keep, h / (1 - self.dropout), 0)
        return h
