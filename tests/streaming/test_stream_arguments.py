"""What `gnnjit.stream` is told, and what it may give back."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import gnnjit
from gnnjit.errors import GnnjitError, GraphError, StoreError, StreamError
from gnnjit.store import HostStore
from gnnjit.streaming import StreamedGraph


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


NO_STORE = (
    "expected a vertex store: pass gnnjit.store.DiskStore.create(folder), or leave it out for "
    "memory of this process"
)
NAME = "1 to 160 of the characters A-Z a-z 0-9 _ . -"
Made = Callable[[StreamedGraph], Any]
ODD: dict[str, tuple[Made, type[GnnjitError], str]] = {
    "a number as a store": (
        lambda g: StreamedGraph.from_edges([0], [0], 1, store=3),  # type: ignore
        StoreError,
        f"store is 3, {NO_STORE}",
    ),
    "a folder as a store": (
        lambda g: StreamedGraph.from_edges([0], [0], 1, store="graphs"),  # type: ignore
        StoreError,
        f"store is 'graphs', {NO_STORE}",
    ),
    "the class of a store": (
        lambda g: StreamedGraph.from_edges([0], [0], 1, store=HostStore),  # type: ignore
        StoreError,
        f"store is <class 'gnnjit.store.memory.HostStore'>, {NO_STORE}",
    ),
    "a ragged order": (
        lambda g: StreamedGraph.from_edges([0], [0], 2, order=[[0], [0, 1]]),
        GraphError,
        "method is a list that NumPy cannot read (setting an array element with a sequence. The "
        "requested array has an inhomoge...), expected an array: pass one in the memory of the "
        "host, without ragged rows",
    ),
    "ragged rows": (
        lambda g: g.put("x", [[1], [2, 3], [4], [5]]),
        GraphError,
        "put('x'): rows is a list that NumPy cannot read (setting an array element with a sequence."
        " The requested array has an inhomoge...), expected an array: pass one in the memory of "
        "the host, without ragged rows",
    ),
    "keys as rows": (
        lambda g: g.put_edges("x", jax.random.split(jax.random.key(0), 4)),
        GraphError,
        "put_edges('x'): rows is of type key<fry>, expected numbers that are known: pass a NumPy "
        "array",
    ),
    "a list as a name": (
        lambda g: g.put(["x"], np.ones(4)),  # type: ignore
        StoreError,
        f"['x'] is no name for data of the vertices, expected {NAME}",
    ),
    "a list as the name of a column": (
        lambda g: g.column(["x"]),  # type: ignore
        StoreError,
        "host store: there is no array ['x'], add it first; the arrays: 'vertex'",
    ),
}


@pytest.mark.parametrize("what", ODD)
def test_odd_stores_names_and_rows(what: str) -> None:
    call, kind, message = ODD[what]
    graph = StreamedGraph.from_edges(np.array([0, 1, 2, 2]), np.array([1, 2, 0, 3]), 4)
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        call(graph)


def test_of_many_arrays_a_message_lists_some() -> None:
    store = HostStore()
    for i in range(200):
        store.add(f"array.{i:03}", 1, (), np.float32)
    with pytest.raises(StoreError, match=r"'array\.007' and 192 more$"):
        store.info("other")
