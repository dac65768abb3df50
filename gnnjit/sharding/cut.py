"""Which vertices go together: the cut of one vertex set, or of several that edges connect.

Several sets are cut as one graph of all their vertices, numbered one set after the other: what a
vertex costs, which vertices are neighbours and what METIS cuts counts the edges of all relations.
Each set gets a partition of its own, so that every shard has its part of every set.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from gnnjit.cost.partition_model import PartitionModel
from gnnjit.errors import GraphError
from gnnjit.graph import validate
from gnnjit.partition.locality import order_vertices
from gnnjit.partition.partition import Partition, balanced, equal_edges, equal_vertices, metis
from gnnjit.partition.vertex_features import vertex_features
from gnnjit.shapes import HostArray

PARTITIONS = ("auto", "vertices", "edges", "learned", "metis")
ORDERS = ("auto", "given", "rcm")


class VertexSets:
    """Vertex sets that are to be cut, and all edges among them.

    counts: the vertices of each set.
    src, dst: of all edges, in numbers that run on from set to set.
    width: features (float32) that an edge reads.
    """

    def __init__(
        self,
        counts: Sequence[int],
        src: HostArray,
        dst: HostArray,
        shards: int,
        width: int,
        cost: PartitionModel | None,
    ) -> None:
        self.counts, self.src, self.dst, self.shards = tuple(counts), src, dst, shards
        self.first = np.cumsum([0, *counts])
        self.width, self.cost = width, cost or PartitionModel()
        self.orders: list[HostArray | None] = [None] * len(self.counts)

    @property
    def total(self) -> int:
        return int(self.first[-1])

    def part(self, i: int, rows: HostArray) -> HostArray:
        """The rows of set i, of an array of all vertices."""
        return rows[self.first[i] : self.first[i + 1]]

    def ordered(self, wanted: Any, by_partition: bool) -> str:
        """Choose the orders along which sets are cut, and name them. `by_partition`: the partition
        has its own."""
        if not (isinstance(wanted, str) and wanted in ORDERS):
            raise GraphError(
                f"order is {validate.shown(wanted)}, expected one of {', '.join(ORDERS)}"
            )
        if by_partition or wanted == "given" or self.shards == 1:
            return "given"
        by = order_vertices(self.src, self.dst, self.total, method="rcm").vertex
        bounds = zip(self.first, self.first[1:], strict=False)
        orders = [by[(first <= by) & (by < last)] - first for first, last in bounds]
        if wanted == "auto":
            cuts = [self.cut(self._even(some)) for some in (self.orders, orders)]
            if cuts[0] <= cuts[1]:
                return "given"
        self.orders = list(orders)
        return "rcm"

    def _even(self, orders: Sequence[HostArray | None]) -> list[Partition]:
        pairs = zip(self.counts, orders, strict=True)
        return [equal_vertices(count, self.shards, order) for count, order in pairs]

    def cut(self, partitions: Sequence[Partition]) -> int:
        """How many edges join two shards."""
        shard = np.concatenate([p.assignment() for p in partitions])
        return int(np.count_nonzero(shard[self.src] != shard[self.dst]))

    def partition(self, i: int, wanted: Any) -> Partition:
        """The partition of set i, by its name, or as it was given."""
        count, order = self.counts[i], self.orders[i]
        if not isinstance(wanted, (str, Partition)):
            same = order is None or len(order) != np.size(wanted)
            wanted = Partition.of_assignment(wanted, self.shards, order=None if same else order)
        if isinstance(wanted, Partition):
            if wanted.num_shards != self.shards or len(wanted.order) != count:
                raise GraphError(
                    f"partition deals {len(wanted.order)} vertices out to {wanted.num_shards} "
                    f"shards, expected {count} vertices and {self.shards} shards"
                )
            return wanted
        match wanted:
            case "vertices":
                return equal_vertices(count, self.shards, order)
            case "edges":
                return equal_edges(self.part(i, self._in_degree), self.shards, order)
            case "auto" | "learned":
                return balanced(self.part(i, self._costs), self.shards, order)
            case "metis":
                return Partition.of_assignment(self.part(i, self._metis), self.shards, "metis")
        raise GraphError(
            f"partition is {validate.shown(wanted)}, expected one of {', '.join(PARTITIONS)}, a "
            "Partition, or the shard of each vertex"
        )

    @functools.cached_property
    def _in_degree(self) -> HostArray:
        return np.bincount(self.dst, minlength=self.total)

    @functools.cached_property
    def _costs(self) -> HostArray:
        orders = [o for o in self.orders if o is not None]
        order = None
        if orders:
            pairs = zip(self.first, orders, strict=False)
            order = np.concatenate([first + o for first, o in pairs])
        features = vertex_features(self.src, self.dst, self.total, self.width, order)
        return self.cost.vertex_cost(features)

    @functools.cached_property
    def _metis(self) -> HostArray:
        return metis(self.src, self.dst, self.total, self.shards).assignment()
