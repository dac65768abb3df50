"""What JAX code of libraries is made of: functions under `jit` that close over arrays, derivatives
of their own, short loops and conditions. In a layer they mean what they mean under `jax.vmap`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import gnnjit
from gnnjit.compiler.call import recorded_calls
from gnnjit.errors import LayerError

SRC, DST = np.array([0, 1, 2, 0, 3, 4, 2]), np.array([1, 2, 0, 2, 1, 1, 3])
G = gnnjit.Graph.from_edges(SRC, DST, num_nodes=6)
TYPED = gnnjit.TypedGraph.from_edges({("a", "to", "a"): (SRC, DST)}, num_nodes={"a": 6})
X = jnp.asarray(np.random.default_rng(3).normal(size=(6, 3)), jnp.float32)
ROW = np.array([1.5, -2.0, 0.5], np.float32)
MATRIX = np.array([[0.5, 1.0, -1.0], [0.25, 2.0, 0.0], [1.0, -0.5, 0.75]], np.float32)
ON_DEVICE = jnp.asarray(ROW)


@jax.jit
def scaled(x: Any) -> Any:
    return x * ROW


@jax.jit
def twice_nested(x: Any) -> Any:
    return scaled(jnp.sin(x)) + ON_DEVICE * scaled(x)


@jax.custom_jvp
def own_slope(x: Any) -> Any:
    return scaled(x) * x


own_slope.defjvp(lambda p, t: (own_slope(*p), scaled(t[0]) * 3 * p[0]))


@jax.custom_vjp
def own_transpose(x: Any) -> Any:
    return jnp.sin(scaled(x) * ROW)


own_transpose.defvjp(
    lambda x: (own_transpose(x), x), lambda x, ct: (scaled(ct) * ROW * jnp.cos(x * ROW * ROW),)
)

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "jit": scaled,
    "jit of a matrix": jax.jit(lambda x: MATRIX @ x),
    "jit within jit": twice_nested,
    "a multiple of the identity": jax.jit(lambda x: jnp.einsum("ij,j->i", 2.5 * np.eye(3), x)),
    "the identity": jax.jit(lambda x: jnp.einsum("ij,jk->ki", np.eye(3), jnp.outer(x, x))[0]),
    "an array of one number": jax.jit(lambda x: jnp.einsum("ab,j->j", np.full((1, 1), 3.0), x)),
    "the order of features": jax.jit(lambda x: x[np.array([2, 0, 1])]),
    "vmap of jit": lambda x: jax.vmap(scaled)(jnp.stack([x, jnp.cos(x)])).sum(0),
    "checkpoint": jax.checkpoint(lambda x: jnp.sin(scaled(x) * ROW)),
    "custom_jvp": own_slope,
    "custom_jvp within jit": jax.jit(lambda x: own_slope(x) + ROW),
    "custom_vjp": own_transpose,
    "custom_vjp within jit": jax.jit(lambda x: own_transpose(x) + ROW),
    "a loop within jit": jax.jit(lambda x: lax.fori_loop(0, 2, lambda i, c: c * ROW + i, x)),
    "jit within a loop": lambda x: lax.fori_loop(0, 2, lambda i, c: scaled(c) + i, x),
    "polyval": lambda x: jnp.polyval(jnp.asarray([0.5, -1.0, 0.0, 2.0]), x),
    "steps backwards": lambda x: lax.scan(
        lambda c, w: (jnp.tanh(c) * w[0], c + w), x, jnp.asarray(MATRIX), reverse=True
    )[1][0],
    "all steps": lambda x: lax.scan(lambda c, i: (c * i, c + i), x, jnp.arange(3.0))[1].prod(0),
    "cond": lambda x: lax.cond(x[0] > 0, lambda y: jnp.sin(y) * ROW, jnp.cos, x),
    "switch": lambda x: lax.switch(jnp.int32(x[0] + 1), [jnp.sin, jnp.cos, lambda y: y * ROW], x),
    "cond within a loop": lambda x: lax.fori_loop(
        0, 2, lambda _, c: lax.cond(c[0] > 0.1, jnp.sin, lambda y: y * y, c), x
    ),
    "a condition that all share": lambda x: (
        x * lax.cond(ON_DEVICE[0] > 0, lambda: 2.0, lambda: 1.0)
    ),
    "a long loop": lambda x: lax.fori_loop(0, 300, lambda _, c: jnp.tanh(c) * ROW, x),
    "an empty loop": lambda x: lax.scan(lambda c, _: (c * 2, None), x, None, length=0)[0],
}


def plain(f: Callable[[Any], Any], x: Any) -> Any:
    messages = jax.vmap(f)(x[SRC] * x[DST])
    return jax.ops.segment_sum(messages, DST, 6)


def of_layer(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    layer = gnnjit.layer(lambda v, e: gnnjit.sum(f(e.src * v)))
    return lambda x: layer(G, x)


def of_typed_layer(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    layer = gnnjit.layer(lambda v, e: gnnjit.sum(e.map(lambda r: f(r.src * v))))
    return lambda x: layer(TYPED, {"a": x})["a"]


def of_fold(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def function(v: Any, e: Any) -> Any:
        return gnnjit.fold(lambda state, x: state + f(x), jnp.zeros(3), e.src * v)

    layer = gnnjit.layer(function)
    return lambda x: layer(G, x)


def squares(run: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: jnp.sum(run(x) ** 2)


def slopes(run: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return jax.grad(squares(run))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("form", [of_layer, of_typed_layer, of_fold])
def test_values_and_derivatives(form, name):
    f = FUNCTIONS[name]
    have, want = form(f), lambda x: plain(f, x)
    orders = [lambda run: run, slopes]
    if form is of_layer and "custom_vjp" not in name:
        orders.append(lambda run: jax.grad(squares(slopes(run))))
    for order in orders:
        got, wanted = jax.jit(order(have))(X), jax.jit(order(want))(X)
        assert float(jnp.abs(wanted).max()) > 1e-3 or name == "a long loop"
        np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=1e-5)


def program(f: Callable[[Any], Any]) -> Any:
    with recorded_calls() as calls:
        jax.eval_shape(of_layer(f), X)
    return calls[0].program


def primitives(f: Callable[[Any], Any]) -> set[str]:
    return {eqn.op.name for eqn in program(f).equations}


@pytest.mark.parametrize(
    "name",
    ["a loop within jit", "polyval", "steps backwards", "all steps", "cond", "switch"],
)
def test_short_loops_and_conditions_are_taken_apart(name):
    assert primitives(FUNCTIONS[name]).isdisjoint({"scan", "cond"})


@pytest.mark.parametrize("name", ["a multiple of the identity", "the identity"])
def test_a_product_with_a_multiple_of_the_identity_is_none(name):
    assert "dot_general" not in primitives(FUNCTIONS[name])


def test_values_of_what_may_be_parameters_are_not_looked_at():
    identity = jnp.eye(3)
    assert "dot_general" in primitives(lambda x: identity @ x)
    assert "dot_general" in primitives(jax.jit(lambda x: MATRIX @ x))


@pytest.mark.filterwarnings("error")
def test_what_is_made_of_known_arrays():
    """Whole numbers are divided as JAX does, and what is not finite warns nobody."""
    thirds = np.diag(np.array([7, 7, 7], np.int32))
    strange = np.array([[np.nan, 0, 0], [0, 1, 0], [0, 0, -1]], np.float32)

    def f(x: Any) -> Any:
        whole = lax.div(thirds, np.full((3, 3), 2, np.int32)).astype(jnp.float32)
        left_out = jnp.sqrt(jnp.asarray(strange)).astype(jnp.int32)
        return whole @ x + 0 * left_out[1].astype(jnp.float32)

    np.testing.assert_allclose(of_layer(f)(X), plain(f, X), rtol=1e-5)


def test_a_value_of_edges_stays_one():
    """Also where it was multiplied with the identity alone."""
    layer = gnnjit.layer(lambda v, e: np.eye(3, dtype=np.float32) @ e.src)
    np.testing.assert_array_equal(layer(G, X), X[SRC])


@pytest.mark.parametrize(
    ("name", "primitive"), [("a long loop", "scan"), ("a condition that all share", "cond")]
)
def test_others_stay(name, primitive):
    assert primitive in primitives(FUNCTIONS[name])


def test_an_array_that_two_functions_close_over_is_one_input():
    inputs = program(lambda x: scaled(scaled(x))).inputs
    assert [v.shape for v in inputs].count((3,)) == 3  # of v, of e.src, ROW


def with_slope(row: Any) -> Callable[[Any], Any]:
    by_row = jax.jit(lambda x: x * row)

    @jax.custom_jvp
    def f(x: Any) -> Any:
        return jnp.sin(x)

    f.defjvp(lambda p, t: (f(*p), by_row(t[0])))
    return f


def test_the_same_function_is_the_same_program():
    """So that outside `jit` nothing is compiled twice, whatever the function closes over."""
    for f in (twice_nested, own_slope, own_transpose, with_slope(ROW)):
        assert program(f) == program(f)
    assert program(with_slope(ROW)) == program(with_slope(ROW.copy()))


def test_what_a_derivative_closes_over_tells_functions_apart():
    assert program(with_slope(ROW)) != program(with_slope(2 * ROW))
    for row in (ROW, 2 * ROW, ROW):
        f = with_slope(row)
        have = jax.grad(lambda x, f=f: jnp.sum(of_layer(f)(x)))(X)
        want = jax.grad(lambda x, f=f: jnp.sum(plain(f, x)))(X)
        np.testing.assert_allclose(have, want, rtol=1e-5)


def test_a_derivative_may_close_over_a_key():
    """Which is no array of numbers."""
    key = jax.random.key(3)

    @jax.custom_jvp
    def f(x: Any) -> Any:
        return jnp.sin(x)

    f.defjvp(lambda p, t: (f(*p), t[0] * jax.random.key_data(key).astype(t[0].dtype)[0]))
    have = jax.grad(lambda x: jnp.sum(of_layer(f)(x)))(X)
    want = jax.grad(lambda x: jnp.sum(plain(f, x)))(X)
    np.testing.assert_allclose(have, want, rtol=1e-5)


def test_an_array_of_a_library_is_no_array_of_the_graph():
    """A captured array as long as the graph has vertices is told; that of a function that the
    layer calls is its own matter."""
    six = np.ones((6, 3), np.float32)
    inner = jax.jit(lambda x: (x * six)[0])
    np.testing.assert_allclose(of_layer(inner)(X), plain(inner, X), rtol=1e-5)
    with pytest.raises(LayerError, match="that the layer captured is combined"):
        of_layer(lambda x: (x * six)[0])(X)
