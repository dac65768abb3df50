"""One block of some networks, for `bench_compile`: a number to differentiate by parameters.

SchNet's is an energy, without the residual that a stack has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

import gnnjit
from edge_networks import convolutions, molecules, network, simulators
from edge_networks.network import EDGE_DATA, Arrays, Block, Inputs, Network, Shapes, parameters

__all__ = ["MODELS", "Model", "make", "parameters"]

Given = tuple[Inputs, Any]
"""A graph with data, and the features `[N, F]`."""
Function = Callable[[Arrays, Given], Any]


@dataclasses.dataclass(frozen=True)
class Model:
    """`shapes` gives the parameters' shapes for a width; the others a number to differentiate."""

    shapes: Callable[[int], Shapes]
    layer: Function
    plain: Function
    split: Function


def make(vertices: int, edges: int, width: int, seed: int = 0) -> Given:
    """A random graph and random features."""
    rng = np.random.default_rng(seed + 1)
    x = network.normal(rng, (vertices, width))
    return network.make(vertices, edges, seed), jnp.asarray(x)


def _one(of: Network, start: Callable[[Arrays, Given], dict[str, Any]], **more: Any) -> Model:
    """A block between its first features and the mean of squares of what it gives."""

    def function(block: Block) -> Function:
        return lambda p, given: network.mean_square(block(p, start(p, given), given[0]))

    def shapes(f: int) -> Shapes:
        return {name: shape(f) for name, shape in more.items()} | of.shapes(f)

    return Model(shapes, function(of.layer), function(of.plain), function(of.split or of.plain))


def _schnet_shapes(f: int) -> Shapes:
    return molecules.FORCES.shapes(f) | {"o2": (f, 1)}


_schnet_layer = gnnjit.layer(molecules.schnet_update)


def _schnet(p: Arrays, given: Given) -> Any:
    i, x = given
    return _schnet_layer(i.graph, {"x": x, "r": i.r}, p).sum()


def _schnet_plain(p: Arrays, given: Given) -> Any:
    i, x = given
    return molecules.schnet_update_plain(p, x, i).sum()


def _forces(energy: Function) -> Function:
    loss = network.forces(lambda p, x, i: energy(p, (i, x)))
    return lambda p, given: loss(p, given[1], given[0])


MODELS = {
    "egnn": _one(molecules.EGNN, lambda p, given: {"x": given[1], "r": given[0].r}),
    "gns": _one(
        simulators.GNS,
        lambda p, given: {"x": given[1], "e": given[0].a @ p["edge"]},
        edge=lambda f: (EDGE_DATA, f),
    ),
    "schnet": Model(_schnet_shapes, _schnet, _schnet_plain, _schnet_plain),
    "forces": Model(
        _schnet_shapes, _forces(_schnet), _forces(_schnet_plain), _forces(_schnet_plain)
    ),
    "edgeconv": _one(convolutions.EDGECONV, lambda p, given: {"x": given[1]}),
}
