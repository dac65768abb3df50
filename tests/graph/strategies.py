"""Generated graphs for property tests: hubs, self loops, duplicates, no edges, padding."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import strategies as st

from gnnjit.graph import Graph


@dataclasses.dataclass(frozen=True)
class Edges:
    """A plain edge list; `mask` may be None, and masked entries may be out of range."""

    src: np.ndarray
    dst: np.ndarray
    num_src: int
    num_dst: int
    mask: np.ndarray | None

    @property
    def real(self) -> np.ndarray:
        return np.ones(len(self.src), bool) if self.mask is None else self.mask


@st.composite
def edge_lists(draw: st.DrawFn, *, masked: bool | None = None, bipartite: bool = False) -> Edges:
    num_src = draw(st.integers(1, 6))
    num_dst = draw(st.integers(1, 6)) if bipartite else num_src
    num_edges = draw(st.integers(0, 12))

    def indices(count: int) -> np.ndarray:
        numbers = st.integers(0, count - 1)
        return np.array(draw(st.lists(numbers, min_size=num_edges, max_size=num_edges)), np.int32)

    src, dst, mask = indices(num_src), indices(num_dst), None
    if draw(st.booleans()) if masked is None else masked:
        flags = st.lists(st.booleans(), min_size=num_edges, max_size=num_edges)
        mask = np.array(draw(flags), bool)
        junk = st.sampled_from([-1, 0, num_src, 99])
        src[~mask], dst[~mask] = draw(junk), draw(junk)
    return Edges(src, dst, num_src, num_dst, mask)


def make(edges: Edges, bipartite: bool = False) -> Graph:
    """The gnnjit graph of an edge list."""
    if bipartite:
        return Graph.from_edges(
            edges.src,
            edges.dst,
            num_src=edges.num_src,
            num_dst=edges.num_dst,
            edge_mask=edges.mask,
        )
    return Graph.from_edges(edges.src, edges.dst, edges.num_src, edge_mask=edges.mask)
