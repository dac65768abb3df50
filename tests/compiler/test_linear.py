"""Layers that are linear, transposed: `jax.linear_transpose` and the linear solvers of JAX."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.experimental.jet import jet
from jax.scipy.sparse.linalg import bicgstab, gmres

import gnnjit
from gnnjit.errors import LayerError

pytestmark = pytest.mark.usefixtures("loops_stay")

RANDOM = np.random.default_rng(7)
G = gnnjit.Graph.from_edges(*RANDOM.integers(0, 5, size=(2, 12)), num_nodes=5)


def array(*shape: int) -> jax.Array:
    return jnp.asarray(RANDOM.normal(size=shape), jnp.float32)


X, W, S = array(5, 3), array(3, 3), array(12)


def layer(fn: Any) -> Any:
    return gnnjit.layer(fn)


attend = layer(lambda v, e, w: gnnjit.sum(gnnjit.softmax(e.data) * (e.src @ w)) - v)
by_features = layer(
    lambda v, e: gnnjit.sum(gnnjit.softmax(jnp.sum(e.src["k"] * v["k"])) * e.src["x"])
)
mixed = layer(lambda v, e: {"e": e.src - v, "v": gnnjit.mean(e.src), "d": gnnjit.degree() / 2})
scaled = layer(lambda v, e, w: gnnjit.sum(e.data * jnp.tanh(e.src @ w)))
loops = layer(
    lambda v, e, w: (
        gnnjit.sum(lax.fori_loop(0, 2, lambda i, h: h @ w * (i + 1), e.src))
        + lax.fori_loop(1, 3, lambda i, h: jnp.roll(h, i) * 2, v)
    )
)
product = layer(lambda v, e, w: gnnjit.sum(jnp.sum(e.src) * e.src @ w) + v @ w)
LINEAR = {
    "features": (lambda x: attend(G, x, W, edges=S), X),
    "some features": (lambda x: by_features(G, {"k": X, "x": x}), X),
    "several outputs": (lambda x: mixed(G, x), X),
    "edges": (lambda s: scaled(G, X, W, edges=s), S),
    "loops that count": (lambda x: loops(G, x, W), X),
    "parameters": (lambda w: product(G, X, w), W),
}


def close(a: Any, b: Any, rtol: float = 1e-4) -> None:
    for have, want in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(have, want, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("name", LINEAR)
def test_transposed(name):
    """The transpose is the gradient at any point."""
    f, x = LINEAR[name]
    ct = jax.tree.map(lambda y: array(*y.shape).astype(y.dtype), jax.eval_shape(f, x))
    have = jax.jit(lambda ct: jax.linear_transpose(f, x)(ct))(ct)
    close(have, jax.vjp(f, -x)[1](ct))


def test_a_batch_inside_what_is_transposed():
    f = jax.vmap(lambda x: mixed(G, x)["v"])
    xs = jnp.stack([X, 2 * X])
    ct = array(2, 5, 3)
    close(jax.linear_transpose(f, xs)(ct), jax.vjp(f, xs)[1](ct))


def decided(v: Any, e: Any) -> Any:
    """Times an integer that the unknowns decide."""
    count, h = lax.fori_loop(0, 2, lambda i, c: (c[0] + (c[1][0] > 0), c[1] * 2), (1, v))
    return count * h


NOT_LINEAR = {
    "tanh": lambda v, e: gnnjit.sum(jnp.tanh(e.src)),
    "max": lambda v, e: gnnjit.max(e.src),
    "mul": lambda v, e: gnnjit.sum(e.src * v),
    "max, of a softmax": lambda v, e: gnnjit.sum(gnnjit.softmax(e.src) * 2),
    "gt": lambda v, e: gnnjit.sum(jnp.where(e.src > 0, 1.0, 0.0)),
    "scan": lambda v, e: lax.fori_loop(0, 2, lambda i, h: h * h, v),
    "convert_element_type": decided,
    "custom_jvp_call": lambda v, e: jax.nn.relu(v),
}


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("times", [1, 2])
def test_batches_inside_what_is_transposed(name, times):
    """Weights of a softmax in the same traversal as what they weigh included."""
    f, x = LINEAR[name]
    xs = jnp.stack([x, 2 * x])
    for _ in range(times):
        f = jax.vmap(f)
    xs = xs if times == 1 else jnp.stack([xs, -xs, xs / 2])
    ct = jax.tree.map(lambda y: array(*y.shape).astype(y.dtype), jax.eval_shape(f, xs))
    close(jax.jit(lambda ct: jax.linear_transpose(f, xs)(ct))(ct), jax.vjp(f, xs)[1](ct))


def test_batches_of_what_is_not_transposed():
    """Each cotangent flows to one of two operands, of which one has no batch."""
    both = layer(lambda v, e, w: (e.src * 2, gnnjit.sum(e.data * w)))

    def f(w: Any) -> Any:
        return jax.vmap(lambda x: both(G, x, w, edges=S)[1])(jnp.stack([X, X]))

    ct = array(2, 5, 3)
    close(jax.linear_transpose(f, W[0])(ct), jax.vjp(f, W[0])[1](ct))


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("name", NOT_LINEAR)
def test_what_is_not_linear(name, batched):
    f = layer(NOT_LINEAR[name])
    said = (
        "the layer is transposed (by jax.linear_transpose or a linear solver), but it is not "
        f"linear in what it is transposed for: {name.split(',')[0]} at test_linear.py:"
    )
    g, x = (lambda x: f(G, x)), X
    if batched:
        g, x = jax.vmap(g), X[None]
    with pytest.raises(LayerError, match=re.escape(said)):
        jax.linear_transpose(g, x)(x)


spread = layer(lambda v, e: gnnjit.sum(e.src * e.data / (1 + gnnjit.degree())))


def operator(s: Any) -> Any:
    return lambda x: x - 0.4 * spread(G, x, edges=s[:, None])


def dense(s: Any, b: Any) -> Any:
    matrix = jax.jacobian(operator(s))(b).reshape(b.size, b.size)
    return jnp.linalg.solve(matrix, b.reshape(-1)).reshape(b.shape)


@pytest.mark.parametrize("solver", [gmres, bicgstab], ids=lambda f: f.__name__)
def test_solvers(solver):
    """The solution, and its gradient with respect to the operator and the right-hand side."""

    def solve(s: Any, b: Any) -> Any:
        return solver(operator(s), b, tol=1e-7)[0]

    def loss(f: Any) -> Any:
        return jax.jit(jax.value_and_grad(lambda s, b: jnp.sum(jnp.sin(f(s, b))), (0, 1)))

    close(loss(solve)(S, X), loss(dense)(S, X), 1e-3)


def test_custom_linear_solve():
    def solve(matvec: Any, b: Any) -> Any:
        return bicgstab(matvec, b, tol=1e-7)[0]

    def found(s: Any, b: Any) -> Any:
        return jax.lax.custom_linear_solve(operator(s), b, solve, transpose_solve=solve)

    derived = [
        jax.jit(jax.jacrev(lambda s, f=f: jnp.sum(jnp.sin(f(s, X)), axis=0)))(S)
        for f in (found, dense)
    ]
    close(*derived, 1e-3)


def test_jet_is_refused_by_name():
    said = "jax.experimental.jet has no rule for a layer; nest jax.jvp, once for each order"
    with pytest.raises(LayerError, match=re.escape(said)):
        jet(lambda x: mixed(G, x), (X,), ((X,),))


def test_symbolic_shapes_are_refused_by_name():
    (width,) = export.symbolic_shape("width")
    said = "has the symbolic shape (5, width), but a layer is planned for sizes that are known"
    with pytest.raises(LayerError, match=re.escape(said)):
        jax.eval_shape(lambda x: mixed(G, x), jax.ShapeDtypeStruct((5, width), jnp.float32))
