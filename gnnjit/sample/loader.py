"""Batches for training: sampled, looked up, padded and moved, some ahead of who computes."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from gnnjit.errors import SampleError
from gnnjit.graph.reading import read_on_host
from gnnjit.graph.validate import as_count, shown
from gnnjit.sample.adjacency import numbers_of
from gnnjit.sample.batch import Batch
from gnnjit.sample.features import Features
from gnnjit.sample.hot import Hot, by_degree
from gnnjit.sample.links import LinkSampler
from gnnjit.sample.making import Made, Maker, Source
from gnnjit.sample.order import Order, plan
from gnnjit.sample.padding import Padding, Shapes
from gnnjit.sample.pipeline import Tasks, in_order
from gnnjit.sample.random import key_of
from gnnjit.sample.timeline import Event, Log
from gnnjit.sample.typed_links import TypedLinkSampler
from gnnjit.sample.typed_making import TypedMaker, TypedSampler, TypedSource, typed_source
from gnnjit.shapes import ArrayLike, HostArray, PyTree

SAMPLES = 128
"""Batches that are sampled to plan shapes."""


@dataclasses.dataclass(frozen=True)
class Report:
    """What a loader has yielded.

    Attributes:
        batches: how many.
        per_shape: of them, for each shape; one that fits none, however it is drawn, is not in it.
        padding: in percent of what was yielded; None without shapes.
        splits: how often a batch fit no shape and was split.
        resamples: how often a sample fit no shape and was drawn anew.
        hits: of the rows that batches have features of, how many were on the device, in percent;
            None without `hot_rows`.
        programs: kinds of batches that were yielded, which differ in a shape or dtype: what a
            function of a batch is compiled for under `jax.jit`.
    """

    batches: int
    per_shape: tuple[int, ...]
    padding: Padding | None
    splits: int
    resamples: int
    hits: float | None
    programs: int


class Loader:
    """Yields the batches of one epoch when it is iterated over, from where it stands.

    A batch is a function of the arguments, its epoch and its number: any can be made alone
    (`batches`), and the stream is the same with any number of threads. Threads make the next
    batches while the caller computes. What one of them raises is raised where its batch is due.
    Threads end with the iteration, however it ends.

    Args:
        sampler: has `num_seeds`, `adjacency` and `sample(seeds, seed)`, as `NeighborSampler`; its
            seeds may be vertices, links, clusters or graphs. With a sampler of typed graphs, `x` is
            a dictionary from types and `edges` one from relations, and `y` is of the seeds.
        x: pytree of `[N, ...]`, features: arrays of NumPy (also mapped files), of JAX, or `Stored`.
        y: pytree of `[num_seeds, ...]`, labels of the seeds; of `[N, ...]` where samples have none.
        seeds: `int[S]` or a mask `bool[num_seeds]`, those of an epoch; all if left out.
        batch_size: seeds of a batch.
        steps: batches of an epoch, for a sampler that takes no seeds.
        labelled: `int[n]` or `bool[N]`, vertices whose labels count, where samples have no seeds.
        times: `[num_seeds]`, the time of each seed, for a sampler by time.
        edges: pytree of `[E, ...]`, data of edges, in the order in which edges were given.
        shuffle: whether each epoch has an order of its own.
        drop_last: whether a last batch that is smaller is left out.
        share: `(i, n)`: one of n loaders of equal arguments, which yields every n-th batch from
            batch i on. All yield equally many: where batches do not go round, the last of some has
            a mask without a label. For devices that train together, with one shape.
        seed: of orders and samples.
        shapes: how many to plan, or `Shapes`, or None for batches as large as their samples.
        oversize: what becomes of a batch that fits no shape: "split" in two, or "resample", draw it
            again. One that cannot be split is drawn again, and with `share` each.
        threads: that make batches; with 0, the one that iterates does.
        prefetch: batches at most that are made, or being made, ahead; with 0, as without threads.
        device: where batches go, a device or sharding; where JAX puts arrays if left out.
        hot_rows: of `x`, how many are kept on the device, those of the vertices that are
            neighbours most often; or `int[n]` or `bool[N]`, which. Only the others are looked up
            and moved, and how many of them is one more dimension of the shapes, the last.
        state: from `state()`, to go on from there.
        timeline: whether `events` are kept.

    Raises:
        SampleError: an argument does not fit the sampler, or is out of range.
    """

    def __init__(
        self,
        sampler: Any,
        x: PyTree = None,
        y: PyTree = None,
        *,
        seeds: ArrayLike | None = None,
        batch_size: int = 1024,
        steps: int | None = None,
        labelled: ArrayLike | None = None,
        times: ArrayLike | None = None,
        edges: PyTree = None,
        shuffle: bool = True,
        drop_last: bool = False,
        share: tuple[int, int] = (0, 1),
        seed: int = 0,
        shapes: int | Shapes | None = 4,
        oversize: str = "split",
        threads: int = 2,
        prefetch: int = 2,
        device: Any = None,
        hot_rows: int | ArrayLike = 0,
        state: Mapping[str, Any] | None = None,
        timeline: bool = False,
    ) -> None:
        where = "Loader"
        if oversize not in ("split", "resample"):
            raise SampleError(
                f"{where}: oversize is {shown(oversize)}, expected 'split' or 'resample'"
            )
        for name, value in (("threads", threads), ("prefetch", prefetch)):
            as_count(f"{where}: {name}", value)
        key_of(where, seed)
        self._share = _checked_share(where, share)
        self._order = Order.of(
            where, sampler, seeds, batch_size, steps, bool(shuffle), bool(drop_last), seed
        )
        self._source = _source(
            where, sampler, self._order, (x, y, edges), labelled, times, hot_rows,
            room=batch_size, seed=seed, device=device,
            split=oversize == "split" and self._share[1] == 1,
        )  # fmt: skip
        self._log = Log(timeline)
        self._threads, self._prefetch = threads, prefetch
        self._epoch = self._index = self._part = self._turn = 0
        self._counts = _Counts()
        self._shapes = self._planned(shapes, state)
        self._maker = _maker(self._source, self._shapes, self._log)
        if state is not None:
            self.set_state(state)

    def __len__(self) -> int:
        """Batches of an epoch, one that is split counted once."""
        return -(-len(self._order) // self._share[1])

    @property
    def shapes(self) -> Shapes | None:
        """What batches are padded to."""
        return self._shapes

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration is of, or goes on with."""
        return self._epoch

    def __iter__(self) -> Iterator[Batch]:
        self._turn += 1
        return self._rest_of_epoch(self._turn)

    def _rest_of_epoch(self, turn: int) -> Iterator[Batch]:
        epoch, begin = self._epoch, self._index
        make = functools.partial(self._make, self._maker, epoch)
        made = in_order(make, begin, len(self), self._threads, self._prefetch)
        try:
            for index in range(begin, len(self)):
                with self._log.stage("wait", (epoch, index, 0)):
                    some = next(made)
                for batch in some[self._part :]:
                    last = batch is some[-1]
                    self._index, self._part = index + last, 0 if last else self._part + 1
                    yield self._counts.add(batch, self._shapes)
                    if turn != self._turn:
                        raise SampleError(
                            "Loader: the loader was set or iterated over anew meanwhile, expected "
                            "one iteration at a time: make a Loader for each"
                        )
                some = batch = None  # while the next is awaited, nobody needs these
            self._epoch, self._index = epoch + 1, 0
        finally:
            made.close()  # type: ignore[attr-defined]

    def batches(self, epoch: int, index: int) -> list[Batch]:
        """Batch `index` of an epoch, made alone: one, or several where it was split.

        Raises:
            SampleError: `index` is out of range.
        """
        return [made.batch for made in self._alone(self._maker, epoch, index)]

    def batch(self, epoch: int, index: int) -> Batch:
        """Batch `index` of an epoch, made alone.

        Raises:
            SampleError: `index` is out of range, or the batch was split.
        """
        found = self.batches(epoch, index)
        if len(found) > 1:
            raise SampleError(
                f"Loader.batch: batch {index} of epoch {epoch} fit no shape and was split in "
                f"{len(found)}, expected one: call batches(), or pass oversize='resample'"
            )
        return found[0]

    def on_host(self, epoch: int, index: int) -> Batch:
        """Batch `index` of an epoch, made alone, in NumPy: one that fits no shape is drawn again,
        never split.

        Raises:
            SampleError: `index` is out of range.
        """
        (made,) = self._alone(self._host_maker, epoch, index)
        return made.batch

    @functools.cached_property
    def _host_maker(self) -> Maker:
        source = dataclasses.replace(self._source, split=False)
        return _maker(source, self._shapes, self._log, on_host=True)

    def _alone(self, maker: Maker, epoch: int, index: int) -> list[Made]:
        epoch = as_count("Loader: epoch", epoch)
        if not 0 <= as_count("Loader: index", index) < len(self):
            raise SampleError(
                f"Loader: index is {index}, expected a batch from 0 to {len(self) - 1}"
            )
        return self._make(maker, epoch, index, Tasks())

    def _make(self, maker: Maker, epoch: int, index: int, tasks: Tasks) -> list[Made]:
        first, step = self._share
        number, count = first + index * step, len(self._order)
        made = maker.make(self._order.batch(epoch, number % count), epoch, number % count, tasks)
        return made if number < count else [_unlabelled(part) for part in made]

    def state(self) -> dict[str, Any]:
        """Where the loader stands: after the last batch that it yielded. For JSON. After the last
        batch of an epoch, an iteration yields no more of it, and the one after that is of the next.
        """
        shapes = self._shapes
        return {
            "epoch": self._epoch,
            "index": self._index,
            "part": self._part,
            "seed": int(self._source.seed),
            "order": self._order.fingerprint,
            "share": list(self._share),
            "shapes": None if shapes is None else [list(shape) for shape in shapes.shapes],
            "cost": None if shapes is None else list(shapes.cost),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from where a loader of the same arguments stood.

        Raises:
            SampleError: it is no such state, or that of other arguments.
        """
        own = self.state()
        if not isinstance(state, Mapping) or state.keys() != own.keys():
            raise SampleError(
                f"Loader: state is {shown(state)}, expected what state() returned, with "
                f"{', '.join(own)}"
            )
        other = [k for k in ("seed", "order", "share", "shapes", "cost") if state[k] != own[k]]
        if other:
            raise SampleError(
                f"Loader: state has {other[0]} {shown(state[other[0]])}, expected "
                f"{shown(own[other[0]])}: make the loader with the arguments of the one that the "
                f"state is of"
            )
        self._epoch, self._index, self._part = state["epoch"], state["index"], state["part"]
        self._turn += 1

    def report(self) -> Report:
        """What was yielded so far."""
        return self._counts.report(self._shapes, self._source.hot is not None)

    @property
    def events(self) -> tuple[Event, ...]:
        """What was done when, with `timeline`."""
        return tuple(self._log.events)

    def _planned(
        self, shapes: int | Shapes | None, state: Mapping[str, Any] | None
    ) -> Shapes | None:
        """The shapes that were given or planned, here or before the state was taken."""
        if shapes is None or isinstance(shapes, Shapes):
            return shapes
        if as_count("Loader: shapes", shapes) < 1:
            raise SampleError(
                f"Loader: shapes is {shapes}, expected at least 1, Shapes, or None for no padding"
            )
        if isinstance(state, Mapping) and state.get("shapes") and state.get("cost"):
            given = tuple(tuple(shape) for shape in state["shapes"])
            return Shapes(given, tuple(state["cost"]))
        return plan(self._source, self._order, shapes, SAMPLES, self._threads)


def _unlabelled(made: Made) -> Made:
    """The same, with no label that counts."""
    mask = made.batch.mask * False
    return dataclasses.replace(made, batch=dataclasses.replace(made.batch, mask=mask))


def _checked_share(where: str, share: Any) -> tuple[int, int]:
    try:
        first, step = (as_count(f"{where}: share", part) for part in share)
    except TypeError as error:
        raise SampleError(
            f"{where}: share is {shown(share)}, expected two numbers (i, n)"
        ) from error
    if not first < step:
        raise SampleError(f"{where}: share is {(first, step)}, expected (i, n) with i below n")
    return first, step


def _source(
    where: str, sampler: Any, order: Order, trees: tuple[PyTree, PyTree, PyTree], labelled: Any,
    times: Any, hot_rows: Any, **options: Any,
) -> Source:  # fmt: skip
    """What batches are made of, checked: `trees` are features, labels and data of edges."""
    times = _times(where, sampler, times)
    if isinstance(sampler, TypedSampler):
        _refuse_typed(where, type(sampler).__name__, labelled=labelled, hot_rows=hot_rows)
        return typed_source(where, sampler, trees, times, **options)
    x, y, edges = trees
    num_nodes, num_edges = sampler.adjacency.num_nodes, sampler.adjacency.num_edges
    by_vertex = _labels_are_of_vertices(sampler, order, times)
    if labelled is not None and not by_vertex:
        raise SampleError(
            f"{where}: got labelled with samples that have seeds, expected seeds: their labels are "
            f"those that count"
        )
    features = _features(f"{where}: x", x, num_nodes)
    return Source(
        where=where,
        sampler=sampler,
        num_nodes=num_nodes,
        x=features,
        y=_features(f"{where}: y", y, num_nodes if by_vertex else sampler.num_seeds),
        edges=_features(f"{where}: edges", edges, num_edges),
        labelled=_mask(where, "labelled", labelled, num_nodes),
        times=times,
        hot=_hot(where, features, sampler, hot_rows, options["device"]),
        **options,
    )


def _maker(source: Source, shapes: Shapes | None, log: Log, on_host: bool = False) -> Maker:
    kind = TypedMaker if isinstance(source, TypedSource) else Maker
    return kind(source, shapes, log, on_host)


def _times(where: str, sampler: Any, times: Any) -> HostArray | None:
    """The time of each seed. Raises SampleError unless they fit, and the sampler takes times."""
    if times is None:
        return None
    known = inspect.signature(sampler.sample).parameters.values()
    if not any(p.name == "times" or p.kind is p.VAR_KEYWORD for p in known):
        name = type(sampler).__name__
        of_links = isinstance(sampler, LinkSampler | TypedLinkSampler)
        hint = f"pass the times of links to {name}" if of_links else "leave times out"
        raise SampleError(f"{where}: got times with a {name}, expected none: {hint}")
    return _one_each(where, "times", times, sampler.num_seeds)


def _refuse_typed(where: str, sampler: str, labelled: Any, hot_rows: Any) -> None:
    if labelled is not None:
        raise SampleError(
            f"{where}: got labelled with a {sampler}, expected seeds: their labels are "
            f"those that count"
        )
    if np.ndim(hot_rows) or hot_rows:
        raise SampleError(
            f"{where}: got hot_rows with a {sampler}, expected none: rows are kept on "
            f"the device for graphs of one type alone; leave hot_rows out"
        )


class _Counts:
    """What a report is made of."""

    def __init__(self) -> None:
        self._batches = self._splits = self._resamples = 0
        self._rows = self._hits = 0
        self._per_shape: dict[int, int] = {}
        self._real: Any = 0
        self._padded: Any = 0
        self._kinds: set[Any] = set()

    def add(self, made: Made, shapes: Shapes | None) -> Batch:
        """Count a batch that is yielded."""
        batch = made.batch
        self._batches += 1
        self._splits += made.splits
        self._resamples += made.resamples
        self._rows += made.rows
        self._hits += made.hits
        leaves, structure = jax.tree.flatten(batch)
        self._kinds.add((structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)))
        if shapes is not None and batch.shape is not None:
            self._per_shape[batch.shape] = self._per_shape.get(batch.shape, 0) + 1
            self._real = self._real + np.array(made.sizes, np.int64)
            self._padded = self._padded + np.array(made.room, np.int64)
        return batch

    def report(self, shapes: Shapes | None, hot: bool) -> Report:
        padding = None
        if shapes is not None and self._batches:
            padding = Padding.of(self._real, self._padded, shapes.cost)
        count = 0 if shapes is None else len(shapes)
        return Report(
            batches=self._batches,
            per_shape=tuple(self._per_shape.get(i, 0) for i in range(count)),
            padding=padding,
            splits=self._splits,
            resamples=self._resamples,
            hits=100 * self._hits / self._rows if hot and self._rows else None,
            programs=len(self._kinds),
        )


def _features(name: str, tree: PyTree, rows: int) -> Features | None:
    return None if tree is None else Features(name, tree, rows)


def _labels_are_of_vertices(sampler: Any, order: Order, times: HostArray | None) -> bool:
    """Whether samples are subgraphs whose seeds are no part of them. A sample of one seed tells."""
    if order.seeds is None:
        return True
    some = order.seeds[:1]
    options = {} if times is None else {"times": times[some]}
    sample = sampler.sample(some, 0, **options)
    return sample.seeds is None and sample.tree is None


def _hot(where: str, features: Features | None, sampler: Any, rows: Any, device: Any) -> Hot | None:
    """The rows that are kept on the device; None of none."""
    count = sampler.adjacency.num_nodes
    if np.ndim(rows) == 0:
        wanted = as_count(f"{where}: hot_rows", rows)
        numbers = by_degree(sampler.adjacency, wanted) if wanted else np.zeros(0, np.int64)
    else:
        numbers = np.unique(numbers_of(where, "hot_rows", rows, count, "row"))
    if not len(numbers):
        return None
    if features is None or not features.on_host:
        raise SampleError(
            f"{where}: got hot_rows without features on the host, expected x in memory or a file: "
            f"leave hot_rows out"
        )
    return Hot(features, numbers, device)


def _mask(where: str, name: str, chosen: Any, count: int) -> HostArray | None:
    """`bool[count]`, from numbers or a mask; None where nothing is given."""
    if chosen is None:
        return None
    mask = np.zeros(count, bool)
    mask[numbers_of(where, name, chosen, count, "vertex")] = True
    return mask


def _one_each(where: str, name: str, values: Any, count: int) -> HostArray:
    array = read_on_host(f"{where}: {name}", values)
    if array.shape != (count,):
        raise SampleError(
            f"{where}: {name} has shape {array.shape}, expected ({count},): one for each seed that "
            f"the sampler knows"
        )
    return array
