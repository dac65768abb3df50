"""`gnnjit.fold` against loops of plain JAX, in value and gradient."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit.errors import GnnjitWarning, LayerError
from gnnjit.graph import batch
from gnnjit.lower import fold_steps as lowering

from .drawn import GRAPHS, F, assert_same, drawn, features, of, real


def in_turn(step: Any, init: Any, values: Any, rows: np.ndarray, order: np.ndarray | None) -> Any:
    """The states of all rows; `init` is a list of them. `values`: of edges, by their place."""
    found = []
    for row, state in enumerate(init):
        some = np.flatnonzero(rows == row)
        if order is not None:
            some = some[np.argsort(order[some], kind="stable")]
        for edge in some:
            state = step(state, values[edge])
        found.append(state)
    return jnp.stack(found)


def step(state: Any, value: Any, w: Any) -> Any:
    return 0.5 * jnp.tanh(state @ w) + value


@gnnjit.layer
def layer(v: Any, e: Any, w: Any) -> Any:
    value, turn = e.src * jnp.cos(e.data) + 0.1 * v, functools.partial(step, w=w)
    given = gnnjit.fold(turn, v, value)
    by_data = gnnjit.fold(turn, jnp.ones(F), value, order=e.data[0])
    sent = gnnjit.fold(turn, jnp.zeros(F), value, order=e.src[0] + e.data[1], over="out")
    return given, by_data, sent


def plain(graph: gnnjit.Graph, x: Any, d: Any, w: Any) -> Any:
    kept, src, dst = real(graph)
    n, turn = graph.num_nodes, functools.partial(step, w=w)
    values = x[src] * jnp.cos(d[kept]) + 0.1 * x[dst]
    fixed_x, fixed_d = (np.asarray(jax.lax.stop_gradient(a)) for a in ORDERS[graph.num_edges])
    by_data, by_both = fixed_d[kept, 0], fixed_x[src, 0] + fixed_d[kept, 1]
    return (
        in_turn(turn, list(x), values, dst, None),
        in_turn(turn, [jnp.ones(F, x.dtype)] * n, values, dst, by_data),
        in_turn(turn, [jnp.zeros(F, x.dtype)] * n, values, src, by_both),
    )


ORDERS: dict[int, Any] = {}
"""The features that edges are ordered by, which no gradient reaches."""


def compare(graph: gnnjit.Graph, dtype: Any, rtol: float) -> None:
    x, d, w = features(graph, dtype)
    d[:, 0] = np.round(d[:, 0])  # ties
    ORDERS[graph.num_edges] = x, d
    fast = lambda x, d, w: layer(graph, x, w, edges=d)  # noqa: E731
    assert_same(fast, functools.partial(plain, graph), (x, d, w), rtol, compiled=False)


@pytest.mark.parametrize("name", GRAPHS)
def test_edges_in_the_order_given_and_by_a_number(name: str) -> None:
    compare(of(name), np.float32, 5e-5)


def test_double_precision() -> None:
    with jax.enable_x64(True):
        compare(drawn(6, 15), np.float64, 1e-10)


def test_a_row_longer_than_what_is_kept_and_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("KEPT", 4), ("BLOCK", 3), ("SMALL", 2), ("FIRST", 4)):
        monkeypatch.setattr(lowering, name, size)
    compare(drawn(12, 41), np.float32, 1e-4)


@pytest.mark.parametrize("kept", [3, 64])
def test_a_hub(monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    monkeypatch.setattr(lowering, "KEPT", kept)
    edges, rng = 70, np.random.default_rng(0)
    graph = gnnjit.Graph.from_edges(rng.integers(0, 5, edges), [1] * 50 + [2] * 20, 5)
    x = rng.normal(size=5)

    def value(x: Any) -> Any:
        turn = lambda s, z: jnp.sin(s) + z  # noqa: E731
        return gnnjit.layer(lambda v, e: gnnjit.fold(turn, jnp.zeros(()), e.src))(graph, x)

    def slow(x: Any) -> Any:
        turn = lambda s, z: jnp.sin(s) + z  # noqa: E731
        values = x[np.asarray(graph.src)]
        return in_turn(turn, [jnp.zeros(())] * 5, values, np.asarray(graph.dst), None)

    assert_same(value, slow, (np.float32(x),), rtol=1e-4, compiled=False)


def test_nan_orders_come_last_and_ties_by_position() -> None:
    graph = gnnjit.Graph.from_edges([0] * 6, [1] * 6, 2)
    order = np.array([np.nan, 1, -np.inf, 1, np.nan, np.inf], np.float32)
    digits = jnp.arange(6)

    layer = gnnjit.layer(
        lambda v, e: gnnjit.fold(lambda s, z: 10 * s + z, jnp.int32(0), e.data["digit"],
                                 order=e.data["order"])
    )  # fmt: skip
    got = layer(graph, np.zeros(2), edges={"digit": digits, "order": order})
    assert got.tolist() == [0, 213504]
    nothing = layer(graph, np.zeros(2), edges={"digit": digits, "order": np.full(6, np.nan)})
    assert nothing.tolist() == [0, 12345]


def test_a_state_of_several_arrays_and_types() -> None:
    graph = of("some")
    x, d, _ = features(graph)

    @gnnjit.layer
    def layer(v: Any, e: Any) -> Any:
        def turn(state: Any, value: Any) -> Any:
            return {"sum": state["sum"] + value, "count": state["count"] + 1,
                    "half": state["half"] + value.astype(jnp.bfloat16)}  # fmt: skip

        start = {"sum": v * 0, "count": jnp.int32(0), "half": jnp.zeros(F, jnp.bfloat16)}
        return gnnjit.fold(turn, start, e.data), gnnjit.sum(e.data)

    got, want = layer(graph, x, edges=d)
    np.testing.assert_allclose(got["sum"], want, rtol=1e-5, atol=1e-6)
    assert got["count"].tolist() == np.bincount(np.asarray(graph.dst), minlength=7).tolist()
    assert got["half"].dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float32(got["half"]), want, rtol=0.1, atol=0.1)

    def loss(x: Any, d: Any, own: bool) -> Any:
        found, total = layer(graph, x, edges=d)
        return jnp.sum(jnp.sin(found["sum"] if own else total))

    got, want = (jax.grad(loss, (0, 1))(x, d, own) for own in (True, False))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), got, want)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_padding_may_hold_anything(bad: float) -> None:
    graph = of("padded")
    x, d, w = features(graph)
    x[6:], d[12:] = bad, bad

    def loss(x: Any, d: Any, w: Any) -> Any:
        _, by_data, sent = layer(graph, x, w, edges=d)
        return jnp.sum(jnp.sin(by_data) + sent)

    got = jax.value_and_grad(loss, (0, 1, 2))(x, d, w)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(got))


def test_nan_reaches_its_own_vertex_alone() -> None:
    graph = gnnjit.Graph.from_edges([0, 0, 1], [1, 2, 2], 3)
    d = np.array([np.nan, 1, 2], np.float32)
    own = gnnjit.layer(lambda v, e: gnnjit.fold(lambda s, z: s + z, jnp.zeros(()), e.data * v))
    x = np.ones(3, np.float32)
    assert np.isnan(own(graph, x, edges=d)).tolist() == [False, True, False]
    grad = jax.grad(lambda x: jnp.sum(own(graph, x, edges=d)[2]))(x)
    assert np.isfinite(grad[2])


def test_transformations_check_and_explain() -> None:
    graph = drawn(7, 20)
    x, d, w = features(graph)
    assert layer.check(graph, x, w, edges=d).ok
    one = functools.partial(lambda x, d: layer(graph, x, w, edges=d), d=d)
    got = jax.jit(jax.vmap(one))(np.stack([x, 2 * x]))
    for y, z in zip(got, one(2 * x), strict=True):
        np.testing.assert_allclose(y[1], z, rtol=1e-5, atol=1e-6)
    loss = lambda x: jnp.sum(jnp.sin(one(x)[1]))  # noqa: E731
    grads = jax.jit(jax.vmap(jax.grad(loss)))(np.stack([x, 2 * x]))
    np.testing.assert_allclose(grads[1], jax.jit(jax.grad(loss))(2 * x), rtol=1e-4, atol=1e-5)
    text = str(layer.explain(graph, x, w, edges=d))
    assert "  fold over (v <- u) in order of " in text


def test_no_buffer_of_edges_or_of_rows_times_the_largest_degree() -> None:
    rng = np.random.default_rng(0)
    n, m, width = 2000, 40_000, 32
    dst = rng.integers(0, n, m)
    dst[:10_000] = 3
    graph = gnnjit.Graph.from_edges(rng.integers(0, n, m), dst, n)
    x = np.zeros((n, width), np.float32)
    w = np.eye(width, dtype=np.float32)

    @gnnjit.layer
    def layer(v: Any, e: Any, w: Any) -> Any:
        return gnnjit.fold(lambda s, z: jnp.tanh(s @ w) + z, v, jnp.tanh(e.src * v))

    run = jax.jit(jax.grad(lambda x, w: jnp.sum(layer(graph, x, w)), (0, 1)))
    needed = run.lower(x, w).compile().memory_analysis().temp_size_in_bytes
    assert needed < 4 * m * width / 2  # half of an array of edges


def test_edges_made_inside_a_compiled_function() -> None:
    graph = of("some")
    x, d, w = features(graph)

    @jax.jit
    def run(src: Any, dst: Any) -> Any:
        return layer(gnnjit.Graph.from_edges(src, dst, 7), x, w, edges=d)

    for got, want in zip(run(graph.src, graph.dst), layer(graph, x, w, edges=d), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_globals_and_a_loop_inside_a_step() -> None:
    one = gnnjit.Graph.from_edges([0, 1], [1, 0], 2)
    graph, _ = batch([one, one])

    @gnnjit.layer
    def layer(v: Any, e: Any) -> Any:
        def turn(state: Any, value: Any) -> Any:
            twice, _ = jax.lax.scan(lambda c, _: (c + value, None), 0 * value, None, length=2)
            return jax.nn.relu(state) + twice

        return gnnjit.fold(turn, e.globals, e.src), gnnjit.median(e.src * e.globals)

    x, u = np.ones((4, 1), np.float32), np.array([[-1.0], [2.0]], np.float32)
    state, median = layer(graph, x, globals=u)
    assert state[:, 0].tolist() == [2, 2, 4, 4]
    assert median[:, 0].tolist() == [-1, -1, 2, 2]
    grad = jax.grad(lambda u: jnp.sum(layer(graph, x, globals=u)[0]))(u)
    assert grad[:, 0].tolist() == [0, 2]


def test_two_vertex_sets_and_no_vertices() -> None:
    graph = gnnjit.Graph.from_edges([0, 1, 1], [0, 0, 2], num_src=2, num_dst=3)
    x = gnnjit.Bipartite(jnp.array([2.0, 3.0]), jnp.zeros(3))
    layer = gnnjit.layer(lambda v, e: gnnjit.fold(lambda s, z: 10 * s + z, v, e.src))
    assert layer(graph, x).tolist() == [23, 0, 3]
    assert layer(gnnjit.Graph.from_edges([], [], 0), jnp.zeros(0)).shape == (0,)


@pytest.mark.parametrize("sorted_by", ["src", "dst"])
def test_edges_that_are_said_to_be_symmetric_come_as_given(sorted_by: str) -> None:
    src, dst = np.array([0, 0, 0, 1, 2, 2]), np.array([2, 1, 2, 0, 0, 0])
    if sorted_by == "dst":
        src, dst = dst, src
    digits = jnp.arange(1, 7)

    @gnnjit.layer
    def read(v: Any, e: Any) -> Any:
        turn = lambda s, z: 10 * s + z  # noqa: E731
        ends = [gnnjit.fold(turn, jnp.int32(0), e.data, over=over) for over in ("in", "out")]
        return ends if sorted_by == "src" else ends[::-1]

    @jax.jit
    def run(src: Any, dst: Any) -> Any:
        graph = gnnjit.Graph.from_edges(src, dst, 3, sorted_by=sorted_by, symmetric=True)
        return read(graph, jnp.zeros(3), edges=digits)

    into, out = run(src, dst)
    assert into.tolist() == [456, 2, 13]
    assert out.tolist() == [123, 4, 56]


MISTAKES = {
    "another shape": (lambda v, e: gnnjit.fold(lambda s, z: s[:2], v, e.src),
                      r"step gives the state float32\[2\], expected that of init, float32\[3\]"),
    "another tree": (lambda v, e: gnnjit.fold(lambda s, z: (s, s), v, e.src),
                     r"step gives the state \(float32\[3\], float32\[3\]\), expected"),
    "no state": (lambda v, e: gnnjit.fold(lambda s, z: s, (), e.src), "init is a state without"),
    "an order of vectors": (lambda v, e: gnnjit.fold(lambda s, z: s, v, e.src, order=e.src),
                            r"order must be one real number per edge, \[\], got float32\[3\]"),
    "an edge's init": (lambda v, e: gnnjit.fold(lambda s, z: s, e.src * v, e.src),
                       "init has a value of edge, expected values of this vertex"),
    "a vertex's init": (lambda v, e: gnnjit.fold(lambda s, z: s, v, e.src, over="out"),
                        "init has a value of dst, expected shared values"),
    "a reduction": (lambda v, e: gnnjit.fold(lambda s, z: s + gnnjit.sum(z), v, e.src),
                    r"its step reduces over edges, or draws random numbers \(sum\)"),
    "inside vmap": (lambda v, e: jax.vmap(lambda x: gnnjit.fold(lambda s, z: s + z, x, x))(
        e.src[:, None]), "jax.vmap inside a layer reached gnnjit.fold"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    fn, message = MISTAKES[name]
    with pytest.raises(LayerError, match=message):
        gnnjit.layer(fn)(of("some"), features(of("some"))[0])


def derivatives(f: Any, x: Any, w: Any, t: Any) -> Any:
    """Second and third derivatives, forward and in reverse."""
    grad = jax.grad(lambda x, w: jnp.sum(jnp.cos(f(x, w))), (0, 1))

    def bent(x: Any, w: Any) -> Any:
        dx, dw = jax.jvp(grad, (x, w), t)[1]
        return jnp.sum(dx**2) + jnp.sum(dw**2)

    return jax.jvp(f, (x, w), t)[1], jax.grad(bent, (0, 1))(x, w)


def test_derivatives_of_every_order_and_both_directions() -> None:
    rng = np.random.default_rng(0)
    src, dst = np.array([1, 0, 2]), np.array([0, 1, 1])
    x, w, of_x, of_w = (rng.normal(size=s) for s in ((3, 2), (2, 2), (3, 2), (2, 2)))
    own = gnnjit.layer(lambda v, e, w: gnnjit.fold(functools.partial(step, w=w), v, e.src * e.src))

    def plain(x: Any, w: Any) -> Any:
        return in_turn(functools.partial(step, w=w), list(x), x[src] ** 2, dst, None)

    with jax.enable_x64(True):
        graph = gnnjit.Graph.from_edges(src, dst, 3)
        run = jax.jit(derivatives, static_argnums=0)
        got = run(lambda x, w: own(graph, x, w), x, w, (of_x, of_w))
        want = run(plain, x, w, (of_x, of_w))
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9), got, want)


@pytest.mark.long
def test_gradients_of_a_batch_of_gradients() -> None:
    graph = of("some")
    x, _, _ = features(graph)
    own = gnnjit.layer(lambda v, e: gnnjit.fold(lambda s, z: jnp.sin(s) + z, v, e.src))
    slope = jax.grad(lambda x: jnp.sum(own(graph, x) ** 2))
    loss = lambda x: jnp.sum(slope(x) ** 2)  # noqa: E731
    batch = np.stack([x, 2 * x])
    got = jax.grad(lambda batch: jnp.sum(jax.vmap(loss)(batch)))(batch)
    np.testing.assert_allclose(got, np.stack(list(map(jax.grad(loss), batch))), 1e-4, 1e-4)


def test_without_jit_it_is_compiled_all_the_same() -> None:
    graph = of("some")
    own = gnnjit.layer(lambda v, e: gnnjit.fold(lambda s, z: s + z, v, e.src))
    x, _, _ = features(graph)
    want = own(graph, x)
    message = "orders the edges of a vertex"
    with jax.disable_jit(), pytest.warns(GnnjitWarning, match=message):
        np.testing.assert_allclose(own(graph, x), want, rtol=1e-5)
