"""One batch: sampled, looked up, padded and moved to the device.

A batch is a function of what it is made of, the loader's seed, the epoch and its number in the
epoch; it is made alone, in any order and in any thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import warnings
from typing import Any

import jax
import numpy as np

from gnnjit.errors import GnnjitWarning
from gnnjit.sample.adjacency import read_only
from gnnjit.sample.batch import Batch
from gnnjit.sample.features import Features
from gnnjit.sample.hot import Hot
from gnnjit.sample.links import Pairs
from gnnjit.sample.padding import Shapes, default_cost, rounded_up
from gnnjit.sample.pipeline import Tasks
from gnnjit.sample.random import key_of
from gnnjit.sample.sample import Sample, Sizes
from gnnjit.sample.timeline import Log
from gnnjit.shapes import HostArray, PyTree

PIECE = 4096
"""Rows that one task looks up."""
LARGE = 1 << 60
"""No size is larger."""
TRIES = 16
"""Samples that are drawn for a batch that fits no shape and cannot be split."""


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """What batches are made of.

    Attributes:
        where: the beginning of messages.
        sampler: draws the samples.
        num_nodes: N, the vertices of the graph.
        x, y, edges: features of vertices, labels of seeds or vertices, and data of edges, or None.
        labelled: `bool[N]`, vertices whose labels count in a subgraph, or None for all.
        times: `[num_seeds]`, when each seed is, or None.
        room: label rows of a batch with seeds.
        seed: of all batches.
        split: whether a batch that fits no shape is split; otherwise it is drawn again.
        device: where batches go; None for where JAX puts arrays.
        hot: rows of `x` that are kept there, or None. The rows that travel are then the last
            dimension of shapes.
    """

    where: str
    sampler: Any
    num_nodes: int
    x: Features | None
    y: Features | None
    edges: Features | None
    labelled: HostArray | None
    times: HostArray | None
    room: int
    seed: int
    split: bool
    device: Any = None
    hot: Hot | None = None

    def sizes(self, sample: Sample) -> Sizes:
        """Of a sample, as the loader's shapes count them."""
        if self.hot is None:
            return sample.sizes
        return (*sample.sizes, len(self.hot.missed(sample.vertices)))

    def dimensions(self, count: int) -> tuple[tuple[float, ...], Sizes]:
        """(the work of a unit of each of `count` dimensions of samples, what no sample exceeds: the
        graph, where a vertex or edge comes once in a sample)."""
        vertices = count // 2 + count % 2
        most, edges = once_each(self.sampler, self.num_nodes, self.sampler.adjacency.num_edges)
        return default_cost(count), (most,) * vertices + (edges,) * (count - vertices)

    @functools.cached_property
    def tells(self) -> bool:
        """Whether the sampler tells the vertices of a hop before it draws the next."""
        return "found" in inspect.signature(self.sampler.sample).parameters

    def draw(
        self, seeds: HostArray | None, epoch: int, number: int, part: int, found: Any = None
    ) -> Sample:
        """The sample of one part of a batch."""
        seed = int(key_of(self.where, self.seed, epoch, number, part))
        options: dict[str, Any] = {}
        if found is not None and self.tells:
            options["found"] = found
        if self.times is not None and seeds is not None:
            options["times"] = self.times[seeds]
        return self.sampler.sample(seeds, seed, **options)


def once_each(sampler: Any, num_nodes: int, num_edges: int) -> tuple[int, int]:
    """What a sample's vertices and edges cannot exceed: all, where each comes once at most."""
    once = not getattr(sampler, "disjoint", False)
    edge_once = once and not getattr(sampler, "replace", False)
    return num_nodes if once else LARGE, num_edges if edge_once else LARGE


@dataclasses.dataclass(frozen=True, eq=False)
class Made:
    """A batch and what is counted about it.

    Attributes:
        batch: it.
        sizes: of its sample.
        room: what they were padded to.
        rows: that it has features of.
        hits: those that were on the device.
        splits, resamples: how often the batch before its split, or an earlier draw, fit no shape.
    """

    batch: Batch
    sizes: Sizes
    room: Sizes
    rows: int = 0
    hits: int = 0
    splits: int = 0
    resamples: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Draw:
    """A sample, the shape that it is padded to, its number, and the rows (`_Rows`) that are being
    looked up, None of a typed sample.
    Of all shapes it has the number behind the last if it fits none, and None without any."""

    sample: Any
    sizes: Sizes
    room: Sizes
    shape: int | None
    rows: Any


class Maker:
    """Makes batches of `source`, padded to `shapes`, on the device or (`on_host`) in NumPy."""

    def __init__(
        self, source: Source, shapes: Shapes | None, log: Log, on_host: bool = False
    ) -> None:
        self._source, self._shapes, self._log = source, shapes, log
        self._on_host = on_host
        # What `jax.default_device` says holds in the thread that says it alone.
        self._default = jax.config.jax_default_device  # type: ignore[attr-defined]

    def make(self, seeds: HostArray | None, epoch: int, number: int, tasks: Tasks) -> list[Made]:
        """Batch `number` of an epoch: one, or several where it was split."""
        with jax.default_device(self._default):
            return self._make(seeds, (epoch, number, 0), tasks)

    def _make(
        self, seeds: HostArray | None, place: tuple[int, int, int], tasks: Tasks
    ) -> list[Made]:
        draw = self._draw(seeds, place, 0, tasks)
        if draw is not None:
            return [self._finish(draw, seeds, place, tasks)]
        if self._source.split and seeds is not None and len(seeds) > 1:
            half, (epoch, number, part) = len(seeds) // 2, place
            # Parts of a part are numbered as in a heap, so no two are the same.
            first = self._make(seeds[:half], (epoch, number, 2 * part + 1), tasks)
            rest = self._make(seeds[half:], (epoch, number, 2 * part + 2), tasks)
            return [dataclasses.replace(first[0], splits=first[0].splits + 1), *first[1:], *rest]
        for again in range(1, TRIES):
            draw = self._draw(seeds, place, again, tasks)
            if draw is not None:
                break
        else:
            again, draw = 0, self._draw(seeds, place, 0, tasks, fits=True)
            assert draw is not None
            self._warn(draw, place)
        return [dataclasses.replace(self._finish(draw, seeds, place, tasks), resamples=again)]

    def _warn(self, draw: Draw, place: tuple[int, int, int]) -> None:
        assert self._shapes is not None
        warnings.warn(
            f"{self._source.where}: batch {place[1]} of epoch {place[0]} has the sizes "
            f"{draw.sample.sizes} and fits no shape, however it is drawn; the largest is "
            f"{self._shapes[-1]}. A program is compiled for it alone: plan for these seeds, or "
            f"pass larger Shapes",
            GnnjitWarning,
            stacklevel=2,
        )

    def _draw(
        self,
        seeds: HostArray | None,
        place: tuple[int, int, int],
        again: int,
        tasks: Tasks,
        fits: bool = False,
    ) -> Draw | None:
        """A sample whose rows are looked up while it grows; None where it fits no shape, unless
        it is to have a shape of its own (`fits`)."""
        epoch, number, part = place
        rows = _Rows(self._source, self._shapes, tasks, self._log, place)
        stage = self._log.hops("sample", place)
        sample = self._source.draw(
            seeds, epoch, number, part + (again << 32), lambda v: (next(stage), rows.add(v))
        )
        stage.close()
        sizes, shape = self._source.sizes(sample), None
        room = sizes
        if self._shapes is not None:
            shape = self._shapes.choose(sizes)
            if shape is None:
                tasks.drop()
                if not fits:
                    return None
            room = rounded_up(sizes) if shape is None else self._shapes[shape]
        if not self._source.tells or self._shapes is None or shape is None:
            last = len(sample.vertex_counts) - 1
            rows.make_room(room[last] if self._source.hot is None else room[-1])
            rows.add(sample.vertices)
        if self._shapes is not None and shape is None:
            shape = len(self._shapes)
        return Draw(sample, sizes, room, shape, rows)

    def _finish(
        self, draw: Draw, seeds: HostArray | None, place: tuple[int, int, int], tasks: Tasks
    ) -> Made:
        """Everything but the sampling."""
        sample, shape = draw.sample, draw.shape
        room, padded = draw.room[: len(sample.sizes)], shape is not None
        vertex_room, edge_room = room[len(sample.vertex_counts) - 1], room[-1]
        done: dict[str, Any] = {}

        def graphs() -> None:
            with self._log.stage("reindex", place):
                made = sample.graphs(room if padded else None)
            done["graphs"] = self._moved(made, place)

        def others() -> None:
            done["others"] = self._moved(self._others(draw, seeds, vertex_room, edge_room), place)

        for work in (graphs, others):
            tasks.add(self._here(work))
        tasks.finish()
        others_, moved = done["others"], functools.partial(self._moved, place=place)
        x = draw.rows.tree(draw, vertex_room, others_["vertices"], moved)
        batch = Batch(
            graphs=done["graphs"],
            x=x,
            number=np.array(place, np.int32),  # type: ignore[arg-type]
            shape=shape,
            **others_,
        )
        rows = len(sample.vertices)
        hits = 0 if self._source.hot is None else rows - draw.sizes[-1]
        return Made(self._moved(batch, place, log=False), draw.sizes, draw.room, rows, hits)

    def _others(
        self, draw: Draw, seeds: HostArray | None, vertex_room: int, edge_room: int
    ) -> dict[str, Any]:
        """What a batch holds beside graphs and features."""
        source, sample = self._source, draw.sample
        n = len(sample.vertices)
        if sample.seeds is None and sample.tree is None:
            mask = np.arange(vertex_room) < n
            if source.labelled is not None:
                mask[:n] &= source.labelled[sample.vertices]
            labels = {"y": looked_up(source.y, sample.vertices, vertex_room), "mask": mask}
            labels |= dict.fromkeys(("seeds", "label", "tree"))
        else:
            assert seeds is not None
            labels = self._of_seeds(sample, seeds, vertex_room, draw.shape is not None)
        edges = None if source.edges is None else sample.edge
        return {
            **labels,
            "vertices": padded_rows(sample.vertices, vertex_room, source.num_nodes),
            "num_real": np.array(sample.vertex_counts, np.int32),
            "edges": looked_up(source.edges, edges, edge_room),
            "weight": padded_rows(sample.weight, vertex_room),
            "edge_weight": padded_rows(sample.edge_weight, edge_room),
        }

    def _of_seeds(
        self, sample: Sample, seeds: HostArray, vertex_room: int, padded: bool
    ) -> dict[str, Any]:
        """What a batch holds of its seeds: vertices, links and their negatives, or graphs."""
        room = self._source.room if padded else len(seeds)
        return {
            **self._labels(sample, seeds, room),
            "tree": padded_rows(sample.tree, vertex_room, trees_of(sample, seeds, room)),
        }

    def _labels(self, sample: Any, seeds: HostArray, room: int) -> dict[str, Any]:
        """A row for each of `room` seeds, or, of links, for each of their pairs."""
        rows, label_rows, label, counts = None, seeds, None, np.ones(len(seeds), np.bool_)
        if isinstance(sample, Pairs):
            room *= len(sample.label) // len(seeds)
            rows = np.stack([sample.link_src, sample.link_dst], axis=1)
            label_rows, label, counts = sample.link, padded_rows(sample.label, room), ~sample.false
        elif sample.seeds is not None:
            rows = sample.seeds
        return {
            "y": looked_up(self._source.y, label_rows, room),
            "mask": padded_rows(counts, room),
            "seeds": None if rows is None else padded_rows(rows.astype(np.int32), room),
            "label": label,
        }

    def _here(self, work: Any) -> Any:
        """`work`, to be done in any thread as in this one."""

        def done() -> None:
            with jax.default_device(self._default):
                work()

        return done

    def _moved(self, tree: PyTree, place: tuple[int, int, int], log: bool = True) -> PyTree:
        """`tree` on its way to the device."""
        if self._on_host:
            return tree
        with self._log.stage("transfer", place) if log else contextlib.nullcontext():
            return jax.device_put(tree, self._source.device)


class _Rows:
    """The features of one sample, looked up hop by hop as it grows."""

    def __init__(
        self,
        source: Source,
        shapes: Shapes | None,
        tasks: Tasks,
        log: Log,
        place: tuple[int, int, int],
    ) -> None:
        self._features, self._hot = source.x, source.hot
        self._tasks, self._log, self._place = tasks, log, place
        self._count = self._hop = 0
        self._room: int | None = None
        self._out: list[HostArray | None] = []
        if shapes is not None:
            # Of memory, what nothing is written to is not taken.
            dimensions = len(shapes[0])
            last = dimensions // 2 + dimensions % 2 - 1 if self._hot is None else dimensions - 1
            self.make_room(max(shape[last] for shape in shapes.shapes))

    def make_room(self, rows: int) -> None:
        """Room for so many rows, and no row in it."""
        self._count = self._hop = 0
        if self._features is not None:
            self._room, self._out = rows, self._features.room(rows)

    def add(self, vertices: HostArray) -> None:
        """The vertices of a hop, or of all."""
        if self._features is None or self._room is None or not self._features.on_host:
            return
        if self._hot is not None:
            vertices = self._hot.missed(vertices)
        begin, hop = self._count, self._hop
        self._count, self._hop = begin + len(vertices), hop + 1
        if self._count > self._room:  # it will fit no shape
            return
        for at in range(0, len(vertices), PIECE):
            piece = vertices[at : at + PIECE]
            self._tasks.add(functools.partial(self._look_up, piece, begin + at, hop))

    def _look_up(self, vertices: HostArray, begin: int, hop: int) -> None:
        assert self._features is not None
        with self._log.stage("look up", self._place, hop):
            self._features.look_up(vertices, self._out, begin)

    def tree(self, draw: Draw, room: int, vertices: Any, put: Any) -> PyTree:
        """All features, padded with zeros to `room` rows."""
        if self._features is None:
            return None
        own = room if self._hot is None else draw.room[-1]
        out = [None if array is None else array[:own] for array in self._out]
        for array in out:
            if array is not None:
                array[self._count :] = 0
        if self._hot is None:
            return self._features.joined(out, vertices, put)
        return self._hot.joined(out, draw.sample.vertices, room, vertices, put)


def looked_up(features: Features | None, index: Any, room: int) -> PyTree:
    """Rows `index`, padded with zeros."""
    if features is None:
        return None
    out = features.room(room)
    features.look_up(read_only(index), out, 0)
    for array in out:
        if array is not None:
            array[len(index) :] = 0
    return features.joined(out, padded_rows(index, room, features.rows), lambda array: array)


def trees_of(sample: Any, seeds: HostArray, room: int) -> int:
    """How many trees a sample of `room` seeds has: one for each end of a link and each negative."""
    if not isinstance(sample, Pairs):
        return room
    return room * (1 + len(sample.label) // len(seeds))


def padded_rows(array: HostArray | None, room: int, fill: int = 0) -> Any:
    """`array` with rows of `fill` up to `room`."""
    if array is None:
        return None
    out = np.full((room, *array.shape[1:]), fill, array.dtype)
    out[: len(array)] = array
    return out
