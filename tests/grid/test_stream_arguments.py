"""What `gnnjit.stream` is told, and what it may give back."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gnnjit
from gnnjit.errors import StoreError, StreamError
from gnnjit.grid import HostStore, StreamedGraph


@pytest.fixture(scope="module")
def graph() -> StreamedGraph:
    return StreamedGraph.from_edges(np.array([0, 1, 2, 2]), np.array([1, 2, 0, 3]), 4)


@gnnjit.layer
def total(v: Any, e: Any) -> Any:
    return gnnjit.sum(e.src)


@pytest.mark.parametrize("value", [0, -1, 1.5, "a", True, 10**9])
@pytest.mark.parametrize(
    ("name", "most", "free"),
    [("parts", 447, "the smallest that fits"), ("slices", 64, "the fewest")],
)
def test_sizes_of_the_layout(name: str, most: int, free: str, value: Any) -> None:
    message = f"{name} is {value!r}, expected a whole number from 1 to {most}, or None for {free}"
    with pytest.raises(StreamError, match=f"^{re.escape(message)}$"):
        gnnjit.stream(total, memory_budget="1GiB", **{name: value})


@pytest.mark.parametrize("store", [3, "folder", HostStore])
def test_a_store_that_is_none(store: Any) -> None:
    message = (
        f"store is a {type(store).__name__}, expected a HostStore, a DiskStore, or None for the "
        "memory of this process"
    )
    with pytest.raises(StoreError, match=f"^{re.escape(message)}$"):
        StreamedGraph.from_edges([0], [1], 2, store=store)


def test_sizes_of_numpy(graph: StreamedGraph) -> None:
    x = graph.put("x", np.arange(8, dtype=np.float32).reshape(4, 2))
    function = gnnjit.stream(total, memory_budget="1GiB", parts=np.int64(2), slices=np.int32(1))
    np.testing.assert_array_equal(function(graph, x), [[4, 5], [0, 1], [2, 3], [4, 5]])


@pytest.mark.parametrize(
    ("returned", "what"),
    [
        (lambda g, x: g, "the graph"),
        (lambda g, x: g.src, "edges of the graph"),
        (lambda g, x: g.out_structure, "edges of the graph"),
        (lambda g, x: {"h": total(g, x), "d": g.dst}, "edges of the graph at ['d']"),
        (lambda g, x: (x, [g]), "the graph at [1][0]"),
    ],
)
def test_what_is_not_there_is_not_returned(
    graph: StreamedGraph, returned: Callable[..., Any], what: str
) -> None:
    x = graph.put("x", np.ones((4, 2), np.float32))
    message = (
        f"a streamed function returned {what}, expected arrays that it has computed: take the "
        "graph, and its edges, where the function is called"
    )
    with pytest.raises(StreamError, match=f"^{re.escape(message)}$"):
        gnnjit.stream(returned, memory_budget="1GiB")(graph, x)
