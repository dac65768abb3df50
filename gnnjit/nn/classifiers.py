"""Stacks of the modules, for labels on vertices and on graphs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import gnnjit
from gnnjit.errors import LayerError
from gnnjit.graph import Graph
from gnnjit.nn.appnp import APPNP
from gnnjit.nn.cheb import Cheb
from gnnjit.nn.commnet import CommNet
from gnnjit.nn.edge_conv import EdgeConv
from gnnjit.nn.gat import GAT
from gnnjit.nn.gated_gcn import GatedGCN
from gnnjit.nn.gatv2 import GATv2
from gnnjit.nn.gcn import GCN
from gnnjit.nn.ggnn import GGNN
from gnnjit.nn.gin import GIN
from gnnjit.nn.graph_transformer import GraphTransformer
from gnnjit.nn.init import glorot
from gnnjit.nn.pna import PNA
from gnnjit.nn.sage import SAGE
from gnnjit.sharding import ShardedGraph


@dataclasses.dataclass(frozen=True)
class Model:
    """How a module is stacked.

    Attributes:
        make: `make(in_features, out_features, *, rngs)`; with `attention` also `heads`, `concat`
            and `dropout`.
        attention: whether it has heads: each hidden layer is then `heads * hidden` wide.
        activation: between the layers.
        encoder: whether linear layers stand before and after the stack, whose width is `hidden`
            throughout, since the module keeps the width or is costly on many features.
        residual: whether each layer adds its input, for modules without a term of the vertex's own.
    """

    make: Callable[..., nnx.Module]
    attention: bool = False
    activation: Callable[[jax.Array], jax.Array] = jax.nn.relu
    encoder: bool = False
    residual: bool = False


def _gin(in_features: int, out_features: int, *, rngs: nnx.Rngs) -> GIN:
    return GIN(in_features, out_features, out_features, batch_norm=True, rngs=rngs)


def _edge_conv(in_features: int, out_features: int, *, rngs: nnx.Rngs) -> EdgeConv:
    return EdgeConv(in_features, out_features, out_features, rngs=rngs)


def _ggnn(in_features: int, out_features: int, *, rngs: nnx.Rngs) -> GGNN:
    return GGNN(out_features, steps=2, rngs=rngs)


def _appnp(in_features: int, out_features: int, *, rngs: nnx.Rngs) -> APPNP:
    return APPNP()


MODELS: dict[str, Model] = {
    "gcn": Model(GCN),
    "sage": Model(SAGE),
    "gat": Model(GAT, attention=True, activation=jax.nn.elu),
    "gatv2": Model(GATv2, attention=True, activation=jax.nn.elu),
    "gin": Model(_gin),
    "gatedgcn": Model(GatedGCN, encoder=True, residual=True),
    "commnet": Model(CommNet, activation=jnp.tanh),
    "ggnn": Model(_ggnn, encoder=True),
    "edgeconv": Model(_edge_conv, encoder=True, residual=True),
    "transformer": Model(GraphTransformer, attention=True),
    "pna": Model(PNA, encoder=True),
    "appnp": Model(_appnp, encoder=True),
    "cheb": Model(Cheb),
}
"""Every model that `build` and `build_graph` know."""


def lookup(model: str) -> Model:
    """The entry of `MODELS`; a ValueError that lists them on an unknown name."""
    if model not in MODELS:
        raise ValueError(f"unknown model {model!r}, expected one of: {', '.join(MODELS)}")
    return MODELS[model]


@gnnjit.layer(static_argnames="rate")
def _dropout(v: jax.Array, e: Any, key: jax.Array, *, rate: float) -> jax.Array:
    return gnnjit.dropout(v, rate, key)


def drop(
    graph: Graph | ShardedGraph, x: jax.Array, rate: float, key: jax.Array | None
) -> jax.Array:
    """Dropout of the vertices' features; `x` where `key` is None or `rate` is 0.

    A layer without edges, since its hash costs a tenth of `jax.random` on wide input features.
    """
    if key is None or rate == 0:
        return x
    if graph.num_src != graph.num_dst:  # a layer gives values at destinations, and `x` is of all
        graph = Graph.from_edges(np.zeros((2, 0), np.int32), num_nodes=graph.num_src)
    return _dropout(graph, x, key, rate=rate)


class Classifier(nnx.Module):
    """Logits per vertex: dropout, layer, activation, dropout, layer, ..., as in GCN and GAT."""

    def __init__(
        self,
        model: str,
        *,
        in_features: int,
        hidden: int,
        num_classes: int,
        layers: int = 2,
        heads: int = 1,
        out_heads: int = 1,
        dropout: float = 0.0,
        rngs: nnx.Rngs,
    ):
        spec = lookup(model)
        heads, out_heads = (heads, out_heads) if spec.attention else (1, 1)
        first = hidden if spec.encoder else in_features
        last = hidden if spec.encoder else num_classes
        widths = [first] + [hidden * heads] * (layers - 1)
        self.model = model
        self.dropout = dropout
        self.encode = _linear(in_features, hidden, rngs) if spec.encoder else None
        self.decode = _linear(hidden * heads, num_classes, rngs) if spec.encoder else None
        self.layers = nnx.List(
            _layer(spec, width, out, h, concat, dropout, rngs)
            for width, out, h, concat in zip(
                widths,
                [hidden] * (layers - 1) + [last],
                [heads] * (layers - 1) + [out_heads],
                [True] * (layers - 1) + [spec.encoder],
                strict=True,
            )
        )

    def __call__(
        self,
        graph: Graph | ShardedGraph | Sequence[Graph],
        x: jax.Array,
        *,
        key: jax.Array | None = None,
        real: Sequence[jax.Array] | None = None,
        edge_weight: jax.Array | None = None,
    ) -> jax.Array:
        """Logits `[N, C]`, of the destinations of the last layer.

        Args:
            graph: a `Graph` or `ShardedGraph`, or one graph for each layer: the blocks of a batch.
            x: `[N, F]`, of the sources of the first layer.
            key: for training (dropout, batch statistics); None for evaluation.
            real: for each layer, or for all, how many of the destinations, the first ones, are no
                padding, for batch statistics; by default all.
            edge_weight: `[E]`, of each edge in the means of SAGE; 1 if left out.
        """
        spec = MODELS[self.model]
        graphs = self._graphs(graph)
        keys = _keys(key, 2 * len(self.layers) + 2)
        if self.encode is not None:
            x = spec.activation(self.encode(drop(graphs[0], x, self.dropout, keys[-2])))
        for i, (layer, g) in enumerate(zip(self.layers, graphs, strict=True)):
            mask = g.vertex_mask if isinstance(g, ShardedGraph) else None
            if real is not None:
                mask = jnp.arange(g.num_dst) < real[i if len(real) > 1 else 0]
            h = drop(g, x, self.dropout, keys[2 * i])
            h = apply(layer, g, h, keys[2 * i + 1], mask=mask, edge_weight=edge_weight)
            h = x[: len(h)] + h if spec.residual else h
            final = i == len(self.layers) - 1 and self.decode is None
            x = h if final else spec.activation(h)
        if self.decode is None:
            return x
        last = graphs[-1]
        if isinstance(last, Graph) and last.nested:
            last = last.reverse()  # its sources are the vertices that are left
        return self.decode(drop(last, x, self.dropout, keys[-1]))

    def _graphs(self, graph: Any) -> Sequence[Any]:
        """One for each layer. Raises LayerError on another number of them."""
        if not isinstance(graph, Sequence):
            return [graph] * len(self.layers)
        if len(graph) == 1 and not graph[0].nested:
            return [graph[0]] * len(self.layers)
        if len(graph) != len(self.layers):
            raise LayerError(
                f"{self.model}: got {len(graph)} graphs for {len(self.layers)} layers, expected "
                f"one for each: sample as many hops (fanouts) as the model has layers"
            )
        return graph


class GraphClassifier(nnx.Module):
    """Logits per graph: layers with batch normalisation, and a readout from every one of them.

    Xu et al., "How Powerful are Graph Neural Networks?" (2019), section 4.2: the sum (or mean) of
    each layer's vertices, the input included, each through a linear map of its own, added up
    (jumping knowledge). The paper counts the input as a layer: its 5 are 4 here.
    """

    def __init__(
        self,
        model: str,
        *,
        in_features: int,
        hidden: int,
        num_classes: int,
        layers: int = 4,
        heads: int = 1,
        dropout: float = 0.0,
        readout: str = "sum",
        rngs: nnx.Rngs,
    ):
        spec = lookup(model)
        if readout not in ("sum", "mean"):
            raise ValueError(f"readout must be sum or mean, got {readout!r}")
        heads = heads if spec.attention else 1
        first, width = (hidden if spec.encoder else in_features), hidden * heads
        widths = [first] + [width] * layers
        self.model = model
        self.dropout = dropout
        self.readout = readout
        self.encode = _linear(in_features, hidden, rngs) if spec.encoder else None
        self.layers = nnx.List(
            _layer(spec, w, hidden, heads, True, dropout, rngs) for w in widths[:-1]
        )
        self.norms = nnx.List(nnx.BatchNorm(width, momentum=0.9, rngs=rngs) for _ in range(layers))
        self.heads = nnx.List(_linear(w, num_classes, rngs) for w in widths)

    def __call__(
        self,
        graph: Graph | ShardedGraph,
        x: jax.Array,
        graph_index: jax.Array,
        num_graphs: int,
        *,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """Logits `[G, C]`.

        Args:
            graph: all graphs side by side (`gnnjit.graph.batch`).
            x: `[N, F]`.
            graph_index: `int[N]`, each vertex's graph; `num_graphs` (or more) marks padding;
                that of a `ShardedGraph` is known.
            num_graphs: G, static.
            key: for training (dropout, batch statistics); None for evaluation.
        """
        spec = MODELS[self.model]
        keys = _keys(key, 2 * len(self.heads))
        real = graph_index < num_graphs
        if isinstance(graph, ShardedGraph):
            real &= graph.vertex_mask
            graph_index = jnp.where(real, graph_index, num_graphs)  # not in the readouts either
        x = x if self.encode is None else spec.activation(self.encode(x))
        logits = self._read(0, x, graph_index, num_graphs, keys[0])
        for i, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            h = apply(layer, graph, x, keys[2 * i + 1], mask=real)
            h = x + h if spec.residual else h
            h = norm(h, use_running_average=key is None, mask=real[:, None])
            x = spec.activation(h)
            logits = logits + self._read(i + 1, x, graph_index, num_graphs, keys[2 * i + 2])
        return logits

    def _read(self, level: int, x: Any, graph_index: Any, num_graphs: int, key: Any) -> jax.Array:
        pooled = jax.ops.segment_sum(x, graph_index, num_graphs)
        if self.readout == "mean":
            size = jax.ops.segment_sum(jnp.ones(len(x), x.dtype), graph_index, num_graphs)
            pooled = pooled / jnp.maximum(size, 1)[:, None]
        logits = self.heads[level](pooled)
        if key is None:
            return logits
        keep = jax.random.bernoulli(key, 1 - self.dropout, logits.shape)
        return jnp.where(keep, logits / (1 - self.dropout), 0)


def _linear(in_features: int, out_features: int, rngs: nnx.Rngs) -> nnx.Linear:
    return nnx.Linear(in_features, out_features, kernel_init=glorot, rngs=rngs)


def _layer(
    spec: Model, width: int, out: int, heads: int, concat: bool, dropout: float, rngs: nnx.Rngs
) -> nnx.Module:
    options: dict[str, Any] = {}
    if spec.attention:
        options = {"heads": heads, "concat": concat, "dropout": dropout}
    return spec.make(width, out, rngs=rngs, **options)


def _keys(key: jax.Array | None, count: int) -> Any:
    return [None] * count if key is None else jax.random.split(key, count)


def apply(
    layer: nnx.Module,
    graph: Graph | ShardedGraph,
    x: jax.Array,
    key: Any,
    mask: jax.Array | None = None,
    edge_weight: jax.Array | None = None,
) -> jax.Array:
    """Call a layer of `MODELS`, with what it takes for training."""
    called: Any = layer
    if isinstance(layer, (GAT, GATv2, GraphTransformer, APPNP)):
        return called(graph, x, key=key)
    if isinstance(layer, GIN):
        return layer(graph, x, train=key is not None, mask=mask)
    if isinstance(layer, SAGE) and edge_weight is not None:
        return called(graph, x, edges=edge_weight)
    return called(graph, x)
