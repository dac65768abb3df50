"""Rebalancing: vertices move from shards that cost too much to others (FlexGraph, section 5)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gnnjit.errors import GraphError
from gnnjit.partition import validate as checks
from gnnjit.partition.partition import Partition, balanced, cut_edges, imbalance
from gnnjit.shapes import ArrayLike, HostArray

if TYPE_CHECKING:  # a tenth of a second, for those who part graphs
    import scipy.sparse

METHOD = "rebalanced"
RESTARTS = 16
"""Breadth-first searches in one shard, which may fall into parts; more parts follow unsearched."""
ROUNDS = 6
"""Turns in which candidates choose the shard of most of their neighbours."""
FULL = 0.99
"""A shard is full when this share of its budget is taken: single vertices are not searched for."""


def rebalance(
    src: ArrayLike,
    dst: ArrayLike,
    partition: Partition,
    cost: ArrayLike,
    threshold: float = 1.1,
    plans: int = 8,
    seed: int = 0,
) -> Partition:
    """`partition` itself where it is balanced; else the plan of least cut edges that balances it.

    A plan begins with a breadth-first search from a vertex drawn at random in each shard above the
    threshold. The vertices that it finds first stay, while their cost is within the budget; the
    others move to shards that have room, those of most of their neighbours first.

    FlexGraph (section 5) leaves these open, and we choose: the budget is half way between the mean
    and the threshold, for those that give and those that take; a vertex that alone costs more stays
    where it is; and one more plan cuts the present order anew, by `balanced`. Where no plan gets
    below the threshold, the most balanced one is taken, if it is better than what is there.

    Args:
        src, dst: `int[E]`, the endpoints of each edge; no padding. FlexGraph's induced graph, where
            neighbourhoods are not edges.
        partition: what there is.
        cost: `float[N]`, >= 0, what each vertex costs in any unit, measured or learned.
        threshold: the largest allowed `imbalance`, 1 or more.
        plans: how many are made besides the one that cuts anew; 0 or more.
        seed: of the random choices. The same arguments give the same partition.

    Raises:
        GraphError: endpoints that are no vertices, costs that are none, a threshold below 1, or a
            number that is none.
    """
    plans, seed = checks.whole("plans", plans, 0), checks.whole("seed", seed, 0)
    if not threshold >= 1:
        raise GraphError(
            f"threshold is {threshold}, expected 1 or more: pass the largest allowed cost of a "
            "shard over the mean"
        )
    src, dst = checks.endpoints(src, dst, partition.num_nodes)
    cost = checks.as_costs("cost", cost, partition.num_nodes)
    now = imbalance(cost, partition)
    if now <= threshold:
        return partition
    best, least = partition, (np.inf, 0)
    for plan in _plans(src, dst, partition, cost, threshold, plans, seed):
        reached = imbalance(cost, plan)
        # Within the threshold it counts no more how far.
        found = max(reached, threshold), cut_edges(src, dst, plan)
        if reached < now and found < least:
            best, least = plan, found
    return best


def measured_costs(cost: ArrayLike, partition: Partition, seconds: ArrayLike) -> HostArray:
    """`float64[N]`: `cost` scaled, shard by shard, so that it sums up to what was measured.

    What a model does not see of a region (its rows stay in a cache, say) counts so in the next cut
    of the same graph; FlexGraph, too, balances by what was logged. A shard that was expected to
    cost nothing shares its time evenly.

    Args:
        cost: `float[N]`, >= 0, what was expected.
        partition: that was run.
        seconds: `float[P]`, >= 0, what the step of each shard took.

    Raises:
        GraphError: a cost or time that is negative, not finite or of another shape.
    """
    cost = checks.as_costs("cost", cost, partition.num_nodes)
    seconds = checks.as_costs("seconds", seconds, partition.num_shards, "shard")
    expected = partition.totals(cost)
    shard = partition.assignment()
    scale = np.divide(seconds, expected, out=np.zeros(len(expected)), where=expected > 0)
    even = np.where(expected > 0, 0, seconds / np.maximum(partition.sizes, 1))
    return cost * scale[shard] + even[shard]


def _plans(
    src: HostArray, dst: HostArray, partition: Partition, cost: HostArray, threshold: float,
    plans: int, seed: int,
) -> Iterator[Partition]:  # fmt: skip
    again = balanced(cost, partition.num_shards, partition.order, METHOD)
    yield again
    shard = partition.assignment()
    loads = partition.totals(cost)
    limit = loads.mean() * (1 + threshold) / 2
    givers = [
        _OverloadedShard.of(src, dst, partition, int(p), shard)
        for p in np.flatnonzero(loads / loads.mean() > threshold)  # as `imbalance` divides
    ]
    rng = np.random.default_rng(seed)
    for _ in range(plans):
        leaving = np.concatenate([_candidates(giver, cost, limit, rng) for giver in givers])
        moved = _Migration.of(src, dst, shard, leaving, cost, limit, partition.num_shards).run()
        yield Partition.of_assignment(moved, partition.num_shards, METHOD, partition.order)


@dataclasses.dataclass(frozen=True, eq=False)
class _OverloadedShard:
    """A shard and the edges within it. vertex: `int64[n]`, its vertices by position in it.
    neighbors: `[n, n]`, symmetric. component: `int[n]`, which part each lies in."""

    vertex: HostArray
    neighbors: scipy.sparse.csr_array
    component: HostArray

    @classmethod
    def of(
        cls, src: HostArray, dst: HostArray, partition: Partition, p: int, shard: HostArray
    ) -> _OverloadedShard:
        import scipy.sparse.csgraph

        vertex = partition.order[partition.bounds[p] : partition.bounds[p + 1]]
        within = np.flatnonzero((shard[src] == p) & (shard[dst] == p))
        at = np.empty(partition.num_nodes, np.int64)
        at[vertex] = np.arange(len(vertex))
        a, b = at[src[within]], at[dst[within]]
        # Bool, whose sum is "or": a count of duplicates could overflow to 0.
        ones = np.ones(2 * len(a), bool)
        ends = (np.concatenate([a, b]), np.concatenate([b, a]))
        neighbors = scipy.sparse.csr_array((ones, ends), shape=(len(vertex),) * 2)
        parts = scipy.sparse.csgraph.connected_components(neighbors, directed=False)[1]
        return cls(vertex, neighbors, parts)


def _candidates(
    giver: _OverloadedShard, cost: HostArray, limit: float, rng: np.random.Generator
) -> HostArray:
    """The vertices of a shard that are to leave it, in the order of the search."""
    heavy = cost[giver.vertex] > limit
    order = _search(giver, rng)
    order = order[~heavy[order]]
    costs = cost[giver.vertex[order]]
    left = limit - cost[giver.vertex[heavy]].sum()
    return giver.vertex[order[~_within(costs, left)]]


def _search(giver: _OverloadedShard, rng: np.random.Generator) -> HostArray:
    """All vertices of a shard: breadth first from one at random, then from one that it did not
    reach, and so on."""
    from scipy.sparse.csgraph import breadth_first_order

    size = len(giver.vertex)
    reached = np.zeros(size, bool)
    found = []
    for _ in range(RESTARTS):
        left = np.flatnonzero(~reached)
        if not len(left):
            break
        start = int(rng.choice(left))
        # Neighbours in both directions are there already.
        some = breadth_first_order(giver.neighbors, start, return_predecessors=False)
        reached[some] = True
        found.append(some)
    rest = np.flatnonzero(~reached)
    found.append(rest[np.argsort(giver.component[rest], kind="stable")])
    return np.concatenate(found)


def _within(costs: HostArray, budget: float) -> HostArray:
    """`bool[n]`: those that are taken one after the other while they fit the budget; one that does
    not fit is left out, and the next is tried, until the budget is nearly full."""
    taken = np.zeros(len(costs), bool)
    sums = np.concatenate([[0.0], np.cumsum(costs)])
    at, left = 0, budget
    while at < len(costs) and left > (1 - FULL) * budget:
        end = int(np.searchsorted(sums, sums[at] + left, "right")) - 1
        taken[at:end] = True
        left -= sums[end] - sums[at]
        at = end + 1
    return taken


@dataclasses.dataclass(eq=False)
class _Migration:
    """Candidates that look for a shard.

    shard: `int64[N]`, the shard of each vertex, -1 for candidates that have none yet.
    candidates: `int64[C]`, their vertices.
    costs: `float64[C]`, their costs.
    room: `float64[P]`, the cost that each shard may still take.
    near: `int64[C, P]`, the edges that join each candidate to each shard.
    ends: edges between candidates, in both directions: from and to, `int64[K]` each.
    """

    shard: HostArray
    candidates: HostArray
    costs: HostArray
    room: HostArray
    near: HostArray
    ends: tuple[HostArray, HostArray]

    @classmethod
    def of(
        cls, src: HostArray, dst: HostArray, shard: HostArray, candidates: HostArray,
        cost: HostArray, limit: float, parts: int,
    ) -> _Migration:  # fmt: skip
        number = np.full(len(shard), -1)
        number[candidates] = np.arange(len(candidates))
        shard = shard.copy()
        shard[candidates] = -1
        settled = shard >= 0
        room = limit - np.bincount(shard[settled], cost[settled], minlength=parts)
        touched = np.flatnonzero((number[src] >= 0) | (number[dst] >= 0))
        src, dst = src[touched], dst[touched]
        candidate = np.concatenate([number[src], number[dst]])
        other = np.concatenate([dst, src])
        candidate, other = candidate[candidate >= 0], other[candidate >= 0]
        to = shard[other]
        near = np.zeros((len(candidates), parts), np.int64)
        migration = _Migration(
            shard, candidates, cost[candidates], room, near, (candidate, number[other])
        )
        migration._count(candidate[to >= 0], to[to >= 0])
        free = to < 0
        migration.ends = (candidate[free], number[other[free]])
        return migration

    def run(self) -> HostArray:
        """`int64[N]`: the shard of each vertex."""
        open_ = np.ones(len(self.candidates), bool)
        for _ in range(ROUNDS):
            accepted = self._round(np.flatnonzero(open_))
            if not len(accepted):
                break
            open_[accepted] = False
            fresh = np.zeros(len(open_), bool)
            fresh[accepted] = True
            candidate, other = self.ends
            told = fresh[other] & open_[candidate]
            self._count(candidate[told], self.shard[self.candidates[other[told]]])
        self._fill(np.flatnonzero(open_))
        return self.shard

    def _round(self, waiting: HostArray) -> HostArray:
        """Each candidate asks the shard of most of its neighbours among those with room for it; a
        shard takes those with most neighbours first, while it has room. Who was taken."""
        fits = self.room[None, :] >= self.costs[waiting, None]
        near = np.where(fits, self.near[waiting], 0)
        wish = near.argmax(1)
        most = near[np.arange(len(waiting)), wish]
        taken = []
        for p in np.unique(wish[most > 0]):
            asks = np.flatnonzero((wish == p) & (most > 0))
            asks = asks[np.argsort(-most[asks], kind="stable")]
            some = waiting[asks[np.cumsum(self.costs[waiting[asks]]) <= self.room[p]]]
            self._put(some, p)
            taken.append(some)
        return np.concatenate(taken) if taken else np.zeros(0, np.int64)

    def _fill(self, waiting: HostArray) -> None:
        """The rest, in the order of the search so that neighbours stay together: the shard of most
        room takes what fits, and so on; at last each goes where there is most room."""
        for p in np.argsort(-self.room, kind="stable"):
            inside = _within(self.costs[waiting], max(float(self.room[p]), 0.0))
            self._put(waiting[inside], p)
            waiting = waiting[~inside]
        for c in waiting[np.argsort(-self.costs[waiting], kind="stable")]:
            self._put(np.array([c]), int(self.room.argmax()))

    def _put(self, some: HostArray, p: int) -> None:
        self.shard[self.candidates[some]] = p
        self.room[p] -= self.costs[some].sum()

    def _count(self, candidate: HostArray, to: HostArray) -> None:
        """These candidates have one more edge each to these shards."""
        size = self.near.size
        self.near += np.bincount(candidate * self.near.shape[1] + to, minlength=size).reshape(
            self.near.shape
        )
