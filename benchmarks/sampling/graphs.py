"""Graphs that both sides read from the same files."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import numpy as np

from gnnjit.data import communities


@dataclasses.dataclass(frozen=True, eq=False)
class Labelled:
    """A graph with features and classes, in files that are mapped.

    Attributes:
        src, dst: `int32[E]`, sorted by destination.
        x: `float32[N, F]`.
        y: `int32[N]`.
        train: `int64[S]`, the labelled vertices.
        num_classes: C.
    """

    src: np.ndarray
    dst: np.ndarray
    x: np.ndarray
    y: np.ndarray
    train: np.ndarray
    num_classes: int

    @property
    def num_nodes(self) -> int:
        return len(self.y)


_ARRAYS = ("src", "dst", "x", "y", "train")


def save(folder: pathlib.Path, vertices: int, features: int) -> None:
    """Power-law communities of so many vertices."""
    data = communities(num_nodes=vertices, num_features=features)
    graph = data.graph
    order = np.argsort(np.asarray(graph.dst), kind="stable")
    arrays = {
        "src": np.asarray(graph.src)[order], "dst": np.asarray(graph.dst)[order], "x": data.x,
        "y": data.y, "train": np.flatnonzero(data.train_mask),
    }  # fmt: skip
    folder.mkdir(parents=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    (folder / "facts.json").write_text(json.dumps({"num_classes": data.num_classes}))


def load(folder: pathlib.Path) -> Labelled:
    """What `save` wrote; arrays are read when they are used."""
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in _ARRAYS}
    return Labelled(**arrays, **json.loads((folder / "facts.json").read_text()))
