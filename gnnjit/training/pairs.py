"""Pairs of vertices: do they belong together? The score is the area under the ROC curve."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gnnjit.data.pairs import PairDataset
from gnnjit.training.config import TrainConfig
from gnnjit.training.metrics import Sums, auc
from gnnjit.training.neighborhoods import Anew
from gnnjit.training.tasks import SPLITS

_DRAWN = 2**31
"""The number of the epoch whose draws are those of an evaluation."""


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["graph", "x", "together", "apart"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True, eq=False)
class PairBatch:
    """Pairs with an answer.

    Attributes:
        graph: what the model takes.
        x: float32[N, F].
        together, apart: for each split int32[P, 2], as many pairs of one class as of two. Of a
            batch that is trained on, one split.
    """

    graph: Any
    x: Any
    together: Any
    apart: Any

    def _scores(self, model: Any, key: Any) -> list[tuple[jax.Array, jax.Array]]:
        rows = model(self.graph, self.x, key=key)

        def of(pairs: jax.Array) -> jax.Array:
            return jnp.sum(rows[pairs[:, 0]] * rows[pairs[:, 1]], axis=1)

        return [(of(a), of(b)) for a, b in zip(self.together, self.apart, strict=True)]

    def loss(self, model: Any, key: Any) -> tuple[jax.Array, jax.Array]:
        """The sum of the cross entropies of the pairs, and how many they are."""
        ((true, false),) = self._scores(model, key)
        return _losses(true, false), jnp.float32(2 * len(true))

    def sums(self, model: Any) -> Sums:
        """The areas of the splits, times their pairs."""
        scores = self._scores(model, None)
        count = jnp.array([2 * len(true) for true, _ in scores], jnp.float32)
        area = jnp.stack([auc(true, false) for true, false in scores])
        loss = jnp.stack([_losses(true, false) for true, false in scores])
        return Sums(loss, count, area * count, count)


def _losses(true: jax.Array, false: jax.Array) -> jax.Array:
    entropy = optax.sigmoid_binary_cross_entropy
    return jnp.sum(entropy(true, jnp.ones_like(true))) + jnp.sum(
        entropy(false, jnp.zeros_like(false))
    )


class PairTask:
    """All pairs in each step, against as many pairs of two classes, drawn anew in each epoch; those
    of an evaluation stay the same."""

    def __init__(self, dataset: PairDataset, config: TrainConfig, graph: Any) -> None:
        """`graph`: what the model takes first, and is evaluated on."""
        self._y, self._x = dataset.y, jnp.asarray(dataset.x)
        self._graph = Anew(dataset, config, graph)
        self._pairs = {split: getattr(dataset, split) for split in SPLITS}
        rng = np.random.Generator(np.random.PCG64([0, _DRAWN]))
        self._whole = self._batch(graph, SPLITS, rng)

    def train_batches(self, seed: int, epoch: int) -> Iterator[PairBatch]:
        rng = np.random.Generator(np.random.PCG64([seed, epoch]))
        yield self._batch(self._graph(seed, epoch), SPLITS[:1], rng)

    def eval_batches(self) -> list[PairBatch]:
        return [self._whole]

    def _batch(self, graph: Any, splits: tuple[str, ...], rng: np.random.Generator) -> PairBatch:
        together = [self._pairs[split] for split in splits]
        apart = [_of_two_classes(rng, self._y, len(pairs)) for pairs in together]
        return PairBatch(graph, self._x, jax.device_put(together), jax.device_put(apart))


def _of_two_classes(rng: np.random.Generator, y: np.ndarray, count: int) -> np.ndarray:
    """int32[count, 2], each with the same chance."""
    found = np.zeros((0, 2), np.int32)
    while len(found) < count:
        drawn = rng.integers(0, len(y), (2 * count, 2), dtype=np.int32)
        found = np.concatenate([found, drawn[y[drawn[:, 0]] != y[drawn[:, 1]]]])
    return found[:count]
