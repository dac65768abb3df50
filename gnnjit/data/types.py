"""Dataset types: one graph with labelled vertices, and many graphs with a label each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gnnjit.errors import DataError
from gnnjit.graph import Graph, TypedGraph

_BLOCK = 1 << 22
"""Features that are looked at together."""


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """One graph whose vertices carry a class each, or several, or numbers.

    Attributes:
      name: what `open_dataset` calls it.
      graph: both directions of every undirected edge, no self loops, no duplicates; or a
        `TypedGraph`.
      x: float32 [N, F], features of the vertices; F is 0 where they have none. With types, a
        dictionary of such an array for each.
      y: int32 [N], classes in [0, num_classes); or bool [N, C], which classes a vertex has, where
        it may have several; or float32 [N, T], numbers (regression). With types, those of the
        vertices of `target`.
      train_mask, val_mask, test_mask: bool [N], disjoint; vertices may be in none of them.
      num_classes: C; 0 for numbers.
      source: the paper that the dataset comes from.
      target: the type whose vertices are labelled; None without types.
      labelled: bool [N], vertices whose class is known, where those are more than the masks have;
        None: those of the masks.

    Raises:
      DataError: if the parts do not fit each other.
    """

    name: str
    graph: Any
    x: Any
    y: np.ndarray
    train_mask: np.ndarray
    val_mask: np.ndarray
    test_mask: np.ndarray
    num_classes: int
    source: str = ""
    target: str | None = None
    labelled: np.ndarray | None = None

    def __post_init__(self) -> None:
        n = self._check_features()
        if self.is_regression:
            expect(self.name, "y", self.y, (n, None), np.float32)
            _expect_finite(self.name, self.y, "y")
        elif self.has_several_labels:
            expect(self.name, "y", self.y, (n, self.num_classes), np.bool_)
        else:
            expect(self.name, "y", self.y, (n,), np.int32)
            _expect_labels(self.name, self.y, self.num_classes)
        if self.labelled is not None:
            expect(self.name, "labelled", self.labelled, (n,), np.bool_)
        taken = np.zeros(n, np.int8)
        for part in ("train_mask", "val_mask", "test_mask"):
            mask = getattr(self, part)
            expect(self.name, part, mask, (n,), np.bool_)
            taken += np.asarray(mask)
        if (taken > 1).any():
            vertex = int(np.argmax(taken > 1))
            raise DataError(
                f"{self.name}: vertex {vertex} is in two of train_mask, val_mask and test_mask, "
                "expected disjoint masks. Take it out of one of them."
            )

    def _check_features(self) -> int:
        """How many vertices are labelled. Raises DataError where features do not fit the graph."""
        if not self.is_typed:
            if self.target is not None:
                raise DataError(
                    f"{self.name}: target is {self.target!r}, and the graph has no types: leave it "
                    "out."
                )
            expect(self.name, "x", self.x, (self.graph.num_nodes, None), np.float32)
            _expect_finite(self.name, self.x)
            return self.graph.num_nodes
        counts = self.graph.num_nodes
        if self.target not in counts:
            raise DataError(
                f"{self.name}: target is {self.target!r}, expected one of {', '.join(counts)}, the "
                "type whose vertices are labelled."
            )
        if not isinstance(self.x, Mapping) or set(self.x) != set(counts):
            got = ", ".join(self.x) if isinstance(self.x, Mapping) else type(self.x).__name__
            raise DataError(
                f"{self.name}: x has {got}, expected a dictionary of an array for each of "
                f"{', '.join(counts)}."
            )
        for node_type, rows in self.x.items():
            name = f"x[{node_type!r}]"
            expect(self.name, name, rows, (counts[node_type], None), np.float32)
            _expect_finite(self.name, rows, name)
        return counts[self.target]

    @property
    def has_several_labels(self) -> bool:
        """Whether `y` tells for each class if a vertex has it."""
        return np.ndim(self.y) == 2 and self.y.dtype == np.bool_

    @property
    def is_regression(self) -> bool:
        """Whether `y` are numbers."""
        return np.issubdtype(self.y.dtype, np.floating)

    @property
    def is_typed(self) -> bool:
        """Whether the vertices have types."""
        return isinstance(self.graph, TypedGraph)

    @property
    def num_outputs(self) -> int:
        """How many numbers a model gives for a vertex: C, or T for numbers."""
        return self.y.shape[1] if self.is_regression else self.num_classes

    @property
    def num_nodes(self) -> int:
        """N, the number of vertices, of all types together."""
        return sum(self.graph.sizes) if self.is_typed else self.graph.num_nodes

    @property
    def num_edges(self) -> int:
        """E, the number of directed edges: twice the number of undirected ones."""
        return sum(self.graph.num_edges.values()) if self.is_typed else self.graph.num_edges

    @property
    def widths(self) -> dict[str, int]:
        """With types, the number of features of the vertices of each."""
        return {t: rows.shape[1] for t, rows in self.x.items()} if self.is_typed else {}

    @property
    def num_features(self) -> int:
        """F, the number of features of a vertex; with types, of the target's."""
        return (self.x[self.target] if self.is_typed else self.x).shape[1]

    def __repr__(self) -> str:
        split = [int(np.sum(m)) for m in (self.train_mask, self.val_mask, self.test_mask)]
        counted = f"{self.num_classes} classes"
        if self.is_regression:
            counted = f"{self.num_outputs} numbers"
        types = f" in {len(self.graph.types)} types" if self.is_typed else ""
        return (
            f"Dataset({self.name}: {self.num_nodes:,} vertices{types}, {self.num_edges:,} directed "
            f"edges, {self.num_features:,} features, {counted}, "
            f"{split[0]:,} train / {split[1]:,} val / {split[2]:,} test)"
        )


class Fold(NamedTuple):
    """One split of cross-validation. The two arrays are disjoint, and together all graphs.

    Attributes:
      train, test: sorted int64 ids of graphs.
    """

    train: np.ndarray
    test: np.ndarray


@dataclass(frozen=True, eq=False, repr=False)
class GraphDataset:
    """Many graphs, stored end to end, with a class each, or numbers.

    Vertex ids are global: graph i owns the vertices [node_offsets[i], node_offsets[i + 1]) and
    the edges [edge_offsets[i], edge_offsets[i + 1]), and no edge joins two graphs.

    Attributes:
      name: what `open_dataset` calls it.
      node_offsets: int64 [G + 1], from 0 to N.
      edge_offsets: int64 [G + 1], from 0 to E.
      src, dst: int32 [E], global vertex ids.
      x: float32 [N, F], features of the vertices.
      y: int32 [G], classes in [0, num_classes); or float32 [G, T], numbers (regression), where T is
        0 if there is nothing to predict.
      num_classes: C; 0 for numbers.
      edge_label: int32 [E] in [0, L), or None where the dataset has none.
      source: the paper that the dataset comes from.
      pos: float32 [N, D], where the vertices are, or None.

    Raises:
      DataError: if the parts do not fit each other.
    """

    name: str
    node_offsets: np.ndarray
    edge_offsets: np.ndarray
    src: np.ndarray
    dst: np.ndarray
    x: np.ndarray
    y: np.ndarray
    num_classes: int
    edge_label: np.ndarray | None = None
    source: str = ""
    pos: np.ndarray | None = None

    def __post_init__(self) -> None:
        graphs = self.y.shape[0]
        edges = self.src.shape[0]
        expect(self.name, "x", self.x, (None, None), np.float32)
        _expect_finite(self.name, self.x)
        if self.is_regression:
            expect(self.name, "y", self.y, (graphs, None), np.float32)
            _expect_finite(self.name, self.y, "y")
        else:
            expect(self.name, "y", self.y, (graphs,), np.int32)
            _expect_labels(self.name, self.y, self.num_classes)
        if self.pos is not None:
            expect(self.name, "pos", self.pos, (self.x.shape[0], None), np.float32)
            _expect_finite(self.name, self.pos, "pos")
        expect(self.name, "src", self.src, (edges,), np.int32)
        expect(self.name, "dst", self.dst, (edges,), np.int32)
        if self.edge_label is not None:
            expect(self.name, "edge_label", self.edge_label, (edges,), np.int32)
        _expect_offsets(self.name, "node_offsets", self.node_offsets, graphs, self.x.shape[0])
        _expect_offsets(self.name, "edge_offsets", self.edge_offsets, graphs, edges)
        owner = np.repeat(np.arange(graphs), np.diff(self.edge_offsets))
        for part in ("src", "dst"):
            ids = getattr(self, part)
            outside = (ids < self.node_offsets[owner]) | (ids >= self.node_offsets[owner + 1])
            if outside.any():
                e = int(np.argmax(outside))
                raise DataError(
                    f"{self.name}: {part} of edge {e} is vertex {ids[e]}, expected a vertex of "
                    f"graph {owner[e]}, whose vertices are {self.node_offsets[owner[e]]} to "
                    f"{self.node_offsets[owner[e] + 1] - 1}. No edge may join two graphs."
                )

    def __len__(self) -> int:
        """G, the number of graphs."""
        return self.y.shape[0]

    @property
    def is_regression(self) -> bool:
        """Whether `y` are numbers."""
        return np.issubdtype(self.y.dtype, np.floating)

    @property
    def num_outputs(self) -> int:
        """How many numbers a model gives for a graph: C, or T for numbers."""
        return self.y.shape[1] if self.is_regression else self.num_classes

    @property
    def num_nodes(self) -> int:
        """N, the vertices of all graphs together."""
        return self.x.shape[0]

    @property
    def num_edges(self) -> int:
        """E, the directed edges of all graphs together."""
        return self.src.shape[0]

    @property
    def num_features(self) -> int:
        """F, the number of features of a vertex."""
        return self.x.shape[1]

    @property
    def node_graph(self) -> np.ndarray:
        """int32 [N]: the graph that each vertex belongs to."""
        graphs = np.arange(len(self), dtype=np.int32)
        return np.repeat(graphs, np.diff(self.node_offsets))

    def union(self) -> Graph:
        """All graphs as one graph of N vertices without edges between them."""
        return Graph.from_edges(self.src, self.dst, self.num_nodes)

    def graph(self, i: int) -> tuple[Graph, np.ndarray]:
        """Graph i with vertices numbered from 0, and its features, float32 [N_i, F]."""
        one = self.select([i])
        return one.union(), one.x

    def select(self, indices: np.ndarray | list[int]) -> GraphDataset:
        """The graphs `indices` (ids in [0, G), in this order, repeats allowed) as a dataset."""
        indices = np.asarray(indices, np.int64).reshape(-1)
        bad = (indices < 0) | (indices >= len(self))
        if bad.any():
            raise DataError(
                f"{self.name}: select() got graph {indices[bad][0]}, expected ids from 0 to "
                f"{len(self) - 1}."
            )
        nodes, node_offsets = _runs(self.node_offsets, indices)
        edges, edge_offsets = _runs(self.edge_offsets, indices)
        shift = node_offsets[:-1] - self.node_offsets[indices]
        shift = np.repeat(shift, np.diff(edge_offsets))
        return GraphDataset(
            name=self.name,
            node_offsets=node_offsets,
            edge_offsets=edge_offsets,
            src=(self.src[edges] + shift).astype(np.int32),
            dst=(self.dst[edges] + shift).astype(np.int32),
            x=self.x[nodes],
            y=self.y[indices],
            num_classes=self.num_classes,
            edge_label=None if self.edge_label is None else self.edge_label[edges],
            source=self.source,
            pos=None if self.pos is None else self.pos[nodes],
        )

    def folds(self, k: int = 10, seed: int = 0) -> list[Fold]:
        """k-fold cross-validation, stratified: fold sizes, and each class's share of every fold,
        differ by at most one graph between folds. Numbers are not stratified. The same seed gives
        the same folds."""
        if not 2 <= k <= len(self):
            raise DataError(
                f"{self.name}: folds() got k={k}, expected 2 to {len(self)}, the number of graphs."
            )
        if seed < 0:
            raise DataError(f"{self.name}: folds() got seed={seed}, expected at least 0.")
        rng = np.random.Generator(np.random.PCG64(seed))
        shuffled = rng.permutation(len(self))
        labels = np.zeros(len(self)) if self.is_regression else self.y
        by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
        fold = np.empty(len(self), np.int64)
        fold[by_class] = np.arange(len(self)) % k
        return [Fold(np.flatnonzero(fold != i), np.flatnonzero(fold == i)) for i in range(k)]

    def __repr__(self) -> str:
        counted = f"{self.num_classes} classes"
        if self.is_regression:
            counted = f"{self.num_outputs} numbers"
        return (
            f"GraphDataset({self.name}: {len(self):,} graphs, {self.num_nodes:,} vertices, "
            f"{self.num_edges:,} directed edges, {self.num_features} features, {counted})"
        )


def _runs(offsets: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the runs `indices` of a concatenated array, and the new offsets."""
    lengths = np.diff(offsets)[indices]
    new = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    positions = np.arange(new[-1]) + np.repeat(offsets[indices] - new[:-1], lengths)
    return positions, new


def expect(
    name: str, part: str, array: np.ndarray, shape: tuple[int | None, ...], dtype: type
) -> None:
    """Raises DataError unless the array has the shape (None: any length) and dtype."""
    fits = len(array.shape) == len(shape) and all(
        want is None or got == want for got, want in zip(array.shape, shape, strict=True)
    )
    if fits and array.dtype == dtype:
        return
    wanted = ", ".join("any" if want is None else str(want) for want in shape)
    got = ", ".join(map(str, array.shape))
    raise DataError(
        f"{name}: {part} is {array.dtype}[{got}], expected {np.dtype(dtype)}[{wanted}]."
    )


def _expect_finite(name: str, x: np.ndarray, part: str = "x") -> None:
    rows = max(1, _BLOCK // max(1, x.shape[1]))
    for start in range(0, x.shape[0], rows):
        wrong = ~np.isfinite(x[start : start + rows])
        if wrong.any():
            v, f = (int(i) for i in np.argwhere(wrong)[0])
            raise DataError(
                f"{name}: {part}[{start + v}, {f}] is {x[start + v, f]}, expected finite numbers "
                "of float32. Replace it, or leave the vertex out."
            )


def _expect_labels(name: str, y: np.ndarray, num_classes: int) -> None:
    y = np.asarray(y)
    bad = (y < 0) | (y >= num_classes)
    if bad.any():
        i = int(np.argmax(bad))
        raise DataError(
            f"{name}: y[{i}] is {y[i]}, expected a class from 0 to {num_classes - 1}. "
            "Renumber the classes or raise num_classes."
        )


def _expect_offsets(name: str, part: str, offsets: np.ndarray, graphs: int, total: int) -> None:
    expect(name, part, offsets, (graphs + 1,), np.int64)
    if offsets[0] != 0 or offsets[-1] != total or (np.diff(offsets) < 0).any():
        raise DataError(
            f"{name}: {part} runs from {offsets[0]} to {offsets[-1]}, expected it to rise from 0 "
            f"to {total} without a step down."
        )
