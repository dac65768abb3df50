"""Partitions: the vertices of a graph dealt out to shards, one a device.

A shard owns its vertices and their in-edges, as in ROC (section 4.2).
"""

from __future__ import annotations

import dataclasses

import numpy as np

from gnnjit.errors import GraphError
from gnnjit.partition import validate as checks
from gnnjit.partition.contiguous import contiguous_cut, even, prefix_sums
from gnnjit.partition.metis import metis_parts, pymetis, symmetric_pattern
from gnnjit.shapes import ArrayLike, HostArray


@dataclasses.dataclass(frozen=True, eq=False)
class Partition:
    """N vertices dealt out to P shards.

    Attributes:
        order: `int64[N]`, the vertex at each position; shard p owns positions `bounds[p]` to
            `bounds[p + 1] - 1`.
        bounds: `int64[P + 1]`. A shard may be empty.
        method: what made it: "vertices", "edges", "learned", "metis", "given" or "rebalanced".

    Raises:
        GraphError: `order` is no permutation, or `bounds` does not rise from 0 to N.
    """

    order: HostArray
    bounds: HostArray
    method: str

    def __post_init__(self) -> None:
        order = checks.permutation(self.order)
        object.__setattr__(self, "order", order)
        object.__setattr__(self, "bounds", checks.as_bounds(self.bounds, len(order)))

    @classmethod
    def of_assignment(
        cls,
        shard: ArrayLike,
        num_shards: int,
        method: str = "given",
        order: ArrayLike | None = None,
    ) -> Partition:
        """The partition that puts each vertex on the shard that is given for it.

        Args:
            shard: `int[N]`, from 0 to `num_shards - 1`.
            num_shards: P.
            method: what made it.
            order: `int[N]`, how vertices follow each other within a shard; by number if left out.

        Raises:
            GraphError: a shard that is none, another shape or dtype, or an `order` that is no
                permutation.
        """
        parts = checks.whole("num_shards", num_shards, 1)
        shard = checks.as_shards(shard, parts)
        along = checks.along(order, len(shard))
        by_shard = along[np.argsort(shard[along], kind="stable")]
        sizes = np.bincount(shard, minlength=parts)
        return cls(by_shard, np.concatenate([[0], np.cumsum(sizes)]), method)

    @property
    def num_nodes(self) -> int:
        """N, the number of vertices."""
        return len(self.order)

    @property
    def num_shards(self) -> int:
        """P, the number of shards."""
        return len(self.bounds) - 1

    @property
    def sizes(self) -> HostArray:
        """`int64[P]`: the vertices of each shard."""
        return np.diff(self.bounds)

    def assignment(self) -> HostArray:
        """`int64[N]`: the shard of each vertex."""
        shard = np.empty(self.num_nodes, np.int64)
        shard[self.order] = np.repeat(np.arange(self.num_shards), self.sizes)
        return shard

    def totals(self, values: ArrayLike) -> HostArray:
        """`float64[P, ...]`: the sum of `values`, `[N, ...]` by vertex, over each shard.

        Raises GraphError unless there are N rows.
        """
        rows = checks.as_reals("the array", values)
        if rows.shape[:1] != (self.num_nodes,):
            raise GraphError(
                f"the array has shape {rows.shape}, expected ({self.num_nodes}, ...), one row per "
                "vertex: pass vertex data of the graph that was cut"
            )
        return np.diff(prefix_sums(rows[self.order])[self.bounds], axis=0)


def equal_vertices(num_nodes: int, num_shards: int, order: ArrayLike | None = None) -> Partition:
    """Shards of equal numbers of vertices, give or take one, contiguous in `order` (`int[N]`, by
    number if left out). NeuGraph's cut. Raises GraphError for sizes that are none, or an `order`
    that is no permutation."""
    num_nodes = checks.whole("num_nodes", num_nodes, 0)
    parts = checks.whole("num_shards", num_shards, 1)
    return Partition(checks.along(order, num_nodes), even(num_nodes, parts), "vertices")


def equal_edges(in_degree: ArrayLike, num_shards: int, order: ArrayLike | None = None) -> Partition:
    """Shards of equal numbers of in-edges as far as a hub lets them be, contiguous in `order`.

    Args:
        in_degree: `int[N]`, the in-edges of each vertex.
        num_shards, order: as of `balanced`.

    Raises:
        GraphError: as `balanced`.
    """
    return _balanced("in_degree", in_degree, num_shards, order, "edges")


def balanced(
    cost: ArrayLike, num_shards: int, order: ArrayLike | None = None, method: str = "learned"
) -> Partition:
    """The cut into contiguous shards whose costliest one costs the least.

    ROC (section 4.2) cuts with prefix sums and binary search where the costs so far reach k/P of
    all. That is not the least maximum where vertices are costly; here the binary search is over
    the maximum itself, each try a binary search per shard: O(N + P log N) with some 60 tries. Among
    the cuts of the least maximum it is that with bounds near to ROC's.

    Args:
        cost: `float[N]`, >= 0, what each vertex costs in any unit, as of
            `gnnjit.cost.partition_model.PartitionModel.vertex_cost`.
        num_shards: P; shards may stay empty.
        order: `int[N]`, the vertices in the order that is cut; by number if left out.
        method: what is recorded as having made it.

    Raises:
        GraphError: a cost that is negative, not finite or of another shape, `num_shards` below 1,
            or an `order` that is no permutation.
    """
    return _balanced("cost", cost, num_shards, order, method)


def metis(
    src: ArrayLike,
    dst: ArrayLike,
    num_nodes: int,
    num_shards: int,
    seed: int = 0,
    cost: ArrayLike | None = None,
) -> Partition:
    """Shards of nearly equal size, or cost, between which METIS cuts few edges.

    The direction of the edges, their number between two vertices and self loops do not count. METIS
    lets the shards differ (by 3% with more than 8). Without edges it is not called: vertices are
    then cut by `balanced`.

    Args:
        src, dst: `int[E]`, the endpoints of each edge; no padding.
        num_nodes: N.
        num_shards: P.
        seed: of METIS's random choices. The same arguments give the same partition.
        cost: `float[N]`, >= 0, what each vertex costs; all the same if left out. METIS gets whole
            numbers, about a billionth of the sum each.

    Raises:
        GraphError: the package `pymetis` cannot be imported, endpoints that are no vertices, costs
            that are none, or a size that is none.
    """
    num_nodes = checks.whole("num_nodes", num_nodes, 0)
    parts, seed = checks.whole("num_shards", num_shards, 1), checks.whole("seed", seed, 0)
    src, dst = checks.endpoints(src, dst, num_nodes)
    weights = None if cost is None else checks.as_costs("cost", cost, num_nodes)
    if pymetis() is None:
        raise GraphError(
            "metis() needs the package pymetis, and it cannot be imported: pip install pymetis, or "
            "cut with balanced()"
        )
    pattern = symmetric_pattern(src, dst, num_nodes)
    if parts == 1 or not pattern.nnz:
        even = np.ones(num_nodes) if weights is None else weights
        return balanced(even, parts, method="metis")
    instead = "cut with balanced()"
    shard = metis_parts(pattern, min(parts, num_nodes), seed, weights, instead=instead)
    return Partition.of_assignment(shard, parts, "metis")


def imbalance(cost: ArrayLike, partition: Partition) -> float:
    """The cost of the costliest shard over the mean: 1 where they are even, or all cost nothing.

    Args:
        cost: `float[N]`, >= 0, by vertex.
        partition: of these vertices.

    Raises:
        GraphError: a cost that is negative, not finite or of another shape.
    """
    loads = partition.totals(checks.as_costs("cost", cost, partition.num_nodes))
    mean = loads.mean()
    return float(loads.max() / mean) if mean > 0 else 1.0


def cut_edges(src: ArrayLike, dst: ArrayLike, partition: Partition) -> int:
    """How many of the edges `src[i] -> dst[i]` (`int[E]`) join two shards. Raises GraphError for
    endpoints that are no vertices of `partition`."""
    src, dst = checks.endpoints(src, dst, partition.num_nodes)
    shard = partition.assignment()
    return int(np.count_nonzero(shard[src] != shard[dst]))


def halo_rows(src: ArrayLike, dst: ArrayLike, partition: Partition) -> HostArray:
    """`int64[P, P]`: at `[q, p]`, the vertices of shard q that shard p must be sent: the sources of
    edges into p, each counted once. The diagonal is 0.

    Args:
        src, dst: `int[E]`, the endpoints of each edge; no padding.
        partition: of the vertices.

    Raises:
        GraphError: endpoints that are no vertices of `partition`.
    """
    import scipy.sparse  # a tenth of a second, for those who part graphs

    src, dst = checks.endpoints(src, dst, partition.num_nodes)
    shard, parts = partition.assignment(), partition.num_shards
    to = shard[dst]
    crosses = shard[src] != to
    pairs = (src[crosses], to[crosses])
    # Bool, whose sum is "or": each source once for each shard that needs it.
    once = scipy.sparse.csr_array(
        (np.ones(len(pairs[0]), bool), pairs), shape=(partition.num_nodes, parts)
    )
    owner = np.repeat(shard, np.diff(once.indptr))
    counts = np.bincount(owner * parts + once.indices, minlength=parts * parts)
    return counts.astype(np.int64).reshape(parts, parts)


def _balanced(
    name: str, cost: ArrayLike, num_shards: int, order: ArrayLike | None, method: str
) -> Partition:
    parts, cost = checks.whole("num_shards", num_shards, 1), checks.as_costs(name, cost)
    along = checks.along(order, len(cost))
    with np.errstate(over="ignore"):
        sums = prefix_sums(cost[along])
    if not np.isfinite(sums[-1]):
        raise GraphError(
            f"{name} sums up to {sums[-1]}, expected a finite number: measure in a larger unit"
        )
    return Partition(along, contiguous_cut(sums, parts), method)
