"""Makes the shards of a `ShardedGraph` on the host."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gnnjit.graph import validate
from gnnjit.graph.host_sort import counting_sort
from gnnjit.graph.structure import Structure
from gnnjit.partition.partition import Partition
from gnnjit.shapes import HostArray
from gnnjit.sharding.exchange import AllGather, Halo, Ring, StopRange, runs_of
from gnnjit.sharding.rows import Rows
from gnnjit.sharding.send_blocks import HaloLayout, alone, padded, rows_of, structure, traffic
from gnnjit.sharding.sharded_graph import ShardedGraph
from gnnjit.sharding.vertex_cover import Covered, Ends

Parts = Callable[[int], Any]
"""Maps the number of a shard to its part, a pytree of arrays."""


@dataclasses.dataclass(frozen=True, eq=False)
class Dealt:
    """Where each vertex lies: its `shard` and its `row` there, `int32[N]`."""

    partition: Partition
    shard: HostArray
    row: HostArray

    @staticmethod
    def by(partition: Partition) -> Dealt:
        shard = partition.assignment().astype(np.int32)
        row = np.empty(len(shard), np.int32)
        place = np.arange(len(shard)) - np.repeat(partition.bounds[:-1], partition.sizes)
        row[partition.order] = place
        return Dealt(partition, shard, row)

    def vertices(self, p: int) -> HostArray:
        """The vertices of shard p, by row."""
        bounds = self.partition.bounds
        return self.partition.order[bounds[p] : bounds[p + 1]]

    @property
    def num_rows(self) -> int:
        """Rows of every shard: at least 1, for padding to point at."""
        return max(1, int(self.partition.sizes.max(initial=0)))


@dataclasses.dataclass(frozen=True, eq=False)
class ShardEdges:
    """The edges that end at a shard, in the order in which they were given.

    shard, src: the shard of each edge's source, and its row there.
    dst: the row of each edge's destination.
    number: the edge's number.
    """

    shard: HostArray
    src: HostArray
    dst: HostArray
    number: HostArray

    def take(self, at: HostArray) -> ShardEdges:
        return ShardEdges(self.shard[at], self.src[at], self.dst[at], self.number[at])

    def __len__(self) -> int:
        return len(self.src)


@dataclasses.dataclass(frozen=True, eq=False)
class ShardPlan:
    """What must be known of all shards before any of them is made.

    The functions take a shard that is made in this process, unless they say more.

    num_edges: as the user counts them, padding included.
    between: `int64[P, P]`: at [q, p], the number of edges from shard q to shard p.
    vertex: the user's numbers of a shard's vertices, by row.
    edges: the edges that end at a shard.
    used: `used(q)` are the rows of other shards that shard q reads, as sorted numbers
        `shard * num_rows + row`.
    sent: `sent(p, q)` are the rows of shard p that any other shard q reads, sorted.
    out_degree: `int32[num_rows]`, edges that start at each row, wherever they end.
    reads: `int64[P, P]`, the result of `traffic`, where it cannot be counted in this process.
    sources: where sources lie, if they are another vertex set than the destinations of `dealt`.
    """

    dealt: Dealt
    num_edges: int
    between: HostArray
    vertex: Callable[[int], HostArray]
    edges: Callable[[int], ShardEdges]
    used: Callable[[int], HostArray]
    sent: Callable[[int, int], HostArray]
    out_degree: Callable[[int], HostArray]
    reads: HostArray | None = None
    sources: Dealt | None = None

    @property
    def dealt_src(self) -> Dealt:
        """Where each source lies."""
        return self.dealt if self.sources is None else self.sources

    @property
    def num_shards(self) -> int:
        return self.dealt.partition.num_shards

    @property
    def counts(self) -> HostArray:
        """`int64[P]`, edges that end at each shard."""
        return self.between.sum(axis=0)

    def traffic(self) -> HostArray:
        """`int64[P, P]`: at [q, p], the number of rows of shard q that shard p reads."""
        if self.reads is not None:
            return self.reads
        return traffic(self.num_shards, self.dealt_src.num_rows, self.used)

    @property
    def by_distance(self) -> HostArray:
        """`int64[P, P]`: at [p, d], the number of edges from shard p + d, around the ring, to p."""
        shard = np.arange(self.num_shards)
        return self.between[(shard[:, None] + shard) % self.num_shards, shard[:, None]]

    @property
    def runs(self) -> tuple[StopRange, ...]:
        """The stops of a ring after the shard itself."""
        some = np.flatnonzero(self.by_distance[:, 1:].any(axis=0)) + 1
        return runs_of(some.tolist())

    @functools.cached_property
    def halo(self) -> HaloLayout:
        """The exchange of the rows that shards read of each other."""
        sizes = self.num_shards, self.dealt_src.num_rows
        return HaloLayout(*sizes, self.used, self.traffic(), self.sent)

    @functools.cached_property
    def covered(self) -> Covered:
        """The exchange that moves the least for sums over neighbours."""
        parts = [self.edges(p) for p in range(self.num_shards)]
        ends = Ends(
            np.concatenate([e.shard for e in parts]),
            np.concatenate([e.src for e in parts]),
            np.repeat(np.arange(self.num_shards, dtype=np.int32), [len(e) for e in parts]),
            np.concatenate([e.dst for e in parts]),
        )
        return Covered(ends, self.num_shards, self.dealt_src.num_rows, self.dealt.num_rows)


def plan(
    src: HostArray,
    dst: HostArray,
    partition: Partition,
    mask: HostArray | None = None,
    sources: Partition | None = None,
) -> ShardPlan:
    """The plan for the edges `src[i] -> dst[i]`, all of them in this process. `mask`: where the
    user's list has padding, it is True at these edges. `sources`: how sources are cut, if they are
    another vertex set than the destinations."""
    original = np.arange(len(src)) if mask is None else np.flatnonzero(mask)
    dealt, shards = Dealt.by(partition), partition.num_shards
    of_src = dealt if sources is None else Dealt.by(sources)
    start, _, by_shard = counting_sort(dealt.shard[dst], dst, shards)
    rows = of_src.num_rows
    halos: dict[int, HostArray] = {}

    def edges(p: int) -> ShardEdges:
        number = by_shard[start[p] : start[p + 1]]
        s = src[number]
        return ShardEdges(of_src.shard[s], of_src.row[s], dealt.row[dst[number]], original[number])

    def used(p: int) -> HostArray:
        if p not in halos:
            read = np.zeros((shards, rows), bool)
            s = src[by_shard[start[p] : start[p + 1]]]
            read[of_src.shard[s], of_src.row[s]] = True
            read[p] = False
            halos[p] = np.flatnonzero(read)
        return halos[p]

    def sent(p: int, q: int) -> HostArray:
        return rows_of(p, used(q), rows)

    return ShardPlan(
        dealt,
        len(src) if mask is None else len(mask),
        between=edges_between(of_src.shard[src], dealt.shard[dst], shards),
        vertex=dealt.vertices,
        edges=edges,
        used=used,
        sent=sent,
        out_degree=functools.partial(
            _out_degree, of_src, np.bincount(src, minlength=len(of_src.row))
        ),
        sources=None if sources is None else of_src,
    )


def edges_between(src: HostArray, dst: HostArray, shards: int) -> HostArray:
    """`int64[P, P]`, the edges from each shard to each other one; `src` and `dst` are the shards of
    their endpoints."""
    flat = np.bincount(src.astype(np.int64) * shards + dst, minlength=shards * shards)
    return flat.astype(np.int64).reshape(shards, shards)


def _out_degree(dealt: Dealt, by_vertex: HostArray, p: int) -> HostArray:
    return padded(by_vertex[dealt.vertices(p)].astype(np.int32), dealt.num_rows)


def build(
    plan: ShardPlan,
    mesh: Mesh,
    axis: str,
    exchange: str,
    *,
    features: str | None = None,
    sources: Rows | None = None,
) -> ShardedGraph:
    """The graph on the devices; each process makes the shards of its own devices. `sources`: what
    `rows_on` gave for the plan's sources, if there is more than one such graph."""
    tables = {
        "all_gather": _AllGatherParts,
        "halo": _HaloParts,
        "cover": _HaloParts,
        "ring": _RingParts,
    }
    shape = tables[exchange](plan)
    covered = plan.covered if exchange == "cover" else None
    rows, slots = plan.dealt.num_rows, shape.num_slots
    dtype = validate.index_dtype(
        num_edges=max(plan.num_shards * slots, plan.num_edges), sources=shape.num_sources
    )
    sizes = plan.dealt.partition.sizes

    def part(p: int) -> dict[str, Any]:
        edges = shape.sort(p, plan.edges(p))
        return {
            "vertex": padded(plan.vertex(p).astype(np.int32), rows),
            "edge": padded(edges.number.astype(dtype), slots),
            "sizes": np.asarray([sizes[p]], np.int32),
            "edge_counts": np.asarray([plan.counts[p]], np.int32),
            **shape.part(p, edges, dtype),
            "cover": None if covered is None else covered.part(p, dtype),
            "out_degree": plan.out_degree(p),
        }

    arrays = _spread(mesh, axis, plan.num_shards, part)
    if plan.sources is not None and sources is None:
        sources = rows_on(mesh, axis, plan.sources)
    return ShardedGraph(
        vertex=arrays["vertex"],
        edge=arrays["edge"],
        sizes=arrays["sizes"],
        edge_counts=arrays["edge_counts"],
        out_degree=arrays["out_degree"],
        src=arrays["src"],
        dst=arrays["dst"],
        in_structure=arrays["in_structure"],
        out_structure=arrays["out_structure"],
        exchange=arrays["exchange"],
        cover=arrays["cover"],
        mesh=mesh,
        axis=axis,
        features=features,
        num_nodes=len(plan.dealt.shard),
        num_given=plan.num_edges,
        num_rows=rows,
        num_slots=slots,
        num_sources=shape.num_sources,
        sources=sources,
    )


def rows_on(mesh: Mesh, axis: str, dealt: Dealt) -> Rows:
    """The rows of the vertices that are dealt out, on the devices."""
    rows, sizes = dealt.num_rows, dealt.partition.sizes

    def part(p: int) -> dict[str, HostArray]:
        number = padded(dealt.vertices(p).astype(np.int32), rows)
        return {"number": number, "sizes": np.asarray([sizes[p]], np.int32)}

    arrays = _spread(mesh, axis, dealt.partition.num_shards, part)
    return Rows(arrays["number"], arrays["sizes"], len(dealt.shard), rows)


def _spread(mesh: Mesh, axis: str, shards: int, part: Parts) -> Any:
    """The parts side by side along their first axis, each on its device. Parts of other processes
    are not made here."""
    sharding = NamedSharding(mesh, PartitionSpec(axis))
    made = {p: jax.tree.flatten(part(p)) for p in shards_here(mesh, axis)}
    some, treedef = next(iter(made.values()))
    arrays = []
    for k, like in enumerate(some):
        length = len(like)

        def rows(index: Any, k: int = k, length: int = length) -> HostArray:
            return made[(index[0].start or 0) // length][0][k]

        shape = (shards * length, *like.shape[1:])
        arrays.append(jax.make_array_from_callback(shape, sharding, rows))
    return jax.tree.unflatten(treedef, arrays)


def shards_here(mesh: Mesh, axis: str) -> list[int]:
    """The shards that this process makes."""
    sharding = NamedSharding(mesh, PartitionSpec(axis))
    places = sharding.addressable_devices_indices_map((mesh.shape[axis],)).values()
    return sorted({(index[0].start or 0) for index in places if index is not None})


class _TableParts:
    """Parts whose edges read all sources from one table."""

    def __init__(self, plan: ShardPlan) -> None:
        self.plan, self.rows = plan, plan.dealt.num_rows
        self.src_rows = plan.dealt_src.num_rows
        self.num_slots = max(1, int(plan.counts.max(initial=0)))

    num_sources: int

    def sort(self, p: int, edges: ShardEdges) -> ShardEdges:
        return edges

    def place(self, p: int, edges: ShardEdges) -> HostArray:
        """The row of each edge's source in the table of shard p."""
        raise NotImplementedError

    def exchange(self, p: int, dtype: Any) -> Any:
        raise NotImplementedError

    def part(self, p: int, edges: ShardEdges, dtype: Any) -> dict[str, Any]:
        src, dst = self.place(p, edges).astype(dtype), edges.dst.astype(dtype)
        slots = self.num_slots
        return {
            "src": padded(src, slots),
            "dst": padded(dst, slots),
            "in_structure": alone(*structure(dst, src, self.rows, slots, dtype)),
            "out_structure": alone(*structure(src, dst, self.num_sources, slots, dtype)),
            "exchange": self.exchange(p, dtype),
        }


class _AllGatherParts(_TableParts):
    def __init__(self, plan: ShardPlan) -> None:
        super().__init__(plan)
        self.num_sources = plan.num_shards * self.src_rows

    def place(self, p: int, edges: ShardEdges) -> HostArray:
        return edges.shard.astype(np.int64) * self.src_rows + edges.src

    def exchange(self, p: int, dtype: Any) -> AllGather:
        return AllGather()


class _HaloParts(_TableParts):
    def __init__(self, plan: ShardPlan) -> None:
        super().__init__(plan)
        self.blocks = plan.halo
        self.num_sources = self.src_rows + self.blocks.total

    def place(self, p: int, edges: ShardEdges) -> HostArray:
        number = edges.shard.astype(np.int64) * self.src_rows + edges.src
        return self.blocks.place(p, number)

    def exchange(self, p: int, dtype: Any) -> Halo:
        return self.blocks.part(p, dtype)


class _RingParts:
    def __init__(self, plan: ShardPlan) -> None:
        self.plan, self.rows, self.runs = plan, plan.dealt.num_rows, plan.runs
        self.num_sources = plan.dealt_src.num_rows
        stops = [0, *(d for run in self.runs for d in range(run.first, sum(run)))]
        counts = plan.by_distance[:, stops]
        self.counts = counts
        self.starts = np.cumsum(counts, axis=1) - counts
        near = max(1, int(counts[:, 0].max()))
        far = max(1, int(counts[:, 1:].max(initial=0)))
        self.capacity = (near, far)
        room = np.asarray([near] + [far] * (len(stops) - 1))
        self.num_slots = int((self.starts + room).max())

    def sort(self, p: int, edges: ShardEdges) -> ShardEdges:
        distance = (edges.shard - p) % self.plan.num_shards
        return edges.take(np.argsort(distance, kind="stable"))

    def part(self, p: int, edges: ShardEdges, dtype: Any) -> dict[str, Any]:
        src, dst = edges.src.astype(dtype), edges.dst.astype(dtype)
        slots = self.num_slots
        return {
            "src": padded(src, slots),
            "dst": padded(dst, slots),
            "in_structure": self.structure(p, dst, src, self.rows, dtype),
            "out_structure": self.structure(p, src, dst, self.num_sources, dtype),
            "exchange": Ring(
                self.starts[p : p + 1].astype(dtype),
                self.counts[p : p + 1].astype(dtype),
                self.capacity,
                self.runs,
            ),
        }

    def structure(
        self, p: int, row: HostArray, other: HostArray, rows: int, dtype: Any
    ) -> Structure:
        """Edges sorted by stop, then by row; `indptr` and `edge` count from the stop's first."""
        pointers, neighbors, places = [], [], []
        for start, count in zip(self.starts[p], self.counts[p], strict=True):
            part = slice(start, start + count)
            found = structure(row[part], other[part], rows, count, dtype)
            pointers.append(found[0])
            neighbors.append(found[1])
            places.append(found[2])
        slots = self.num_slots
        flat: Sequence[HostArray] = [np.concatenate(x) for x in (neighbors, places)]
        return alone(np.stack(pointers), padded(flat[0], slots), padded(flat[1], slots))
