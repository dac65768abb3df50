"""Whole models over neighbourhoods that are not edges, as `gnnjit train` runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
from flax import nnx

from gnnjit.errors import LayerError
from gnnjit.neighborhood import HDG
from gnnjit.nn.arguments import check_rate, check_rngs, check_sizes
from gnnjit.nn.dropped import dropped
from gnnjit.nn.init import glorot
from gnnjit.nn.jk_net import JKNet
from gnnjit.nn.magnn import MAGNN
from gnnjit.nn.pgnn import PGNN
from gnnjit.nn.schema import linear_of_types, widths
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
    """Logits of the vertices of one type: a linear map for each type, and layers of `nn.MAGNN` with
    elu between them, the last of which gives the logits.

    Fu et al., "MAGNN" (2020), algorithm 1 and section 4.4. Layers before the last one give rows to
    all types, each from metapaths of its own.

    Args:
        in_features: F, for all types or by type.
        num_classes: C.
        hdgs: by type the metapaths that end there; with one layer only the target's are read.
        target: the type whose vertices are classified.
        hidden: of one head, and between layers.
        heads: their number.
        layers: their number.
        relations: by type the `relations` of `nn.MAGNN`.
        dropout: of the projected features.
        rngs: draws the weights.

    Raises:
        LayerError: a size, number, type or `rngs` is no such value, or `hdgs` lacks a type.
    """

    def __init__(
        self,
        in_features: int | Mapping[str, int],
        num_classes: int,
        *,
        hdgs: Mapping[str, HDG],
        target: str,
        hidden: int,
        heads: int = 1,
        layers: int = 1,
        relations: Mapping[str, Sequence[Sequence[int]]] | None = None,
        dropout: float = 0.0,
        rngs: nnx.Rngs,
    ):
        check_sizes("MetapathClassifier", num_classes=num_classes, hidden=hidden, layers=layers)
        check_rate("MetapathClassifier", dropout)
        check_rngs("MetapathClassifier", rngs)
        types = _types(hdgs, target, layers)

        def layer(t: str, out_features: int) -> MAGNN:
            return MAGNN(
                None,
                out_features,
                hidden=hidden,
                heads=heads,
                types=hdgs[t].types,
                paths=hdgs[t].num_types,
                longest=hdgs[t].longest,
                relations=None if relations is None else relations[t],
                rngs=rngs,
            )

        self.encode = linear_of_types(
            widths("MetapathClassifier", in_features, types), hidden, rngs
        )
        self.layers = nnx.List(
            nnx.Dict({t: layer(t, hidden) for t in types}) for _ in range(layers - 1)
        )
        self.decode = layer(target, num_classes)
        self.target, self.dropout = target, dropout

    def __call__(
        self,
        hdgs: Mapping[str, HDG],
        x: Mapping[str, jax.Array],
        *,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """Logits `[roots, C]`; deterministic without `key`.

        Args:
            hdgs: by type the metapaths that end there.
            x: for each type `[N, F]`.
            key: for dropout.
        """
        return self.decode(hdgs[self.target], self._hidden(hdgs, x, key))

    def embed(self, hdgs: Mapping[str, HDG], x: Mapping[str, jax.Array]) -> jax.Array:
        """What the logits are a linear map of, `[roots, heads * hidden]`."""
        return self.decode.embed(hdgs[self.target], self._hidden(hdgs, x, None))

    def _hidden(
        self, hdgs: Mapping[str, HDG], x: Mapping[str, jax.Array], key: jax.Array | None
    ) -> dict[str, jax.Array]:
        """For each type `[N, hidden]`, what the last layer reads."""
        h = {
            t: dropped(linear(x[t]), self.dropout, key, i)
            for i, (t, linear) in enumerate(self.encode.items())
        }
        for layer in self.layers:
            h = {t: jax.nn.elu(of_type(hdgs[t], h)) for t, of_type in layer.items()}
        return h


def _types(hdgs: Mapping[str, HDG], target: str, layers: int) -> tuple[str, ...]:
    """The types on the target's metapaths. Raises LayerError where one of them has no metapaths and
    a layer needs some."""
    types = hdgs[target].types if target in hdgs else (target,)
    needed = types if layers > 1 else (target,)
    if missing := [t for t in needed if t not in hdgs]:
        raise LayerError(
            f"nn.MetapathClassifier: hdgs has no {missing[0]!r}, expected metapaths that end "
            f"at each of {', '.join(needed)}: pass neighborhood.metapaths(graph, paths) of each"
        )
    return types


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
