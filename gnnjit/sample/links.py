"""Links as seeds: the sampled surroundings of both ends, and pairs that are no links."""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

import numpy as np
from numba import njit

from gnnjit.errors import SampleError
from gnnjit.graph.reading import read_on_host
from gnnjit.graph.validate import shown
from gnnjit.sample.adjacency import Adjacency, numbers_of
from gnnjit.sample.hops import HopSampler
from gnnjit.sample.induced import offsets_of
from gnnjit.sample.negative import NegativeSampler, checked_links
from gnnjit.sample.neighbor import NeighborSampler
from gnnjit.sample.numbering import shift_of
from gnnjit.sample.random import key_of
from gnnjit.sample.sample import Sample
from gnnjit.sample.workers import ALONE, Workers
from gnnjit.shapes import ArrayLike, HostArray

Excluded = Literal["both", "links", "nothing"]

_STEP = np.uint64(0x9E3779B97F4A7C15)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class LinkSample(Sample):
    """A sample around P pairs of vertices: B links, then k negatives of the first, the second, ...

    Attributes:
        link: `int[P]`, the link that each pair is, or is a negative of.
        link_src, link_dst: `int32[P]`, the vertices of the sample that a pair is of.
        label: `float32[P]`, 1 of a link and 0 of a negative.
        false: `bool[P]`, which negatives are edges after all (`Negatives.false`).
    """

    link: HostArray
    link_src: HostArray
    link_dst: HostArray
    label: HostArray
    false: HostArray


class LinkSampler:
    """Samples around links. Seeds are links.

    The ends of a batch's links and negatives are the seeds of `sampler`. Where it samples by time,
    or `disjoint`, each end has a tree of its own, negatives share that of their link's source.

    Args:
        sampler: one whose seeds are vertices.
        src, dst: `int[L]`, the links.
        negatives: draws what are no links; none if left out.
        times: `[L]`, the time of each link, for a sampler by time. Its negatives have it too.
        exclude: edges that messages are not to run along, since they are what is to be predicted:
            "both", those between the ends of the batch's links in either direction; "links", those
            in the direction of the link; or "nothing". They are taken out of what was sampled, so
            a vertex may have fewer neighbours than its fan-out.

    Raises:
        SampleError: a link's end is out of range, times are missing or do not fit, or the sampler
            has other seeds.
    """

    def __init__(
        self,
        sampler: NeighborSampler | HopSampler,
        src: ArrayLike,
        dst: ArrayLike,
        *,
        negatives: NegativeSampler | None = None,
        times: ArrayLike | None = None,
        exclude: Excluded = "both",
    ) -> None:
        where = "LinkSampler"
        if not isinstance(sampler, NeighborSampler | HopSampler):
            raise SampleError(
                f"{where}: sampler is {shown(sampler)}, expected one whose seeds are vertices: a "
                f"NeighborSampler or HopSampler"
            )
        if exclude not in get_args(Excluded):
            raise SampleError(
                f"{where}: exclude is {shown(exclude)}, expected one of "
                f"{', '.join(get_args(Excluded))}"
            )
        self.sampler = sampler
        self.src, self.dst = checked_links(where, sampler.adjacency, src, dst)
        self.negatives, self.exclude = negatives, exclude
        self.times = None if times is None else read_on_host(f"{where}: times", times)
        by_time = isinstance(sampler, NeighborSampler) and sampler.temporal
        if by_time != (self.times is not None):
            missing = "is missing" if by_time else "was given"
            raise SampleError(
                f"{where}: times {missing}, expected the time of each link where, and only where, "
                f"the sampler has times"
            )
        if self.times is not None and self.times.shape != self.src.shape:
            raise SampleError(
                f"{where}: times has shape {self.times.shape}, expected {self.src.shape}: one time "
                f"per link"
            )

    @property
    def adjacency(self) -> Adjacency:
        """The in-edges of the graph that samples are of."""
        return self.sampler.adjacency

    @property
    def num_seeds(self) -> int:
        """Seeds are links: their number."""
        return len(self.src)

    @property
    def num_layers(self) -> int | None:
        """That of the sampler."""
        return self.sampler.num_layers

    def sample(self, seeds: ArrayLike, seed: int = 0, *, workers: Workers = ALONE) -> LinkSample:
        """The sample around some links.

        Args:
            seeds: `int[B]`, numbers of links.
            seed: of the batch.
            workers: threads that share the work; the result is the same.

        Raises:
            SampleError: a number is out of range.
        """
        where = "LinkSampler.sample"
        key = key_of(where, seed, 1)
        links = numbers_of(where, "seeds", seeds, self.num_seeds, "link")
        src, dst = self.src[links], self.dst[links]
        others, false = np.empty((len(src), 0), dst.dtype), np.empty((len(src), 0), np.bool_)
        if self.negatives is not None:
            drawn = self.negatives.sample(src, dst, int(key), workers=workers)
            others, false = drawn.dst, drawn.false
        count, ends = others.shape[1], np.concatenate([src, dst, others.ravel()])
        times = {}
        if self.times is not None:
            own = self.times[links]
            times["times"] = np.concatenate([own, own, np.repeat(own, count)])
        sample = self.sampler.sample(ends, seed, workers=workers, **times)
        sample = self._without_links(sample, src, dst, workers)
        assert sample.seeds is not None
        first, rest = sample.seeds[: len(src)], sample.seeds[len(src) :]
        fields = {f.name: getattr(sample, f.name) for f in dataclasses.fields(Sample)}
        return LinkSample(
            **fields,
            link=np.concatenate([links, np.repeat(links, count)]),
            link_src=np.concatenate([first, np.repeat(first, count)]),
            link_dst=rest,
            label=np.repeat(np.array([1, 0], np.float32), [len(src), others.size]),
            false=np.concatenate([np.zeros(len(src), np.bool_), false.ravel()]),
        )

    def _without_links(
        self, sample: Sample, src: HostArray, dst: HostArray, workers: Workers
    ) -> Sample:
        if self.exclude == "nothing":
            return sample
        if self.exclude == "both":
            src, dst = np.concatenate([src, dst]), np.concatenate([dst, src])
        return without_edges(sample, src, dst, self.sampler.num_seeds, workers)


def without_edges(
    sample: Sample, src: HostArray, dst: HostArray, num_nodes: int, workers: Workers = ALONE
) -> Sample:
    """A sample without its edges `src[i] -> dst[i]` (`int[n]`, vertices of the graph, which has
    `num_nodes`), parallel ones included. Its vertices stay."""
    if not len(src):
        return sample
    pairs = np.full(1 << max(4, (2 * len(src) - 1).bit_length()), -1, np.int64)
    _insert(pairs, src, dst, num_nodes)
    rows = len(sample.indptr) - 1
    kept, counts = np.empty(len(sample.neighbor), np.bool_), np.empty(rows, np.int64)
    workers.run(
        lambda b, e: _mark(
            pairs, num_nodes, sample.indptr, sample.neighbor, sample.vertices, b, e, kept, counts
        ),
        rows,
    )
    indptr = offsets_of(counts).astype(np.int32)
    edge_counts = (int(indptr[-1]),)
    if not sample.is_subgraph:
        edge_counts = tuple(int(indptr[n]) for n in sample.vertex_counts[:-1])
    weight = sample.edge_weight
    return dataclasses.replace(
        sample,
        indptr=indptr,
        neighbor=sample.neighbor[kept],
        slots=sample.slots[kept],
        edge_counts=edge_counts,
        edge_weight=None if weight is None else weight[kept],
    )


@njit(nogil=True, cache=True, inline="always")
def _place(pairs, pair, shift):  # type: ignore[no-untyped-def]
    """Where a pair is in the table, or where it goes."""
    at = np.int64((np.uint64(pair) * _STEP) >> shift)
    while pairs[at] != pair and pairs[at] >= 0:
        at = (at + 1) & (len(pairs) - 1)
    return at


@njit(nogil=True, cache=True)
def _insert(pairs, src, dst, num_nodes):  # type: ignore[no-untyped-def]
    shift = shift_of(len(pairs))
    for i in range(len(src)):
        pair = np.int64(dst[i]) * num_nodes + src[i]
        pairs[_place(pairs, pair, shift)] = pair


@njit(nogil=True, cache=True)
def _mark(pairs, num_nodes, indptr, neighbor, vertices, begin, end, kept, counts):  # type: ignore[no-untyped-def]
    shift = shift_of(len(pairs))
    for v in range(begin, end):
        row, held = np.int64(vertices[v]) * num_nodes, 0
        for i in range(indptr[v], indptr[v + 1]):
            pair = row + vertices[neighbor[i]]
            kept[i] = pairs[_place(pairs, pair, shift)] != pair
            held += kept[i]
        counts[v] = held
