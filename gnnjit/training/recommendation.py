"""Recommendation: pairs of a true and a false item of a user, and how the items are ranked."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.data.links import LinkDataset
from gnnjit.sample import NegativeSampler
from gnnjit.training.config import TrainConfig
from gnnjit.training.metrics import Sums, ndcg_at, recall_at
from gnnjit.training.neighborhoods import Anew

TOP = 20
"""How many items are recommended."""

SHARED = 512
"""Items that a softmax ranks below that of each pair of a batch."""

_NEVER = -1e9
"""The score of padding."""

_USERS = 256
"""Users whose scores of all items are in memory together."""

_TRIES = 100


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["graph", "users", "items", "others", "real"],
    meta_fields=["decay", "shared"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class Pairs:
    """A batch of users, each with an item that they took and one that they did not.

    Attributes:
        graph: users and items, or the walks over it.
        users, items, others: int32[B], vertices.
        real: float32[B], 0 on padding.
        decay: L2 coefficient of the embeddings of the batch.
        shared: whether users are shown the items that others of the batch did not take.
    """

    graph: Any
    users: Any
    items: Any
    others: Any
    real: Any
    decay: float
    shared: bool = False

    def loss(self, model: Any, key: Any) -> tuple[jax.Array, jax.Array]:
        """The sum of the losses of the pairs, and how many they are.

        Bayesian personalised ranking: `softplus(other - item)` of the two scores (Rendle et al.
        2009), and half the squares of the three embeddings, before propagation, times `decay` (He
        et al. 2020, equation 15, in the form of the authors' code). If `shared`, in place of the
        former `-log` of the item's part of a softmax over it and the same `SHARED` other items for
        all users, some of which a user may have taken; Ying et al. (2018), section 3.3, share 500
        of them.
        """
        rows = jnp.concatenate([self.users, self.items, self.others])  # one gather, one scatter
        user, item, other = jnp.split(model(self.graph, key=key)[rows], 3)
        own_score = jnp.sum(user * item, axis=1)
        if self.shared:
            scores = jnp.where(self.real[:SHARED] > 0, user @ other[:SHARED].T, _NEVER)
            others = jax.nn.logsumexp(scores, axis=1)
        else:
            others = jnp.sum(user * other, axis=1)
        ranking = jax.nn.softplus(others - own_score)
        own = jnp.square(model.embedding[...][rows]).sum(axis=1)
        penalty = 0.5 * self.decay * own.reshape(3, -1).sum(axis=0)
        return self.real @ (ranking + penalty), jnp.sum(self.real)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["graph", "users", "seen", "wanted", "counts"],
    meta_fields=["num_users"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class Rankings:
    """The users of a split with all that they took, in parts of so many users that the scores of
    a part fit in memory.

    Attributes:
        graph: users and items, or the walks over it.
        users: int32[parts, Q], vertices.
        seen: int32[parts, P, 2], places in a part and items that the user took in training, and
            that are not recommended; padding is at the place Q.
        wanted: int32[3 splits][parts, P', 2], the same for what is to be found.
        counts: int32[3, parts, Q], how many items are to be found for each user; 0 leaves the user
            out.
        num_users: how many vertices are users (static).
    """

    graph: Any
    users: Any
    seen: Any
    wanted: Any
    counts: Any
    num_users: int

    def sums(self, model: Any) -> Sums:
        """Recall and NDCG of the first 20 items, summed over the users of each split."""
        rows = model(self.graph)
        items = rows[self.num_users :]

        def of_part(part: Any) -> Any:
            users, seen, wanted, counts = part
            scores = rows[users] @ items.T
            scores = jnp.where(jnp.isnan(scores), -jnp.inf, scores)  # `top_k` takes NaN first
            scores = scores.at[seen[:, 0], seen[:, 1]].set(-jnp.inf, mode="drop")
            first = jax.lax.top_k(scores, min(TOP, len(items)))[1]
            empty = jnp.zeros(scores.shape, bool)
            found = []
            for pairs, count in zip(wanted, counts, strict=True):
                true = empty.at[pairs[:, 0], pairs[:, 1]].set(True, mode="drop")
                hit = jnp.take_along_axis(true, first, axis=1)
                recall, ndcg = recall_at(hit, count).sum(), ndcg_at(hit, count).sum()
                found.append(jnp.stack([recall, ndcg, jnp.sum(count > 0, dtype=jnp.float32)]))
            return jnp.stack(found)

        counts = jnp.moveaxis(self.counts, 0, 1)
        parts = jax.lax.map(of_part, (self.users, self.seen, self.wanted, counts))
        recall, ndcg, users = parts.sum(axis=0).T
        more = {f"recall@{TOP}": recall, f"ndcg@{TOP}": ndcg}
        return Sums(jnp.full(3, jnp.nan), users, recall, users, more)


class RecommendationTask:
    """Interactions of users and items: an epoch has as many pairs as there are to train on."""

    def __init__(self, dataset: LinkDataset, config: TrainConfig, hdg: Any = None) -> None:
        """`hdg`: what the model takes in place of the graph, if not None."""
        users = dataset.num_users
        assert users is not None
        graph = dataset.graph()
        self._graph = Anew(dataset, config, graph if hdg is None else hdg)
        train = dataset.train[np.argsort(dataset.train[:, 0], kind="stable")]
        self._items = train[:, 2]
        self._starts = np.searchsorted(train[:, 0], np.arange(users + 1))
        self._active = np.flatnonzero(np.diff(self._starts))
        self._sampler = NegativeSampler(
            graph,
            destinations=np.arange(users, dataset.num_nodes, dtype=np.int32),
            tries=_TRIES,
        )
        self._size = min(config.batch_size or len(train), len(train))
        self._decay = config.weight_decay if config.decay == "batch" else 0.0
        self._shared = config.loss == "softmax"
        self._whole = _rankings(dataset, graph if hdg is None else hdg)

    def train_batches(self, seed: int, epoch: int) -> Iterator[Pairs]:
        """As in LightGCN's code: users with the same chance, then one of their items, and one that
        they did not take."""
        rng = np.random.Generator(np.random.PCG64([seed, epoch]))
        total = len(self._items)
        users = self._active[rng.integers(0, len(self._active), total)]
        first, sizes = self._starts[users], self._starts[users + 1] - self._starts[users]
        items = self._items[first + (rng.random(total) * sizes).astype(np.int64)]
        drawn = self._sampler.sample(users, items, int(rng.integers(0, 2**31)))
        columns = [
            users.astype(np.int32), items.astype(np.int32), drawn.dst[:, 0].astype(np.int32),
            (~drawn.false[:, 0]).astype(np.float32),
        ]  # fmt: skip
        graph = self._graph(seed, epoch)
        for start in range(0, total, self._size):
            part = [c[start : start + self._size] for c in columns]
            missing = self._size - len(part[0])
            arrays = (np.pad(c, (0, missing)) for c in part)
            yield Pairs(graph, *arrays, decay=self._decay, shared=self._shared)

    def eval_batches(self) -> list[Rankings]:
        return [self._whole]


def _rankings(dataset: LinkDataset, graph: Any) -> Rankings:
    """All users that have something to be found, with what they took in training."""
    count = dataset.num_users or 0
    splits = [dataset.val, dataset.test]
    asked = np.unique(np.concatenate([links[:, 0] for links in splits])).astype(np.int64)
    size = max(1, min(_USERS, len(asked)))
    parts = max(1, -(-len(asked) // size))
    place = np.full(count, parts * size)  # of each user, in all parts one after the other
    place[asked] = np.arange(len(asked))
    users = np.pad(asked, (0, parts * size - len(asked))).reshape(parts, size)
    nothing = dataset.train[:0]
    counts = [
        np.bincount(place[links[:, 0]], minlength=parts * size + 1)[: parts * size]
        for links in (nothing, *splits)
    ]
    wanted = tuple(_by_part(links, place, parts, size, count) for links in (nothing, *splits))
    return Rankings(
        graph=graph,
        users=jnp.asarray(users, jnp.int32),
        seen=_by_part(dataset.train, place, parts, size, count),
        wanted=wanted,
        counts=jnp.asarray(np.stack(counts).reshape(3, parts, size), jnp.int32),
        num_users=count,
    )


def _by_part(
    links: np.ndarray, place: np.ndarray, parts: int, size: int, num_users: int
) -> jax.Array:
    """int32[parts, P, 2]: for each part, places in it and items; `size` is the place of padding."""
    at, item = place[links[:, 0]], links[:, 2] - num_users
    asked = at < parts * size
    at, item = at[asked], item[asked]
    order = np.argsort(at, kind="stable")
    at, item = at[order], item[order]
    of = at // size
    lengths = np.bincount(of, minlength=parts)
    column = np.arange(len(at)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    table = np.zeros((parts, max(1, int(lengths.max(initial=0))), 2), np.int32)
    table[..., 0] = size
    table[of, column] = np.stack([at % size, item], axis=1)
    return jnp.asarray(table)
