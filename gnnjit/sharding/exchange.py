"""How the rows of other shards come to a device: what each kind of exchange knows."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gnnjit.graph.graph import Graph
from gnnjit.graph.structure import Structure

EXCHANGES = ("all_gather", "halo", "cover", "ring")
"""How the rows of other shards come to a device."""


class Block(NamedTuple):
    """Rows that shards get from the shard `distance` after them.

    height: rows, padding included. readers: the shards that get any; the others get zeros.
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
    """Used rows alone travel, each once per shard that uses it; then every source that a shard
    reads lies in one table: its own rows first, the blocks that came after them.

    A block is as high as the pair of shards needs that exchanges most; what a pair does not need of
    it is written over by the next block, so that a table is as long as what one shard reads.

    Attributes:
        send: `int[P, K]`, own rows in the order in which they are sent, block by block.
        returned: what comes back of a reduction into sources, as a structure: row r owns the
            entries of `send` that are r.
        places: `int[P, B]`, where each block begins in the table, behind the own rows.
        origins: `int[P, B]`, where each block begins in `send`.
        blocks: static. Pairs of shards at one distance that differ much in their rows have several
            blocks, in which fewer and fewer of them take part. `at_once`, block q is that of shard
            q, and all are of one height.
        at_once: whether one `all_to_all` moves all blocks, or one `ppermute` each.
        rows: static, of the table, behind the own ones.
    """

    send: Any
    returned: Structure
    places: Any
    origins: Any
    blocks: tuple[Block, ...]
    at_once: bool
    rows: int

    @property
    def moved(self) -> int:
        """Rows that all shards send together, padding included."""
        return moved_rows(self.blocks, self.at_once)


def moved_rows(blocks: Sequence[Block], at_once: bool) -> int:
    """As of `Halo.moved`."""
    rows = sum(block.height * len(block.readers) for block in blocks)
    return rows - sum(block.height for block in blocks) if at_once else rows


class Run(NamedTuple):
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
    """The rows of a shard pass from device to device, whole; never more than two shards' rows are
    on one (NeuGraph, section 3.3). Edges are sorted by how far the shard of their source is.

    Rows stop where edges wait for them, and pass by the distances at which no shard has any: where
    vertices are numbered along a good order, these are most.

    Attributes:
        starts, counts: `int[P, S]`, of shard p, by stop: its first edge, and their number. The
            first stop is the shard itself.
        capacity: static, (most edges at distance 0, most at any other).
        runs: static, the other stops, by distance.
    """

    starts: Any
    counts: Any
    capacity: tuple[int, int]
    runs: tuple[Run, ...]


RUNS = 3
"""A ring has so many at most: each is a loop, and a piece of program, of its own."""


def runs_of(distances: Sequence[int]) -> tuple[Run, ...]:
    """Stops at these distances, sorted and above 0, and where the gaps are short at some more.

    One run, unless half of the stops between its ends can be left out: each further one takes a
    loop's memory.
    """
    gaps = sorted((b - a for a, b in itertools.pairwise(distances)), reverse=True)
    widest = max([1, *gaps[RUNS - 1 : RUNS]])
    runs: list[Run] = []
    for d in distances:
        if runs and d - (last := sum(runs[-1]) - 1) <= widest:
            runs[-1] = Run(runs[-1].first, runs[-1].count + d - last)
        else:
            runs.append(Run(d, 1))
    if runs and 2 * sum(run.count for run in runs) > (span := sum(runs[-1]) - runs[0].first):
        return (Run(runs[0].first, span),)
    return tuple(runs)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["src", "dst", "count", "in_structure", "out_structure", "rows", "sums"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True, eq=False)
class Cover:
    """Rows of sources travel, or sums for destinations, whichever are fewer (`graph/cover.py`):
    for reductions into vertices that need nothing of the edges' own.

    Each edge between shards is worked on by one of the two. A shard's table of sources is its own
    rows and the blocks of `rows`; its table of destinations its own and the blocks of `sums`.

    Attributes:
        src, dst: `int[P, slots]`, places in those tables.
        count: `int[P]`, edges of each shard.
        in_structure, out_structure: of these edges.
    """

    src: Any
    dst: Any
    count: Any
    in_structure: Structure
    out_structure: Structure
    rows: Halo
    sums: Halo

    def graph(self) -> Graph:
        """Of one device, its first axis taken off."""
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
    """Every device gets every row."""


Exchange = AllGather | Halo | Ring
