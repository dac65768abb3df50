"""What an edge network is: blocks in several forms, and the losses of a stack of two.

A block is a function `(p, state, i) -> state` of its parameters, the features that it changes, and
the graph with the data that it does not change. All forms are the same function.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gnnjit
from edge_networks import FORMS

Arrays = Mapping[str, Any]
Shapes = dict[str, tuple[int, ...]]
Block = Callable[[Any, Any, "Inputs"], dict[str, Any]]

BLOCKS = 2
CENTRES = 20
"""Radial basis functions."""
EDGE_DATA = 8
"""Features of an edge that are data."""


@dataclasses.dataclass(frozen=True)
class Inputs:
    """A graph for gnnjit and for plain JAX, and data. Edges are sorted by destination.

    src, dst: `int32[E]`; r: positions `[N, 3]`; a: features of edges `[E, 8]`.
    pair_src, pair_dst: `int32[E / 2]`, one of each two edges, where they go both ways.
    """

    graph: gnnjit.Graph
    src: jax.Array
    dst: jax.Array
    r: jax.Array
    a: jax.Array
    pair_src: jax.Array | None = None
    pair_dst: jax.Array | None = None


jax.tree_util.register_dataclass(
    Inputs, [f.name for f in dataclasses.fields(Inputs)], meta_fields=[]
)


@dataclasses.dataclass(frozen=True)
class Network:
    """Forms of a block, and how a stack of two is measured.

    shapes: of a block's parameters, for a width.
    vertex, edge: shapes of one vertex's and one edge's features in the state, for a width.
    layer, plain, split: the forms; `split` is None where nothing can be split by hand.
    flops: of value and gradient of the stack, for numbers of vertices and edges and a width: each
        product of the split form (of the plain one where there is none) once forward and twice
        backward; see `product`. Element by element work is not counted.
    narrower: the width is the given one over this, since each edge has more than F numbers.
    moves: whether the positions are features too.
    forces: whether the loss is one of forces; then `finish` gives an energy.
    both_ways: whether edges go both ways, as between atoms within a radius.
    """

    shapes: Callable[[int], Shapes]
    vertex: Callable[[int], Shapes]
    layer: Block
    plain: Block
    split: Block | None
    flops: Callable[[int, int, int], float]
    edge: Callable[[int], Shapes] = lambda f: {}
    end: Callable[[int], Shapes] = lambda f: {}
    finish: Callable[[Any, Any], Any] = lambda p, state: mean_square(state)
    narrower: int = 1
    moves: bool = False
    forces: bool = False
    both_ways: bool = False
    dtype: Any = jnp.float32
    tolerance: float = 1e-3

    def forms(self) -> tuple[str, ...]:
        """The forms in JAX."""
        return tuple(f for f in FORMS[:-1] if f != "split" or self.split is not None)


def product(rows: int, inner: int, outer: int, times: int = 3) -> float:
    """Operations of a product `[rows, inner] @ [inner, outer]`, forward and backward.

    times: 3 is once forward and once for the gradient of either operand. It is 2 where the left one
    is data.
    """
    return 2.0 * rows * inner * outer * times


def mean_square(state: Any) -> Any:
    return sum(jnp.square(x.astype(jnp.float32)).mean() for x in jax.tree.leaves(state))


def make(vertices: int, edges: int, seed: int = 0, both_ways: bool = False) -> Inputs:
    """A random graph and random data; `both_ways`: half as many pairs, without loops."""
    rng = np.random.default_rng(seed)
    if not both_ways:
        src, dst = _by_destination(*rng.integers(0, vertices, (2, edges)))
        pairs: Any = (None, None)
    else:
        a = rng.integers(0, vertices, edges // 2)
        b = (a + rng.integers(1, vertices, edges // 2)) % vertices
        pairs = _by_destination(a, b)
        src, dst = _by_destination(np.concatenate([a, b]), np.concatenate([b, a]))
    graph = gnnjit.Graph.from_edges(src, dst, num_nodes=vertices, symmetric=both_ways)
    r, a = normal(rng, (vertices, 3)), normal(rng, (len(src), EDGE_DATA))
    return Inputs(graph, *map(jnp.asarray, (src, dst, r, a)), *map(_on_device, pairs))


def _by_destination(src: np.ndarray, dst: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.lexsort((src, dst))
    return src[order].astype(np.int32), dst[order].astype(np.int32)


def _on_device(x: np.ndarray | None) -> jax.Array | None:
    return None if x is None else jnp.asarray(x)


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def state(network: Network, i: Inputs, width: int, seed: int = 2) -> dict[str, jax.Array]:
    """The features that enter the first block."""
    rng = np.random.default_rng(seed)
    counts = [(network.vertex, len(i.r)), (network.edge, len(i.src))]
    found = {
        name: jnp.asarray(normal(rng, (count, *shape)), network.dtype)
        for shapes, count in counts
        for name, shape in shapes(width).items()
    }
    return found | ({"r": i.r} if network.moves else {})


def parameters(shapes: Shapes, seed: int = 1, dtype: Any = jnp.float32) -> dict[str, jax.Array]:
    """Random parameters: matrices scaled by their inputs, scales and biases small."""
    rng = np.random.default_rng(seed)
    return {
        name: jnp.asarray(rng.normal(size=s) / np.sqrt(s[0] if len(s) > 1 else 10), dtype)
        for name, s in shapes.items()
    }


def stack_parameters(network: Network, width: int, blocks: int = BLOCKS) -> dict[str, Any]:
    """Of all blocks, and of what follows them."""
    each = [parameters(network.shapes(width), seed, network.dtype) for seed in range(1, 1 + blocks)]
    return {"blocks": each, "end": parameters(network.end(width), 9, network.dtype)}


def stack(network: Network, form: str) -> Callable[[Any, Any, Inputs], Any]:
    """The loss of some blocks, of parameters, features and data."""
    by_hand = network.split or network.plain
    blocks: dict[str, Block] = {
        "layer": network.layer, "plain": network.plain, "split": by_hand,
        "checkpoint": jax.checkpoint(by_hand),
    }  # fmt: skip
    block = blocks[form]

    def total(p: Any, features: Any, i: Inputs) -> Any:
        for q in p["blocks"]:
            features = block(q, features, i)
        return network.finish(p["end"], features)

    return forces(total) if network.forces else total


def forces(energy: Callable[..., Any]) -> Callable[..., Any]:
    """A loss of forces: its gradient is one of second order."""

    def loss(p: Any, features: Any, i: Inputs) -> Any:
        force = jax.grad(lambda r: energy(p, features, dataclasses.replace(i, r=r)))(i.r)
        return jnp.square(force - 1).mean()

    return loss


# -- What the networks share -----------------------------------------------------------------------


def segment_sum(x: Any, i: Inputs) -> Any:
    """Half precision is summed in float32, as gnnjit does."""
    wide = x.astype(jnp.float32)
    total = jax.ops.segment_sum(wide, i.dst, len(i.r), indices_are_sorted=True)
    return total.astype(x.dtype)


def sum_both_ways(message: Callable[[Any, Any, int], Any], i: Inputs) -> Any:
    """Sums of what each end of a pair says to the other, `message(from, to, sign of the step)`."""

    def add(there: Any, back: Any) -> Any:
        into = jax.ops.segment_sum(there, i.pair_dst, len(i.r), indices_are_sorted=True)
        return into + jax.ops.segment_sum(back, i.pair_src, len(i.r))

    there = message(i.pair_src, i.pair_dst, 1)
    return jax.tree.map(add, there, message(i.pair_dst, i.pair_src, -1))


def segment_mean(x: Any, i: Inputs) -> Any:
    degree = jnp.maximum(segment_sum(jnp.ones_like(i.r[i.dst, :1]), i), 1)
    return segment_sum(x, i) / degree


def norm(x: Any, scale: Any) -> Any:
    """Layer normalisation without a bias, in float32."""
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    spread = jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-6)
    return (centred * spread).astype(x.dtype) * scale


def length(step: Any) -> Any:
    """`[..., 3]` -> `[..., 1]`."""
    return jnp.sqrt(jnp.sum(step * step, -1, keepdims=True) + 1e-6)


def basis(distance: Any) -> Any:
    """Gaussians around 20 distances: `[..., 1]` -> `[..., 20]`."""
    return jnp.exp(-10 * jnp.square(distance - jnp.linspace(0, 4, CENTRES, dtype=distance.dtype)))
