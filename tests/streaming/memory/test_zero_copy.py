"""Rows that are used where the store has them give the bits that copied rows give."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit.store import HostStore
from gnnjit.streaming.memory import zero_copy
from gnnjit.streaming.stream import stream
from streaming.functions import PerVertex, assert_same, in_memory, on_graph, random_edges

pytestmark = pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="devices with memory of their own"
)

WIDTH = 16
"""Numbers of a row: 64 bytes, so that every block begins where it can be used."""
W = np.random.default_rng(0).normal(size=(WIDTH, WIDTH)).astype(np.float32) * 0.3


@gnnjit.layer
def gated(v: Any, e: Any, w: Any) -> Any:
    """Its gradients sum over all vertices: of padding, that would show."""
    return jnp.tanh(v @ w) + gnnjit.mean(jax.nn.sigmoid(e.src @ w + e.dst) * e.src) + 1.0


def step(graph: Any, x: Any, w: Any) -> Any:
    def loss(w: Any, x: Any) -> Any:
        out = gated(graph, gated(graph, x, w), w)
        return jnp.sum(jnp.cos(out)) + jnp.sum(1 / (2 + jnp.sin(out))), out

    (value, out), grads = jax.value_and_grad(loss, (0, 1), has_aux=True)(w, x)
    return value, out, grads


@pytest.mark.parametrize(
    ("num_nodes", "options"),
    [(512, {}), (500, {"slices": 2, "selective": False})],  # of 128 rows; of 125 and padding
)
def test_in_place_and_copied(store, monkeypatch, num_nodes, options):
    data = random_edges(num_nodes, 3 * num_nodes)
    rng = np.random.default_rng(1)
    x = PerVertex(rng.normal(size=(num_nodes, WIDTH)).astype(np.float32))
    found = []
    graph = data.streamed(store)
    (rows,) = on_graph(graph, (x,))
    function = stream(step, memory_budget=1 << 30, parts=4, cached=False, **options)
    for least in (0, 1 << 60):
        monkeypatch.setattr(zero_copy, "ZERO_COPY_BYTES", least)
        got = jax.tree.map(np.asarray, function(graph, rows, W))
        traffic = function.traffic
        assert traffic is not None
        moved = traffic.moved["own rows"] + traffic.moved["other rows"]
        found.append((got, moved, traffic.zero_copy))
        graph.held.clear()
    (shown, moved, there), (copied, moved_copied, none) = found
    assert_same(shown, copied, rtol=0, atol=0)
    assert_same(shown, in_memory(step, data, x, W), atol=1e-3)
    assert moved == moved_copied > 0
    assert none == 0
    assert (there > 0) == store.shows_rows == shows_rows(store)


def shows_rows(store: Any) -> bool:
    """Whether this system can show rows of the store."""
    store.add("probe", 16, (), "int32")
    return store.view("probe", 0, 16) is not None


def test_a_store_in_memory_keeps_what_was_made(monkeypatch):
    """Results that are large enough are handed over, whole blocks of them, and copied when read."""
    copied: list[int] = []
    write = HostStore._write
    data = random_edges(4096, 9000)
    graph = data.streamed(HostStore())
    (rows,) = on_graph(graph, (PerVertex(np.ones((4096, WIDTH), np.float32)),))
    function = stream(lambda g, x: gated(g, x, W), memory_budget=1 << 30, parts=2)

    def noted(self: Any, name: str, start: int, rows: np.ndarray) -> None:
        copied.append(len(rows))
        write(self, name, start, rows)

    function.prepare(graph, rows)  # the chunks of edges are written
    monkeypatch.setattr(HostStore, "_write", noted)
    got = function(graph, rows)
    assert function.traffic is not None
    assert function.traffic.moved["stored"] >= 4096 * 4 * WIDTH
    assert copied == []
    assert_same(np.asarray(got), in_memory(gated, data, np.ones((4096, WIDTH), np.float32), W),
                atol=1e-4)  # fmt: skip


def test_what_is_held_is_a_copy(store, monkeypatch):
    """From call to call: the rows of an argument may have been written since then."""
    monkeypatch.setattr(zero_copy, "ZERO_COPY_BYTES", 1 << 60)
    data = random_edges(4096, 9000)
    graph = data.streamed(store)
    (rows,) = on_graph(graph, (PerVertex(np.ones((4096, WIDTH), np.float32)),))
    function = stream(lambda g, x: gated(g, x, W), memory_budget=1 << 30, parts=2)
    function(graph, rows)
    held = [x for x in jax.tree.leaves([*graph.held.values()]) if x.shape[1:] == (WIDTH,)]
    assert held
    store.unseal(rows.name)
    store.write(rows.name, 0, np.zeros((4096, WIDTH), np.float32))
    assert all((np.asarray(x) == 1).all() for x in held)


def test_edges_are_held_before_rows_that_lie_there(store):
    """From call to call, as far as there is room; of rows, no copy is made for that."""
    data = random_edges(4096, 40000)
    graph = data.streamed(store)
    (rows,) = on_graph(graph, (PerVertex(np.ones((4096, WIDTH), np.float32)),))

    def run(budget: int, **options: Any) -> tuple[int, Any]:
        function = stream(step, memory_budget=budget, parts=2, slices=1, selective=False, **options)
        layout = function.prepare(graph, rows, W)
        graph.held.clear()
        function(graph, rows, W)
        function(graph, rows, W)
        assert function.traffic is not None
        assert layout.peak_bytes <= budget
        held = [x.shape for x in jax.tree.leaves([*graph.held.values()])]
        assert not any(shape[1:] == (WIDTH,) for shape in held)
        return layout.peak_bytes, function.traffic.moved

    peak, ample = run(1 << 30)
    _, less = run(peak - (128 << 10))
    _, none = run(1 << 30, cached=False)
    assert ample["edges"] == less["edges"] == 0 < none["edges"]
    assert sum(ample.values()) < sum(less.values())
