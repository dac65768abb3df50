"""What the benchmark of the edge grid runs: graphs, and a step of training on them."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import itertools
import os
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from common import workloads
from flax import nnx

import gnnjit
from gnnjit.data import communities
from gnnjit.nn import recipes
from gnnjit.partition.locality import order_vertices
from gnnjit.store import VertexStore
from gnnjit.streaming import StreamedGraph

MODELS = {
    "gcn": {"hidden": 32, "heads": 1},
    "gat": {"hidden": 8, "heads": 4},
    "ggnn": {"hidden": 256, "heads": 1},
    "edgeconv": {"hidden": 64, "heads": 1},
}
LAYERS, CLASSES = 2, 8
WEB = pathlib.Path("snap-web-NotreDame", "web-NotreDame.txt.gz")

_count = itertools.count()


class SkippedError(Exception):
    """Data are not there; the message says why."""


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """A graph in the order that is cut, with features and classes of its vertices."""

    name: str
    src: np.ndarray
    dst: np.ndarray
    x: np.ndarray
    y: np.ndarray

    @property
    def num_nodes(self) -> int:
        return len(self.y)

    @property
    def num_edges(self) -> int:
        return len(self.src)

    def graph(self) -> gnnjit.Graph:
        return gnnjit.Graph.from_edges(self.src, self.dst, self.num_nodes)

    def streamed(self, store: VertexStore | None = None) -> tuple[StreamedGraph, Any, Any]:
        """The graph in a store, with its rows."""
        graph = StreamedGraph.from_edges(
            self.src, self.dst, self.num_nodes, store=store, order="given"
        )
        return graph, graph.put("x", self.x), graph.put("y", self.y)

    def ordered(self, vertex: np.ndarray) -> Task:
        """The same with vertex `vertex[k]` as number k."""
        rank = np.empty(self.num_nodes, np.int32)
        rank[vertex] = np.arange(self.num_nodes, dtype=np.int32)
        return Task(self.name, rank[self.src], rank[self.dst], self.x[vertex], self.y[vertex])

    def by_locality(self) -> Task:
        """In reverse Cuthill-McKee order."""
        return self.ordered(order_vertices(self.src, self.dst, self.num_nodes, method="rcm").vertex)


def community_task(num_nodes: int, degree: float, features: int, homophily: float = 0.6) -> Task:
    """`gnnjit.data.communities`, whose vertices are numbered at random."""
    data = communities(num_nodes, CLASSES, features, degree, homophily=homophily)
    graph = data.graph
    ends = (np.asarray(graph.src), np.asarray(graph.dst))
    return Task("communities", *ends, np.asarray(data.x), np.asarray(data.y, np.int32))


def by_class(task: Task) -> Task:
    """Each class with numbers of its own."""
    found = task.ordered(np.argsort(task.y, kind="stable"))
    return dataclasses.replace(found, name="by class")


def power_law_task(num_nodes: int, num_edges: int, features: int) -> Task:
    """Hubs at random places: no order is better than another."""
    rng = np.random.default_rng(0)
    src, dst = workloads.power_law_edges(num_nodes, num_edges, rng)
    return Task("power law", src, dst, *_rows(rng, num_nodes, features))


def web_task(features: int) -> Task:
    """web-NotreDame of SNAP in reverse Cuthill-McKee order, with random features.

    Raises SkippedError where GNNJIT_DATA_DIR has no such file.
    """
    folder = os.environ.get("GNNJIT_DATA_DIR")
    path = None if folder is None else pathlib.Path(folder) / WEB
    if path is None or not path.exists():
        raise SkippedError(f"web-NotreDame: GNNJIT_DATA_DIR has no {WEB}")
    with gzip.open(path, "rt") as lines:
        src, dst = np.loadtxt(lines, np.int32, comments="#", unpack=True)
    num_nodes = int(max(src.max(), dst.max())) + 1
    rows = _rows(np.random.default_rng(0), num_nodes, features)
    return Task("web-NotreDame", src, dst, *rows).by_locality()


def _rows(rng: np.random.Generator, num_nodes: int, features: int) -> tuple[np.ndarray, np.ndarray]:
    x = rng.standard_normal((num_nodes, features), np.float32)
    return x, rng.integers(0, CLASSES, num_nodes, np.int32)


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """A model as functions of a graph.

    Attributes:
        predict: (graph, params, x) -> the scores of the classes.
        step: (graph, state, x, y) -> the state after one step of Adam, and the loss before it.
        state: to begin with: parameters, and what Adam keeps.
    """

    predict: Callable[..., Any]
    step: Callable[..., Any]
    state: Any


@functools.cache
def model(name: str, features: int) -> Model:
    built = recipes.build(
        name, in_features=features, num_classes=CLASSES, layers=LAYERS, dropout=0.0,
        rngs=nnx.Rngs(0), **MODELS[name],
    )  # fmt: skip
    definition, params, rest = nnx.split(built, nnx.Param, ...)
    optimizer = optax.adam(1e-2)

    def predict(graph: Any, params: Any, x: Any) -> Any:
        return nnx.merge(definition, params, jax.tree.map(lambda leaf: leaf, rest))(graph, x)

    def loss(params: Any, graph: Any, x: Any, y: Any) -> Any:
        scores = predict(graph, params, x)
        return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()

    def step(graph: Any, state: Any, x: Any, y: Any) -> Any:
        params, moments = state
        value, grads = jax.value_and_grad(loss)(params, graph, x, y)
        updates, moments = optimizer.update(grads, moments, params)
        return (optax.apply_updates(params, updates), moments), value

    return Model(predict, step, (params, optimizer.init(params)))


@dataclasses.dataclass(frozen=True)
class InMemory:
    """The step compiled for arrays on the device. need: bytes of arguments, results and
    temporaries, as XLA plans them."""

    run: Callable[[], Any]
    need: int

    @classmethod
    def of(cls, task: Task, model: Model) -> InMemory:
        args = (task.graph(), model.state, jax.numpy.asarray(task.x), jax.numpy.asarray(task.y))
        compiled = jax.jit(model.step).lower(*args).compile()
        found = compiled.memory_analysis()
        assert found is not None
        need = sum(
            getattr(found, f"{what}_size_in_bytes") for what in ("argument", "output", "temp")
        )
        return cls(lambda: compiled(*args), need)
