"""Prediction of the links of a graph of one relation by the paths between two vertices."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.data.links import LinkDataset
from gnnjit.graph import Graph
from gnnjit.training.config import TrainConfig
from gnnjit.training.link_prediction import Ranked, both_ways, ranked

_PATHS = 64
"""The same, where a score has to be passed along the edges."""


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["graph", "kept", "vertex", "answer", "of_tail", "known"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True, eq=False)
class Asked:
    """Some links of a graph of one relation, left out of it, and asked for one end of each.

    Attributes:
        graph: all links to train on, both ways.
        kept: float32[E], 0 for the edges of these links.
        vertex, answer: int32[Q], the end that is known, and the other one.
        of_tail: bool[Q], whether that is the tail.
        known: int32[P, 2], queries and vertices that answer them in other links; padding is of
            query Q.
    """

    graph: Graph
    kept: Any
    vertex: Any
    answer: Any
    of_tail: Any
    known: Any

    def loss(self, model: Any, key: Any) -> tuple[jax.Array, jax.Array]:
        """The sum of the cross entropies of the answers among all vertices, and how many."""
        scores = model(self.graph, self.vertex, self.of_tail, kept=self.kept)
        scores = scores.at[self.known[:, 0], self.known[:, 1]].set(-jnp.inf, mode="drop")
        own = jnp.take_along_axis(scores, self.answer[:, None], axis=1)[:, 0]
        total = jnp.sum(jax.nn.logsumexp(scores, axis=1) - own)
        return total, jnp.asarray(len(own), jnp.float32)


class PathTask:
    """Links of a graph of one relation. A step leaves some of them out, and asks for them."""

    def __init__(self, dataset: LinkDataset, config: TrainConfig) -> None:
        self._links, self._steps = dataset.train, config.steps_per_epoch
        self._size = min(config.batch_size or _PATHS, len(dataset.train))
        self._graph = both_ways(dataset, dataset.train)
        head, _, tail = dataset.train.T
        # By whether the tail is asked for: the answers of each vertex, one after the other.
        self._answers = [
            _rows_of(*ends, dataset.num_nodes) for ends in ((tail, head), (head, tail))
        ]
        most = np.maximum(*(np.diff(begin) for begin, _ in self._answers))
        self._room = int(np.sort(most)[-self._size :].sum()) + self._size
        self._whole = ranked(dataset, _PATHS)

    def train_batches(self, seed: int, epoch: int) -> Iterator[Asked]:
        rng = np.random.Generator(np.random.PCG64([seed, epoch]))
        count, size = len(self._links), self._size
        for _ in range(self._steps):
            chosen = rng.choice(count, size, replace=False)
            of_tail = rng.random(size) < 0.5
            head, _, tail = self._links[chosen].T
            vertex, answer = np.where(of_tail, head, tail), np.where(of_tail, tail, head)
            kept = np.ones(2 * count, np.float32)
            kept[chosen] = kept[chosen + count] = 0
            known = np.full((self._room, 2), size, np.int32)
            found = self._known(vertex, answer, of_tail)
            known[: len(found)] = found
            yield Asked(self._graph, kept, vertex, answer, of_tail, known)

    def _known(self, vertex: np.ndarray, answer: np.ndarray, of_tail: np.ndarray) -> np.ndarray:
        """int [P, 2]: queries and their other answers, the vertex itself among them."""
        parts = []
        for i, (v, own, tail) in enumerate(zip(vertex, answer, of_tail, strict=True)):
            begin, answers = self._answers[int(tail)]
            found = answers[begin[v] : begin[v + 1]]
            others = np.append(found[found != own], [] if v == own else [v])
            parts.append(np.stack([np.full(len(others), i), others], axis=1))
        return np.concatenate(parts)

    def eval_batches(self) -> list[Ranked]:
        return [self._whole]


def _rows_of(row: np.ndarray, column: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """(where the columns of each row begin, the columns by row)."""
    order = np.argsort(row, kind="stable")
    return np.searchsorted(row[order], np.arange(count + 1)), column[order]
