"""What decides a trace is part of the key of every cache: two contexts, two programs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import gnnjit
import gnnjit.nn
from gnnjit.compiler.primitive import planned_as
from gnnjit.cost.current import use
from gnnjit.cost.kinds import NAMES
from gnnjit.cost.model import CostModel
from gnnjit.cost.sketch import GraphSizes
from gnnjit.errors import LayerError, PlanError
from gnnjit.lower import choose, cpu
from gnnjit.passes.pipeline import Choices
from gnnjit.planner import timings
from gnnjit.planner.search import force
from gnnjit.store import HostStore
from gnnjit.streaming import StreamedGraph
from gnnjit.system import contexts

RNG = np.random.default_rng(0)
N, E = 40, 160
GRAPH = gnnjit.Graph.from_edges(RNG.integers(0, N, E), RNG.integers(0, N, E), N)
X, W = (jnp.asarray(RNG.normal(size=s), jnp.float32) for s in ((N, 6), (6, 64)))


def combine(v: Any, e: Any, w: Any) -> Any:
    return gnnjit.sum(e.src @ w) + jnp.sum(v)


def only(kind: str) -> CostModel:
    """Nothing else takes time."""
    return CostModel(np.array([float(name[0] == kind) for name in NAMES]))


CONTEXTS: dict[str, Callable[[], Any]] = {
    "reference": gnnjit.reference,
    "prefer": lambda: choose.prefer("segment"),
    "force": lambda: force(Choices(orders=("combine-first",))),
    "use": lambda: use(only("matmul")),
    "planned_as": lambda: planned_as(GraphSizes(10, 10**6, 10)),
    "left_to_pool": cpu.left_to_pool,
    "portable": gnnjit.portable,
}


def program(f: Any, *args: Any) -> str:
    return f.lower(*args).as_text()


def counted() -> tuple[Any, list[None]]:
    """A function that calls a layer, and how often it was traced."""
    layer, traces = gnnjit.layer(combine), []

    def f(graph: Any, x: Any, w: Any) -> Any:
        traces.append(None)
        return layer(graph, x, w)

    return f, traces


@pytest.mark.parametrize("first", ["outside", "inside"])
@pytest.mark.parametrize("name", CONTEXTS)
def test_two_contexts_two_programs(name, first):
    f, traces = counted()
    f, args = jax.jit(f), (GRAPH, X, W)
    places = {"outside": contextlib.nullcontext, "inside": CONTEXTS[name]}
    order = list(places) if first == "outside" else list(places)[::-1]
    found: dict[str, list[str]] = {"outside": [], "inside": []}
    for place in (*order, *order):
        with places[place]():
            found[place].append(program(f, *args))
    assert found["outside"][0] != found["inside"][0]
    assert all(a == b for a, b in found.values())
    assert len(traces) == 2


@pytest.mark.parametrize("name", CONTEXTS)
def test_calls_find_what_was_compiled(name):
    """JAX's fast path for a second call included."""
    f, traces = counted()
    f, want = jax.jit(f), None
    for _ in range(2):
        for place in (contextlib.nullcontext, CONTEXTS[name]):
            with place():
                for _ in range(3):
                    have = f(GRAPH, X, W)
            want = have if want is None else want
            np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-4)
    assert len(traces) == 2
    assert f._cache_size() == 2


def test_a_budget():
    """Chunks of edges alone keep the values of an edge network small."""
    i0e = jax.scipy.special.i0e  # no kernel has it: kernels need no chunks
    layer = gnnjit.layer(lambda v, e, w: gnnjit.sum(i0e(jax.nn.relu(e.src + v) @ w)))
    graph = gnnjit.Graph.from_edges(*RNG.integers(0, N, (2, 20 * E)), N)
    f, args = jax.jit(lambda *args: layer(*args)), (graph, jnp.ones((N, 128)), jnp.eye(128))
    before = program(f, *args)
    with gnnjit.memory_budget("1KiB"), pytest.raises(PlanError) as raised:
        program(f, *args)
    least = str(raised.value).split("Give memory_budget=")[1].split()[0]
    with gnnjit.memory_budget(least):
        assert program(f, *args) != before
    assert program(f, *args) == before


def test_tuning(monkeypatch):
    """The slower one by the cost model is the faster one by the clock."""
    monkeypatch.setattr(timings, "CLOSE", 1e9)
    monkeypatch.setattr(timings, "measured", lambda every: list(range(len(every), 0, -1)))
    times: dict[str, Any] = {}
    monkeypatch.setattr(timings.Table, "load", lambda _: times)
    monkeypatch.setattr(timings.Table, "store", lambda _, k, entry: times.update({k: entry}))
    f, traces = counted()
    f = jax.jit(f)
    before = program(f, GRAPH, X, W)
    with gnnjit.autotuning():
        assert program(f, GRAPH, X, W) != before
    assert program(f, GRAPH, X, W) == before
    assert len(traces) == 2


def test_a_helper_that_was_traced_in_a_layer_is_an_error_outside():
    @jax.jit
    def neighbours(x: Any) -> Any:
        return gnnjit.sum(jnp.sin(x))

    layer = gnnjit.layer(lambda v, e: neighbours(e.src))
    np.testing.assert_allclose(
        layer(GRAPH, X), jax.ops.segment_sum(jnp.sin(X)[GRAPH.src], GRAPH.dst, N), rtol=1e-4,
        atol=1e-5,
    )  # fmt: skip
    with pytest.raises(LayerError, match=r"gnnjit\.sum\(\) was called outside a layer"):
        neighbours(X[0])


def scanned(f: Any) -> Any:
    def step(x: Any, _: Any) -> Any:
        return f(x), None

    return lambda x: jax.lax.scan(step, x, length=2)[0]


def custom(f: Any) -> Any:
    @jax.custom_vjp
    def g(x: Any) -> Any:
        return f(x)

    def forward(x: Any) -> Any:
        return f(x), x

    g.defvjp(forward, lambda x, ct: (jax.vjp(f, x)[1](ct)[0],))
    return g


def summed(f: Any) -> Any:
    return lambda x: jnp.sum(jnp.sin(f(x)))


def of_nnx(f: Any) -> Any:
    class Model(nnx.Module):
        def __call__(self, x: Any) -> Any:
            return f(x)

    model, call = Model(), nnx.jit(lambda model, x: model(x))
    return lambda x: call(model, x)


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "jit": jax.jit,
    "jit in jit": lambda f: jax.jit(lambda x: jax.jit(f)(x)),
    "grad of jit": lambda f: jax.grad(summed(jax.jit(f))),
    "jit of grad": lambda f: jax.jit(jax.grad(summed(f))),
    "checkpoint": lambda f: jax.grad(summed(jax.checkpoint(jax.jit(f)))),
    "custom_vjp": lambda f: jax.grad(summed(custom(f))),
    "jit of custom_vjp": lambda f: jax.jit(jax.grad(summed(custom(f)))),
    "vmap": lambda f: lambda x: jax.vmap(jax.jit(f))(x[None])[0],
    "scan": scanned,
    "cond": lambda f: lambda x: jax.lax.cond(x[0, 0] > 0, f, jnp.sin, x),
    "linearize": lambda f: lambda x: jax.linearize(jax.jit(f), x)[1](x),
    "nnx.jit": of_nnx,
    "nnx.grad": lambda f: lambda x: nnx.grad(summed(nnx.jit(f)))(x),
}


@pytest.mark.parametrize("name", ["reference", "prefer"])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_under_transformations(transform, name):
    """One context decides while a function is traced, the other one while it is lowered."""
    layer = gnnjit.layer(lambda v, e: gnnjit.sum(jnp.tanh(e.src * v)))
    inner = TRANSFORMS[transform](lambda x: layer(GRAPH, x))

    def now() -> str:  # only what is inside can be cached
        return program(jax.jit(lambda x: inner(x)), X)

    outside = now()
    with CONTEXTS[name]():
        inside = now()
    assert inside != outside
    assert now() == outside
    with CONTEXTS[name]():
        assert now() == inside


@pytest.mark.parametrize("transform", ["grad of jit", "vmap", "checkpoint", "scan", "nnx.jit"])
def test_eagerly(transform):
    seen = []

    def layer_of(x: Any) -> Any:
        seen.append(None)
        return layer(GRAPH, x)

    layer = gnnjit.layer(lambda v, e: gnnjit.sum(jnp.tanh(e.src * v)))
    inner = TRANSFORMS[transform](layer_of)
    outside = inner(X)
    with_outside = len(seen)
    with gnnjit.reference():
        np.testing.assert_allclose(inner(X), outside, rtol=1e-4, atol=1e-5)
    traced = len(seen)
    assert traced > with_outside
    inner(X)
    with gnnjit.reference():
        inner(X)
    if transform != "checkpoint":  # which JAX traces in each call
        assert len(seen) == traced


def test_ahead_of_time():
    f = jax.jit(lambda g, x: gnnjit.nn.SAGE(6, 6, rngs=nnx.Rngs(0))(g, x))
    traced = f.trace(GRAPH, X)
    with gnnjit.reference():
        other = f.trace(GRAPH, X)
        text = other.lower().as_text()
    assert traced.lower().as_text() == program(f, GRAPH, X) != text


def test_a_context_is_that_of_its_thread():
    f, traces = counted()
    f, found = jax.jit(f), []

    def work() -> None:
        found.append(program(f, GRAPH, X, W))

    before = program(f, GRAPH, X, W)
    with gnnjit.reference():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert program(f, GRAPH, X, W) != before
    assert found == [before]
    assert len(traces) == 2


@pytest.mark.parametrize("order", [(None, "highest"), ("highest", None)])
def test_products_of_passes_have_the_precision_that_is_set(order):
    """The scores of GAT become products with matrices, which no user wrote."""
    module = gnnjit.nn.GAT(6, 4, rngs=nnx.Rngs(0))
    f = jax.jit(lambda x: module(GRAPH, x))
    for _ in range(2):
        for precision in order:
            with jax.default_matmul_precision(precision):
                dots = [line for line in program(f, X).splitlines() if "dot_general" in line]
            exact = ["HIGHEST" in line for line in dots]
            assert exact == [precision == "highest"] * len(dots) != []


def test_after_an_error_the_context_is_left():
    with pytest.raises(KeyError), gnnjit.reference(), choose.prefer("segment"):
        raise KeyError
    f, _ = counted()
    assert "segment_sum" not in str(jax.make_jaxpr(f)(GRAPH, X, W))
    assert choose.preferred() is None


def test_a_streamed_function_is_traced_for_its_context():
    layer = gnnjit.layer(lambda v, e: gnnjit.sum(jnp.tanh(e.src * v)))
    calls = []

    def f(graph: Any, x: Any) -> Any:
        calls.append(choose.preferred())
        return layer(graph, x)

    run = gnnjit.stream(f, memory_budget="1MiB")
    with HostStore() as store:
        graph = StreamedGraph.from_edges(GRAPH.src, GRAPH.dst, N, store=store)
        x = graph.put("x", np.asarray(X))
        for place in (contextlib.nullcontext, CONTEXTS["prefer"]) * 2:
            with place():
                np.testing.assert_allclose(
                    np.asarray(run(graph, x)), layer(GRAPH, X), rtol=1e-5, atol=1e-5
                )
    half = len(calls) // 2
    assert calls == [None] * half + ["segment"] * half


# ------------------------------------------------------------------------------------- the helper


def test_a_global_value_is_part_of_the_key():
    context, traces = contexts.Context(0), []

    @jax.jit
    def f(x: Any) -> Any:
        traces.append(context.value)
        return x + context.value

    assert [int(f(1)), int(f(1))] == [1, 1]
    context.set_in_all_threads(2)
    assert [int(f(1)), int(f(1))] == [3, 3]
    with context(5):
        assert int(f(1)) == 6
    assert int(f(1)) == 3
    assert traces == [0, 2, 5]


def test_a_cache_of_ours_is_keyed_and_bounded():
    context, calls = contexts.Context(0), []

    @contexts.cached(maxsize=3)
    def f(x: int) -> int:
        calls.append((x, context.value))
        return x + context.value

    for _ in range(2):
        assert f(1) == 1
        with context(4):
            assert f(1) == 5
    assert calls == [(1, 0), (1, 4)]
    for x in range(9):
        f(x)
    assert f.cache_info().currsize == 3  # type: ignore[attr-defined]


def test_a_value_without_a_hash_is_refused_where_it_is_given():
    context = contexts.Context(None)
    with pytest.raises(TypeError, match="unhashable type: 'list'"):
        context([])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unhashable type: 'list'"):
        context.set_in_all_threads([])  # type: ignore[arg-type]


def test_no_other_module_has_a_context_of_its_own():
    """What is not in `contexts` is not in the keys of our own caches."""
    from pathlib import Path

    own = [p for p in Path(gnnjit.__file__).parent.rglob("*.py") if p.name != "contexts.py"]
    assert not [p.name for p in own if "make_user_context" in p.read_text()]
