"""Batches of typed graphs: what `making` does, with an array for each vertex type."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from gnnjit.errors import SampleError
from gnnjit.graph.schema import Relation, data_for_relations, known_type, shown_key
from gnnjit.graph.validate import shown
from gnnjit.sample.batch import Batch
from gnnjit.sample.features import Features
from gnnjit.sample.making import (
    Draw,
    Made,
    Maker,
    Source,
    looked_up,
    once_each,
    padded_rows,
    trees_of,
)
from gnnjit.sample.padding import EDGE_COST, VERTEX_COST, rounded_up
from gnnjit.sample.pipeline import Tasks
from gnnjit.sample.sample import Sizes
from gnnjit.sample.typed import TypedNeighborSampler
from gnnjit.sample.typed_links import TypedLinkSampler
from gnnjit.shapes import HostArray, PyTree

TypedSampler = TypedNeighborSampler | TypedLinkSampler


@dataclasses.dataclass(frozen=True, eq=False)
class TypedSource(Source):
    """What batches of a typed graph are made of; `x` and `edges` of a `Source` are None.

    Attributes:
        rows: features of the vertices of some types.
        data: of the edges of some relations.
    """

    rows: Mapping[str, Features] = dataclasses.field(default_factory=dict)
    data: Mapping[Relation, Features] = dataclasses.field(default_factory=dict)

    def dimensions(self, count: int) -> tuple[tuple[float, ...], Sizes]:
        """As of a `Source`: vertices of each type, then edges of each relation."""
        nodes, edges = self.sampler.num_nodes, self.sampler.num_edges
        limits = (
            *(once_each(self.sampler, n, 0)[0] for n in nodes.values()),
            *(once_each(self.sampler, 0, n)[1] for n in edges.values()),
        )
        return (VERTEX_COST,) * len(nodes) + (EDGE_COST,) * len(edges), limits


def typed_source(
    where: str, sampler: TypedSampler, trees: tuple[PyTree, PyTree, PyTree],
    times: HostArray | None, **options: Any,
) -> TypedSource:  # fmt: skip
    """Of features by type, labels of the seeds, and data of edges by relation. Raises SampleError
    and GraphError where they do not fit the sampler's graph."""
    x, y, edges = trees
    relations = tuple(sampler.num_edges)
    for t in _mapping(f"{where}: x", x, "vertex types"):
        known_type(t, tuple(sampler.num_nodes))
    data = {} if edges is None else data_for_relations(edges, relations, f"{where}: edges")
    return TypedSource(
        where=where,
        sampler=sampler,
        num_nodes=sampler.num_seeds,
        x=None,
        y=None if y is None else Features(f"{where}: y", y, sampler.num_seeds),
        edges=None,
        labelled=None,
        times=times,
        rows={
            t: Features(f"{where}: x[{t!r}]", x[t], n)
            for t, n in sampler.num_nodes.items()
            if x is not None and t in x
        },
        data={
            key: Features(f"{where}: edges[{shown_key(key)}]", tree, sampler.num_edges[key])
            for key, tree in data.items()
        },
        **options,
    )


class TypedMaker(Maker):
    """Makes batches of a `TypedSource`."""

    _source: TypedSource

    def _draw(
        self,
        seeds: HostArray | None,
        place: tuple[int, int, int],
        again: int,
        tasks: Tasks,
        fits: bool = False,
    ) -> Draw | None:
        epoch, number, part = place
        with self._log.stage("sample", place):
            sample: Any = self._source.draw(seeds, epoch, number, part + (again << 32))
        sizes = sample.sizes
        if self._shapes is None:
            return Draw(sample, sizes, sizes, None, None)
        shape = self._shapes.choose(sizes)
        if shape is not None:
            return Draw(sample, sizes, self._shapes[shape], shape, None)
        return Draw(sample, sizes, rounded_up(sizes), len(self._shapes), None) if fits else None

    def _finish(
        self, draw: Draw, seeds: HostArray | None, place: tuple[int, int, int], tasks: Tasks
    ) -> Made:
        assert seeds is not None
        source, sample, padded = self._source, draw.sample, draw.shape is not None
        nodes, edges = sample.by_name(draw.room)
        done: dict[str, Any] = {}

        def graph() -> None:
            with self._log.stage("reindex", place):
                made = sample.graph(draw.room if padded else None)
            done["graph"] = self._moved(made, place)

        def rows(t: str) -> None:
            with self._log.stage("look up", place):
                found = looked_up(source.rows[t], sample.vertices[t], nodes[t])
            done[t] = self._moved(found, place)

        def others() -> None:
            done["others"] = self._moved(self._of_seeds_by_type(draw, seeds, nodes), place)
            data = {
                key: looked_up(features, sample.edge[key], edges[key])
                for key, features in source.data.items()
            }
            done["edges"] = self._moved(data, place) if data else None

        of_types = [lambda t=t: rows(t) for t in source.rows]
        for work in (graph, *of_types, others):
            tasks.add(self._here(work))
        tasks.finish()
        batch = Batch(
            graphs=(done["graph"],),
            x={t: done[t] for t in source.rows},
            edges=done["edges"],
            number=np.array(place, np.int32),  # type: ignore[arg-type]
            shape=draw.shape,
            **done["others"],
            **dict.fromkeys(("weight", "edge_weight")),
        )
        batch = self._moved(batch, place, log=False)
        return Made(batch, draw.sizes, draw.room, sum(map(len, sample.vertices.values())))

    def _of_seeds_by_type(
        self, draw: Draw, seeds: HostArray, nodes: Mapping[str, int]
    ) -> dict[str, Any]:
        """What a batch holds beside graphs and features."""
        source, sample = self._source, draw.sample
        room = len(seeds) if draw.shape is None else source.room
        tree, trees = sample.tree, trees_of(sample, seeds, room)
        return {
            **self._labels(sample, seeds, room),
            "vertices": {
                t: padded_rows(found, nodes[t], source.sampler.num_nodes[t])
                for t, found in sample.vertices.items()
            },
            "num_real": {
                t: np.array(counts, np.int32) for t, counts in sample.vertex_counts.items()
            },
            "tree": None
            if tree is None
            else {t: padded_rows(found, nodes[t], trees) for t, found in tree.items()},
        }


def _mapping(name: str, values: Any, kind: str) -> Mapping[str, Any]:
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise SampleError(
            f"{name} is {shown(values)}, expected a dictionary from {kind} to features: pass "
            "{'paper': x, ...}"
        )
    return values
