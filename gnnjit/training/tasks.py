"""What is trained on: a dataset as batches of fixed shape, with weights that tell the splits."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.data import Dataset, Fold, GraphDataset
from gnnjit.data.splits import Masks, random_split
from gnnjit.graph import Graph
from gnnjit.nn.classifiers import Classifier
from gnnjit.streaming import StreamedGraph
from gnnjit.training.metrics import Sums, answers, class_counts, cross_entropy, explained, squares

SPLITS = ("train", "val", "test")


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=[
        "graph",
        "x",
        "labels",
        "weights",
        "graph_index",
        "rows",
        "real",
        "edge_weight",
    ],
    meta_fields=["num_graphs"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """One call of the model.

    Attributes:
        graph: a `Graph`, a `ShardedGraph`, an `HDG`, or a `StreamedGraph`; the arrays of the last
            are in its store. Of a sampled batch a tuple: one graph for each layer, or one for all.
        x: float32[N, F].
        labels: int32[L], of vertices or of graphs.
        weights: float32[L, 3], 1 where a label belongs to train, validation, test.
        graph_index: int32[N], the graph of each vertex (`num_graphs` on padding), or None.
        rows: int32[L], the row of the model's output that each label is of, or None for all rows.
        real: int32[L + 1], how many vertices up to and with each hop are no padding, int32[1] of a
            subgraph, or None.
        edge_weight: float32[E], of each edge in a mean of neighbours, or None.
        num_graphs: L for graph labels, or None (static).
    """

    graph: Any
    x: Any
    labels: Any
    weights: Any
    graph_index: Any = None
    rows: Any = None
    real: Any = None
    edge_weight: Any = None
    num_graphs: int | None = None

    def logits(self, model: Any, key: Any) -> jax.Array:
        """float[L, C]: what `model` says of this batch."""
        if self.num_graphs is None:
            options: dict[str, Any] = {}
            if self.real is not None and isinstance(model, Classifier):
                last = max(self.real.shape[0] - 2, 0)
                options["real"] = [self.real[hop] for hop in range(last, -1, -1)]
            if self.edge_weight is not None:
                options["edge_weight"] = self.edge_weight
            logits = model(self.graph, self.x, key=key, **options)
            return logits if self.rows is None else logits[self.rows]
        return model(self.graph, self.x, self.graph_index, self.num_graphs, key=key)

    def loss(self, model: Any, key: Any) -> tuple[jax.Array, jax.Array]:
        """The sum of the losses of the labels that are trained on, and how many they are."""
        losses = cross_entropy(self.logits(model, key), self.labels)
        weights = self.weights[:, 0]
        return jnp.sum(jnp.where(weights > 0, weights * losses, 0)), jnp.sum(weights)

    def sums(self, model: Any) -> Sums:
        """What is reported of each split."""
        logits = self.logits(model, None)
        loss, weights = cross_entropy(logits, self.labels), self.weights
        count = jnp.sum(weights, axis=0)
        if jnp.issubdtype(self.labels.dtype, jnp.floating):
            more = squares(logits, self.labels, weights)
            share = explained(logits, self.labels, weights)
            return Sums(loss @ weights, count, share * count, count, more)
        right, said = answers(logits, self.labels)
        more = {}
        if not isinstance(self.graph, StreamedGraph):  # block by block, sums over all vertices only
            more = class_counts(logits, self.labels, weights)
        return Sums(loss @ weights, count, right @ weights, said @ weights, more)


class TrainingBatch(Protocol):
    """What a step is computed of: a pytree of arrays of fixed shape."""

    def loss(self, model: Any, key: Any) -> tuple[jax.Array, jax.Array]:
        """The sum of the losses of what is trained on, and how many they are."""
        ...

    def sums(self, model: Any) -> Sums:
        """What is reported of each split."""
        ...


class Task(Protocol):
    """A dataset and its split, in the form that the loop runs over: as `TrainingBatch`es."""

    def train_batches(self, seed: int, epoch: int) -> Iterator[Any]:
        """The batches of an epoch: one shape, a function of (seed, epoch) alone."""
        ...

    def eval_batches(self) -> list[Any]:
        """Batches that hold every label once: one shape."""
        ...


def split_weights(dataset: Dataset) -> np.ndarray:
    """float32[N, 3], as in `Batch.weights`."""
    masks = [getattr(dataset, f"{split}_mask") for split in SPLITS]
    return np.stack(masks, axis=1).astype(np.float32)


def drawn_split(dataset: Dataset, seed: int) -> Masks:
    """60, 20 and 20 % of the labelled vertices, the same shares of each class."""
    known = dataset.labelled
    if known is None:
        known = dataset.train_mask | dataset.val_mask | dataset.test_mask
    return random_split(dataset.name, dataset.y, known=known, seed=seed)


class VertexTask:
    """A graph whose vertices are labelled: the whole graph is every batch."""

    def __init__(self, dataset: Dataset, hdg: Any = None) -> None:
        """`hdg`: what the model takes in place of the graph, if not None."""
        self._batch = Batch(
            graph=dataset.graph if hdg is None else hdg,
            x=jax.tree.map(jnp.asarray, dataset.x),
            labels=jnp.asarray(dataset.y),
            weights=jnp.asarray(split_weights(dataset)),
        )

    def resplit(self, masks: Masks) -> VertexTask:
        """The same with another split."""
        other = copy.copy(self)
        weights = jnp.asarray(np.stack(masks, axis=1), jnp.float32)
        other._batch = dataclasses.replace(self._batch, weights=weights)
        return other

    def train_batches(self, seed: int, epoch: int) -> Iterator[Batch]:
        yield self._batch

    def eval_batches(self) -> list[Batch]:
        return [self._batch]


class FoldTask:
    """Labelled graphs, one fold held out: it is the validation split, and there is no test split.

    Batches are taken from an endless shuffled stream of the training graphs and padded to one
    shape, the same for all folds.
    """

    def __init__(
        self, dataset: GraphDataset, fold: Fold, batch_size: int = 0, steps: int = 1
    ) -> None:
        self._dataset = dataset
        self._train = np.asarray(fold.train)
        self._steps = steps
        self._sizes = np.stack([np.diff(dataset.node_offsets), np.diff(dataset.edge_offsets)])
        self._graphs = min(batch_size or len(fold.train), len(fold.train))
        self._slots = min(batch_size or len(dataset), len(dataset))  # equal for all folds
        self._room = self._capacity(len(dataset))
        self._weights = np.zeros((len(dataset), 3), np.float32)
        self._weights[fold.train, 0] = 1
        self._weights[fold.test, 1] = 1
        self._whole: Batch | None = None

    def _capacity(self, total: int) -> np.ndarray:
        """int64[2]: room for the vertices and edges of a batch.

        That is for a batch of average graphs and a quarter more, but at least the largest graph;
        for all, where a batch takes all.
        """
        everything, largest = self._sizes.sum(axis=1), self._sizes.max(axis=1)
        if self._graphs == len(self._train):
            return np.maximum(everything, 1)
        wanted = np.ceil(1.25 * self._graphs / total * everything).astype(np.int64)
        return np.maximum(np.minimum(np.maximum(wanted, largest), everything), 1)

    def train_batches(self, seed: int, epoch: int) -> Iterator[Batch]:
        rng = np.random.Generator(np.random.PCG64([seed, epoch]))
        stream = self._stream(rng)
        graph = next(stream)
        for _ in range(self._steps):
            chosen, used = [], np.zeros(2, np.int64)
            while len(chosen) < self._graphs and (used + self._sizes[:, graph] <= self._room).all():
                chosen.append(graph)
                used += self._sizes[:, graph]
                graph = next(stream)
            yield self._padded(np.array(chosen))

    def _stream(self, rng: np.random.Generator) -> Iterator[int]:
        while True:
            yield from rng.permutation(self._train)

    def eval_batches(self) -> list[Batch]:
        if self._whole is None:
            everything = self._dataset
            self._whole = Batch(
                graph=everything.union(),
                x=jnp.asarray(everything.x),
                labels=jnp.asarray(everything.y),
                weights=jnp.asarray(self._weights),
                graph_index=jnp.asarray(everything.node_graph),
                num_graphs=len(everything),
            )
        return [self._whole]

    def _padded(self, graphs: np.ndarray) -> Batch:
        """The batch of `graphs`, with padding in `graph_index`, `weights` and the graph's mask."""
        part, (nodes, edges) = self._dataset.select(graphs), self._room
        missing = self._slots - len(part)
        no_vertex, no_edge = int(nodes) - part.num_nodes, int(edges) - part.num_edges
        index = np.pad(part.node_graph, (0, no_vertex), constant_values=self._slots)
        graph = Graph.from_edges(
            np.pad(part.src, (0, no_edge)),
            np.pad(part.dst, (0, no_edge)),
            int(nodes),
            edge_mask=np.arange(edges) < part.num_edges,
        )
        return Batch(
            graph=without_buckets(graph),
            x=jnp.asarray(np.pad(part.x, ((0, no_vertex), (0, 0)))),
            labels=jnp.asarray(np.pad(part.y, ((0, missing), *((0, 0),) * (part.y.ndim - 1)))),
            weights=jnp.asarray(np.pad(self._weights[graphs], ((0, missing), (0, 0)))),
            graph_index=jnp.asarray(index.astype(np.int32)),
            num_graphs=self._slots,
        )


def without_buckets(graph: Graph) -> Graph:
    """The graph without degree buckets, whose shapes differ from batch to batch."""
    return dataclasses.replace(
        graph,
        in_structure=dataclasses.replace(graph.in_structure, buckets=None),
        out_structure=dataclasses.replace(graph.out_structure, buckets=None),
    )
