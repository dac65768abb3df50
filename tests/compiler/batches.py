"""Batches of small graphs, and readouts of them in plain JAX: a loop over the graphs."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gnnjit
from gnnjit.graph import batch

F = 3


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """A batched graph, which vertices and edges each of its graphs has, and features."""

    graph: gnnjit.Graph
    vertices: list[np.ndarray]
    edges: list[np.ndarray]

    def features(self, dtype: Any = np.float32, seed: int = 0) -> dict[str, Any]:
        """`x` of vertices, `d` of edges, `u` of graphs; garbage in padding."""
        rng = np.random.default_rng(seed)
        sizes = {"x": self.graph.num_nodes, "d": self.graph.num_edges, "u": self.graph.num_graphs}
        return {name: rng.normal(size=(n, F)).astype(dtype) for name, n in sizes.items()}

    def real(self, groups: list[np.ndarray]) -> np.ndarray:
        """The vertices or edges that are no padding."""
        return np.concatenate([*groups, np.arange(0)])


def small(vertices: int, edges: int, seed: int) -> gnnjit.Graph:
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, max(vertices, 1), (2, edges if vertices else 0))
    return gnnjit.Graph.from_edges(src, dst, vertices)


def batched(graphs: list[gnnjit.Graph], pad: tuple[int, int, int] | None = None) -> Batch:
    graph, _ = batch(graphs)
    at, edge = (
        np.cumsum([0, *(g.num_nodes for g in graphs)]),
        np.cumsum([0, *(g.num_edges for g in graphs)]),
    )
    vertices = [np.arange(a, b) for a, b in itertools.pairwise(at)]
    edges = [np.arange(a, b) for a, b in itertools.pairwise(edge)]
    if pad is not None:
        nodes, padded, num_graphs = pad
        graph = graph.pad(nodes, padded, num_graphs=num_graphs)
        none = [np.arange(0)] * (num_graphs - len(graphs))
        vertices, edges = [*vertices, *none], [*edges, *none]
    return Batch(graph, vertices, edges)


def _between() -> Batch:
    """Padding vertices stand between the graphs."""
    first, second = small(3, 4, 0), small(2, 3, 1)
    graph, _ = batch([first.pad(5, 6), second.pad(2, 3), second])
    vertices = [np.arange(3), np.arange(5, 7), np.arange(7, 9)]
    edges = [np.arange(4), np.arange(6, 9), np.arange(9, 12)]
    return Batch(graph, vertices, edges)


def _alone(padded: bool) -> Batch:
    """A graph that was not batched is one graph."""
    graph = small(5, 9, 3)
    whole = graph.pad(8, 12) if padded else graph
    return Batch(whole, [np.arange(5)], [np.arange(9)])


GRAPHS = [small(4, 6, 0), small(3, 0, 1), small(0, 0, 2), small(5, 12, 3), small(1, 2, 4)]
BATCHES: dict[str, Callable[[], Batch]] = {
    "some": lambda: batched(GRAPHS),
    "padded": lambda: batched(GRAPHS, (17, 25, 7)),
    "one graph": lambda: batched(GRAPHS[:1]),
    "no vertices": lambda: batched([small(0, 0, 0)] * 3),
    "no edges": lambda: batched([small(3, 0, 0), small(2, 0, 1)]),
    "padding between": _between,
    "not batched": lambda: _alone(False),
    "not batched, padded": lambda: _alone(True),
}


def plain_readout(word: str, values: Any, groups: list[np.ndarray]) -> Any:
    """`[graphs, ...]`: one graph after the other, with JAX's own reductions."""
    rows = [_of_one(word, values[group]) for group in groups]
    return jnp.stack(rows)


def plain_softmax(values: Any, groups: list[np.ndarray]) -> Any:
    """The values of padding, of which there are none, are 0."""
    out = jnp.zeros_like(values)
    for group in groups:
        if len(group):
            out = out.at[group].set(jax.nn.softmax(values[group], axis=0))
    return out


def _of_one(word: str, x: Any) -> Any:
    if not len(x):
        return jnp.zeros(x.shape[1:], x.dtype)
    if word == "std":
        var = jnp.mean(jnp.square(x - jnp.mean(x, 0)), 0)
        some = var > 1e-12
        return jnp.where(some, jnp.sqrt(jnp.where(some, var, 1)), 0)
    return getattr(jnp, word)(x, axis=0)


def rows_of_graphs(u: Any, groups: list[np.ndarray], count: int) -> Any:
    """`[count, ...]`: the value of each element's graph; 0 in padding."""
    out = jnp.zeros((count, *u.shape[1:]), u.dtype)
    for number, group in enumerate(groups):
        out = out.at[group].set(u[number])
    return out
