"""Running a function both ways, in memory and streamed, for tests that compare them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from edge_lists import EdgeList

from gnnjit.store.store import VertexStore
from gnnjit.streaming.grid.streamed_graph import StreamedGraph
from gnnjit.streaming.stream import stream

_names = (f"array{k}" for k in itertools.count())


class Edges(EdgeList):
    """An edge list that can be streamed."""

    def streamed(self, store: VertexStore | None = None, order: Any = "given") -> StreamedGraph:
        return StreamedGraph.from_edges(
            self.src, self.dst, self.num_nodes, store=store, order=order
        )


edges, random_edges = Edges.of, Edges.random


@dataclasses.dataclass(frozen=True)
class PerVertex:
    """An argument with a row for each vertex."""

    rows: Any


@dataclasses.dataclass(frozen=True)
class PerEdge:
    """An argument with a row for each edge."""

    rows: Any


def _has_rows(x: Any) -> bool:
    return isinstance(x, (PerVertex, PerEdge))


def in_memory(fn: Callable[..., Any], data: Edges, *args: Any) -> Any:
    """The result of `fn(graph, *args)`, compiled as one function of all arrays."""
    plain = jax.tree.map(lambda x: x.rows if _has_rows(x) else x, args, is_leaf=_has_rows)
    return jax.tree.map(np.asarray, jax.jit(fn)(data.graph(), *plain))


def on_graph(graph: StreamedGraph, args: Any) -> Any:
    """The arguments with arrays of vertices and edges put into the graph's store."""

    def put(x: Any) -> Any:
        if not _has_rows(x):
            return x
        return (graph.put if isinstance(x, PerVertex) else graph.put_edges)(next(_names), x.rows)

    return jax.tree.map(put, args, is_leaf=_has_rows)


def in_parts(
    fn: Callable[..., Any],
    data: Edges | StreamedGraph,
    *args: Any,
    parts: int,
    **options: Any,
) -> Any:
    """The result of `fn(graph, *args)`, streamed."""
    graph = data.streamed() if isinstance(data, Edges) else data
    function = stream(fn, memory_budget="1GiB", parts=parts, **options)
    return jax.tree.map(np.asarray, function(graph, *on_graph(graph, args)))


def assert_same(got: Any, want: Any, rtol: float = 1e-5, atol: float = 1e-5) -> None:
    """Equal trees of equal dtypes; numbers up to rounding."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        exact = not jax.numpy.issubdtype(a.dtype, jax.numpy.inexact)
        wide = [x if exact else x.astype(np.float64) for x in (a, b)]
        np.testing.assert_allclose(*wide, rtol=0 if exact else rtol, atol=0 if exact else atol)
