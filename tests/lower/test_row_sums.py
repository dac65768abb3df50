"""What of a jaxpr becomes one pass over vertices, and what does not; the numbers are the same."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit import _compat
from gnnjit.ir.program import Program, Reduce, Value
from gnnjit.ir.space import Space
from gnnjit.lower import choose, cpu, find_row_sums, row_sums
from gnnjit.lower.aggregate import aggregate
from gnnjit.lower.vertex_matmul import rows_p, tall_p

unavailable = cpu.why_no_row_sums(np.dtype(np.float32))
pytestmark = pytest.mark.skipif(bool(unavailable), reason="; ".join(unavailable) or "available")

N, F = 30, 16
rows = functools.partial(rows_p.bind, turned=False, place=None, precision=None)
turned = functools.partial(rows_p.bind, turned=True, place=None, precision=None)
tall = functools.partial(tall_p.bind, place=None, precision=None)
x, y, z = jax.random.normal(jax.random.key(0), (3, N, F))
w, u, t = jax.random.normal(jax.random.key(1), (3, F, F))
d, bias = jnp.arange(1.0, N + 1), jnp.arange(1.0, F + 1)
GRAPH = gnnjit.Graph.from_edges(np.arange(60) % 7, np.arange(60) % 29, num_nodes=N)


def neighbours(h: Any, into: Space = Space.DST) -> Any:
    """The sum of neighbours, alone."""
    value = Value((h.shape[1],), h.dtype, into.flipped)
    return aggregate(GRAPH, Program((value,), (), (value,)), (Reduce("sum", into),), [h])[0]


def run(f: Any, *args: Any) -> tuple[int, dict[str, int]]:
    """Compares `f(*args)` with what `row_sums` makes of it: kernels, and what is left."""
    closed, consts = _compat.without_constants(jax.make_jaxpr(f)(*args))
    evaluate = functools.partial(row_sums.evaluate, closed)
    got, want = jax.jit(evaluate)([*consts, *args]), jax.jit(f)(*args)
    for a, b in zip(got, jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
    names = [eqn.primitive.name for eqn in jax.make_jaxpr(evaluate)([*consts, *args]).eqns]
    left = {name: names.count(name) for name in ("rows_matmul", "tall_matmul", "aggregate")}
    return names.count("ffi_call"), {name: count for name, count in left.items() if count}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_sums, "LEAST", 0)
    monkeypatch.setattr(find_row_sums, "SHORT", F - 1)


def test_a_sum_is_one_kernel():
    def f(x: Any, y: Any, w: Any, u: Any) -> Any:
        own = rows(x, w) + jnp.broadcast_to(bias, (N, F))
        return own + rows(y, u) + z / d[:, None] + x

    assert run(f, x, y, w, u) == (1, {})


def test_matrices_may_be_turned():
    def f(x: Any, y: Any, w: Any, u: Any) -> Any:
        return turned(x, w) + turned(y, u) + rows(y, w) + z

    assert run(f, x, y, w, u) == (1, {})


def test_sums_over_edges_may_be_turned():
    def f(x: Any, w: Any) -> Any:
        return turned(neighbours(x), w) + neighbours(turned(x, w)) + z

    count, left = run(f, x, w)
    assert (count, left) == (1, {})


def test_other_shapes_are_looked_through():
    def f(x: Any, w: Any, u: Any) -> Any:
        first = rows(x, w).reshape(N, 4, 4) + z.reshape(N, 4, 4)
        return first.reshape(N, F) + rows(y, u)

    assert run(f, x, w, u) == (1, {})


def test_products_of_one_array_are_one_kernel():
    def f(x: Any, w: Any, u: Any) -> Any:
        return rows(x, w), jnp.tanh(rows(x, u))

    assert run(f, x, w, u) == (1, {})


def test_a_matrix_that_depends_on_a_product_waits():
    def f(x: Any, w: Any) -> Any:
        first = rows(x, w)
        return rows(x, tall(x, first)), first

    assert run(f, x, w) == (0, {"rows_matmul": 2, "tall_matmul": 1})


def test_large_matrices_are_left_to_xla(monkeypatch):
    monkeypatch.setattr(find_row_sums, "LARGE", F * F - 1)
    found = run(lambda x, w, u: (rows(x, w) + rows(y, u) + z, rows(x, u)), x, w, u)
    assert found == (0, {"rows_matmul": 3})


def test_one_product_of_short_rows_is_a_kernel(monkeypatch):
    monkeypatch.setattr(find_row_sums, "SHORT", F)
    assert run(lambda x, w: jnp.tanh(rows(x, w)), x, w) == (1, {})


def test_products_are_taken_of_sums_of_neighbours():
    """The table of all relations is `x`, and no product is written."""

    def f(x: Any, w: Any, u: Any, t: Any) -> Any:
        found = neighbours(rows(x, u)) / d[:, None]
        return rows(x, w) + found + neighbours(rows(x, t))

    assert run(f, x, w, u, t) == (1, {})


def test_sums_that_are_read_elsewhere_are_written():
    def f(x: Any, w: Any, u: Any) -> Any:
        found = neighbours(rows(x, u))
        return rows(x, w) + found + y, found

    assert run(f, x, w, u) == (1, {"rows_matmul": 1, "aggregate": 1})


def test_narrow_rows_are_gathered():
    """A product that makes rows shorter comes first."""

    def f(x: Any, w: Any, u: Any) -> Any:
        wide = jnp.concatenate([x, x], 1)
        return rows(x, w) + neighbours(rows(wide, jnp.concatenate([u, u]))) + y

    assert run(f, x, w, u) == (1, {"rows_matmul": 1, "aggregate": 1})


def test_a_gradient_is_one_kernel():
    """By the vertices that several relations read, and by the matrices."""

    def f(x: Any, g: Any, w: Any, u: Any) -> Any:
        moved = neighbours(g / d[:, None], Space.SRC)
        return rows(moved, w.T) + rows(g, u.T), tall(x, moved), tall(x, g)

    assert run(f, x, y, w, u) == (1, {})


def test_gradients_of_narrow_matrices_are_taken_with_their_sum():
    """Those of attention scores: transposed, in full vectors."""
    narrow = jnp.stack([x[:, :3], y[:, :3]])

    def f(z: Any, a: Any, b: Any, w: Any) -> Any:
        total = rows(a, w[:3]) + rows(b, w[3:6]) + z
        return total, tall(x, a), tall(x, b)

    assert run(f, z, *narrow, w) == (1, {})


def test_a_gradient_that_depends_on_the_sum_waits():
    def f(g: Any, w: Any, u: Any) -> Any:
        moved = neighbours(g)
        total = rows(moved, w) + rows(g, u)
        return total, tall(total, moved)

    assert run(f, y, w, u) == (1, {"tall_matmul": 1, "aggregate": 1})


def test_a_sum_that_depends_on_a_gradient_waits():
    def f(x: Any, g: Any, w: Any) -> Any:
        moved = neighbours(g)
        return rows(moved, w) + rows(g, tall(x, moved))

    assert run(f, x, y, w) == (1, {"tall_matmul": 1, "aggregate": 1})


def test_one_product_and_one_addend_are_left_to_xla():
    def f(x: Any, w: Any) -> Any:
        return jnp.tanh(rows(x, w) + y)

    assert run(f, x, w) == (0, {"rows_matmul": 1})


def test_a_traversal_that_is_more_than_a_sum_stays():
    def f(x: Any, w: Any, u: Any) -> Any:
        value = Value((F,), x.dtype, Space.SRC)
        body = Program((value,), (), (value,))
        largest = aggregate(GRAPH, body, (Reduce("max", Space.DST),), [rows(x, u)])[0]
        return rows(x, w) + largest + y

    assert run(f, x, w, u) == (1, {"rows_matmul": 1, "aggregate": 1})


def test_small_products_are_left_to_xla(monkeypatch):
    monkeypatch.setattr(row_sums, "LEAST", N * F * F * 2 + 1)
    assert run(lambda x, w, u: rows(x, w) + rows(y, u), x, w, u) == (0, {"rows_matmul": 2})


def test_another_lowering_is_preferred():
    with choose.prefer("segment"):
        found = run(lambda x, w, u: rows(x, w) + rows(y, u), x, w, u)
    assert found == (0, {"rows_matmul": 2})
