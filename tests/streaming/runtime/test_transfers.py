"""What is loaded while something else is computed."""

from __future__ import annotations

import concurrent.futures
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit.store import HostStore
from gnnjit.streaming.memory import zero_copy
from gnnjit.streaming.runtime.executor import Executor
from gnnjit.streaming.runtime.transfers import Mover
from gnnjit.streaming.stream import stream
from streaming.functions import PerEdge, PerVertex, assert_same, in_memory, on_graph, random_edges


@gnnjit.layer
def weighed(v: Any, e: Any) -> Any:
    return v + gnnjit.sum(e.data * jnp.tanh(e.src))


@gnnjit.layer
def plain(v: Any, e: Any) -> Any:
    return jnp.sin(v) + gnnjit.mean(jnp.tanh(e.src))


@gnnjit.layer
def centred(v: Any, e: Any) -> Any:
    """A stage of a block stores the mean, which its own edges read next."""
    return v + gnnjit.sum(jnp.tanh(e.src - gnnjit.mean(e.src)))


def two_centred(graph: Any, x: Any) -> Any:
    return jax.grad(lambda x: jnp.sum(centred(graph, centred(graph, x)) ** 2))(x)


def two_layers(graph: Any, x: Any) -> Any:
    return jax.grad(lambda x: jnp.sum(plain(graph, plain(graph, x)) ** 2))(x)


def with_weights(graph: Any, x: Any, w: Any) -> Any:
    return jax.grad(lambda x: jnp.sum(weighed(graph, weighed(graph, x, edges=w), edges=w) ** 2))(x)


@pytest.fixture
def events(monkeypatch) -> list[tuple[str, str]]:
    """("load", chunk) where its load is asked for, ("bring", step) where a step is turned to, and
    ("run", step) where it begins."""
    found: list[tuple[str, str]] = []
    submit, bring, block, chunk = Mover.submit, Executor._bring, Executor._block, Executor._chunk

    def submitted(self: Mover, fn: Any, *args: Any) -> Any:
        if fn.__name__ == "chunk":
            found.append(("load", args[0].name))
        return submit(self, fn, *args)

    def brought(self: Executor, at: int) -> None:
        found.append(("bring", self.layout.steps[at].name))
        bring(self, at)

    def run_block(self: Executor, step: Any, *args: Any) -> Any:
        if not self.executables.blocks[step.sweep][step.stage].idle:
            found.append(("run", step.name))
        return block(self, step, *args)

    def run_chunk(self: Executor, step: Any, *args: Any) -> Any:
        found.append(("run", step.name))
        return chunk(self, step, *args)

    monkeypatch.setattr(Mover, "submit", submitted)
    monkeypatch.setattr(Executor, "_bring", brought)
    monkeypatch.setattr(Executor, "_block", run_block)
    monkeypatch.setattr(Executor, "_chunk", run_chunk)
    return found


def late(events: list[tuple[str, str]]) -> list[str]:
    """Chunks whose load is asked for when something is done after the beginning of the last step
    that has something to do: all others come while that is computed."""
    found, since = [], 0
    for at, (what, name) in enumerate(events):
        if what == "run":
            since = next((k for k in range(at, len(events)) if events[k][0] == "bring"), at)
        elif what == "load" and at > since:
            found.append(name)
    return found


DATA = random_edges(64, 300)


def result(fn: Any, *args: Any, **options: Any) -> Any:
    graph = DATA.streamed()
    function = stream(fn, memory_budget=1 << 30, parts=2, cached=False, selective=False, **options)
    return jax.tree.map(np.asarray, function(graph, *on_graph(graph, args)))


def streamed(fn: Any, *args: Any, **options: Any) -> None:
    assert_same(result(fn, *args, **options), in_memory(fn, DATA, *args))


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


def test_the_moving_thread_does_not_hear_of_edges_that_stay(events):
    """On the device, from call to call."""
    graph = DATA.streamed()
    function = stream(two_layers, memory_budget=1 << 30, parts=2, selective=False)
    args = graph, *on_graph(graph, (X,))
    found = []
    for _ in range(2):
        events.clear()
        got = jax.tree.map(np.asarray, function(*args))
        found.append((got, [name for what, name in events if what == "load"]))
    (loaded, some), (held, none) = found
    assert some
    assert not none
    assert_same(held, loaded, rtol=0, atol=0)


def test_nothing_comes_early_where_nothing_overlaps(events):
    streamed(two_layers, X, slices=1, overlapped=False)
    loads = [name for what, name in events if what == "load"]
    for name in loads:
        assert events[events.index(("load", name)) + 1] == ("run", name)


class Lazy(Mover):
    """Moves nothing until somebody waits for it, or for what was asked for after it."""

    def __init__(self, overlapped: bool) -> None:
        self.asked: list[tuple[Any, Any]] = []

    def submit(self, fn: Any, *args: Any) -> concurrent.futures.Future[Any]:
        mover = self

        class Late(concurrent.futures.Future[Any]):
            def result(self, timeout: float | None = None) -> Any:
                while not self.done():
                    found, work = mover.asked.pop(0)
                    found.set_result(work())
                return super().result(timeout)

        late = Late()
        self.asked.append((late, lambda: fn(*args)))
        return late

    def close(self) -> None:
        for _, work in self.asked:
            work()


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("least", [0, 1 << 60])
def test_rows_are_there_however_slow_the_mover_is(monkeypatch, slices, least):
    """What is used where the store has it, is written by then."""
    wide = PerVertex(np.random.default_rng(2).normal(size=(64, 16)).astype(np.float32))
    monkeypatch.setattr(zero_copy, "ZERO_COPY_BYTES", least)
    at_once = result(two_centred, wide, slices=slices, overlapped=False)
    assert_same(at_once, in_memory(two_centred, DATA, wide), atol=1e-3)
    monkeypatch.setattr("gnnjit.streaming.runtime.executor.Mover", Lazy)
    assert_same(result(two_centred, wide, slices=slices), at_once, rtol=0, atol=0)


@pytest.mark.parametrize("waits", [True, False])
def test_rows_that_are_there_are_not_loaded_ahead(monkeypatch, waits):
    """The mover hears of them where a disk is waited for, and nothing is needed for them before
    their step."""
    asked: dict[int, list[str]] = {}
    peaks = {}
    wide = PerVertex(np.random.default_rng(2).normal(size=(64, 16)).astype(np.float32))
    submit = Mover.submit
    monkeypatch.setattr(HostStore, "_waits", lambda *_: waits)
    for least in (0, 1 << 60):
        names: list[str] = asked.setdefault(least, [])

        def submitted(self: Mover, fn: Any, *args: Any, names: list[str] = names) -> Any:
            names.append(fn.__name__)
            return submit(self, fn, *args)

        monkeypatch.setattr(Mover, "submit", submitted)
        monkeypatch.setattr(zero_copy, "ZERO_COPY_BYTES", least)
        graph = DATA.streamed()
        function = stream(two_layers, memory_budget=1 << 30, parts=4, cached=False)
        args = graph, *on_graph(graph, (wide,))
        peaks[least] = function.prepare(*args).peak_bytes
        function(*args)
    there, copied = asked.values()
    assert there.count("tensor") < copied.count("tensor")
    assert ("expect" in there) == waits
    assert "expect" not in copied
    assert peaks[0] < peaks[1 << 60]
