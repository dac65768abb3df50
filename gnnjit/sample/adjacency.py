"""The in-edges of every vertex on the host: what all samplers walk over."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from gnnjit.errors import SampleError
from gnnjit.graph import Graph, TypedGraph
from gnnjit.graph.reading import read_on_host
from gnnjit.graph.relations import Relations
from gnnjit.graph.validate import is_traced, shown
from gnnjit.shapes import HostArray


@dataclasses.dataclass(frozen=True, eq=False)
class Adjacency:
    """Edges by destination. Vertex `v` has the slots `indptr[v]` to `indptr[v + 1] - 1`.

    Attributes:
        indptr: `int[N + 1]`.
        neighbor: `int[E]`, the source of the edge in each slot.
        edge: `int[E]`, its number, in the order in which edges were given.
        relations: those of the edges, by these numbers; None where edges have none.
    """

    indptr: HostArray
    neighbor: HostArray
    edge: HostArray
    relations: Relations | None = None

    @classmethod
    def of(
        cls, where: str, graph: Any, *, outward: bool = False, two_sets: bool = False
    ) -> Adjacency:
        """That of a concrete graph of one vertex set, or, `outward`, its edges by source; nothing
        is copied where JAX computes on the CPU. With `two_sets` the graph may be one between
        sources and destinations. Raises SampleError on anything else."""
        if not isinstance(graph, Graph):
            hint = ""
            if isinstance(graph, TypedGraph):
                hint = ": a TypedGraph is sampled by TypedNeighborSampler alone"
            raise SampleError(f"{where}: got {shown(graph)}, expected a gnnjit.Graph{hint}")
        if is_traced(graph):
            raise SampleError(
                f"{where}: the graph is traced, expected a concrete one: sample outside jit"
            )
        if graph.bipartite and not two_sets:
            raise SampleError(
                f"{where}: the graph has {graph.num_src} sources and {graph.num_dst} destinations, "
                f"expected one vertex set: number both in one, destinations first"
            )
        rows = graph.out_structure if outward else graph.in_structure
        size = int(np.asarray(rows.indptr)[-1])
        parts = rows.indptr, rows.neighbor[:size], rows.edge[:size]
        indptr, neighbor, edge = (read_only(np.asarray(part)) for part in parts)
        relations = graph.relations
        if relations is not None:
            arrays = np.asarray(relations.number), np.asarray(relations.degree)
            relations = Relations(*arrays, relations.count)
        return cls(indptr, neighbor, edge, relations)

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        return len(self.neighbor)

    def degree(self) -> HostArray:
        """`int[N]`: in-edges of each vertex."""
        return np.diff(self.indptr)

    def by_slot(self, where: str, name: str, values: Any) -> HostArray:
        """`float64[E]`: one number per edge, from the order in which edges were given to that of
        slots. Raises SampleError unless there is one for each edge."""
        values = read_on_host(f"{where}: {name}", values)
        if values.ndim != 1 or len(values) < self.num_edges:
            raise SampleError(
                f"{where}: {name} has shape {values.shape}, expected ({self.num_edges},): one "
                f"number per edge, in the order in which edges were given"
            )
        return values.astype(np.float64)[self.edge]

    def checked(self, where: str, name: str, vertices: Any) -> HostArray:
        """`int[n]`: vertices, as their numbers or as a mask `bool[N]`. Raises SampleError where one
        is out of range."""
        hint = ": number vertices as the graph does"
        found = numbers_of(where, name, vertices, self.num_nodes, "vertex", hint)
        return found.astype(self.indptr.dtype)


def numbers_of(
    where: str, name: str, chosen: Any, count: int, kind: str, hint: str = ""
) -> HostArray:
    """`int64[n]`, from numbers or a mask. Raises SampleError where one is out of range; its message
    calls them `kind` and ends with `hint`."""
    array = read_on_host(f"{where}: {name}", chosen)
    if array.dtype == np.bool_ and array.shape == (count,):
        return np.flatnonzero(array)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise SampleError(
            f"{where}: {name} is {array.dtype} of shape {array.shape}, expected {kind} numbers of "
            f"shape [n], or a mask bool[{count}]"
        )
    out = (array < 0) | (array >= count)
    if out.any():
        at = int(np.argmax(out))
        raise SampleError(
            f"{where}: {name}[{at}] is {array[at]}, expected a {kind} from 0 to {count - 1}{hint}"
        )
    return array.astype(np.int64)


def read_only(array: HostArray) -> HostArray:
    """A view that numba compiles for once: arrays of JAX cannot be written to, NumPy's can."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def check_weights(where: str, name: str, weights: HostArray) -> None:
    """Raises SampleError where a weight is negative or not finite."""
    odd = ~np.isfinite(weights) | (weights < 0)
    if odd.any():
        at = int(np.argmax(odd))
        raise SampleError(
            f"{where}: {name} holds {weights[at]:g}, expected finite numbers >= 0: what has "
            f"weight 0 is never drawn"
        )
