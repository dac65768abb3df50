"""Layer-wise neighbour sampling of graphs with several vertex types.

Each relation is drawn from by itself, as `NeighborSampler` draws from a graph: Hu et al.,
"Heterogeneous Graph Transformer" (2020), section 3.4, has a budget for each type instead.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gnnjit.errors import SampleError
from gnnjit.graph import TypedGraph
from gnnjit.graph.schema import Relation, known_type, shown_key
from gnnjit.graph.validate import is_traced, shown
from gnnjit.sample import picking
from gnnjit.sample.adjacency import Adjacency, numbers_of
from gnnjit.sample.drawing import Neighbors, checked_disjoint, seed_times
from gnnjit.sample.neighbor import checked_fanouts
from gnnjit.sample.numbering import Numbering
from gnnjit.sample.random import key_of
from gnnjit.sample.sample import Sizes, packed
from gnnjit.sample.workers import ALONE, Workers
from gnnjit.shapes import ArrayLike, HostArray

Fanouts = Sequence[int] | Mapping[Any, Sequence[int]]


@dataclasses.dataclass(frozen=True, eq=False)
class Drawn:
    """The edges of one relation in a sample.

    Attributes:
        indptr: `int32[rows + 1]`: destination `v` has the edges `indptr[v]` to `indptr[v + 1] - 1`;
            destinations from `rows` on have none.
        neighbor: `int32[e]`, the source of each edge, in numbers of the sample.
        slots: `int[e]`, where each edge stands among the relation's by destination.
        edge_of_slot: `int[E]`, the number in the relation of the edge there.
    """

    indptr: HostArray
    neighbor: HostArray
    slots: HostArray
    edge_of_slot: HostArray


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TypedNeighborhood:
    """A part of a typed graph, in NumPy: what `TypedSample` and `TypedLinkSample` have in common.

    Attributes:
        vertices: for each type `int[n]`, the number in the graph of each vertex of the sample.
        vertex_counts: for each type, vertices up to and with hop 0, ..., L.
        drawn: the edges of each relation.
        tree: for each type `int32[n]`, the seed whose tree a vertex is in, where each seed has its
            own, or None.
    """

    vertices: dict[str, HostArray]
    vertex_counts: dict[str, tuple[int, ...]]
    drawn: dict[Relation, Drawn]
    tree: dict[str, HostArray] | None = None

    @functools.cached_property
    def edge(self) -> dict[Relation, HostArray]:
        """For each relation `int[e]`: the number in the relation of each edge."""
        return {key: picking.taken(d.edge_of_slot, d.slots, ALONE) for key, d in self.drawn.items()}

    @property
    def sizes(self) -> Sizes:
        """Vertices of each type, then edges of each relation, as a shape counts them."""
        edges = (len(d.neighbor) for d in self.drawn.values())
        return (*map(len, self.vertices.values()), *edges)

    def graph(self, shape: Sizes | None = None) -> TypedGraph:
        """The sampled graph, for all layers, in NumPy arrays.

        After as many layers as hops, the rows of the seeds are those of the whole graph where every
        neighbour was drawn. Rows of vertices that are further away are not.

        Args:
            shape: what `sizes` is to be padded to. The padded vertices have no edges.

        Raises:
            SampleError: if the sample is larger than `shape`.
        """
        padded = shape is not None
        room = self.sizes if shape is None else tuple(shape)
        if len(room) != len(self.sizes) or any(
            s > t for s, t in zip(self.sizes, room, strict=True)
        ):
            raise SampleError(
                f"{type(self).__name__}.graph: shape is {room}, expected at least {self.sizes}: "
                f"nothing is cut off, so pass a larger one"
            )
        nodes, edges = self.by_name(room)
        graphs = []
        for key, drawn in self.drawn.items():
            first, _, last = key
            real = len(self.vertices[first]), len(self.vertices[last]), len(drawn.neighbor)
            rooms = nodes[first], nodes[last], edges[key]
            square = first == last
            graphs.append(packed(drawn.indptr, drawn.neighbor, real, rooms, padded, square))
        return TypedGraph(tuple(graphs), tuple(self.drawn), tuple(nodes), tuple(nodes.values()))

    def by_name(self, shape: Sizes) -> tuple[dict[str, int], dict[Relation, int]]:
        """A shape as sizes of types and of relations."""
        types = len(self.vertices)
        return (
            dict(zip(self.vertices, shape[:types], strict=True)),
            dict(zip(self.drawn, shape[types:], strict=True)),
        )


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TypedSample(TypedNeighborhood):
    """A part of a typed graph, in NumPy: the neighbourhood of some seeds.

    Attributes:
        vertices: for each type `int[n]`, the number in the graph of each vertex of the sample.
        vertex_counts: for each type, vertices up to and with hop 0, ..., L.
        drawn: the edges of each relation.
        tree: for each type `int32[n]`, the seed whose tree a vertex is in, where each seed has its
            own, or None.
        seed_type: the type of the seeds.
        seeds: `int32[B]`, the vertex of that type in the sample that each seed is.
    """

    seed_type: str
    seeds: HostArray


class TypedNeighborSampler:
    """For each relation, at most `fanouts[relation][h]` in-neighbours of each vertex that is `h`
    hops from the seeds, which are vertices of one type.

    A sample is a function of the graph, the seeds and the seed of the batch alone. A vertex draws
    once from each relation, at the hop at which it is found.

    Args:
        graph: a concrete `TypedGraph`.
        fanouts: for each hop, from the seeds on, how many neighbours; -1 for all. One list for all
            relations, or a dictionary with one for each, by key or name, in which 0 stands for
            none.
        seed_type: the type of the seeds; may be left out for a `TypedLinkSampler`.
        weights: for some relations `float[E]`, the chance of an edge beside the others of its
            vertex, as of `NeighborSampler`.
        replace: whether an edge may be drawn twice.
        edge_times: for some relations `[E]`, when an edge came to be.
        vertex_times: for some types `[N]`, when a vertex came to be. Nothing later than the time of
            its seed is drawn; what has no times is always there.
        disjoint: whether each seed has a tree of its own, in which a vertex stands once; otherwise
            a vertex stands once in the batch. Sampling by time is disjoint.

    Raises:
        SampleError: a fan-out is missing or no such number, weights or times do not fit the graph,
            a weight is negative or not finite.
        GraphError: there is no such type or relation.
    """

    num_layers = None  # one graph serves any number

    def __init__(
        self,
        graph: TypedGraph,
        fanouts: Fanouts,
        *,
        seed_type: str | None = None,
        weights: Mapping[Any, ArrayLike] | None = None,
        replace: bool = False,
        edge_times: Mapping[Any, ArrayLike] | None = None,
        vertex_times: Mapping[str, ArrayLike] | None = None,
        disjoint: bool | None = None,
    ) -> None:
        where = "TypedNeighborSampler"
        _check_graph(where, graph)
        if seed_type is not None:
            known_type(seed_type, graph.types)
        self.seed_type, self.replace = seed_type, bool(replace)
        self.fanouts = _by_relation(where, graph, fanouts)
        given = {
            "weights": _named(where, "weights", weights, graph.relation),
            "edge_times": _named(where, "edge_times", edge_times, graph.relation),
        }
        ages = _named(where, "vertex_times", vertex_times, lambda t: known_type(t, graph.types))
        self._neighbors = {
            key: Neighbors.of(
                f"{where}: {shown_key(key)}",
                Adjacency.of(where, part, two_sets=True),
                part.num_src,
                replace=self.replace,
                vertex_times=ages.get(key[0]),
                **{name: values.get(key) for name, values in given.items()},
            )
            for key, part in graph.items()
        }
        self.time_dtype = _one_dtype(where, self._neighbors)
        self.temporal = self.time_dtype is not None
        self.disjoint = checked_disjoint(where, disjoint, self.temporal)
        self.num_nodes, self.num_edges = graph.num_nodes, dict(graph.num_edges)
        dtypes = [n.adjacency.indptr.dtype for n in self._neighbors.values()]
        self._dtype = np.result_type(np.int32, *dtypes)

    @property
    def num_seeds(self) -> int:
        """Seeds are vertices of `seed_type`: their number in the graph."""
        return self.num_nodes[self._type_of_seeds()]

    def sample(
        self,
        seeds: ArrayLike,
        seed: int = 0,
        *,
        times: ArrayLike | None = None,
        workers: Workers = ALONE,
    ) -> TypedSample:
        """The sampled neighbourhood of some vertices of `seed_type`.

        Args:
            seeds: `int[B]`, or a mask `bool[N]`.
            seed: of the batch.
            times: `[B]`, the time of each seed, where the sampler has times.
            workers: threads that share the work; the result is the same.

        Raises:
            SampleError: a seed is out of range, or times are missing or do not fit.
        """
        where = "TypedNeighborSampler.sample"
        hint = f": number vertices of type {self.seed_type!r} as the graph does"
        chosen = numbers_of(where, "seeds", seeds, self.num_seeds, "vertex", hint)
        whens = seed_times(where, "TypedNeighborSampler", chosen, times, self.time_dtype)
        ends = [(self._type_of_seeds(), chosen)]
        found, (numbers,) = neighborhood(self, ends, whens, seed, workers)
        return TypedSample(**found, seed_type=ends[0][0], seeds=numbers)

    def _type_of_seeds(self) -> str:
        if self.seed_type is None:
            raise SampleError(
                "TypedNeighborSampler: seed_type is missing, expected the type of the seeds: pass "
                "it, or the sampler to a TypedLinkSampler"
            )
        return self.seed_type


def neighborhood(
    sampler: TypedNeighborSampler,
    ends: Sequence[tuple[str, HostArray]],
    times: HostArray | None,
    seed: int,
    workers: Workers,
) -> tuple[dict[str, Any], list[HostArray]]:
    """(the attributes of a `TypedNeighborhood`, `int32[n]` for each of `ends`: its vertices in the
    sample) around vertices of one or more types.

    Args:
        ends: types and `int[n]`, vertices. Where each has a tree of its own, trees are numbered in
            this order.
        times: one for each, in this order, or None.
        seed: of the batch.
        workers: threads that share the work.
    """
    walk = _Walk(sampler, seed=seed, times=times, workers=workers)
    numbering, numbers, tree = walk.numbering, [], 0
    for t, chosen in ends:
        numbers.append(numbering[t].add_seeds(chosen.astype(sampler._dtype), tree))
        tree += len(chosen)
    for hop in range(len(next(iter(sampler.fanouts.values()), ()))):
        walk.step(hop)
    trees = {t: n.tree[: n.count] for t, n in numbering.items() if n.tree is not None}
    found = {
        "vertices": {t: n.found for t, n in numbering.items()},
        "vertex_counts": {t: (*walk.counts[t], n.count) for t, n in numbering.items()},
        "drawn": {key: walk.drawn(key) for key in sampler.num_edges},
        "tree": trees if sampler.disjoint else None,
    }
    return found, numbers


class _Walk:
    """The vertices and edges of one sample, as they are found.

    Attributes:
        numbering: of each type.
        counts: for each type, its vertices up to and with each hop but the last.
    """

    def __init__(self, sampler: TypedNeighborSampler, *, seed: int, times: Any, workers: Workers):
        self._neighbors, self._fanouts = sampler._neighbors, sampler.fanouts
        self._times, self._workers = times, workers
        where = "TypedNeighborSampler.sample"
        self._keys = {k: key_of(where, seed, i) for i, k in enumerate(self._neighbors)}
        self.numbering = {
            t: Numbering(n, sampler._dtype, sampler.disjoint) for t, n in sampler.num_nodes.items()
        }
        self.counts: dict[str, list[int]] = {t: [] for t in self.numbering}
        self._ends: dict[Relation, list[HostArray]] = {k: [] for k in self._neighbors}
        self._sources: dict[Relation, list[HostArray]] = {k: [] for k in self._neighbors}
        self._slots: dict[Relation, list[HostArray]] = {k: [] for k in self._neighbors}

    def step(self, hop: int) -> None:
        """One hop: the vertices that the one before found draw from all relations."""
        first = {t: counts[-1] if counts else 0 for t, counts in self.counts.items()}
        for t, counts in self.counts.items():
            counts.append(self.numbering[t].count)
        for key, neighbors in self._neighbors.items():
            fanout, of_rows = self._fanouts[key][hop], self.numbering[key[2]]
            rows = slice(first[key[2]], self.counts[key[2]][-1])
            begin, slots = self._choose(key, rows, fanout)
            picked = picking.taken(neighbors.adjacency.neighbor, slots, self._workers)
            picked = picked.astype(of_rows.vertices.dtype, copy=False)
            numbers = self.numbering[key[0]].add(picked, begin, rows.start, of_rows)
            done = sum(map(len, self._slots[key]))
            self._ends[key].append(done + begin[1:])
            self._sources[key].append(numbers)
            self._slots[key].append(slots)

    def _choose(self, key: Relation, rows: slice, fanout: int) -> tuple[HostArray, HostArray]:
        of_rows = self.numbering[key[2]]
        vertices, times = of_rows.vertices[rows], None
        if fanout == 0 or not len(vertices):
            return np.zeros(len(vertices) + 1, np.int64), np.zeros(0, np.int64)
        if self._neighbors[key].times is not None and of_rows.tree is not None:
            times = self._times[of_rows.tree[rows]]
        draw = self._neighbors[key].choose
        return draw(vertices, rows.start, fanout, self._keys[key], times, self._workers)

    def drawn(self, key: Relation) -> Drawn:
        """The edges of a relation."""
        ends = np.concatenate([np.zeros(1, np.int64), *self._ends[key]])
        return Drawn(
            indptr=ends.astype(np.int32),
            neighbor=np.concatenate([np.zeros(0, np.int32), *self._sources[key]]),
            slots=np.concatenate([np.zeros(0, np.int64), *self._slots[key]]),
            edge_of_slot=self._neighbors[key].adjacency.edge,
        )


def _check_graph(where: str, graph: Any) -> None:
    if not isinstance(graph, TypedGraph):
        raise SampleError(
            f"{where}: got {shown(graph)}, expected a gnnjit.TypedGraph: a gnnjit.Graph is sampled "
            "by NeighborSampler"
        )
    if is_traced(graph):
        raise SampleError(
            f"{where}: the graph is traced, expected a concrete one: sample outside jit"
        )
    if not graph.relations:
        raise SampleError(
            f"{where}: the graph has no relations, expected one at least: without any there is "
            "nothing to draw"
        )


def _by_relation(where: str, graph: TypedGraph, fanouts: Any) -> dict[Relation, tuple[int, ...]]:
    """The fan-outs of each relation. Raises SampleError where they are none, or missing, or have
    different lengths."""
    if not isinstance(fanouts, Mapping):
        return dict.fromkeys(graph.relations, checked_fanouts(where, fanouts))
    found = {
        key: checked_fanouts(f"{where}: {shown_key(key)}", values, least=0)
        for key, values in _named(where, "fanouts", fanouts, graph.relation).items()
    }
    missing = [key for key in graph.relations if key not in found]
    if missing:
        raise SampleError(
            f"{where}: fanouts has none for {shown_key(missing[0])}, expected a number for each "
            "hop of every relation: write (0, 0) for one that is not drawn from in two hops"
        )
    lengths = {len(values) for values in found.values()}
    if len(lengths) > 1:
        raise SampleError(
            f"{where}: fanouts have {' and '.join(map(str, sorted(lengths)))} hops, expected as "
            "many for each relation: write 0 for a hop that draws nothing from one"
        )
    return {key: found[key] for key in graph.relations}


def _named(where: str, name: str, values: Any, resolve: Any) -> dict[Any, Any]:
    """Values by the full key of a relation, or by type."""
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        kind = "types" if name == "vertex_times" else "relations"
        raise SampleError(
            f"{where}: {name} is {shown(values)}, expected a dictionary from {kind}: pass "
            f"{{{kind[:-1]}: ...}}"
        )
    found: dict[Any, Any] = {}
    for key, value in values.items():
        full = resolve(key) or key
        if full in found:
            raise SampleError(
                f"{where}: {name} has {shown_key(full)} twice, by its name too, expected it once: "
                "leave one out"
            )
        found[full] = value
    return found


def _one_dtype(where: str, neighbors: Mapping[Relation, Neighbors]) -> np.dtype | None:
    """That of all times; None where there are none. Raises SampleError where they differ."""
    times = {key: n.times.dtype for key, n in neighbors.items() if n.times is not None}
    if len(set(times.values())) > 1:
        shown_ = ", ".join(f"{shown_key(key)}: {dtype}" for key, dtype in times.items())
        raise SampleError(
            f"{where}: times are whole numbers and floats ({shown_}), expected one kind"
        )
    return next(iter(times.values()), None)
