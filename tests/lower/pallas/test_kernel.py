"""Layers on the GPU kernels give the same values and gradients; without a GPU, interpreted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiler.cases import CASES, GRAPHS, F, features, layer_of
from hypothesis import given, settings
from pallas import numeric, with_tasks
from strategies import edge_lists, expressions

import gnnjit
from gnnjit.frontend.capture import capture
from gnnjit.ir.program import Program, Reduce, Value
from gnnjit.ir.space import Space
from gnnjit.lower import choose, pallas
from lower.requests import request
from lower.test_aggregate import close, value_and_grad

F32 = np.dtype(np.float32)
pytestmark = [numeric, pytest.mark.usefixtures("quick_compilation")]


@contextlib.contextmanager
def on_kernels(monkeypatch: Any) -> Iterator[list[choose.Choice]]:
    """Runs on the GPU kernels; yields what was chosen for each traversal."""
    chosen: list[choose.Choice] = []

    def spy(*args: Any, choose: Callable[..., choose.Choice] = choose.choose) -> choose.Choice:
        chosen.append(choose(*args))
        return chosen[-1]

    monkeypatch.setattr(choose, "choose", spy)
    with choose.prefer("pallas"):
        yield chosen


NAMES = [n for n in CASES if n not in ("loop", "trees", "initials", "degrees", "gat", "moments")]


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_layers_with_hubs_and_short_rows(name, monkeypatch):
    e = GRAPHS["hub"]
    want = value_and_grad(name, e, e.graph())
    with on_kernels(monkeypatch) as chosen:
        have = value_and_grad(name, e, with_tasks(e.graph(), 2, 4))
    assert {c.kernel for c in chosen} == {"pallas"}
    close(have, want)


@pytest.mark.long
@pytest.mark.parametrize("name", ["gat", "graph_net", "trees", "initials", "degrees"])
@pytest.mark.parametrize("graph", ["isolated", "bipartite", "padding"])
def test_graphs_without_tasks(name, graph, monkeypatch):
    e = GRAPHS[graph]
    want = value_and_grad(name, e, e.graph())
    with on_kernels(monkeypatch) as chosen:
        have = value_and_grad(name, e, e.graph())
    assert {c.kernel for c in chosen} == {"pallas"}
    close(have, want)


def test_what_has_no_kernel_falls_back_with_a_reason(monkeypatch):
    e = GRAPHS["hub"]
    want = value_and_grad("loop", e, e.graph())
    with on_kernels(monkeypatch) as chosen:
        have = value_and_grad("loop", e, e.graph())
    reasons = {r for c in chosen for kernel, some in c.refused if kernel == "pallas" for r in some}
    assert reasons == {"no GPU kernel code for the primitive scan"}
    close(have, want)


N, E = 5, 8
RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(N, F)), jnp.float32)
P = {"a": jnp.ones(F), "w": jnp.asarray(RNG.normal(size=(F, F)), jnp.float32)}


@given(expressions(), edge_lists(N, E))
@settings(max_examples=3)
def test_generated_functions(expression, edges):
    """Whatever layer, on the kernels or, where one refuses a traversal, beside them."""
    src, dst = edges
    data = jnp.asarray(RNG.normal(size=(len(src), F)), jnp.float32)
    graph = gnnjit.Graph.from_edges(src, dst, N)

    def run(graph: gnnjit.Graph) -> Any:
        layer = gnnjit.layer(
            lambda v, e, p: gnnjit.sum(expression(gnnjit, v, e, p) + 0 * e.src * e.data)
        )
        return jax.jit(
            jax.value_and_grad(lambda x: jnp.sum(jnp.sin(layer(graph, x, P, edges=data))))
        )(X)

    want = run(graph)
    with choose.prefer("pallas"):
        have = run(with_tasks(graph, 1, 2))
    close(have, want)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision(dtype, monkeypatch):
    """No less exact than the same in float32, rounded at the end."""
    e = GRAPHS["hub"]
    at = features(e)
    layer = layer_of(CASES["gated"].fn)
    cast = jax.tree.map(lambda a: a.astype(dtype), at)
    want = layer(e.graph(), at["dst"], at["p"], edges=at["data"])
    with on_kernels(monkeypatch) as chosen:
        have = layer(with_tasks(e.graph(), 2, 4), cast["dst"], cast["p"], edges=cast["data"])
    assert {c.kernel for c in chosen} == {"pallas"}
    for a, b in zip(jax.tree.leaves(have), jax.tree.leaves(want), strict=True):
        assert a.dtype == dtype
        scale = float(jnp.abs(b).max())
        assert float(jnp.abs(a.astype(jnp.float32) - b).max()) < 8 * scale * jnp.finfo(dtype).eps


@pytest.mark.long
def test_second_order(monkeypatch):
    e = GRAPHS["hub"]
    at = features(e)

    def second(graph: gnnjit.Graph) -> Any:
        layer = gnnjit.layer(lambda v, e: gnnjit.sum(gnnjit.softmax(jnp.sin(e.src * v)) * e.src))
        slope = jax.grad(lambda x: jnp.sum(jnp.tanh(layer(graph, x))))
        return jax.jit(jax.grad(lambda x: jnp.sum(jnp.sin(slope(x)))))(at["dst"])

    want = second(e.graph())
    with on_kernels(monkeypatch) as chosen:
        have = second(with_tasks(e.graph(), 2, 4))
    assert {c.kernel for c in chosen} == {"pallas"}
    close(have, want)


def test_two_runs_give_the_same_bits(monkeypatch):
    e = GRAPHS["hub"]
    with on_kernels(monkeypatch):
        one, two = (value_and_grad("graph_net", e, with_tasks(e.graph(), 2, 4)) for _ in range(2))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", ["gat", "heads", "soft"])
def test_a_softmax_is_one_traversal(name, monkeypatch):
    e = GRAPHS["hub"]
    at = features(e)
    layer = layer_of(CASES[name].fn)
    with on_kernels(monkeypatch) as chosen:
        jax.jit(lambda x: layer(e.graph(), x, at["p"], edges=at["data"]))(at["dst"])
    assert len(chosen) == 1


# ------------------------------------------------------------------------------- why not


def body(fn: Callable[..., Any], *inputs: tuple[Space, tuple[int, ...], Any]) -> Program:
    values = [Value(shape, np.dtype(dtype), space) for space, shape, dtype in inputs]
    return capture(lambda *xs: [fn(*xs)], values).program


SRC, DST, EDGE, SHARED = Space.SRC, Space.DST, Space.EDGE, Space.SHARED
SUM = Reduce("sum", DST)
WIDE = (SRC, (4096,), F32)

REFUSALS = {
    "a primitive": (
        body(lambda x: jnp.sort(x), (SRC, (4,), F32)),
        SUM,
        "no GPU kernel code for the primitive sort",
    ),
    "a dtype": (
        body(lambda x: x * x, (SRC, (), np.complex64)),
        SUM,
        "no GPU kernel code for values of type complex64",
    ),
    "too wide": (
        body(lambda x: x[:, None] * x[None], (SRC, (128,), F32)),
        SUM,
        "a value of 16384 scalars an edge fits no tile",
    ),
    "nothing": (body(lambda x: x * 2, (SRC, (0,), F32)), SUM, "a value without scalars"),
    "other rows": (
        body(lambda x: x * 2, (SRC, (), F32)),
        Reduce("sum", SRC),
        "a reduction into src in a traversal by dst",
    ),
    "a sum of booleans": (
        body(lambda x: x > 0, (SRC, (), F32)),
        Reduce("max", DST),
        "no GPU kernel code for max of bool",
    ),
    "a large matrix": (
        body(lambda x, w: x @ w, (EDGE, (256,), F32), (SHARED, (256, 256), F32)),
        SUM,
        "a matrix of 256 x 256 on the edges is larger than a program holds",
    ),
    "strides": (
        body(lambda x: x[::2], (EDGE, (8,), F32)),
        SUM,
        "a slice with strides has no GPU kernel code",
    ),
    "uneven pieces": (
        body(lambda x, y: jnp.concatenate([x, y]), (EDGE, (3,), F32), (SRC, (2,), F32)),
        SUM,
        "concatenating sizes [3, 2] on the edges",
    ),
    "reversed cumsum": (
        body(lambda x: jax.lax.cumsum(x, reverse=True), (EDGE, (4,), F32)),
        SUM,
        "a reversed cumsum has no GPU kernel code",
    ),
    "padding in a reshape": (
        body(lambda x: x.reshape(6), (EDGE, (2, 3), F32)),
        SUM,
        "reshaping [2, 3] to [6] moves padded entries",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_why_not(name):
    program, reduction, reason = REFUSALS[name]
    assert reason in pallas.why_not(request(program, (reduction,)))


def test_erf_in_double_precision():
    with jax.enable_x64(True):
        program = body(lambda x: jax.lax.erf(x), (EDGE, (), np.float64))
    assert pallas.why_not(request(program, (SUM,))) == ["erf of float64 has no GPU kernel code"]


def test_no_reason_against_a_plain_sum():
    assert pallas.why_not(request(body(lambda x: x * 2, (SRC, (64,), F32)), (SUM,))) == []
