"""Planned padding: the few shapes that batches are padded to, so that few programs are compiled.

The sizes of some sampled batches are put in order and cut into groups; a group's shape is the
largest of each of its dimensions. Dynamic programming finds the cuts that make the expected padded
work least. The largest shape has head room, since batches come that no sample has shown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from gnnjit.errors import SampleError
from gnnjit.graph.reading import read_on_host
from gnnjit.graph.validate import as_count
from gnnjit.sample.sample import Sizes
from gnnjit.shapes import ArrayLike, HostArray

VERTEX_COST = 4.0
"""A vertex has a row that is looked up, moved and multiplied by matrices."""
EDGE_COST = 1.0
"""An edge has a row that is added."""

RARE = 1e-4
"""How often a batch may exceed the largest shape in one dimension."""
_TAIL = 10
"""One in so many batches counts as large, where the tail of a distribution is estimated."""
_FINE = 256
"""A size is rounded up by less than one part in so many, or to a multiple of 8."""


@dataclasses.dataclass(frozen=True)
class Shapes:
    """What batches are padded to.

    Attributes:
        shapes: from the cheapest to the dearest.
        cost: work of one unit of each dimension.
    """

    shapes: tuple[Sizes, ...]
    cost: tuple[float, ...]

    def __post_init__(self) -> None:
        odd = [s for s in self.shapes if len(s) != len(self.cost)]
        if not self.shapes or odd:
            raise SampleError(
                f"Shapes: shapes are {self.shapes} with {len(self.cost)} costs, expected at least "
                f"one shape and a cost for each dimension: call plan_shapes"
            )
        ordered = sorted(self.shapes, key=lambda s: (self.work(s), s))
        object.__setattr__(self, "shapes", tuple(tuple(int(n) for n in s) for s in ordered))

    def __len__(self) -> int:
        return len(self.shapes)

    def __getitem__(self, index: int) -> Sizes:
        return self.shapes[index]

    def work(self, sizes: Sequence[float]) -> float:
        """That of a batch of `sizes`: the sum of its dimensions, each times its cost."""
        return float(np.dot(sizes, self.cost))

    def choose(self, sizes: Sequence[int]) -> int | None:
        """The number of the cheapest shape that a batch of `sizes` fits into; None where it fits
        into none."""
        if len(sizes) != len(self.cost):
            raise SampleError(
                f"Shapes.choose: sizes are {tuple(sizes)}, expected {len(self.cost)} numbers as in "
                f"{self.shapes[0]}: plan for this sampler"
            )
        for index, shape in enumerate(self.shapes):
            if all(s <= t for s, t in zip(sizes, shape, strict=True)):
                return index
        return None

    def padding(self, histogram: ArrayLike, weights: ArrayLike | None = None) -> Padding:
        """What these shapes do to batches of such sizes, `int[S, D]`."""
        sizes = _checked_histogram("Shapes.padding", histogram)
        chance = _checked_weights("Shapes.padding", weights, len(sizes))
        found = [self.choose(row) for row in sizes]
        fits = np.array([index is not None for index in found], bool)
        real = chance[fits] @ sizes[fits]
        padded = chance[fits] @ np.array(
            [self.shapes[i] for i in found if i is not None], np.float64
        ).reshape(-1, len(self.cost))
        return Padding.of(real, padded, self.cost, 1 - float(chance[fits].sum() / chance.sum()))


@dataclasses.dataclass(frozen=True)
class Padding:
    """How much of what is computed is padding, in percent.

    Attributes:
        work: of the padded work.
        dimensions: of each dimension of the shapes.
        exceeding: batches that fit no shape, which are counted nowhere else.
    """

    work: float
    dimensions: tuple[float, ...]
    exceeding: float

    @classmethod
    def of(
        cls, real: HostArray, padded: HostArray, cost: Sequence[float], exceeding: float = 0.0
    ) -> Padding:
        """From the sums over batches of their sizes and of the shapes that they were padded to."""
        share = np.divide(real, padded, out=np.ones(len(cost)), where=np.asarray(padded) > 0)
        total = float(np.dot(padded, cost))
        work = 100 * (1 - float(np.dot(real, cost)) / total) if total else 0.0
        return cls(work, tuple(float(p) for p in 100 * (1 - share)), 100 * exceeding)


def plan_shapes(
    histogram: ArrayLike,
    count: int = 4,
    cost: Sequence[float] | None = None,
    *,
    weights: ArrayLike | None = None,
    limits: Sizes | None = None,
    head_room: bool = True,
) -> Shapes:
    """At most `count` shapes with the least expected padded work.

    The best of several orders of the batches is taken: by work, and by each dimension. Sizes are
    rounded up, by less than 0.4 percent or to a multiple of 8. Fewer shapes come back where more
    would save nothing, as with fewer batches than shapes.

    Args:
        histogram: `int[S, D]`, the sizes of sampled batches, as `Sample.sizes` counts them.
        count: K, the programs that may be compiled.
        cost: work of a unit of each dimension; `VERTEX_COST` and `EDGE_COST` if left out.
        weights: `[S]`, how often a batch like each sample comes; equally often if left out.
        limits: sizes that no batch exceeds, which head room need not exceed either.
        head_room: whether the largest shape is larger than all sampled batches: so much that, by
            an exponential tail through the largest tenth of the samples, one batch in
            `1 / RARE` exceeds it in a dimension.

    Raises:
        SampleError: `histogram` holds no batches, or `count` is below 1, or a cost or weight is
            negative or not finite, or lengths differ.
    """
    where = "plan_shapes"
    sizes = _checked_histogram(where, histogram)
    chance = _checked_weights(where, weights, len(sizes))
    count = as_count(f"{where}: count", count)
    if count < 1:
        raise SampleError(f"{where}: count is {count}, expected at least 1 shape")
    given = _checked_cost(where, default_cost(sizes.shape[1]) if cost is None else cost, sizes)
    if head_room:
        sizes = np.vstack([sizes, _with_head_room(sizes, limits)])
        chance = np.append(chance, 0.0)
    best: tuple[float, list[HostArray]] | None = None
    for order in _orders(sizes, given):
        expected, stops = _best_cuts(sizes[order], chance[order], given, count)
        if best is None or expected < best[0]:
            groups = np.split(order, stops[:-1])
            best = expected, [sizes[group].max(axis=0) for group in groups]
    assert best is not None
    return Shapes(tuple({rounded_up(shape.tolist()) for shape in best[1]}), tuple(given.tolist()))


def plan_graph_shapes(
    node_counts: ArrayLike,
    edge_counts: ArrayLike,
    batch_size: int,
    count: int = 4,
    *,
    seed: int = 0,
    samples: int = 500,
    drop_last: bool = False,
) -> Shapes:
    """Shapes `(vertices, edges)` for batches of many small graphs, as `gnnjit.graph.batch` makes
    them and `Graph.pad(*shape)` pads them.

    Args:
        node_counts, edge_counts: `int[G]`, the sizes of each graph.
        batch_size: graphs in a batch, which are drawn at random in each epoch.
        count: K, the programs that may be compiled.
        seed: of the batches that are sampled.
        samples: how many.
        drop_last: whether the last batch of an epoch is left out where it is smaller.

    Raises:
        SampleError: there are no graphs, lengths differ, or a number is below 1.
    """
    where = "plan_graph_shapes"
    counts = _counts(where, "node_counts", node_counts), _counts(where, "edge_counts", edge_counts)
    if counts[0].shape != counts[1].shape or not len(counts[0]):
        raise SampleError(
            f"{where}: node_counts and edge_counts have {len(counts[0])} and {len(counts[1])} "
            f"entries, expected one of each for each graph, and at least one graph"
        )
    sizes = np.stack(counts, axis=-1)
    for name, value in (("batch_size", batch_size), ("samples", samples)):
        if as_count(f"{where}: {name}", value) < 1:
            raise SampleError(f"{where}: {name} is {value}, expected at least 1")
    rng = np.random.default_rng(seed)
    size = min(batch_size, len(sizes))
    drawn = [sizes[rng.permutation(len(sizes))[:size]].sum(axis=0) for _ in range(samples)]
    weights = [float(len(sizes) // size)] * samples
    last = len(sizes) % size
    if last and not drop_last:
        few = max(1, samples // 10)
        drawn += [sizes[rng.permutation(len(sizes))[:last]].sum(axis=0) for _ in range(few)]
        weights += [samples / few] * few
    largest = np.sort(sizes, axis=0)[-size:].sum(axis=0)
    limits = tuple(int(n) for n in largest)
    return plan_shapes(np.array(drawn), count, weights=weights, limits=limits)


def default_cost(dimensions: int) -> tuple[float, ...]:
    """Of shapes with so many dimensions: of L hops, `2 L + 1`, or of a subgraph, 2."""
    vertices = dimensions // 2 + dimensions % 2
    return (VERTEX_COST,) * vertices + (EDGE_COST,) * (dimensions - vertices)


def rounded_up(sizes: Sequence[int]) -> Sizes:
    """Each size, up to a multiple that differs from it by little: close shapes become one."""
    steps = [max(8, 1 << max(0, (int(n) // _FINE).bit_length() - 1)) for n in sizes]
    return tuple(-(-int(n) // step) * step for n, step in zip(sizes, steps, strict=True))


def _with_head_room(sizes: HostArray, limits: Sizes | None) -> HostArray:
    """`int[D]`: what one batch in `1 / RARE` exceeds in a dimension, and no sample does.

    Beyond the largest tenth, sizes are taken to fall off exponentially (peaks over a threshold,
    with shape 0), which is more than sums over many vertices do.
    """
    ranked = np.sort(sizes, axis=0)
    large = min(len(ranked) - 1, max(4, len(ranked) // _TAIL))
    threshold = ranked[len(ranked) - 1 - large]
    excess = (ranked[len(ranked) - large :] - threshold).mean(axis=0) if large else 0.0
    decades = np.log(max(1, large) / (len(ranked) * RARE))
    wanted = np.ceil(threshold + excess * max(decades, 0.0)).astype(np.int64)
    if limits is not None:
        wanted = np.minimum(wanted, np.asarray(limits, np.int64))
    return np.maximum(wanted, ranked[-1])


def _orders(sizes: HostArray, cost: HostArray) -> list[HostArray]:
    """By work; and by each dimension, for sizes that do not grow together."""
    work = sizes @ cost
    keys = [work, *(sizes[:, d] for d in range(sizes.shape[1]))]
    return [np.lexsort((work, key)) for key in keys]


def _best_cuts(
    sizes: HostArray, chance: HostArray, cost: HostArray, count: int
) -> tuple[float, list[int]]:
    """(least expected work, where each group stops) over all ways to cut rows, as they stand, into
    at most `count` groups. O(S^2 (K + D))."""
    rows = len(sizes)
    total = np.concatenate([[0.0], np.cumsum(chance)])
    group = np.full((rows, rows + 1), np.inf)
    for begin in range(rows):
        largest = np.maximum.accumulate(sizes[begin:], axis=0) @ cost
        group[begin, begin + 1 :] = largest * (total[begin + 1 :] - total[begin])
    least = np.concatenate([[0.0], np.full(rows, np.inf)])
    choices, best, used = [], np.inf, 0
    for _ in range(min(count, rows)):
        ways = least[:rows, None] + group
        begin = ways.argmin(axis=0)
        choices.append(begin)
        least = ways[begin, np.arange(rows + 1)]
        if least[rows] < best:
            best, used = float(least[rows]), len(choices)
    stops, stop = [], rows
    for begin in reversed(choices[:used]):
        stops.append(stop)
        stop = int(begin[stop])
    return best, stops[::-1]


def _checked_histogram(where: str, histogram: Any) -> HostArray:
    sizes = read_on_host(f"{where}: histogram", histogram)
    if sizes.ndim != 2 or not sizes.size or sizes.dtype.kind not in "iu" or sizes.min() < 0:
        raise SampleError(
            f"{where}: histogram is {sizes.dtype} of shape {sizes.shape}, expected whole numbers "
            f">= 0 of shape [batches, dimensions], at least one batch: pass the sizes of samples"
        )
    return sizes.astype(np.int64)


def _checked_weights(where: str, weights: Any, rows: int) -> HostArray:
    chance = np.ones(rows) if weights is None else np.asarray(weights, np.float64)
    if chance.shape != (rows,) or not np.isfinite(chance).all() or not 0 < chance.sum() or (
        chance < 0
    ).any():  # fmt: skip
        raise SampleError(
            f"{where}: weights have shape {chance.shape}, expected ({rows},), finite numbers >= 0, "
            f"not all 0: one per batch of the histogram"
        )
    return chance / chance.sum()


def _checked_cost(where: str, cost: Any, sizes: HostArray) -> HostArray:
    given = np.asarray(cost, np.float64)
    if given.shape != sizes.shape[1:] or not np.isfinite(given).all() or (given < 0).any():
        raise SampleError(
            f"{where}: cost is {cost}, expected {sizes.shape[1]} finite numbers >= 0: one per "
            f"dimension of the histogram"
        )
    return given


def _counts(where: str, name: str, values: Any) -> HostArray:
    counts = read_on_host(f"{where}: {name}", values)
    if counts.ndim != 1 or (counts.size and (counts.dtype.kind not in "iu" or counts.min() < 0)):
        raise SampleError(
            f"{where}: {name} is {counts.dtype} of shape {counts.shape}, expected whole numbers "
            f">= 0, one per graph"
        )
    return counts.astype(np.int64)
