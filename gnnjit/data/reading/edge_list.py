"""What reading gives: the edges of a graph as arrays, with what the source tells beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from gnnjit.data.types import expect
from gnnjit.errors import DataError
from gnnjit.graph import Graph
from gnnjit.shapes import HostArray


@dataclass(frozen=True, eq=False, repr=False)
class EdgeList:
    """The edges of a graph in the order of their source, and columns beside them.

    Attributes:
      name: of the file or object.
      src, dst: int32 [E], vertices from 0 to N - 1; of a store on a disk, maps of its files.
      num_nodes: N.
      ids: [N], what the source calls each vertex, int64 or str; None where it is its number.
      edges: columns [E, ...] by name: "weight" is float32, "time" int64 or float64 (dates are
        seconds since 1970).
      nodes: columns [N, ...] by name, such as "x" and "y".
      report: what reading did, in words.
      num_sources: how many vertices are sources, the first ones, where sources and destinations are
        numbered apart; else None.

    Raises:
      DataError: if the parts do not fit each other.
    """

    name: str
    src: HostArray
    dst: HostArray
    num_nodes: int
    ids: HostArray | None = None
    edges: Mapping[str, HostArray] = field(default_factory=dict)
    nodes: Mapping[str, HostArray] = field(default_factory=dict)
    report: tuple[str, ...] = ()
    num_sources: int | None = None

    def __post_init__(self) -> None:
        count = len(self.src)
        expect(self.name, "src", self.src, (count,), np.int32)
        expect(self.name, "dst", self.dst, (count,), np.int32)
        wanted = [(f"edges[{k!r}]", v, count) for k, v in self.edges.items()]
        wanted += [(f"nodes[{k!r}]", v, self.num_nodes) for k, v in self.nodes.items()]
        wanted += [] if self.ids is None else [("ids", self.ids, self.num_nodes)]
        for part, array, rows in wanted:
            if array.shape[:1] != (rows,):
                raise DataError(
                    f"{self.name}: {part} has the shape {array.shape}, expected {rows} rows."
                )

    @property
    def num_edges(self) -> int:
        """E."""
        return len(self.src)

    @property
    def weight(self) -> HostArray | None:
        """float32 [E], or None."""
        return self.edges.get("weight")

    @property
    def time(self) -> HostArray | None:
        """int64 or float64 [E], or None."""
        return self.edges.get("time")

    def graph(self) -> Graph:
        """The edges as they are, in their order, as a `Graph` of N vertices. Raises GraphError for
        a vertex that is out of range."""
        return Graph.from_edges(self.src, self.dst, self.num_nodes)

    def number_of(self, name: object) -> int:
        """The number of the vertex that the source calls so. Raises DataError if there is none."""
        if self.ids is None:
            known = isinstance(name, int | np.integer) and 0 <= name < self.num_nodes
            found = [int(name)] if known else []  # type: ignore[arg-type]
        else:
            found = np.flatnonzero(self.ids == name).tolist()
        if not found:
            raise DataError(f"{self.name}: has no vertex {name!r}.")
        return found[0]

    def __repr__(self) -> str:
        parts = [f"{self.num_nodes:,} vertices", f"{self.num_edges:,} edges"]
        parts += [f"edges' {', '.join(self.edges)}"] if self.edges else []
        parts += [f"vertices' {', '.join(self.nodes)}"] if self.nodes else []
        parts += [] if self.ids is None else [f"ids {self.ids.dtype.name.rstrip('0123456789')}"]
        return f"EdgeList({self.name}: {', '.join(parts)})"
