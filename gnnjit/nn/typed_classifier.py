"""A stack of layers of typed graphs, for labels on the vertices of one type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from gnnjit.graph.schema import Relation
from gnnjit.nn.arguments import check_rate, check_rngs, check_sizes
from gnnjit.nn.han import HAN
from gnnjit.nn.hgt import HGT
from gnnjit.nn.rgcn import RGCN
from gnnjit.nn.schema import AnyTypedGraph
from gnnjit.sharding import ShardedTypedGraph

TYPED_MODELS = ("han", "hgt", "rgcn")
"""What `TypedClassifier` knows, by name."""


class TypedClassifier(nnx.Module):
    """Logits of the vertices of one type: layers of a typed graph, and a linear map.

    Args:
        model: a name in `TYPED_MODELS`.
        in_features: F, for all types or by type.
        num_classes: C.
        types, relations: those of the graph: `graph.types`, `graph.relations`.
        target: the type whose vertices are classified.
        hidden: width of the layers; of each head, for HAN and HGT.
        layers: their number.
        heads: of HAN and HGT.
        dropout: of each layer's input and, for HAN, of its coefficients.
        rngs: draws the weights.

    Raises:
        LayerError: a size, number, type, relation or `rngs` is no such value.
        ValueError: on an unknown model or target.
    """

    def __init__(
        self,
        model: str,
        *,
        in_features: int | Mapping[str, int],
        num_classes: int,
        types: Sequence[str],
        relations: Sequence[Relation],
        target: str,
        hidden: int,
        layers: int = 1,
        heads: int = 1,
        dropout: float = 0.0,
        rngs: nnx.Rngs,
    ):
        if model not in TYPED_MODELS:
            raise ValueError(f"unknown model {model!r}, expected one of {', '.join(TYPED_MODELS)}")
        if target not in types:
            raise ValueError(f"unknown target {target!r}, expected one of {', '.join(types)}")
        check_sizes("TypedClassifier", hidden=hidden, layers=layers, num_classes=num_classes)
        check_rate("TypedClassifier", dropout)
        check_rngs("TypedClassifier", rngs)
        self.target, self.dropout = target, dropout
        width = hidden if model == "rgcn" else hidden * heads
        schema: dict[str, Any] = {"types": types, "relations": relations, "rngs": rngs}
        options: dict[str, Any] = {
            "han": {"heads": heads, "dropout": dropout},
            "hgt": {"heads": heads},
            "rgcn": {},
        }[model]
        make: Any = {"han": HAN, "hgt": HGT, "rgcn": RGCN}[model]
        self.layers = nnx.List(
            make(in_features if i == 0 else width, width, **schema, **options)
            for i in range(layers)
        )
        self.decode = nnx.Linear(width, num_classes, rngs=rngs)

    def __call__(
        self,
        graph: AnyTypedGraph,
        x: Mapping[str, jax.Array],
        *,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """Logits `[N, C]` of the target's vertices; deterministic without `key`.

        Args:
            graph: a typed graph, sharded or streamed ones too.
            x: for each type `[N, F]`.
            key: for dropout.
        """
        h = dict(x)
        for i, layer in enumerate(self.layers):
            of_layer = None if key is None else jax.random.fold_in(key, i)
            h = {
                t: self._dropped(rows, of_layer, j, graph, t)
                for j, (t, rows) in enumerate(h.items())
            }
            called: Any = layer
            h = called(graph, h, key=of_layer) if isinstance(layer, HAN) else called(graph, h)
            if not isinstance(layer, HAN):  # whose relations have one already
                h = {t: jax.nn.relu(rows) for t, rows in h.items()}
        last = None if key is None else jax.random.fold_in(key, len(self.layers))
        return self.decode(self._dropped(h[self.target], last, 0, graph, self.target))

    def _dropped(
        self, rows: jax.Array, key: Any, number: int, graph: Any, node_type: str
    ) -> jax.Array:
        if key is None or self.dropout == 0:
            return rows
        # Drawn by the user's numbers, also where shards have other rows.
        shape = (graph.num_nodes[node_type], *rows.shape[1:])
        keep = jax.random.bernoulli(jax.random.fold_in(key, 100 + number), 1 - self.dropout, shape)
        if isinstance(graph, ShardedTypedGraph):
            keep = graph.put({node_type: keep})[node_type]
        return jnp.where(keep, rows / (1 - self.dropout), 0)
