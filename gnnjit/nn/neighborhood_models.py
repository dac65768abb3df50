"""Whole models over neighbourhoods that are not edges, as `gnnjit train` runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
from flax import nnx

from gnnjit.neighborhood import HDG
from gnnjit.nn.arguments import check_rate, check_rngs, check_sizes
from gnnjit.nn.dropped import dropped
from gnnjit.nn.init import glorot
from gnnjit.nn.jk_net import JKNet
from gnnjit.nn.magnn import MAGNN
from gnnjit.nn.pgnn import PGNN
from gnnjit.nn.unit import unit


class HopClassifier(nnx.Module):
    """Logits of vertices: a linear map with relu, `nn.JKNet` over rings of hops, a linear map.

    Xu et al., "Representation Learning on Graphs with Jumping Knowledge Networks" (2018), section
    6, with the concatenation.

    Args:
        in_features, num_classes: F and C.
        hidden: width of each ring.
        hops: k, the number of rings.
        dropout: of each linear map's input.
        rngs: draws the weights.

    Raises:
        LayerError: a size, number or `rngs` is no such value.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        hidden: int,
        hops: int,
        dropout: float = 0.0,
        rngs: nnx.Rngs,
    ):
        check_sizes("HopClassifier", in_features=in_features, num_classes=num_classes)
        check_rate("HopClassifier", dropout)
        self.encode = nnx.Linear(in_features, hidden, kernel_init=glorot, rngs=rngs)
        self.rings = JKNet(hidden, hidden, hops=hops, jump="concat", rngs=rngs)
        self.decode = nnx.Linear((hops + 1) * hidden, num_classes, kernel_init=glorot, rngs=rngs)
        self.dropout = dropout

    def __call__(self, hdg: HDG, x: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
        """Logits `[N, C]`; deterministic without `key`.

        Args:
            hdg: `gnnjit.neighborhood.hops(graph, k)`.
            x: `[N, F]`.
            key: for dropout.
        """
        h = jax.nn.relu(self.encode(dropped(x, self.dropout, key, 0)))
        h = self.rings(hdg, dropped(h, self.dropout, key, 1))
        return self.decode(dropped(h, self.dropout, key, 2))


class MetapathClassifier(nnx.Module):
    """Logits of the roots of metapaths: one layer of `nn.MAGNN`, whose last linear map gives them.

    Fu et al., "MAGNN" (2020), sections 4.4 and 5.1.

    Args:
        in_features: F, for all types or by type.
        num_classes: C.
        hidden: of one head.
        heads: their number.
        types, paths, longest: those of the HDG: `hdg.types`, `hdg.num_types`, `hdg.longest`.
        dropout: of the projected features.
        rngs: draws the weights.

    Raises:
        LayerError: a size, number, type or `rngs` is no such value.
    """

    def __init__(
        self,
        in_features: int | Mapping[str, int],
        num_classes: int,
        *,
        hidden: int,
        heads: int = 1,
        types: Sequence[str],
        paths: int,
        longest: int,
        dropout: float = 0.0,
        rngs: nnx.Rngs,
    ):
        self.layer = MAGNN(
            in_features,
            num_classes,
            hidden=hidden,
            heads=heads,
            types=types,
            paths=paths,
            longest=longest,
            dropout=dropout,
            rngs=rngs,
        )

    def __call__(
        self, hdg: HDG, x: Mapping[str, jax.Array], *, key: jax.Array | None = None
    ) -> jax.Array:
        """Logits `[roots, C]`; deterministic without `key`.

        Args:
            hdg: `gnnjit.neighborhood.metapaths(graph, paths)` of a typed graph.
            x: for each type `[N, F]`.
            key: for dropout.
        """
        return self.layer(hdg, x, key=key)

    def embed(self, hdg: HDG, x: Mapping[str, jax.Array]) -> jax.Array:
        """What the logits are a linear map of, `[roots, heads * hidden]`."""
        return self.layer.embed(hdg, x)


class PositionModel(nnx.Module):
    """Positions of vertices relative to anchor sets, `[N, sets]` of length 1: a linear map and
    layers of `nn.PGNN`.

    You, Ying & Leskovec, "Position-aware Graph Neural Networks" (2019), section 5, as the authors'
    code has it. The score of a pair of vertices is the product of their rows.

    Args:
        in_features: F.
        hidden: width of the layers.
        layers: their number.
        dropout: of the input of each layer.
        rngs: draws the weights.

    Raises:
        LayerError: a size, number or `rngs` is no such value.
    """

    def __init__(
        self, in_features: int, *, hidden: int, layers: int, dropout: float = 0.0, rngs: nnx.Rngs
    ):
        check_sizes("PositionModel", in_features=in_features, hidden=hidden, layers=layers)
        check_rate("PositionModel", dropout)
        check_rngs("PositionModel", rngs)
        self.encode = nnx.Linear(in_features, hidden, kernel_init=glorot, rngs=rngs)
        self.layers = nnx.List(PGNN(hidden, hidden, rngs=rngs) for _ in range(layers))
        self.dropout = dropout

    def __call__(self, hdg: HDG, x: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
        """The positions, `[N, sets]`; deterministic without `key`.

        Args:
            hdg: `gnnjit.neighborhood.anchors(graph)`.
            x: `[N, F]`.
            key: for dropout.
        """
        h = position = self.encode(x)
        for i, layer in enumerate(self.layers):
            h, position = layer(hdg, dropped(h, self.dropout, key, i))
        return jax.vmap(unit)(position)
