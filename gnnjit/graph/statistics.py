"""Counts that tell what a graph is like."""

from __future__ import annotations

import dataclasses

import numpy as np

from gnnjit.shapes import HostArray


@dataclasses.dataclass(frozen=True)
class DegreeStatistics:
    """The distribution of a degree over vertices; all 0 where there is no vertex.

    Attributes:
        min, mean, median, max: over the vertices.
        p90, p99: the 90th and 99th percentile.
    """

    min: int
    mean: float
    median: float
    p90: float
    p99: float
    max: int

    @classmethod
    def of(cls, degree: HostArray) -> DegreeStatistics:
        """The statistics of `degree`, `int[N]`."""
        if not degree.size:
            return cls(0, 0.0, 0.0, 0.0, 0.0, 0)
        median, p90, p99 = (float(p) for p in np.percentile(degree, [50, 90, 99]))
        return cls(int(degree.min()), float(degree.mean()), median, p90, p99, int(degree.max()))

    def __str__(self) -> str:
        return (
            f"min {self.min}  mean {self.mean:.4g}  median {self.median:.4g}  "
            f"90% {self.p90:.4g}  99% {self.p99:.4g}  max {self.max}"
        )


@dataclasses.dataclass(frozen=True)
class Statistics:
    """What `Graph.statistics` returns.

    Attributes:
        num_src, num_dst: vertices; the same set unless `bipartite`.
        num_edges: real edges.
        num_padding: padding edges.
        in_degree, out_degree: over destinations and over sources.
        isolated: vertices with neither in-edges nor out-edges (of both sets, if bipartite).
        self_loops: edges from a vertex to itself; 0 if bipartite.
        duplicate_edges: edges beyond the first with the same endpoints.
        hub_share: share of the edges at the vertex with the most in-edges or out-edges, 0 to 1.
        num_bytes: size of all arrays of the graph.
    """

    num_src: int
    num_dst: int
    bipartite: bool
    num_edges: int
    num_padding: int
    in_degree: DegreeStatistics
    out_degree: DegreeStatistics
    isolated: int
    self_loops: int
    duplicate_edges: int
    hub_share: float
    num_bytes: int

    def __str__(self) -> str:
        vertices = (
            f"{self.num_src:,} sources, {self.num_dst:,} destinations"
            if self.bipartite
            else f"{self.num_dst:,} vertices"
        )
        return "\n".join(
            [
                f"{vertices}, {self.num_edges:,} edges, {self.num_padding:,} padding edges, "
                f"{_size(self.num_bytes)}",
                f"in-degree:   {self.in_degree}",
                f"out-degree:  {self.out_degree}",
                f"{self.isolated:,} isolated vertices, {self.self_loops:,} self loops, "
                f"{self.duplicate_edges:,} duplicate edges",
                f"{self.hub_share:.1%} of the edges at the largest hub",
            ]
        )


def compute_statistics(
    src: HostArray,
    dst: HostArray,
    in_degree: HostArray,
    out_degree: HostArray,
    *,
    bipartite: bool,
    num_padding: int,
    num_bytes: int,
) -> Statistics:
    """The statistics of a graph whose real edges are `src[i] -> dst[i]`."""
    if bipartite:
        isolated = int((in_degree == 0).sum() + (out_degree == 0).sum())
    else:
        isolated = int(((in_degree == 0) & (out_degree == 0)).sum())
    hub = max(int(in_degree.max(initial=0)), int(out_degree.max(initial=0)))
    return Statistics(
        num_src=len(out_degree),
        num_dst=len(in_degree),
        bipartite=bipartite,
        num_edges=len(src),
        num_padding=num_padding,
        in_degree=DegreeStatistics.of(in_degree),
        out_degree=DegreeStatistics.of(out_degree),
        isolated=isolated,
        self_loops=0 if bipartite else int((src == dst).sum()),
        duplicate_edges=_duplicates(src, dst, len(out_degree)),
        hub_share=hub / len(src) if len(src) else 0.0,
        num_bytes=num_bytes,
    )


def _duplicates(src: HostArray, dst: HostArray, num_src: int) -> int:
    key = dst.astype(np.int64) * num_src + src
    key.sort()
    return int((key[1:] == key[:-1]).sum())


def _size(num_bytes: int) -> str:
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"
