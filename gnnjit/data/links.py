"""The dataset type for links that are predicted: facts of a knowledge graph, or interactions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnnjit.data.types import expect
from gnnjit.errors import DataError
from gnnjit.graph import Graph

_PARTS = ("train", "val", "test")


@dataclass(frozen=True, eq=False, repr=False)
class LinkDataset:
    """Links between vertices, in a split: those of `train` are known, the others are predicted.

    Of a knowledge graph a link is a fact (head, relation, tail). Of a recommendation it is an
    interaction (user, 0, item); vertices from 0 to `num_users - 1` are the users, the rest items.

    Attributes:
      name: what `open_dataset` calls it.
      num_nodes: N.
      train, val, test: int32 [L, 3], links as (source, relation, destination).
      num_relations: R; relations are numbered from 0.
      num_users: how many vertices are users; None for a knowledge graph.
      source: the paper that the dataset comes from.

    Raises:
      DataError: if the parts do not fit each other.
    """

    name: str
    num_nodes: int
    train: np.ndarray
    val: np.ndarray
    test: np.ndarray
    num_relations: int = 1
    num_users: int | None = None
    source: str = ""

    def __post_init__(self) -> None:
        for part in _PARTS:
            links = getattr(self, part)
            expect(self.name, part, links, (None, 3), np.int32)
            for column, what, first, last in self._ranges():
                _expect_ids(self.name, part, links[:, column], what, first, last)
        if not len(self.train):
            raise DataError(f"{self.name}: train has no links, expected some to train on.")

    def _ranges(self) -> list[tuple[int, str, int, int]]:
        """(column, what it holds, the first id, the one after the last)."""
        users = self.num_users
        heads = (0, "vertex", 0, self.num_nodes) if users is None else (0, "user", 0, users)
        tails = (2, "vertex", 0, self.num_nodes)
        if users is not None:
            tails = (2, "item", users, self.num_nodes)
        return [heads, (1, "relation", 0, self.num_relations), tails]

    @property
    def task(self) -> str:
        """ "recommendation" where there are users, else "link"."""
        return "link" if self.num_users is None else "recommendation"

    @property
    def num_edges(self) -> int:
        """The directed edges that messages go along: each link of `train`, both ways."""
        return 2 * len(self.train)

    @property
    def num_items(self) -> int:
        """How many vertices are items: all, of a knowledge graph."""
        return self.num_nodes - (self.num_users or 0)

    @property
    def num_features(self) -> int:
        """0: the vertices have embeddings, which are learned, and no features."""
        return 0

    @property
    def num_classes(self) -> int:
        """0: no vertex has a class."""
        return 0

    def graph(self) -> Graph:
        """The links of `train`, both ways, as a graph of N vertices; relations are left out."""
        heads, tails = self.train[:, 0], self.train[:, 2]
        src, dst = np.concatenate([heads, tails]), np.concatenate([tails, heads])
        return Graph.from_edges(src, dst, self.num_nodes)

    def __repr__(self) -> str:
        what = f"{self.num_nodes:,} vertices, {self.num_relations:,} relations"
        if self.num_users is not None:
            what = f"{self.num_users:,} users, {self.num_items:,} items"
        split = " / ".join(f"{len(getattr(self, part)):,} {part}" for part in _PARTS)
        return f"LinkDataset({self.name}: {what}, {split} links)"


def _expect_ids(name: str, part: str, ids: np.ndarray, what: str, first: int, end: int) -> None:
    bad = (ids < first) | (ids >= end)
    if bad.any():
        i = int(np.argmax(bad))
        raise DataError(
            f"{name}: link {i} of {part} has the {what} {ids[i]}, expected {first} to {end - 1}."
        )
