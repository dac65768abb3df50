"""Links of a typed graph as seeds: what `links` does, between vertices of one type or of two."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from gnnjit.errors import SampleError
from gnnjit.graph.schema import Relation, resolve, shown_key
from gnnjit.sample.adjacency import numbers_of
from gnnjit.sample.drawing import seed_times
from gnnjit.sample.links import Excluded, Links, Pairs, checked_excluded, gone, kept_edges
from gnnjit.sample.negative import NegativeSampler
from gnnjit.sample.random import key_of
from gnnjit.sample.typed import Drawn, TypedNeighborhood, TypedNeighborSampler, neighborhood
from gnnjit.sample.workers import ALONE, Workers
from gnnjit.shapes import ArrayLike, HostArray

_Ends = tuple[HostArray, HostArray]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TypedLinkSample(Pairs, TypedNeighborhood):
    """A sample of a typed graph around P pairs of vertices: B links of a relation, then k negatives
    of the first, the second, ...

    Attributes:
        vertices: for each type `int[n]`, the number in the graph of each vertex of the sample.
        vertex_counts: for each type, vertices up to and with hop 0, ..., L.
        drawn: the edges of each relation.
        tree: for each type `int32[n]`, the end whose tree a vertex is in, where each end has its
            own, or None: sources of links first, then their destinations, then those of negatives.
        relation: the key of the relation that the links are of.
        link: `int[P]`, the link that each pair is, or is a negative of.
        link_src, link_dst: `int32[P]`, the vertices of the sample that a pair is of: of the types
            at which the relation starts and ends.
        label: `float32[P]`, 1 of a link and 0 of a negative.
        false: `bool[P]`, which negatives are edges after all (`Negatives.false`).
    """

    relation: Relation


class TypedLinkSampler:
    """Samples around links of one relation of a typed graph. Seeds are links.

    The ends of a batch's links and negatives are the seeds of `sampler`, whatever its `seed_type`.
    Where it samples by time, or `disjoint`, each end has a tree of its own; a negative has one for
    its destination, and shares that of its link's source.

    Args:
        sampler: draws the neighbours.
        relation: that of the links, by its key, or by its name where no other has it.
        src, dst: `int[L]`, the links, in the numbers of the types at its ends.
        negatives: draws what are no links, made of the graph of the relation, `graph[relation]`;
            none if left out.
        times: `[L]`, the time of each link, for a sampler by time. Its negatives have it too.
        exclude: edges that messages are not to run along, since they are what is to be predicted.
            "both": edges of the relation between the ends of the batch's links, in either direction
            where both have one type, and those of `reverse`; "links": those of the relation in the
            direction of the link; or "nothing". They are taken out of what was sampled, so a vertex
            may have fewer neighbours than its fan-out.
        reverse: the relation that holds the same links from destinations to sources, by key or
            name; if left out, the one that `TypedGraph.with_reverse` makes, where the graph has it.

    Raises:
        SampleError: a link's end is out of range, times are missing or do not fit, negatives are of
            another graph, or `reverse` has other ends, or is needed and left out: with "both", for
            a relation between two types, where others lead back and none has that name.
        GraphError: there is no such relation.
    """

    num_layers = None  # one graph serves any number

    def __init__(
        self,
        sampler: TypedNeighborSampler,
        relation: Any,
        src: ArrayLike,
        dst: ArrayLike,
        *,
        negatives: NegativeSampler | None = None,
        times: ArrayLike | None = None,
        exclude: Excluded = "both",
        reverse: Any = None,
    ) -> None:
        where = "TypedLinkSampler"
        if not isinstance(sampler, TypedNeighborSampler):
            raise SampleError(
                f"{where}: sampler is a {type(sampler).__name__}, expected a TypedNeighborSampler: "
                f"links of a gnnjit.Graph are sampled by LinkSampler"
            )
        relations = tuple(sampler.num_edges)
        self.sampler = sampler
        self.relation = resolve(relation, relations, "relation")
        self.exclude = checked_excluded(where, exclude)
        self._reverse = _reverse(where, self.relation, relations, reverse, exclude)
        first, _, last = self.relation
        self._links = Links.of(
            where, (src, dst), (sampler.num_nodes[first], sampler.num_nodes[last]),
            negatives=negatives, times=times, by_time=sampler.temporal,
        )  # fmt: skip
        self.num_nodes, self.num_edges = sampler.num_nodes, sampler.num_edges
        self.disjoint, self.replace = sampler.disjoint, sampler.replace

    @property
    def num_seeds(self) -> int:
        """Seeds are links: their number."""
        return len(self._links.src)

    def sample(
        self, seeds: ArrayLike, seed: int = 0, *, workers: Workers = ALONE
    ) -> TypedLinkSample:
        """The sample around some links.

        Args:
            seeds: `int[B]`, numbers of links.
            seed: of the batch.
            workers: threads that share the work; the result is the same.

        Raises:
            SampleError: a number is out of range.
        """
        where = "TypedLinkSampler.sample"
        links = numbers_of(where, "seeds", seeds, self.num_seeds, "link")
        # Of a stream of its own: relations have those before it.
        key = int(key_of(where, seed, len(self.num_edges)))
        drawn = self._links.drawn(links, key, workers)
        first, _, last = self.relation
        ends = [(first, drawn.src), (last, drawn.destinations)]
        times = seed_times(
            where, "TypedNeighborSampler", np.concatenate([chosen for _, chosen in ends]),
            drawn.times, self.sampler.time_dtype,
        )  # fmt: skip
        found, numbers = neighborhood(self.sampler, ends, times, seed, workers)
        for relation, src, dst in self._excluded(drawn.src, drawn.dst):
            found["drawn"][relation] = self._without(found, relation, (src, dst), workers)
        return TypedLinkSample(**found, relation=self.relation, **drawn.pairs(*numbers))

    def _excluded(
        self, src: HostArray, dst: HostArray
    ) -> list[tuple[Relation, HostArray, HostArray]]:
        """Relations, and the sources and destinations of edges that are taken out of them."""
        if self.exclude == "nothing":
            return []
        first, _, last = self.relation
        both = self.exclude == "both"
        out = [(self.relation, *gone(src, dst, both and first == last))]
        if both and self._reverse is not None:
            out.append((self._reverse, *gone(dst, src, first == last)))
        return out

    def _without(
        self, found: dict[str, Any], relation: Relation, links: _Ends, workers: Workers
    ) -> Drawn:
        drawn, vertices = found["drawn"][relation], found["vertices"]
        kept, indptr = kept_edges(
            drawn.indptr, drawn.neighbor, (vertices[relation[0]], vertices[relation[2]]), links,
            self.num_nodes[relation[0]], workers,
        )  # fmt: skip
        return Drawn(indptr, drawn.neighbor[kept], drawn.slots[kept], drawn.edge_of_slot)


def _reverse(
    where: str, key: Relation, relations: tuple[Relation, ...], given: Any, exclude: str
) -> Relation | None:
    """The relation that holds the links of `key` the other way round; None of none. Raises
    SampleError where it has other ends, or has to be named."""
    first, name, last = key
    if given is not None:
        if exclude != "both":
            raise SampleError(
                f"{where}: got reverse with exclude={exclude!r}, which takes nothing out of it, "
                f"expected exclude='both': leave one out"
            )
        found = resolve(given, relations, "relation")
        if (found[0], found[2]) != (last, first):
            raise SampleError(
                f"{where}: reverse is {shown_key(found)}, expected a relation from {last!r} to "
                f"{first!r}: the ends of {shown_key(key)} the other way round"
            )
        return found
    back = [other for other in relations if (other[0], other[2]) == (last, first) and other != key]
    for other in back:
        if other[1] == f"rev_{name}" or name == f"rev_{other[1]}":
            return other
    if exclude == "both" and first != last and back:
        raise SampleError(
            f"{where}: reverse is missing: {shown_key(back[0])} leads back from {last!r} to "
            f"{first!r}, and if it holds the links of {shown_key(key)}, what is to be predicted "
            f"runs along it: name it as reverse, or pass exclude='links' if none does"
        )
    return None
