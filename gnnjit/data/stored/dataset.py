"""A dataset of one graph in a vertex store, its vertices in the order in which a grid cuts them.

It is written once (`gnnjit.data.stored.write`, or `gnnjit.data.stored.prepare` in a process of its
own), and who trains on it opens it without holding it. The arrays, all sealed:

    x                                float32[N, F]
    y                                int32[N]
    train_mask, val_mask, test_mask  bool[N]
    vertex                           int32[N], the vertex of the dataset in each row
    edge.src, edge.dst               int32[E], endpoints as rows; edges in the dataset's order
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gnnjit.errors import StoreError
from gnnjit.store.array_info import DTYPES, ArrayInfo
from gnnjit.store.collective import CollectiveStore
from gnnjit.store.disk import DiskStore, SharedStore
from gnnjit.store.files import failures
from gnnjit.store.store import VertexStore
from gnnjit.system.cache import Manifest, write_atomically

FORMAT = 1
DATASET = "dataset.json"
_DESCRIPTION = Manifest(
    "description", "stored dataset", FORMAT, "choose another folder",
    "delete the folder and prepare it again",
)  # fmt: skip

ARRAYS = {
    "x": "float32",
    "edge.src": "int32",
    "edge.dst": "int32",
    "vertex": "int32",
    "y": "int32",
    "train_mask": "bool",
    "val_mask": "bool",
    "test_mask": "bool",
}
"""What they are called, and of what dtype."""
EDGES = 1 << 22
"""Edges that are moved at once."""


class Counts(NamedTuple):
    """Vertices in each part of the split."""

    train: int
    val: int
    test: int


@dataclass(frozen=True, eq=False, repr=False)
class StoredDataset:
    """One graph whose vertices carry a class each, in a store.

    Attributes:
        store: with the arrays that the module lists. Whoever is done with the dataset closes it; a
            `with` block does.
        name: what `open_dataset` calls it.
        num_nodes, num_edges, num_features, num_classes: N, E (directed), F, C.
        counts: vertices for training, validation and test.
        method: how the vertices were ordered, as `Ordering` says it.
        made_from: what the arrays follow from: the dataset, its options, the order.
        contents: a short hash of the arrays in the dataset's own order, as `contents_of` gives it.
        prepared_seconds, prepared_peak_bytes: time and memory that it took the process of
            `prepare`; None where there was none.
    """

    store: VertexStore
    name: str
    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    counts: Counts
    method: str
    made_from: Mapping[str, Any]
    contents: str = ""
    prepared_seconds: float | None = None
    prepared_peak_bytes: int | None = None

    @classmethod
    def open(
        cls, folder: str | os.PathLike[str], *, shared: bool = False, together: bool = False
    ) -> StoredDataset:
        """The dataset in a folder. What a run that was killed left unfinished is dropped; with
        `shared` it stays, and other processes may have the folder open so too, to read. With
        `together` all connected processes open it, to stream it together (`CollectiveStore`).

        Raises StoreError: there is none, it is not complete or damaged, or another process has it
        open.
        """
        folder = Path(folder).absolute()
        data = describe(folder)
        if data is None:
            raise StoreError(
                f"{folder}: no stored dataset, it has no {DATASET}; gnnjit.data.stored.prepare "
                "makes one"
            )
        if not data["complete"]:
            raise StoreError(
                f"{folder}: the dataset is not complete, what wrote it was stopped: prepare it "
                "again"
            )
        with contextlib.ExitStack() as undo:
            kind = CollectiveStore if together else SharedStore if shared else DiskStore
            stored = cls._parse(undo.enter_context(kind.open(folder)), data, folder / DATASET)
            for name, expected in arrays_of(stored).items():
                found = stored.store.info(name)
                if found != expected:
                    raise StoreError(
                        f"{folder}: the array {name!r} is {_state(found)}, expected "
                        f"{_state(expected)} by {DATASET}: delete the folder and prepare it again"
                    )
            if not shared:
                _drop_unfinished(stored.store)
            undo.pop_all()
            return stored

    @classmethod
    def _parse(cls, store: VertexStore, data: Mapping[str, Any], path: Path) -> StoredDataset:
        match data:
            case {
                "name": str(name),
                "num_nodes": int(nodes),
                "num_edges": int(edges),
                "num_features": int(features),
                "num_classes": int(classes),
                "counts": {"train": int(train), "val": int(val), "test": int(test)},
                "method": str(method),
                "made_from": made_from,
                "contents": str(contents),
                "prepared_seconds": (float() | None) as seconds,
                "prepared_peak_bytes": (int() | None) as peak,
            }:
                counts = Counts(train, val, test)
                sizes = (nodes, edges, features, classes)
                return cls(store, name, *sizes, counts, method, made_from, contents, seconds, peak)
        raise _DESCRIPTION.damaged(path, "a field is missing, or is none of ours")

    def save(self) -> None:
        """Where the store is a folder, say there that the dataset is complete.

        Raises StoreError for what the disk refuses.
        """
        if isinstance(self.store, DiskStore):
            fields = {
                name: value
                for name, value in vars(self).items()
                if name not in ("store", "counts", "made_from")
            }
            fields["counts"] = self.counts._asdict()
            write_description(self.store._folder, self.made_from, complete=True, **fields)

    @property
    def identity(self) -> str:
        """A short hash of `made_from` and the format. Stores of one identity hold the same."""
        text = json.dumps({"format": FORMAT, **self.made_from}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def edges(self, block: int = EDGES) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(src, dst), int32[B] each: all edges, at most `block` at once; vertices are numbered by
        their rows. Raises StoreError as `VertexStore.read` does."""
        for start in range(0, self.num_edges, block):
            stop = min(start + block, self.num_edges)
            yield self.store.read("edge.src", start, stop), self.store.read("edge.dst", start, stop)

    def __enter__(self) -> StoredDataset:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    def __repr__(self) -> str:
        return (
            f"StoredDataset({self.name}: {self.num_nodes:,} vertices, {self.num_edges:,} directed "
            f"edges, {self.num_features:,} features, {self.num_classes} classes, "
            f"{self.counts.train:,} train / {self.counts.val:,} val / {self.counts.test:,} test, "
            f"order {self.method!r})"
        )


def arrays_of(stored: StoredDataset) -> dict[str, ArrayInfo]:
    """The arrays of a dataset of these sizes, by name, the largest first."""
    nodes, edges = stored.num_nodes, stored.num_edges
    return {
        name: ArrayInfo(
            edges if name in ("edge.src", "edge.dst") else nodes,
            (stored.num_features,) if name == "x" else (),
            DTYPES[dtype],
            sealed=True,
        )
        for name, dtype in ARRAYS.items()
    }


def _drop_unfinished(store: VertexStore) -> None:
    """What a crash left unsealed cannot be read: temporary arrays, results, parts of grids."""
    names = [name for name in store.names() if not store.info(name).sealed]
    if names:
        store.once(lambda: [store.drop(name) for name in names])


def describe(folder: Path) -> dict[str, Any] | None:
    """What the folder says of its dataset, at least `complete` and `made_from`; None where it has
    no such file. Raises StoreError where that is not ours, or damaged."""
    path = folder / DATASET
    with failures(path):
        data = _DESCRIPTION.read(path)
    match data:
        case None | {"complete": bool(), "made_from": dict()}:
            return data
    raise _DESCRIPTION.damaged(path, "it lacks complete, or made_from")


def write_description(
    folder: Path, made_from: Mapping[str, Any], *, complete: bool, **fields: Any
) -> None:
    """What `describe` is to read. Raises StoreError for what the disk refuses."""
    fields = {**fields, "complete": complete, "made_from": made_from}
    path, raw = folder / DATASET, _DESCRIPTION.written(fields)
    with failures(path, len(raw)):
        write_atomically(path, raw)


def _state(info: ArrayInfo) -> str:
    return f"{info}, {'sealed' if info.sealed else 'not sealed'}"
