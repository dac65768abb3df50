"""A matrix on every vertex: the same numbers and derivatives as `x @ w`, and a quick gradient."""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import gnnjit
from gnnjit.lower import cpu, vertex_matmul
from gnnjit.lower.cpu import products

SIZES = [(0, 3, 5), (1, 1, 1), (300, 64, 64), (5000, 33, 20), (9001, 7, 130), (2000, 300, 5)]
SIZES += [(75, 128, 40), (2500, 256, 128), (300, 512, 256)]  # of whose lines some collide
unavailable = cpu.why_no_product(1, 1, np.dtype(np.float32))
needs_kernels = pytest.mark.skipif(bool(unavailable), reason="; ".join(unavailable) or "available")


def draw(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def bound(primitive: str) -> Any:
    if primitive == "tall":
        return functools.partial(vertex_matmul.tall_p.bind, place=None, precision=None)
    how = {"turned": primitive == "turned", "place": None, "precision": None}
    return functools.partial(vertex_matmul.rows_p.bind, **how)


def right(primitive: str, n: int, f: int, g: int) -> tuple[int, int]:
    """The shape of what an array `[n, f]` is multiplied with."""
    return {"rows": (f, g), "turned": (g, f), "tall": (n, g)}[primitive]


@needs_kernels
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_product(size):
    n, f, g = size
    a, b = draw(n, f), draw(n, g, seed=1)
    assert cpu.why_no_product(f, g, a.dtype) == []
    got = np.asarray(jax.jit(cpu.product)(a, b))
    want = a.astype(np.float64).T @ b
    bound = np.abs(a).astype(np.float64).T @ np.abs(b)
    assert got.dtype == np.float32
    np.testing.assert_array_less(np.abs(got - want), 1e-6 * bound + 1e-30)


@needs_kernels
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=str)
@pytest.mark.parametrize("size", [(4096, 32, 32), (5001, 33, 20), (1301, 70, 130)], ids=str)
def test_many_rows_are_multiplied_by_a_kernel(size, dtype):
    rows, inner, columns = size
    large = rows * inner * columns >= vertex_matmul.LEAST
    with jax.enable_x64(dtype == np.float64):
        x, w = draw(rows, inner, dtype=dtype), draw(inner, columns, seed=1, dtype=dtype)
        compiled = jax.jit(bound("rows")).lower(x, w)
        assert ("gnnjit_cpu" in compiled.as_text()) == large
        found = np.asarray(compiled.compile()(x, w))
    np.testing.assert_allclose(found, x @ w, rtol=1e-4, atol=1e-4)


@needs_kernels
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=str)
@pytest.mark.parametrize("size", [(4096, 32, 32), (5001, 33, 40), (1301, 70, 130)], ids=str)
def test_a_kernel_of_many_rows_turns_the_matrix(size, dtype):
    rows, inner, columns = size
    with jax.enable_x64(dtype == np.float64):
        x, w = draw(rows, inner, dtype=dtype), draw(columns, inner, seed=1, dtype=dtype)
        lowered = jax.jit(bound("turned")).lower(x, w)
        assert "gnnjit_cpu" in lowered.as_text()
        assert ("transpose" in lowered.as_text()) == (rows < products.MANY)
        found = np.asarray(lowered.compile()(x, w))
    np.testing.assert_allclose(found, x @ w.T, rtol=1e-4, atol=1e-4)


@needs_kernels
@pytest.mark.parametrize("primitive", ["rows", "turned", "tall"])
def test_elements_of_several_rows(primitive):
    a, b = draw(4096, 3, 32), draw(*right(primitive, 4096, 32, 32), seed=1)
    b = draw(4096, 3, 32, seed=1) if primitive == "tall" else b
    compiled = jax.jit(bound(primitive)).lower(a, b).compile()
    assert "gnnjit_cpu" in compiled.as_text()
    assert not re.search(r" (transpose|copy)\(", compiled.as_text())
    plain = {"rows": "nkf,fg->nkg", "turned": "nkf,gf->nkg", "tall": "nkf,nkg->fg"}[primitive]
    np.testing.assert_allclose(compiled(a, b), np.einsum(plain, a, b), rtol=1e-4, atol=2e-3)


@needs_kernels
def test_product_is_reproducible():
    a, b = draw(50_000, 24), draw(50_000, 40, seed=1)
    first, *others = (np.asarray(cpu.product(a, b)) for _ in range(5))
    for other in others:
        np.testing.assert_array_equal(first, other)


@needs_kernels
def test_product_in_double_precision():
    with jax.enable_x64(True):
        a, b = draw(3000, 9, dtype=np.float64), draw(3000, 12, dtype=np.float64)
        got = np.asarray(jax.jit(cpu.product)(a, b))
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, a.T @ b, rtol=1e-12, atol=1e-10)


@needs_kernels
@pytest.mark.parametrize(
    ("left", "right", "dtype", "reason"),
    [
        (1024, 1024, np.float32, "1024 x 1024 entries"),
        (0, 4, np.float32, "0 x 4 entries"),
        (4, 4, np.float16, "float16"),
    ],
)
def test_product_says_why_not(left, right, dtype, reason):
    (found,) = cpu.why_no_product(left, right, np.dtype(dtype))
    assert reason in found


@pytest.mark.parametrize("primitive", ["rows", "turned", "tall"])
def test_derivatives(primitive):
    """Each is the other's transpose, so that the second order has been everywhere."""
    n, f, g = 6, 3, 4
    p = bound(primitive)
    args = (draw(n, f), draw(*right(primitive, n, f, g), seed=1))
    check_grads(lambda a, b: jnp.sin(p(a, b)), args, order=2, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dims", [d for d in itertools.product((None, 0, 1, 2), repeat=2) if any(
    x is not None for x in d)], ids=str)  # fmt: skip
@pytest.mark.parametrize("primitive", ["rows", "turned", "tall"])
def test_batches(primitive, dims):
    p = bound(primitive)
    shapes = ((6, 3), right(primitive, 6, 3, 4))
    args = [
        draw(*s) if d is None else np.moveaxis(draw(2, *s), 0, d)
        for s, d in zip(shapes, dims, strict=True)
    ]
    plain = {"rows": jnp.matmul, "turned": lambda a, b: a @ b.T, "tall": lambda a, b: a.T @ b}
    got, want = (jax.vmap(f, in_axes=dims)(*args) for f in (p, plain[primitive]))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def gradient(fn):
    @gnnjit.layer
    def layer(v, e, w):
        return fn(v, gnnjit.sum(e.src), w)

    graph = gnnjit.Graph.from_edges(np.array([0, 1, 2, 2]), np.array([1, 2, 0, 1]), num_nodes=3)
    x, w = draw(3, 4), draw(4, 4, seed=1)
    return jax.jit(jax.grad(lambda w: jnp.sum(jnp.sin(layer(graph, x, w))))), w


@pytest.mark.parametrize(
    "fn",
    [lambda v, h, w: h @ w, lambda v, h, w: w @ h, lambda v, h, w: h @ w.T],
    ids=["right", "left", "transposed"],
)
def test_layers_use_it(fn):
    grad, w = gradient(fn)
    assert "tall_matmul" in str(jax.make_jaxpr(grad)(w))
    with gnnjit.reference():
        plain, _ = gradient(fn)
        want = plain(w)
    np.testing.assert_allclose(grad(w), want, rtol=1e-5, atol=1e-5)


PRODUCTS = """af,fg->ag fa,gf->ga abf,fg->abg afb,gf->agb f,gfh->hg gfh,fa->gha af,fag->g abf,fb->a
af,af-> f,f->"""
"""Of an element's array with a shared one, in the order of `jnp.einsum`."""


@pytest.mark.parametrize("shared", [0, 1])
@pytest.mark.parametrize("product", PRODUCTS.split())
def test_any_product_with_a_shared_array(product, shared):
    """Values, and derivatives of both orders; `shared` is the number of that operand."""
    graph = gnnjit.Graph.from_edges(np.array([0, 1, 2, 2]), np.array([1, 2, 0, 1]), num_nodes=7)

    def one(v, w):
        return jnp.einsum(product, *((w, v) if shared == 0 else (v, w)))

    @gnnjit.layer
    def layer(v, e, w):
        return one(v, w)

    def derivatives(fn):
        def loss(x, w):
            return jnp.sum(jnp.sin(fn(x, w)))

        def slope(x, w):
            return jnp.sum(jnp.sin(jax.grad(loss)(x, w)))

        return lambda x, w: [jax.value_and_grad(f, (0, 1))(x, w) for f in (loss, slope)]

    size = {"a": 3, "b": 2, "f": 4, "g": 5, "h": 2}
    shapes = [[size[k] for k in part] for part in product.partition("->")[0].split(",")]
    args = draw(7, *shapes[1 - shared]), draw(*shapes[shared], seed=1)
    ours = jax.jit(derivatives(lambda x, w: layer(graph, x, w)))
    theirs = jax.jit(derivatives(jax.vmap(one, (0, None))))
    assert "tall_matmul" in str(jax.make_jaxpr(ours)(*args))
    close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5)
    jax.tree.map(close, ours(*args), theirs(*args))


@pytest.mark.parametrize(
    "fn",
    [
        lambda v, h, w: jnp.dot(h, w, precision="high"),
        lambda v, h, w: h.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16),
    ],
    ids=["precision", "half"],
)
def test_what_asks_for_more_is_left_to_jax(fn):
    grad, w = gradient(fn)
    assert "tall_matmul" not in str(jax.make_jaxpr(grad)(w))
    grad(w)
