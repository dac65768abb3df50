"""The exchanges: how the rows of other shards come to a device, and the tables that each needs."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from gnnjit.graph.graph import Graph
from gnnjit.graph.structure import Structure

EXCHANGES = ("all_gather", "halo", "cover", "ring")
"""The names that `gnnjit.shard` takes."""


class SendBlock(NamedTuple):
    """Rows that shards receive from the shard `distance` after them, around the ring of shards.

    height: rows, padding included.
    readers: the shards that receive any; the others receive zeros.
    """

    distance: int
    height: int
    readers: tuple[int, ...]


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["send", "returned", "places", "origins"],
    meta_fields=["blocks", "at_once", "rows"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class Halo:
    """Each shard receives the rows that its edges read (its halo), each once, into a table: its own
    rows first, then the blocks received.

    The height of a block is that of the pair of shards that exchanges most. The padding of the
    other pairs is overwritten by the next block, so a table is as long as what its shard reads.

    Attributes:
        send: `int[P, K]`, the local rows that a shard sends, block by block.
        returned: where partial sums for sources are added when they come back, as a structure:
            row r owns the entries of `send` that are r.
        places: `int[P, B]`, where each block begins in the table, after the local rows.
        origins: `int[P, B]`, where each block begins in `send`.
        blocks: static. Pairs of shards at one distance that exchange very different numbers of
            rows share several blocks, each with fewer readers. `at_once`, block q comes from shard
            q, and all blocks are of one height.
        at_once: whether one `all_to_all` moves all blocks, or one `ppermute` each.
        rows: static, the rows of the table after the local ones.
    """

    name: ClassVar[str] = "halo"
    send: Any
    returned: Structure
    places: Any
    origins: Any
    blocks: tuple[SendBlock, ...]
    at_once: bool
    rows: int

    @property
    def moved(self) -> int:
        """Rows that all shards together send, padding included."""
        return moved_rows(self.blocks, self.at_once)


def moved_rows(blocks: Sequence[SendBlock], at_once: bool) -> int:
    """Rows that all shards together send in these blocks, padding included."""
    rows = sum(block.height * len(block.readers) for block in blocks)
    return rows - sum(block.height for block in blocks) if at_once else rows


class StopRange(NamedTuple):
    """Stops of a ring at `count` consecutive distances, `first` the nearest."""

    first: int
    count: int


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["starts", "counts"],
    meta_fields=["capacity", "runs"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class Ring:
    """All rows of a shard pass from device to device around a ring, so that a device never holds
    the rows of more than two shards (NeuGraph, section 3.3).

    The edges of a shard are sorted by distance: how many shards after it the shard of their source
    is. The ring stops at the distances at which some shard has edges, and skips the others: most
    of them, where the vertices are numbered in a good order.

    Attributes:
        starts, counts: `int[P, S]`, by shard and stop: its first edge, and the number of edges.
            The first stop is the shard itself.
        capacity: static, (most edges at distance 0, most at any other).
        runs: static, the other stops, by distance.
    """

    name: ClassVar[str] = "ring"
    starts: Any
    counts: Any
    capacity: tuple[int, int]
    runs: tuple[StopRange, ...]


RUNS = 3
"""At most so many runs in a ring: each is a loop of its own in the program."""


def runs_of(distances: Sequence[int]) -> tuple[StopRange, ...]:
    """Runs that cover these distances (sorted, above 0), short gaps included.

    A single run, unless more runs leave out at least half of its stops: each takes the memory of a
    loop.
    """
    gaps = sorted((b - a for a, b in itertools.pairwise(distances)), reverse=True)
    widest = max([1, *gaps[RUNS - 1 : RUNS]])
    runs: list[StopRange] = []
    for d in distances:
        if runs and d - (last := sum(runs[-1]) - 1) <= widest:
            runs[-1] = StopRange(runs[-1].first, runs[-1].count + d - last)
        else:
            runs.append(StopRange(d, 1))
    if runs and 2 * sum(run.count for run in runs) > (span := sum(runs[-1]) - runs[0].first):
        return (StopRange(runs[0].first, span),)
    return tuple(runs)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["src", "dst", "count", "in_structure", "out_structure", "rows", "sums"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True, eq=False)
class Cover:
    """Either rows of sources travel or sums for destinations, whichever are fewer
    (`sharding/vertex_cover.py`): for sums into vertices whose edge function reads no edge data.

    The shard of its source or that of its destination computes an edge. A shard's table of sources
    holds its own rows, then the blocks of `rows`; its table of destinations its own rows, then the
    blocks of `sums`.

    Attributes:
        src, dst: `int[P, slots]`, the rows of those tables that each edge reads and adds to.
        count: `int[P]`, the edges that each shard computes.
        in_structure, out_structure: those edges, sorted.
        rows, sums: the exchange of each table.
    """

    src: Any
    dst: Any
    count: Any
    in_structure: Structure
    out_structure: Structure
    rows: Halo
    sums: Halo

    def graph(self) -> Graph:
        """The edges of one device as a graph, the first axis of all arrays taken off."""
        slots = self.src.shape[0]
        return Graph(
            src=self.src,
            dst=self.dst,
            mask=jnp.arange(slots) < self.count,
            in_structure=self.in_structure,
            out_structure=self.out_structure,
            dropped=None,
            num_src=self.out_structure.num_rows,
            num_dst=self.in_structure.num_rows,
            num_edges=slots,
            bipartite=True,
        )


@functools.partial(jax.tree_util.register_dataclass, data_fields=[], meta_fields=[])
@dataclasses.dataclass(frozen=True, eq=False)
class AllGather:
    """Every device receives every row."""

    name: ClassVar[str] = "all_gather"


Exchange = AllGather | Halo | Ring
