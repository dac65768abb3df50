"""Links as seeds: the sampled surroundings of both ends, and pairs that are no links."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args

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
class Pairs:
    """What a sample holds of P pairs of vertices: B links, then k negatives of the first, the
    second, ...

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


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class LinkSample(Pairs, Sample):
    """A sample around P pairs of vertices: B links, then k negatives of the first, the second, ...

    Attributes:
        link: `int[P]`, the link that each pair is, or is a negative of.
        link_src, link_dst: `int32[P]`, the vertices of the sample that a pair is of.
        label: `float32[P]`, 1 of a link and 0 of a negative.
        false: `bool[P]`, which negatives are edges after all (`Negatives.false`).
    """


@dataclasses.dataclass(frozen=True, eq=False)
class Links:
    """The links that a sampler knows, and how their negatives are drawn.

    Attributes:
        src, dst: `int64[L]`.
        times: `[L]`, or None for a sampler without.
        negatives: draws what are no links, or None.
    """

    src: HostArray
    dst: HostArray
    times: HostArray | None
    negatives: NegativeSampler | None

    @classmethod
    def of(
        cls, where: str, ends: tuple[Any, Any], counts: tuple[int, int], *,
        negatives: NegativeSampler | None, times: Any, by_time: bool,
    ) -> Links:  # fmt: skip
        """Of links between `counts` sources and destinations, with times where (`by_time`) the
        sampler has them. Raises SampleError where something does not fit."""
        src, dst = checked_links(where, *ends, counts)
        if negatives is not None and (negatives.num_src, negatives.num_dst) != counts:
            raise SampleError(
                f"{where}: negatives are of a graph of {negatives.num_src} sources and "
                f"{negatives.num_dst} destinations, expected {counts[0]} and {counts[1]}: make the "
                f"NegativeSampler of the graph that the links are of"
            )
        whens = None if times is None else read_on_host(f"{where}: times", times)
        if by_time != (whens is not None):
            missing = "is missing" if by_time else "was given"
            raise SampleError(
                f"{where}: times {missing}, expected the time of each link where, and only where, "
                f"the sampler has times"
            )
        if whens is not None and whens.shape != src.shape:
            raise SampleError(
                f"{where}: times has shape {whens.shape}, expected {src.shape}: one time per link"
            )
        return cls(src, dst, whens, negatives)

    def drawn(self, links: HostArray, seed: int, workers: Workers) -> DrawnLinks:
        """Some links, and their negatives."""
        src, dst = self.src[links], self.dst[links]
        others, false = np.empty((len(src), 0), dst.dtype), np.empty((len(src), 0), np.bool_)
        if self.negatives is not None:
            found = self.negatives.sample(src, dst, seed, workers=workers)
            others, false = found.dst, found.false
        times = None
        if self.times is not None:
            own = self.times[links]
            times = np.concatenate([own, own, np.repeat(own, others.shape[1])])
        return DrawnLinks(links, src, dst, others, false, times)


@dataclasses.dataclass(frozen=True, eq=False)
class DrawnLinks:
    """The links of a batch and their negatives, in numbers of the graph.

    Attributes:
        links: `int[B]`, the numbers of the links.
        src, dst: `int[B]`.
        others: `int[B, k]`, the destinations of the negatives.
        false: `bool[B, k]`.
        times: of all sources, all destinations, and those of the negatives, or None.
    """

    links: HostArray
    src: HostArray
    dst: HostArray
    others: HostArray
    false: HostArray
    times: HostArray | None

    @property
    def destinations(self) -> HostArray:
        """`int[B + B k]`: those of links, then those of negatives."""
        return np.concatenate([self.dst, self.others.ravel()])

    def pairs(self, sources: HostArray, destinations: HostArray) -> dict[str, Any]:
        """The attributes of `Pairs`, from the numbers in the sample of all ends."""
        count = self.others.shape[1]
        return {
            "link": np.concatenate([self.links, np.repeat(self.links, count)]),
            "link_src": np.concatenate([sources, np.repeat(sources, count)]),
            "link_dst": destinations,
            "label": np.repeat(np.array([1, 0], np.float32), [len(self.src), self.others.size]),
            "false": np.concatenate([np.zeros(len(self.src), np.bool_), self.false.ravel()]),
        }


class LinkSampler:
    """Samples around links. Seeds are links.

    The ends of a batch's links and negatives are the seeds of `sampler`. Where it samples by time,
    or `disjoint`, each end has a tree of its own; a negative has one for its destination, and
    shares that of its link's source.

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
        SampleError: a link's end is out of range, times are missing or do not fit, negatives are of
            another graph, or the sampler has other seeds.
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
                f"{where}: sampler is a {type(sampler).__name__}, expected one whose seeds are "
                f"vertices: a NeighborSampler or HopSampler"
            )
        self.exclude = checked_excluded(where, exclude)
        self.sampler = sampler
        n = sampler.adjacency.num_nodes
        self._links = Links.of(
            where, (src, dst), (n, n), negatives=negatives, times=times,
            by_time=isinstance(sampler, NeighborSampler) and sampler.temporal,
        )  # fmt: skip

    @property
    def adjacency(self) -> Adjacency:
        """The in-edges of the graph that samples are of."""
        return self.sampler.adjacency

    @property
    def num_seeds(self) -> int:
        """Seeds are links: their number."""
        return len(self._links.src)

    @property
    def num_layers(self) -> int | None:
        """That of the sampler."""
        return self.sampler.num_layers

    @property
    def disjoint(self) -> bool:
        """Whether each end has a tree of its own."""
        return getattr(self.sampler, "disjoint", False)

    @property
    def replace(self) -> bool:
        """Whether an edge may be drawn twice."""
        return getattr(self.sampler, "replace", False)

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
        drawn = self._links.drawn(links, int(key), workers)
        ends = np.concatenate([drawn.src, drawn.destinations])
        times: dict[str, Any] = {} if drawn.times is None else {"times": drawn.times}
        sample = self.sampler.sample(ends, seed, workers=workers, **times)
        if self.exclude != "nothing":
            src, dst = gone(drawn.src, drawn.dst, self.exclude == "both")
            sample = without_edges(sample, src, dst, self.sampler.num_seeds, workers)
        assert sample.seeds is not None
        count = len(drawn.src)
        fields = {f.name: getattr(sample, f.name) for f in dataclasses.fields(Sample)}
        return LinkSample(**fields, **drawn.pairs(sample.seeds[:count], sample.seeds[count:]))


def checked_excluded(where: str, exclude: Any) -> Excluded:
    """Raises SampleError unless it is one of the words."""
    if exclude not in get_args(Excluded):
        raise SampleError(
            f"{where}: exclude is {shown(exclude)}, expected one of {', '.join(get_args(Excluded))}"
        )
    return exclude


def gone(src: HostArray, dst: HostArray, both: bool) -> tuple[HostArray, HostArray]:
    """The ends of edges that are to be taken out: of the links, and with `both` of the links the
    other way round, which are edges of one vertex set."""
    if not both:
        return src, dst
    return np.concatenate([src, dst]), np.concatenate([dst, src])


def without_edges(
    sample: Sample, src: HostArray, dst: HostArray, num_nodes: int, workers: Workers = ALONE
) -> Sample:
    """A sample without its edges `src[i] -> dst[i]` (`int[n]`, vertices of the graph, which has
    `num_nodes`), parallel ones included. Its vertices stay."""
    kept, indptr = kept_edges(
        sample.indptr, sample.neighbor, (sample.vertices, sample.vertices), (src, dst), num_nodes,
        workers,
    )  # fmt: skip
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


def kept_edges(
    indptr: HostArray,
    neighbor: HostArray,
    vertices: tuple[HostArray, HostArray],
    links: tuple[HostArray, HostArray],
    num_src: int,
    workers: Workers,
) -> tuple[HostArray, HostArray]:
    """(`bool[e]`: which edges are none of the links, `int32[rows + 1]`: the first kept edge of each
    row).

    Args:
        indptr, neighbor: the edges of a sample.
        vertices: the numbers in the graph of its sources, and of its destinations.
        links: `int[n]`, sources and destinations in the graph.
        num_src: sources of the graph.
    """
    src, dst = links
    pairs = np.full(1 << max(4, (2 * len(src) - 1).bit_length()), -1, np.int64)
    _insert(pairs, src, dst, num_src)
    rows = len(indptr) - 1
    kept, counts = np.empty(len(neighbor), np.bool_), np.empty(rows, np.int64)
    workers.run(
        lambda b, e: _mark(pairs, num_src, indptr, neighbor, *vertices, b, e, kept, counts), rows
    )
    return kept, offsets_of(counts).astype(np.int32)


@njit(nogil=True, cache=True, inline="always")
def _place(pairs, pair, shift):  # type: ignore[no-untyped-def]
    """Where a pair is in the table, or where it goes."""
    at = np.int64((np.uint64(pair) * _STEP) >> shift)
    while pairs[at] != pair and pairs[at] >= 0:
        at = (at + 1) & (len(pairs) - 1)
    return at


@njit(nogil=True, cache=True)
def _insert(pairs, src, dst, num_src):  # type: ignore[no-untyped-def]
    shift = shift_of(len(pairs))
    for i in range(len(src)):
        pair = np.int64(dst[i]) * num_src + src[i]
        pairs[_place(pairs, pair, shift)] = pair


@njit(nogil=True, cache=True)
def _mark(  # type: ignore[no-untyped-def]
    pairs, num_src, indptr, neighbor, sources, vertices, begin, end, kept, counts
):
    shift = shift_of(len(pairs))
    for v in range(begin, end):
        row, held = np.int64(vertices[v]) * num_src, 0
        for i in range(indptr[v], indptr[v + 1]):
            pair = row + sources[neighbor[i]]
            kept[i] = pairs[_place(pairs, pair, shift)] != pair
            held += kept[i]
        counts[v] = held
