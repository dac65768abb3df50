"""What is loaded while something else is computed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit.grid.loading import Mover
from gnnjit.grid.run import Run
from gnnjit.stream import stream

from .streaming import PerEdge, PerVertex, assert_same, in_memory, on_graph, random_edges


@gnnjit.layer
def weighed(v: Any, e: Any) -> Any:
    return v + gnnjit.sum(e.data * jnp.tanh(e.src))


@gnnjit.layer
def plain(v: Any, e: Any) -> Any:
    return jnp.sin(v) + gnnjit.mean(jnp.tanh(e.src))


def two_layers(graph: Any, x: Any) -> Any:
    return jax.grad(lambda x: jnp.sum(plain(graph, plain(graph, x)) ** 2))(x)


def with_weights(graph: Any, x: Any, w: Any) -> Any:
    return jax.grad(lambda x: jnp.sum(weighed(graph, weighed(graph, x, edges=w), edges=w) ** 2))(x)


@pytest.fixture
def events(monkeypatch) -> list[tuple[str, str]]:
    """("load", chunk) where its load is asked for, ("run", step) where a step begins."""
    found: list[tuple[str, str]] = []
    submit, block, chunk = Mover.submit, Run._block, Run._chunk

    def submitted(self: Mover, fn: Any, *args: Any) -> Any:
        if fn.__name__ == "chunk":
            found.append(("load", args[0].name))
        return submit(self, fn, *args)

    def run_block(self: Run, step: Any, *args: Any) -> Any:
        if not self.pieces.blocks[step.sweep][step.stage].idle:
            found.append(("run", step.name))
        return block(self, step, *args)

    def run_chunk(self: Run, step: Any, *args: Any) -> Any:
        found.append(("run", step.name))
        return chunk(self, step, *args)

    monkeypatch.setattr(Mover, "submit", submitted)
    monkeypatch.setattr(Run, "_block", run_block)
    monkeypatch.setattr(Run, "_chunk", run_chunk)
    return found


def late(events: list[tuple[str, str]]) -> list[str]:
    """Chunks whose load is asked for after the step before them has begun."""
    runs = [name for what, name in events if what == "run"]
    found = []
    for name in (name for what, name in events if what == "load"):
        asked = events.index(("load", name))
        at = runs.index(name)
        if at == 0 or asked > events.index(("run", runs[at - 1])):
            found.append(name)
    return found


def streamed(fn: Any, *args: Any, **options: Any) -> None:
    data = random_edges(64, 300)
    graph = data.streamed()
    function = stream(fn, memory_budget=1 << 30, parts=2, cached=False, selective=False, **options)
    got = jax.tree.map(np.asarray, function(graph, *on_graph(graph, args)))
    assert_same(got, in_memory(fn, data, *args))


X = PerVertex(np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32))
W = PerEdge(np.random.default_rng(1).normal(size=(300, 4)).astype(np.float32))


@pytest.mark.parametrize("slices", [1, 2])
def test_edges_come_while_the_step_before_is_computed(events, slices):
    """Across blocks without work, and from one sweep to the next."""
    streamed(two_layers, X, slices=slices)
    first = next(name for what, name in events if what == "load")
    assert late(events) in ([], [first])
    sweeps = {name.split(".")[0] for what, name in events if what == "load"}
    assert len(sweeps) >= 3


def test_rows_of_edges_wait_for_the_sweep_before(events):
    """Which may write such rows."""
    streamed(with_weights, X, W, slices=1)
    first_of_sweep = {}
    for what, name in events:
        if what == "load":
            first_of_sweep.setdefault(name.split(".")[0], name)
    assert set(late(events)) <= set(first_of_sweep.values())
    assert len(late(events)) > 1


def test_nothing_comes_early_where_nothing_overlaps(events):
    streamed(two_layers, X, slices=1, overlapped=False)
    loads = [name for what, name in events if what == "load"]
    for name in loads:
        assert events[events.index(("load", name)) + 1] == ("run", name)
