"""Graphs whose edges are given by destination, of which much is implied and never stored."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.graph import hosting, validate
from gnnjit.graph.degree_buckets import make_buckets
from gnnjit.graph.graph import Graph
from gnnjit.graph.host_sort import counting_sort
from gnnjit.graph.row_tasks import make_tasks
from gnnjit.graph.structure import Structure
from gnnjit.shapes import HostArray


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["offset", "source", "by_source"],
    meta_fields=["num_src", "num_dst", "num_edges", "fan_in", "bipartite"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class ByDestination:
    """Edges in the order of their destinations: what a `Graph` of them cannot derive.

    Wang et al., "FlexGraph" (2021), section 4.1: a level of which each source has one edge needs no
    sources, and one whose destinations have equally many needs no offsets.

    Attributes:
        offset: `int[num_dst + 1]`, the first edge of each destination; None where each has
            `fan_in`.
        source: `int[E]`; None where edge `i` comes from source `i`.
        by_source: (`int[num_src + 1]`, `int[E]`), the edges by source, which a gradient reads; None
            where they are implied, or sorted wherever they are read.
        num_src, num_dst, num_edges, bipartite: as of `Graph` (static).
        fan_in: the edges of each destination, where all have as many (static).
    """

    offset: Any
    source: Any
    by_source: Any
    num_src: int
    num_dst: int
    num_edges: int
    fan_in: int | None
    bipartite: bool

    @classmethod
    def of(
        cls,
        offset: HostArray,
        source: HostArray | None,
        *,
        num_src: int,
        fan_in: int | None = None,
        bipartite: bool = True,
    ) -> ByDestination:
        """From concrete edges, which are taken to be right.

        Args:
            offset: `int[num_dst + 1]`.
            source: `int[E]` in the order of destinations, or None where edge `i` comes from
                source `i`.
            num_src, bipartite: as of `Graph`.
            fan_in: the edges of each destination, if they have equally many.

        Raises GraphError where there are more edges than indices can number.
        """
        num_dst, size = len(offset) - 1, int(offset[-1])
        dtype = validate.index_dtype(num_src=num_src, num_dst=num_dst, num_edges=size)
        by_source = None
        if source is not None:
            source = hosting.copied(source, dtype)
            order = counting_sort(source, np.arange(size, dtype=dtype), num_src)
            by_source = order[0].astype(dtype, copy=False), order[1]
        kept = None if fan_in is not None else hosting.copied(offset, dtype)
        offset, source, by_source = hosting.to_device((kept, source, by_source))
        return cls(offset, source, by_source, num_src, num_dst, size, fan_in, bipartite)

    def graph(self, traced: bool) -> Graph:
        """The graph, with what is implied: made by JAX if `traced`, else on the host."""
        xp: Any = jnp if traced else np
        parts = self if traced else jax.tree.map(np.asarray, self)
        dtype = validate.index_dtype(
            num_src=self.num_src, num_dst=self.num_dst, num_edges=self.num_edges
        )
        edge = xp.arange(self.num_edges, dtype=dtype)
        offset, dst = parts.offset, parts.destinations(xp, edge)
        if offset is None:
            offset = xp.arange(self.num_dst + 1, dtype=dtype) * dtype.type(self.fan_in)
        src = edge if self.source is None else parts.source
        first, order = xp.arange(self.num_src + 1, dtype=dtype), edge
        if self.by_source is not None:
            first, order = parts.by_source
        elif self.source is not None:
            first, order = _sorted(src, self.num_src, traced)
        into = offset, src, edge
        outward = first, dst if self.source is None else dst[order], order
        structures = [_structure(rows, traced) for rows in (into, outward)]
        graph = Graph(
            src=src,
            dst=dst,
            mask=None,
            in_structure=structures[0],
            out_structure=structures[1],
            dropped=None,
            num_src=self.num_src,
            num_dst=self.num_dst,
            num_edges=self.num_edges,
            bipartite=self.bipartite,
            fan_in=self.fan_in if self.source is None else None,
        )
        return graph if traced else hosting.to_device(graph, self.offset)

    def destinations(self, xp: Any, edge: Any) -> Any:
        """`int[E]`, from the numbers of the edges."""
        if self.fan_in is not None:
            return edge // edge.dtype.type(max(1, self.fan_in))
        rows = xp.arange(self.num_dst, dtype=edge.dtype)
        more = {"total_repeat_length": self.num_edges} if xp is jnp else {}
        return xp.repeat(rows, xp.diff(self.offset), **more)


def _sorted(source: Any, num_src: int, traced: bool) -> tuple[Any, Any]:
    """The edges by source, as `ByDestination.by_source`."""
    if not traced:
        order = counting_sort(source, np.arange(len(source), dtype=source.dtype), num_src)
        return order[0].astype(source.dtype, copy=False), order[1]
    first = jnp.cumsum(jnp.bincount(source, length=num_src), dtype=source.dtype)
    return jnp.pad(first, (1, 0)), jnp.argsort(source, stable=True).astype(source.dtype)


def _structure(rows: tuple[Any, Any, Any], traced: bool) -> Structure:
    if traced:
        return Structure(*rows)
    return Structure(*rows, make_buckets(rows[0]), make_tasks(rows[0]))
