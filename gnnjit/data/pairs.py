"""Pairs of vertices that belong together or do not, and the graph of P-GNN's paper."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnnjit.data.types import expect
from gnnjit.errors import DataError
from gnnjit.graph import Graph
from gnnjit.graph.validate import shown

_PARTS = ("train", "val", "test")


@dataclass(frozen=True, eq=False, repr=False)
class PairDataset:
    """One graph, and pairs of its vertices in a split: which pairs belong together is predicted.

    Attributes:
      name: what `open_dataset` calls it.
      graph: its edges are all known; they are not what is predicted.
      x: float32 [N, F].
      y: int32 [N], the class of each vertex; a pair belongs together where it is the same.
      train, val, test: int32 [P, 2], pairs of one class, each pair in one part.
      source: the paper that the dataset comes from.

    Raises:
      DataError: if the parts do not fit each other.
    """

    name: str
    graph: Graph
    x: np.ndarray
    y: np.ndarray
    train: np.ndarray
    val: np.ndarray
    test: np.ndarray
    source: str = ""

    def __post_init__(self) -> None:
        n = self.graph.num_nodes
        expect(self.name, "x", self.x, (n, None), np.float32)
        expect(self.name, "y", self.y, (n,), np.int32)
        for part in _PARTS:
            pairs = getattr(self, part)
            expect(self.name, part, pairs, (None, 2), np.int32)
            if not len(pairs):
                raise DataError(f"{self.name}: {part} has no pairs, expected some.")
            if pairs.min() < 0 or pairs.max() >= n:
                raise DataError(
                    f"{self.name}: {part} has a vertex outside 0 to {n - 1}, expected pairs of "
                    "vertices."
                )
            apart = self.y[pairs[:, 0]] != self.y[pairs[:, 1]]
            if apart.any():
                u, v = pairs[int(np.argmax(apart))]
                raise DataError(
                    f"{self.name}: {part} has the pair of {u} and {v}, which are of two classes, "
                    "expected pairs of one. Pairs of two classes are drawn."
                )
        if len(np.unique(self.y)) < 2:
            raise DataError(f"{self.name}: y has one class, expected two at least.")

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.graph.num_nodes

    @property
    def num_edges(self) -> int:
        """E, the directed edges."""
        return self.graph.num_edges

    @property
    def num_features(self) -> int:
        """F."""
        return self.x.shape[1]

    @property
    def num_classes(self) -> int:
        """How many classes the vertices have."""
        return int(self.y.max()) + 1

    def __repr__(self) -> str:
        split = " / ".join(f"{len(getattr(self, part)):,} {part}" for part in _PARTS)
        return (
            f"PairDataset({self.name}: {self.num_nodes:,} vertices, {self.num_edges:,} directed "
            f"edges, {self.num_classes} classes, {split} pairs)"
        )


def caveman(
    *, communities: int = 20, size: int = 20, rewired: float = 0.01, seed: int = 0
) -> PairDataset:
    """Communities of equal size, each a clique, joined in a ring; pairs of one community.

    You, Ying & Leskovec, "Position-aware Graph Neural Networks" (2019), section 6.1,
    "Communities": of each clique one edge leads to the next one instead (Watts 1999), and a share
    of all edges has one end moved to a random vertex. The features are 1, so that only the place in
    the graph tells vertices apart. 80 % of the pairs are trained on, 10 % are for validation.

    Args:
      communities, size: how many cliques, of so many vertices each.
      rewired: share of the edges.
      seed: of the rewiring and the split.

    Returns:
      400 vertices, 3,040 / 380 / 380 pairs.

    Raises:
      DataError: a number is out of range.
    """
    for name, value, fine, wanted in (
        ("communities", communities, communities >= 2, "at least 2"),
        ("size", size, size >= 5, "at least 5"),
        ("rewired", rewired, 0 <= rewired <= 1, "0 to 1"),
        ("seed", seed, seed >= 0, "at least 0"),
    ):
        if not fine:
            raise DataError(f"caveman: got {name}={shown(value)}, expected {wanted}.")
    rng = np.random.Generator(np.random.PCG64(seed))
    first, second = np.triu_indices(size, 1)
    begin = np.arange(communities)[:, None] * size
    pairs = np.stack([(begin + first).ravel(), (begin + second).ravel()], axis=1)
    n = communities * size
    edges = pairs.copy()
    edges[:: len(first), 1] = (begin[:, 0] + size) % n  # the edge from a clique's first vertex
    moved = rng.random(len(edges)) < rewired
    edges[moved, 1] = rng.integers(0, n, np.count_nonzero(moved))
    edges = np.unique(np.sort(edges[edges[:, 0] != edges[:, 1]], axis=1), axis=0)
    src, dst = np.concatenate([edges, edges[:, ::-1]]).T.astype(np.int32)
    order = rng.permutation(len(pairs))
    cuts = int(0.8 * len(pairs)), int(0.9 * len(pairs))
    parts = (pairs[some].astype(np.int32) for some in np.split(order, cuts))
    return PairDataset(
        "caveman",
        Graph.from_edges(src, dst, n),
        np.ones((n, 1), np.float32),
        np.repeat(np.arange(communities), size).astype(np.int32),
        *parts,
        source="You et al. 2019, arXiv:1906.04817",
    )
