"""Names of the user's arrays meet neither each other nor those of the store."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit.errors import StoreError
from gnnjit.store import DiskStore, HostStore
from gnnjit.streaming import StreamedGraph

NODES, SRC, DST = 12, np.arange(11), np.arange(1, 12)[::-1].copy()
TAKEN = [
    "vertex", "grid.2.complete", "grid.2.in.number", "grid.3.x", "grid.2.order.user.edge.e",
    "result.0", "temporary.0", "x.by-grid.2", "user.vertex.x", "weights", "edge.src",
]  # fmt: skip
"""Names that a store has, or had, for arrays of its own."""


@pytest.fixture(params=["host", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    with HostStore() if request.param == "host" else DiskStore.create(tmp_path / "store") as made:
        yield made


def rows(number: int, count: int) -> np.ndarray:
    return (number + np.arange(count, dtype=np.int32))[:, None] * np.ones(3, np.int32)


@gnnjit.layer
def weighted(v: Any, e: Any) -> Any:
    return gnnjit.sum(e.src * e.data)


def test_any_name_is_the_users_own(store: Any) -> None:
    graph = StreamedGraph.from_edges(SRC, DST, NODES, store=store, order="rcm")
    names = [*TAKEN, "x" * 160]
    for number, name in enumerate(names):
        graph.put(name, rows(number, NODES))
        graph.put_edges(name, rows(-number, len(SRC)))
    x, e = (
        np.linspace(0, 1, NODES * 2).reshape(-1, 2),
        np.linspace(1, 2, len(SRC) * 2).reshape(-1, 2),
    )
    args = graph.put("x", x.astype(np.float32)), graph.put_edges("e", e.astype(np.float32))
    function = gnnjit.stream(lambda g, x, e: weighted(g, x, edges=e), memory_budget="1GiB", parts=2)
    found = np.asarray(function(graph, *args))
    expected = np.zeros((NODES, 2))
    np.add.at(expected, DST, x[SRC] * e)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    for number, name in enumerate(names):
        np.testing.assert_array_equal(np.asarray(graph.array(name)), rows(number, NODES))
        np.testing.assert_array_equal(np.asarray(graph.edge_array(name)), rows(-number, len(SRC)))


def test_another_graph_drops_edges_and_no_data(store: Any) -> None:
    graph = StreamedGraph.from_edges(SRC, DST, NODES, store=store)
    for name in TAKEN:
        graph.put(name, rows(7, NODES))
    again = StreamedGraph.from_edges(DST, SRC, NODES, store=store)
    for name in TAKEN:
        np.testing.assert_array_equal(np.asarray(again.array(name)), rows(7, NODES))


def test_a_store_that_is_opened_again(tmp_path: Path) -> None:
    with DiskStore.create(tmp_path / "store") as store:
        StreamedGraph.from_edges(SRC, DST, NODES, store=store).put("vertex", rows(5, NODES))
    with DiskStore.open(tmp_path / "store") as store:
        graph = StreamedGraph.from_edges(SRC, DST, NODES, store=store)
        np.testing.assert_array_equal(np.asarray(graph.array("vertex")), rows(5, NODES))


@pytest.mark.parametrize("name", ["", "a b", "x" * 161, "a/b", 3, "é"])
def test_no_name(name: Any) -> None:
    graph = StreamedGraph.from_edges(SRC, DST, NODES)
    shown = repr(name) if len(repr(name)) <= 60 else repr(name)[:57] + "..."
    message = (
        f"{shown} is no name for data of the vertices, expected 1 to 160 of the characters "
        "A-Z a-z 0-9 _ . -"
    )
    for call in (lambda: graph.put(name, rows(0, NODES)), lambda: graph.array(name)):
        with pytest.raises(StoreError, match=f"^{re.escape(message)}$"):
            call()


def test_a_name_that_nobody_wrote() -> None:
    graph = StreamedGraph.from_edges(SRC, DST, NODES)
    for name in "abcdefg":
        graph.put(name, jnp.ones((NODES, 1)))
    message = (
        "StreamedGraph(12 vertices, 11 edges) has no array 'z' of the vertices, put has written "
        "'a', 'b', 'c', 'd', 'e' and 2 more: pass one of these, or write it with put('z', ...)"
    )
    with pytest.raises(StoreError, match=f"^{re.escape(message)}$"):
        graph.array("z")
