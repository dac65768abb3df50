"""Sums over products of rows with matrices, in one pass: the numbers of NumPy."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import gnnjit
from gnnjit.lower import cpu
from gnnjit.lower.row_results import Neighbours, RowProduct, RowResult, TallResult

unavailable = cpu.why_no_row_sums(np.dtype(np.float32))
pytestmark = pytest.mark.skipif(bool(unavailable), reason="; ".join(unavailable) or "available")

F, G = 20, 70
"""A row of each is some vectors and a part of one; of the second, two blocks of a result."""

INT32 = ("int32", "int32")


def draw(dtype: Any, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.uniform(0.5, 1.5, shape).astype(dtype) for shape in shapes]


def close(got: Any, want: Any) -> None:
    assert got.dtype == want.dtype
    tolerance = 1e-5 if got.dtype == np.float32 else 1e-13
    np.testing.assert_allclose(got, want, rtol=tolerance)


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("n", [1, 47, 485])
def test_products_addends_and_biases(n, dtype):
    shapes = (n, F), (n, 3), (F, G), (3, G), (n, G), (n, G), (n,), (G,), (F, 5)
    with jax.enable_x64(True):
        x, z, w, u, y, t, d, bias, narrow = arrays = draw(dtype, *shapes)
        wide = RowResult(G, (RowProduct(0, 2, F), RowProduct(1, 3, 3)), ((4, None), (5, 6)), (7,))
        results = [wide, RowResult(5, (RowProduct(0, 8, F),))]
        got = jax.jit(lambda *xs: cpu.row_sums(xs, n, results))(*arrays)
    close(got[0], x @ w + z @ u + y + t / d[:, None] + bias)
    close(got[1], x @ narrow)


def test_a_division_is_one():
    """The inverse of a large number is none that a processor keeps; the quotient is 1."""
    x, w = draw(np.float32, (9, F), (F, G))
    y, d = (np.full(shape, 2e38, np.float32) for shape in ((9, G), 9))
    results = [RowResult(G, (RowProduct(2, 3, F),), ((0, 1),))]
    (got,) = jax.jit(lambda *xs: cpu.row_sums(xs, 9, results))(y, d, x, w)
    close(got, x @ w + 1)


def edges() -> tuple[int, int, np.ndarray, np.ndarray]:
    """Sources, rows, and edges: rows without any, edges twice, and a row with most of them, in
    several tasks."""
    sources, rows = 300, 4000
    src, dst = np.random.default_rng(1).integers(0, 300, (2, 6000))
    dst[:3000] = 77
    src[10:20] = src[9]
    return sources, rows, src, dst


@pytest.mark.parametrize("rows", [200, 5000])
def test_matrices_that_are_turned(rows):
    """By XLA, or by the kernel; one of them is read both ways."""
    x, y, w, u = draw(np.float32, (rows, F), (rows, G), (G, F), (G, G))
    both = (RowProduct(0, 2, F, True), RowProduct(1, 3, G), RowProduct(1, 3, G, True))
    results = [RowResult(G, both), RowResult(F, (RowProduct(1, 2, G),))]
    got = jax.jit(lambda *xs: cpu.row_sums(xs, rows, results))(x, y, w, u)
    x, y, w, u = (a.astype(np.float64) for a in (x, y, w, u))
    close(got[0], (x @ w.T + y @ u + y @ u.T).astype(np.float32))
    close(got[1], (y @ w).astype(np.float32))


@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("scaled", [False, True])
def test_rows_that_are_sums_over_edges(scaled, index):
    m, n, src, dst = edges()
    with jax.enable_x64(True):
        graph = gnnjit.Graph.from_edges(src, dst, num_src=m, num_dst=n)
        structure = graph.structure("dst")
        ends = [np.asarray(a).astype(index) for a in (structure.indptr, structure.neighbor)]
        table, factor, divisor, w, left = draw(np.float32, (m, F), (m,), (n,), (F, G), (n, 18))
        near = Neighbours(0, 1, 2, (index, index), *((3, 4) if scaled else ()))
        results = [RowResult(G, (RowProduct(near, 5, F), RowProduct(6, 7, 18)))]
        talls = [TallResult(6, near, (18, F)), TallResult(6, 6, (18, 18))]
        (u,) = draw(np.float32, (18, G))
        arrays = [table, *ends, factor, divisor, w, left, u]
        got = jax.jit(lambda *xs: cpu.row_sums(xs, n, results, talls))(*arrays)
    rows = np.zeros((n, F))
    np.add.at(rows, dst, (table * factor[:, None] if scaled else table)[src].astype(np.float64))
    rows = rows / divisor[:, None] if scaled else rows
    close(got[0], (rows @ w + left @ u).astype(np.float32))
    close(got[1], (left.T @ rows).astype(np.float32))
    close(got[2], (left.T.astype(np.float64) @ left).astype(np.float32))


def test_a_graph_without_edges():
    w, left = draw(np.float32, (F, G), (7, F))
    (table,), none = draw(np.float32, (4, F)), np.zeros(0, np.int32)
    near = Neighbours(0, 1, 2, INT32)
    results = [RowResult(G, (RowProduct(near, 3, F),))]
    arrays = [table, np.zeros(8, np.int32), none, w, left]
    got = jax.jit(lambda *xs: cpu.row_sums(xs, 7, results, [TallResult(4, near, (F, F))]))(*arrays)
    assert not np.asarray(got[0]).any()
    assert not np.asarray(got[1]).any()


def test_the_same_bits_each_time():
    """Rows are shared out as threads come; records of tasks are added up in order."""
    n = 50_000
    x, w, left = draw(np.float32, (n, F), (F, G), (n, 18))
    results, talls = [RowResult(G, (RowProduct(0, 1, F),))], [TallResult(2, 0, (18, F))]
    run = jax.jit(lambda *xs: cpu.row_sums(xs, n, results, talls))
    first, *others = ([np.asarray(a) for a in run(x, w, left)] for _ in range(4))
    for other in others:
        np.testing.assert_array_equal(first[0], other[0])
        np.testing.assert_array_equal(first[1], other[1])


@pytest.mark.parametrize("dtype", [np.float16, np.int32])
def test_other_types_are_refused(dtype):
    (reason,) = cpu.why_no_row_sums(np.dtype(dtype))
    assert reason == f"no CPU kernel code for a product of {np.dtype(dtype)}"
