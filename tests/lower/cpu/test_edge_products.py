"""Products of two values of one edge, where edges go in tiles, against the interpreter."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="CPU kernels are generated with llvmlite")

from gnnjit.ir.program import Reduce
from gnnjit.lower.cpu import compile, kernel, worth

from .test_edge_tiles import spec_of
from .test_kernel import (
    DST,
    EDGE,
    F32,
    OVER_ALL,
    SHARED,
    SRC,
    check,
    compute,
    data,
    graph,
    oracle,
    trace,
)

unavailable = kernel.unavailable()
pytestmark = pytest.mark.skipif(bool(unavailable), reason="; ".join(unavailable) or "available")

INNER = 20
OUTER = (((), ()), ((), ()))
TOTAL = Reduce("sum", DST)
REDUCTIONS = (TOTAL, TOTAL, Reduce("max", DST), OVER_ALL, OVER_ALL, None)


def matrix_of_an_edge(own, other, edge, w):
    """All forms of products, read by reductions, by other products, and written on edges."""
    matrix = (edge @ w).reshape(own.size, other.size)
    outer = jax.lax.dot_general(own, other, OUTER)
    turned = jax.lax.dot_general(matrix @ other, own, OUTER).T
    columns, rows = own @ matrix, turned @ own
    return columns, rows, (matrix + outer).max(), turned, outer.reshape(-1), jnp.tanh(outer)


def body_of(f, g, dtype=F32):
    shapes = [(DST, (f,)), (SRC, (g,)), (EDGE, (INNER,)), (SHARED, (INNER, f * g))]
    return trace(matrix_of_an_edge, *[(*s, dtype) for s in shapes])


def quarters(case, body):
    return [a / 4 for a in data(case, body)]


# A vector is written out, or in loops; with and without a part of a vector at its end.
@pytest.mark.parametrize(
    ("f", "g"),
    [(20, 33), (80, 75), *(pytest.param(*s, marks=pytest.mark.long) for s in [(70, 32), (9, 96)])],
)
def test_products_of_two_values_of_an_edge(f, g):
    body, case = body_of(f, g), graph(300, 20, 30)
    spec = spec_of(body, REDUCTIONS)
    assert spec.tiling is not None
    assert 4 in spec.outers
    check(body, REDUCTIONS, case, quarters(case, body), tol=2e-3)


def rows_times_rows(own, other, edge, w):
    """Each row of one with each of the other, where few or many of them are multiplied at once."""
    own = own * (edge @ w)
    across = jax.lax.dot_general(own, other, (((1,), (1,)), ((), ())))
    back = jax.lax.dot_general(other, own, (((1,), (1,)), ((), ())))
    return across, jnp.tanh(back)


# Rows of whole vectors and a part of one, of whole vectors alone, and of a part alone.
@pytest.mark.parametrize("n", [75, *(pytest.param(k, marks=pytest.mark.long) for k in (64, 12))])
@pytest.mark.parametrize("dtype", [F32, np.dtype(np.float64)], ids=str)
def test_rows_of_two_values_of_an_edge(n, dtype):
    with jax.enable_x64(True):
        shapes = [(DST, (3, n)), (SRC, (21, n)), (EDGE, (60,)), (SHARED, (60, n))]
        body, case = trace(rows_times_rows, *[(*s, dtype) for s in shapes]), graph(300, 20, 30)
        ops = (TOTAL, Reduce("max", DST))
        assert spec_of(body, ops).tiling is not None
        tol = 2e-3 if dtype == F32 else 1e-9
        check(body, ops, case, quarters(case, body), tol=tol)


@pytest.mark.long
def test_half_and_double_precision():
    with jax.enable_x64(True):
        body, case = body_of(20, 33, np.float64), graph()
        check(body, REDUCTIONS, case, quarters(case, body), tol=1e-9)
    exact, body = body_of(20, 33), body_of(20, 33, jnp.bfloat16)
    args = [jnp.round(4 * a) / 16 for a in data(case, exact)]
    got = compute(body, REDUCTIONS, case, [a.astype(jnp.bfloat16) for a in args])
    for have, due in zip(got, oracle(exact, REDUCTIONS, case, args), strict=True):
        due = np.asarray(due)
        np.testing.assert_allclose(np.asarray(have, F32), due, atol=0.03 * np.abs(due).max())


def test_a_transposed_matrix_of_outer_products_keeps_its_shape():
    """Its reshaped form has other rows than its factors have scalars."""

    def turned(own, other, edge, w):
        outer = jax.lax.dot_general(own, other, OUTER).reshape(10, -1)
        return outer.T, (edge @ w) * own

    shapes = [(DST, (20,)), (SRC, (33,)), (EDGE, (INNER,)), (SHARED, (INNER, 20))]
    body, case = trace(turned, *[(*s, F32) for s in shapes]), graph()
    reductions = (OVER_ALL, TOTAL)
    assert not spec_of(body, reductions).outers
    check(body, reductions, case, quarters(case, body), tol=2e-3)


def test_code_does_not_grow_with_the_matrix():
    def lines(f):
        code = kernel._code(spec_of(body_of(f, f), REDUCTIONS))
        assert isinstance(code, str)
        return compile.with_parts(code).count("\n")

    assert lines(160) < 1.25 * lines(80)  # what is done for a row is written out
    assert worth.written_out(spec_of(body_of(160, 160), REDUCTIONS)) == 0
