"""Link prediction: facts of a knowledge graph beside false ones, links of a graph of one relation
among all that could be, and how the true ones rank."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.data.links import LinkDataset
from gnnjit.graph import Graph
from gnnjit.nn.path_predictor import PathPredictor
from gnnjit.training.config import TrainConfig
from gnnjit.training.metrics import Sums, hits_among, hits_at, ranks
from gnnjit.training.tasks import without_buckets

HITS = (1, 3, 10)

_QUERIES = 256
"""Queries whose scores of all entities are in memory together."""


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["graph", "vertices", "entities", "facts", "real", "false", "of_tail"],
    meta_fields=["decay"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class Facts:
    """A batch of facts, some of which are the graph that messages go along.

    Attributes:
        graph: half of the facts, both ways, with a relation for each way.
        vertices: int32[V], the entity that each vertex of the graph is, or None of all entities.
        entities: int32, how many vertices are no padding.
        facts: int32[G, n, 3], (head, relation, tail), in groups of n; ends are vertices.
        real: bool[G, n], which facts are no padding.
        false: int32[G, n], entities that stand in for a head or tail, n for each fact of a group.
        of_tail: bool[G, n], whether they stand in for the tail of a fact, else for its head.
        decay: L2 coefficient of the mean squares of the entities' rows and of the relations.
    """

    graph: Graph
    vertices: Any
    entities: Any
    facts: Any
    real: Any
    false: Any
    of_tail: Any
    decay: float

    def loss(self, model: Any, key: Any) -> tuple[jax.Array, jax.Array]:
        """The sum of the cross entropies of true and false facts, and how many they are.

        Schlichtkrull et al. 2018, equation 7, with the penalty of DGL's example.
        """
        rows, of_relation = model(self.graph, self.vertices, key=key), model.relation[...]
        head, relation, tail = (self.facts[..., i] for i in range(3))
        # The score is the same with both ends exchanged, so numbers are picked, not rows.
        asked = rows[jnp.where(self.of_tail, head, tail)] * of_relation[relation]
        true = jnp.sum(asked * rows[jnp.where(self.of_tail, tail, head)], axis=-1)
        false = jnp.einsum("gif,gjf->gij", asked, rows[self.false])
        losses = jax.nn.softplus(-true) + jnp.sum(jax.nn.softplus(false), axis=-1)
        total = jnp.sum(jnp.where(self.real, losses, 0))
        count = jnp.sum(self.real, dtype=jnp.float32) * (1 + false.shape[-1])
        inside = jnp.where(jnp.arange(len(rows)) < self.entities, 1 / self.entities, 0)
        penalty = inside @ jnp.mean(jnp.square(rows), axis=1) + jnp.mean(jnp.square(of_relation))
        return total + count * self.decay * penalty, count


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["graph", "queries", "known"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True, eq=False)
class Ranked:
    """The facts of both splits, each asked for its tail and for its head, in parts of so many
    queries that the scores of a part fit in memory.

    Attributes:
        graph: all facts to train on, both ways.
        queries: int32[parts, Q, 6]: the entity that is known, the relation, the one that is asked
            for, whether that is the head, and whether the query is of the validation and of the
            test split.
        known: int32[parts, P, 2], queries of a part and entities that answer them in any split;
            padding is of query Q.
    """

    graph: Graph
    queries: Any
    known: Any

    def sums(self, model: Any) -> Sums:
        """Reciprocal ranks and hits, summed over the queries of each split."""
        scored = _scorer(model, self.graph)

        def of_part(part: Any) -> Any:
            queries, known = part
            found = ranks(scored(queries), queries[:, 2], known[:, 0], known[:, 1])
            others = self.graph.num_dst - jnp.zeros(len(queries)).at[known[:, 0]].add(1)
            share = (found.filtered - 1) / jnp.maximum(others, 1)
            scores = [1 / found.filtered, 1 / found.raw]
            scores += [hits_at(rank, k) for rank in (found.filtered, found.raw) for k in HITS]
            scores += [1 - share, hits_among(share)]
            nothing = jnp.zeros_like(queries[:, 3])
            splits = jnp.stack([nothing, queries[:, 4], queries[:, 5]], axis=1).astype(jnp.float32)
            return jnp.stack([*scores, jnp.ones_like(found.raw)]) @ splits

        names = ["MRR", "MRR raw", *(f"hits@{k}" for k in HITS), *(f"hits@{k} raw" for k in HITS)]
        names += ["AUC", "hits@10 of 100"]
        *sums, count = jax.lax.map(of_part, (self.queries, self.known)).sum(axis=0)
        more = dict(zip(names, sums, strict=True))
        return Sums(jnp.full(3, jnp.nan), count, more["MRR"], count, more)


def _scorer(model: Any, graph: Graph) -> Callable[[Any], jax.Array]:
    """From queries as in `Ranked` to the scores of all entities, `[Q, N]`."""
    if isinstance(model, PathPredictor):
        return lambda queries: model(graph, queries[:, 0], queries[:, 3] == 0)
    rows, of_relation = model(graph), model.relation[...]
    return lambda queries: (rows[queries[:, 0]] * of_relation[queries[:, 1]]) @ rows.T


class Part(NamedTuple):
    """Facts that a step takes, in the order in which they were drawn.

    Attributes:
        facts: int32[size, 3], whose ends are vertices of the step's graph.
        count: how many are no padding.
        vertices: int32[V], the entity that each vertex is, N on padding; None: all, as numbered.
        entities: how many vertices are no padding.
    """

    facts: np.ndarray
    count: int
    vertices: np.ndarray | None
    entities: int


class LinkTask:
    """Facts of a knowledge graph. A step takes some of them; half of these are the graph.

    As in DGL's example of R-GCN. Where we differ: the facts are in groups of as many as there are
    `negatives`, and those of a group share their false entities, which a product then scores. They
    are drawn from all entities, of a sampled part (`sampled_links`) from those of the part.
    """

    def __init__(self, dataset: LinkDataset, config: TrainConfig, size: int | None = None) -> None:
        """`size`: facts of a step; those of the configuration if left out."""
        self._dataset, self._steps = dataset, config.steps_per_epoch
        self._decay = config.weight_decay if config.decay == "batch" else 0.0
        facts = len(dataset.train)
        size = size or min(config.batch_size or facts, facts)
        self._group = min(config.negatives, size)
        self._size = size // self._group * self._group
        self._whole = ranked(dataset, _QUERIES)

    def train_batches(self, seed: int, epoch: int) -> Iterator[Facts]:
        rng = np.random.Generator(np.random.PCG64([seed, epoch]))
        for _ in range(self._steps):
            yield self._batch(rng, self._drawn(rng))

    def eval_batches(self) -> list[Ranked]:
        return [self._whole]

    def _drawn(self, rng: np.random.Generator) -> Part:
        train = self._dataset.train
        facts = train[rng.choice(len(train), self._size, replace=False)]
        return Part(facts, self._size, None, self._dataset.num_nodes)

    def _batch(self, rng: np.random.Generator, part: Part) -> Facts:
        size, group = self._size, self._group
        rows = self._dataset.num_nodes if part.vertices is None else len(part.vertices)
        passed, half = max(1, part.count // 2), max(1, size // 2)
        shape = size // group, group
        false = rng.integers(0, part.entities, shape, dtype=np.int32)
        of_tail = rng.random(shape) < 0.5
        order = rng.permutation(size)  # groups mix edges of the graph with others
        return Facts(
            graph=both_ways(self._dataset, part.facts[:half], rows, min(passed, half)),
            vertices=part.vertices,
            entities=np.int32(part.entities),
            facts=part.facts[order].reshape(*shape, 3),
            real=(order < part.count).reshape(shape),
            false=false,
            of_tail=of_tail,
            decay=self._decay,
        )


def both_ways(
    data: LinkDataset, facts: np.ndarray, num_nodes: int | None = None, count: int | None = None
) -> Graph:
    """The graph of some facts, each with its relation r, and back with r + R. `num_nodes`: its
    vertices, all entities if left out. `count`: of the facts, the rest is padding."""
    head, relation, tail = facts.T
    src, dst = np.concatenate([head, tail]), np.concatenate([tail, head])
    relations = np.concatenate([relation, relation + data.num_relations])
    graph = Graph.from_edges(
        src,
        dst,
        data.num_nodes if num_nodes is None else num_nodes,
        edge_mask=None if count is None else np.tile(np.arange(len(facts)) < count, 2),
        relation=relations,
        num_relations=2 * data.num_relations,
    )
    return without_buckets(graph)


def ranked(data: LinkDataset, most: int) -> Ranked:
    splits = [(data.val, 1, 0), (data.test, 0, 1)]
    queries = np.concatenate([_queries(*split) for split in splits])
    # A relation asked for its head is another one, for what is known to answer it.
    true = [data.train, data.val, data.test, *_loops(data)]
    answers = np.concatenate([_queries(links, 0, 0) for links in true])
    size = max(1, min(most, len(queries)))
    parts = max(1, -(-len(queries) // size))
    known = _known(queries, answers, data, size, parts)
    padded = np.zeros((parts * size, 6), np.int32)
    padded[: len(queries)] = queries
    return Ranked(
        graph=both_ways(data, data.train),
        queries=jnp.asarray(padded.reshape(parts, size, 6)),
        known=jnp.asarray(known),
    )


def _loops(data: LinkDataset) -> list[np.ndarray]:
    """Of a graph with one relation that has no self loop, those of all vertices: no vertex is an
    answer to itself, so that it is left out of the filtered ranks as what is known is."""
    links = np.concatenate([data.train, data.val, data.test])
    if data.num_relations > 1 or (links[:, 0] == links[:, 2]).any():
        return []
    vertex = np.arange(data.num_nodes, dtype=np.int32)
    return [np.stack([vertex, np.zeros_like(vertex), vertex], axis=1)]


def _queries(links: np.ndarray, val: int, test: int) -> np.ndarray:
    """int32 [2 L, 6]: what is known, the relation, what is asked for, whether it is the head, and
    the split."""
    head, relation, tail = links.T
    zeros, ones = np.zeros_like(head), np.ones_like(head)
    of_split = [ones * val, ones * test]
    return np.concatenate([
        np.stack([head, relation, tail, zeros, *of_split], axis=1),
        np.stack([tail, relation, head, ones, *of_split], axis=1),
    ])  # fmt: skip


def _known(
    queries: np.ndarray, answers: np.ndarray, data: LinkDataset, size: int, parts: int
) -> np.ndarray:
    """int32 [parts, P, 2], as in `Ranked`; each pair once."""

    def key(rows: np.ndarray) -> np.ndarray:
        wide = rows.astype(np.int64)
        return (wide[:, 0] * data.num_relations + wide[:, 1]) * 2 + wide[:, 3]

    pairs = np.unique(key(answers) * data.num_nodes + answers[:, 2])
    asked = key(queries) * data.num_nodes
    first, last = np.searchsorted(pairs, asked), np.searchsorted(pairs, asked + data.num_nodes)
    lengths = last - first
    query = np.repeat(np.arange(len(queries)), lengths)
    step = np.arange(len(query)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    answer = pairs[np.repeat(first, lengths) + step] % data.num_nodes
    of = query // size
    counts = np.bincount(of, minlength=parts)
    column = np.arange(len(query)) - np.repeat(np.cumsum(counts) - counts, counts)
    table = np.zeros((parts, max(1, int(counts.max(initial=0))), 2), np.int32)
    table[..., 0] = size
    table[of, column] = np.stack([query % size, answer], axis=1)
    return table
