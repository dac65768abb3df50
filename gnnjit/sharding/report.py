"""The decisions of `gnnjit.shard`, and the numbers behind them."""

from __future__ import annotations

import dataclasses
import math

from gnnjit.cost.link_model import Way
from gnnjit.system.memory_budget import human


@dataclasses.dataclass(frozen=True, eq=False)
class ShardReport:
    """Prints as a table. All reports are equal, so that graphs are not compiled anew for one.

    Attributes:
        partition, order: the method that cut the graph, and the order of vertices that it cut.
        vertices, edges: the numbers of each shard.
        sources: those of each shard, if they are another vertex set than the destinations, which
            `vertices` are then.
        cut: edges whose source is on another shard.
        lower_bound: rows of other shards that the edges of the average shard read: what a halo
            moves without padding.
        width: the number of features (of 4 bytes) that `ways` were compared for.
        ways: the exchanges that were compared.
        exchange: the exchange taken.
    """

    partition: str
    order: str
    vertices: tuple[int, ...]
    edges: tuple[int, ...]
    cut: int
    lower_bound: float
    width: int
    ways: tuple[Way, ...]
    exchange: str
    sources: tuple[int, ...] | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShardReport)

    def __hash__(self) -> int:
        return 0

    def __str__(self) -> str:
        total, shards = sum(self.edges), len(self.edges)
        vertices = f"{sum(self.vertices)} vertices"
        if self.sources is not None:
            vertices = f"{sum(self.sources)} sources, {sum(self.vertices)} destinations"
        lines = [
            f"{vertices}, {total} edges on {shards} shards: partition "
            f"{self.partition}, order {self.order}",
            f"  vertices a shard  {_range(self.vertices)}",
            *([] if self.sources is None else [f"  sources a shard   {_range(self.sources)}"]),
            f"  edges a shard     {_range(self.edges)}",
            f"  edges between shards  {self.cut} ({100 * self.cut / max(total, 1):.1f} %)",
            f"  rows of other shards that a shard reads  {self.lower_bound:.0f} on average",
        ]
        if not self.ways:
            return "\n".join([*lines, f"  exchange          {self.exchange}"])
        lines += [
            "",
            f"  exchange of {self.width} features  rows moved    held by a device    predicted",
        ]
        row = 4 * self.width
        for way in self.ways:
            taken = " <- taken" if way.name == self.exchange else ""
            lines.append(
                f"  {way.name:26}{way.moved:12.0f}{human(way.rows * row):>19}"
                f"{_milliseconds(way.seconds):>13}{taken}"
            )
        return "\n".join(lines)

    __repr__ = __str__


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3f} ms" if math.isfinite(seconds) else "-"


def _range(counts: tuple[int, ...]) -> str:
    mean = sum(counts) / len(counts)
    return (
        f"{min(counts)} to {max(counts)}, mean {mean:.0f}, imbalance "
        f"{max(counts) / max(mean, 1e-9):.2f}"
    )
