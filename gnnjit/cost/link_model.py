"""What moving rows between devices costs, and which exchange of a sharded graph is the fastest."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from gnnjit.errors import PlanError

ROOM = 4
"""Without a memory budget, an exchange may hold so many times the rows of a shard: memory then
falls as 1 / devices, whatever the graph is like."""


@dataclasses.dataclass(frozen=True)
class Link:
    """One kind of transfer: `latency`, seconds, and `bandwidth`, bytes a second for each device."""

    latency: float
    bandwidth: float

    def seconds(self, num_bytes: float) -> float:
        """Time of a transfer in which each device gets so many bytes; no bytes take no time."""
        return self.latency + num_bytes / self.bandwidth if num_bytes else 0.0

    @classmethod
    def through(cls, points: Sequence[tuple[float, float]]) -> Link:
        """From measured (bytes, seconds), the smallest and the largest transfer: a line through
        both."""
        (small, quick), (large, slow) = min(points), max(points)
        bandwidth = (large - small) / max(slow - quick, 1e-9)
        return cls(max(quick - small / bandwidth, 0.0), bandwidth)


@dataclasses.dataclass(frozen=True)
class Links:
    """The links of a mesh, by collective. `copy`: rows gathered on one device, to be sent."""

    all_gather: Link
    all_to_all: Link
    permute: Link
    copy: Link


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Rows that a device gets, block by block; `at_once`: by one `all_to_all`. `moved`: rows
    that the average device gets, which has no part in some blocks. `held`: rows that a device
    holds, of those that it gets and sends."""

    heights: tuple[int, ...]
    at_once: bool
    moved: float
    held: int

    @property
    def total(self) -> int:
        return sum(self.heights)

    def seconds(self, links: Links, row: float) -> float:
        """To gather the rows that are sent, send them, and put them into the table."""
        copied = links.copy.seconds(2 * self.total * row)
        if self.at_once:
            return copied + links.all_to_all.seconds(self.total * row)
        return copied + sum(links.permute.seconds(height * row) for height in self.heights)


@dataclasses.dataclass(frozen=True)
class Way:
    """An exchange that could be taken.

    Attributes:
        name: the name that `gnnjit.shard` takes.
        seconds: that rows of one array take, there (or back: about the same); infinite where rates
            are not known.
        rows: rows of other shards that a device holds meanwhile, what it sends included.
        moved: rows that the average device gets.
    """

    name: str
    seconds: float
    rows: int
    moved: float


def ways(
    links: Links | None,
    shards: int,
    rows: int,
    row: float,
    hops: int,
    halo: Blocks,
    cover: tuple[Blocks, Blocks] | None = None,
) -> list[Way]:
    """All exchanges, for `shards` of so many `rows` of `row` bytes each.

    hops: of a ring. halo: of the rows that are used. cover: of rows and of sums, for sums over
        neighbours, where that is to be weighed too.
    """
    if links is None:
        links = Links(*(Link(math.inf, math.inf),) * 4)
    others = (shards - 1) * rows
    # Partial results of each hop are merged with those before: read twice, written once.
    ring = hops * (links.permute.seconds(rows * row) + links.copy.seconds(3 * rows * row))
    found = [
        Way("all_gather", links.all_gather.seconds(others * row), others, others),
        Way("halo", halo.seconds(links, row), halo.held, halo.moved),
        Way("ring", ring, 2 * rows if hops else 0, hops * rows),
    ]
    if cover is not None:
        seconds = sum(b.seconds(links, row) for b in cover)
        held, moved = sum(b.held for b in cover), sum(b.moved for b in cover)
        found.insert(2, Way("cover", seconds, held, moved))
    return found


def choose(found: Sequence[Way], rows: int, row: float, budget: int | None) -> Way:
    """The fastest whose rows fit: `budget` bytes, or without one `ROOM` shards' rows, and then not
    the one that has every row on every device.

    Raises PlanError where no exchange fits the budget.
    """
    if budget is None:
        fits = [w for w in found if w.name != "all_gather" and w.rows <= ROOM * rows]
    else:
        fits = [w for w in found if w.rows * row <= budget]
    if not fits:
        least = min(found, key=lambda way: way.rows)
        raise PlanError(
            f"no exchange fits memory_budget={budget}: the least, {least.name!r}, holds "
            f"{least.rows} rows of other shards, {int(least.rows * row)} bytes for {int(row)} each;"
            " pass at least that, or more devices"
        )
    return min(fits, key=lambda way: way.seconds)
