"""Which graph of a batch each vertex belongs to, and which vertices are padding."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Literal

import jax
import numpy as np

from gnnjit.graph import hosting
from gnnjit.graph.validate import check_leading
from gnnjit.shapes import PyTree

End = Literal["src", "dst"]


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["dst", "src", "real_dst", "real_src"],
    meta_fields=["num_graphs", "rising"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class Members:
    """The vertices of each graph of a batch; a `Graph` without it is one graph without padding.

    The sources of a graph of one vertex set are its destinations: `src` and `real_src` are None.

    Attributes:
        dst, src: `int32[vertices]`, the graph of each vertex. None: all belong to the first graph.
        real_dst, real_src: `bool[vertices]`, False on padding. None: no vertex is padding.
        num_graphs: the number of graphs, those without vertices included (static).
        rising: whether the graph never falls from one vertex to the next (static). It may where the
            rows of vertices have another order, on shards and in streams.
    """

    dst: Any = None
    src: Any = None
    real_dst: Any = None
    real_src: Any = None
    num_graphs: int = 1
    rising: bool = True

    def of(self, end: End, bipartite: bool) -> tuple[Any, Any]:
        """The graph of each vertex at one end of the edges, and whether it is real."""
        if end == "src" and bipartite:
            return self.src, self.real_src
        return self.dst, self.real_dst

    def reversed(self, bipartite: bool) -> Members:
        """Those of the reversed graph."""
        if not bipartite:
            return self
        return Members(self.src, self.dst, self.real_src, self.real_dst, self.num_graphs)


def padded(
    members: Members | None,
    bipartite: bool,
    present: tuple[int, int],
    wanted: tuple[int, int],
    num_graphs: int,
) -> Members:
    """The members after padding from `present` (sources, destinations) to `wanted`.

    New vertices stand with the last graph and are not real; new graphs have no vertices. There is
    always a mask, so that graphs padded to the same sizes are alike.
    """
    found = members or Members()
    (src, dst), (to_src, to_dst) = present, wanted
    own = _grown(found.dst, found.real_dst, dst, to_dst, num_graphs)
    far = (None, None)
    if bipartite:
        far = _grown(found.src, found.real_src, src, to_src, num_graphs)
    return Members(own[0], far[0], own[1], far[1], num_graphs)


def _grown(index: Any, real: Any, rows: int, wanted: int, num_graphs: int) -> tuple[Any, Any]:
    new = wanted - rows
    real = np.ones(rows, bool) if real is None else real
    real = hosting.concatenated([real, np.zeros(new, bool)])
    if index is None and num_graphs == 1:
        return None, real
    index = np.zeros(rows, np.int32) if index is None else index
    return hosting.concatenated([index, np.full(new, num_graphs - 1, np.int32)]), real


def joined(graphs: Sequence[Any], of_src: Any, of_dst: Any, num_graphs: int) -> Members:
    """The members of a batch of `graphs`; the graph of each source (of bipartite graphs) and of
    each destination are given."""
    real_src = _joined_masks(graphs, "src") if graphs[0].bipartite else None
    return Members(of_dst, of_src, _joined_masks(graphs, "dst"), real_src, num_graphs)


def _joined_masks(graphs: Sequence[Any], end: End) -> Any:
    masks = [None if g.members is None else g.members.of(end, g.bipartite)[1] for g in graphs]
    if all(mask is None for mask in masks):
        return None
    rows = [g.num_src if end == "src" else g.num_dst for g in graphs]
    return hosting.concatenated(
        [np.ones(n, bool) if mask is None else mask for n, mask in zip(rows, masks, strict=True)]
    )


def check_globals(num_graphs: int, x: PyTree, what: str) -> None:
    """Raises GraphError unless every array in `x` has one row for each graph."""
    kind = "graph" if num_graphs == 1 else "graphs"
    hint = (
        "pass arrays [1, ...], or make the graph by gnnjit.graph.batch, which remembers its graphs"
        if num_graphs == 1
        else "pass arrays with one row per graph, in the order in which they were batched"
    )
    check_leading(what, x, num_graphs, kind, hint)
