"""Write a dataset into a vertex store, in the order in which a grid cuts its vertices."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from gnnjit.data import Dataset
from gnnjit.data.stored.dataset import EDGES, Counts, StoredDataset, arrays_of, write_description
from gnnjit.errors import DataError, StoreError
from gnnjit.partition.locality import Ordering, order_vertices
from gnnjit.shapes import ArrayLike
from gnnjit.store.disk import DiskStore
from gnnjit.store.store import VertexStore

PARTS = 16
"""Into how many METIS cuts a graph of unknown use."""
PIECE = 64 << 20
"""Bytes of features that are moved at once, unless one row is larger."""

Watch = Callable[[str, int, int], None]
"""Called with what is being done, and how much of it is done of how much."""


@dataclass(frozen=True, eq=False)
class Source:
    """A dataset that is to be stored.

    Attributes:
        name, num_features, num_classes: as a `Dataset` has them.
        src, dst: int32[E].
        y: int32[N].
        masks: bool[N] each: train, val, test.
        rows: (first vertex, float32[R, F]), a block after the other from vertex 0 on.
    """

    name: str
    num_features: int
    num_classes: int
    src: np.ndarray
    dst: np.ndarray
    y: np.ndarray
    masks: tuple[np.ndarray, np.ndarray, np.ndarray]
    rows: Iterable[tuple[int, np.ndarray]]

    @classmethod
    def of(cls, dataset: Dataset) -> Source:
        """A dataset in memory; padding edges are left out."""
        graph = dataset.graph
        real = slice(None) if graph.mask is None else np.asarray(graph.mask)
        x, y, *masks = map(
            np.asarray,
            (dataset.x, dataset.y, dataset.train_mask, dataset.val_mask, dataset.test_mask),
        )
        return cls(
            name=dataset.name,
            num_features=dataset.num_features,
            num_classes=dataset.num_classes,
            src=np.asarray(graph.src)[real],
            dst=np.asarray(graph.dst)[real],
            y=y,
            masks=(masks[0], masks[1], masks[2]),
            rows=((low, x[low:high]) for low, high in _pieces(len(x), x.shape[1] * x.itemsize)),
        )


def store_dataset(
    dataset: Dataset,
    store: VertexStore,
    *,
    order: str | ArrayLike = "auto",
    parts: int = PARTS,
    seed: int = 0,
) -> StoredDataset:
    """Write a dataset that is in memory into a store, which may hold other arrays.

    Args:
        dataset: one graph.
        store: where to.
        order: of the vertices, as the `method` of `order_vertices`.
        parts, seed: what METIS is told, if it orders.

    Raises:
        GraphError: the order is unknown, or does not fit.
        DataError: a vertex may have several labels.
        StoreError: the store has arrays of these names already, or no room.
    """
    if dataset.is_typed or dataset.is_regression:
        raise DataError(
            f"{dataset.name}: vertices have types, or numbers to predict, expected classes of "
            "vertices without types: such datasets are trained on without a memory budget"
        )
    if dataset.has_several_labels:
        raise DataError(
            f"{dataset.name}: a vertex may have several labels, expected one: such datasets are "
            "trained on in memory, without a memory budget"
        )
    source = Source.of(dataset)
    named = order if isinstance(order, str) else _hash([np.asarray(order)])
    made_from = {
        "name": source.name,
        "contents": _hash([source.src, source.dst, dataset.x, source.y, *source.masks]),
        **order_made_from(named, parts, seed),
    }
    stored = write(source, store, made_from, order=order, parts=parts, seed=seed)
    stored.save()
    return stored


def contents_of(dataset: Dataset) -> str:
    """A short hash of a dataset's arrays; that of a store with the same ones is equal."""
    hashed = _Contents(Source.of(dataset))
    for _ in hashed.rows():
        pass
    return hashed.digest()


def order_made_from(order: str, parts: int, seed: int) -> dict[str, Any]:
    """What of `made_from` the order of the vertices follows from."""
    metis = {"order_parts": parts, "order_seed": seed} if order in ("auto", "metis") else {}
    return {"order": order, **metis}


def silent(stage: str, done: int, total: int) -> None:
    """The `Watch` of nobody."""


def write(
    source: Source,
    store: VertexStore,
    made_from: Mapping[str, Any],
    *,
    order: str | ArrayLike,
    parts: int,
    seed: int,
    watch: Watch = silent,
) -> StoredDataset:
    """Write all arrays, and seal them; until `StoredDataset.save`, a folder counts as incomplete.

    Beside the source and what the order takes, O(N) memory and two pieces of features. Where it
    fails, its arrays are dropped. Raises as `store_dataset` does.
    """
    counts = Counts(*(int(np.count_nonzero(mask)) for mask in source.masks))
    sizes = (len(source.y), len(source.src), source.num_features, source.num_classes)
    stored = StoredDataset(store, source.name, *sizes, counts, "", made_from)
    arrays = arrays_of(stored)
    _refuse_taken(source.name, arrays.keys() & set(store.names()))
    if isinstance(store, DiskStore):
        write_description(store._folder, made_from, complete=False)
    with contextlib.ExitStack() as undo:
        # All at once, so that a disk that is too small shows before the work is done.
        for name, info in arrays.items():
            store.add(name, info.rows, info.shape, info.dtype)
            undo.callback(_drop, store, name)
        watch("order", 0, 1)
        ordering = order_vertices(
            source.src, source.dst, stored.num_nodes, method=order, parts=parts, seed=seed
        )
        watch("order", 1, 1)
        _write_edges(store, source, ordering, watch)
        _write_vertices(store, source, ordering)
        hashed = _Contents(source)
        _write_features(store, replace(source, rows=hashed.rows()), ordering, watch)
        watch("sealing", 0, 1)
        for name in arrays:
            store.seal(name)
        watch("sealing", 1, 1)
        undo.pop_all()
    return replace(stored, method=ordering.method, contents=hashed.digest())


def _refuse_taken(name: str, taken: Set[str]) -> None:
    if taken:
        raise StoreError(
            f"{name}: the store has the arrays {', '.join(sorted(taken))} already: drop them "
            "first, or use another store"
        )


def _write_vertices(store: VertexStore, source: Source, ordering: Ordering) -> None:
    """All but the features."""
    store.write("vertex", 0, ordering.vertex.astype(np.int32))
    store.write("y", 0, ordering.to_new(source.y))
    for name, mask in zip(Counts._fields, source.masks, strict=True):
        store.write(f"{name}_mask", 0, ordering.to_new(mask))


def _write_edges(store: VertexStore, source: Source, ordering: Ordering, watch: Watch) -> None:
    rank, total = ordering.rank.astype(np.int32), len(source.src)
    for start in range(0, total, EDGES):
        stop = min(start + EDGES, total)
        store.write("edge.src", start, rank[source.src[start:stop]])
        store.write("edge.dst", start, rank[source.dst[start:stop]])
        watch("edges", stop, total)


def _write_features(store: VertexStore, source: Source, ordering: Ordering, watch: Watch) -> None:
    """Rows at their new places, in whichever order they come, without a call for each.

    First each row goes to the piece of the array that it belongs to, behind those that came
    before; as every piece gets as many as it has, this needs no other room. Then the pieces are
    sorted, one at a time. (The blocks come as their vertices ascend.)
    """
    info = store.info("x")
    pieces = list(_pieces(info.rows, info.row_bytes))
    size = pieces[0][1] if pieces else 1
    free = [start for start, _ in pieces]
    for first, rows in source.rows:
        piece = ordering.rank[first : first + len(rows)] // size
        by_piece = np.argsort(piece, kind="stable")
        ends = np.cumsum(np.bincount(piece, minlength=len(pieces))).tolist()
        for number, (begin, end) in enumerate(pairwise([0, *ends])):
            if begin < end:
                store.write("x", free[number], rows[by_piece[begin:end]])
                free[number] += end - begin
        watch("features", first + len(rows), info.rows)
    for start, stop in pieces:
        _sort_features(store, start, ordering.vertex[start:stop])
        watch("sorting", stop, info.rows)


def _sort_features(store: VertexStore, start: int, vertices: np.ndarray) -> None:
    """Rows from `start` on, which lie as their vertices ascend, in the order of `vertices`."""
    if (vertices[1:] < vertices[:-1]).any():
        came = store.read("x", start, start + len(vertices))
        rows = np.empty_like(came)
        rows[np.argsort(vertices)] = came
        store.write("x", start, rows)


def _pieces(num_rows: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """The bounds of consecutive rows that fit PIECE bytes."""
    size = max(1, PIECE // max(1, row_bytes))
    return ((start, min(start + size, num_rows)) for start in range(0, num_rows, size))


def _drop(store: VertexStore, name: str) -> None:
    # The manifest, too, needs room on the disk; what happened first is what is told.
    with contextlib.suppress(StoreError):
        store.drop(name)


class _Contents:
    """Hashes a source while its features pass by."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._sha = hashlib.sha256()
        self._add(source.src, source.dst)

    def rows(self) -> Iterator[tuple[int, np.ndarray]]:
        """The blocks of features, to be taken once."""
        for first, rows in self._source.rows:
            self._add(rows)
            yield first, rows

    def digest(self) -> str:
        """After the last block."""
        self._add(self._source.y, *self._source.masks)
        return self._sha.hexdigest()[:16]

    def _add(self, *arrays: np.ndarray) -> None:
        for array in arrays:
            self._sha.update(_raw(array))


def _raw(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _hash(arrays: Iterable[Any]) -> str:
    """Short, of types, shapes and contents."""
    sha = hashlib.sha256()
    for array in map(np.asarray, arrays):
        sha.update(f"{array.dtype.str}{array.shape}".encode())
        sha.update(_raw(array))
    return sha.hexdigest()[:16]
