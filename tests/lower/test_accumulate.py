"""Aggregates of some edges that go on from the partial results of others."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gnnjit import Graph
from gnnjit.frontend.capture import capture
from gnnjit.ir.program import Aggregate, Reduce, Value
from gnnjit.ir.space import Space
from gnnjit.lower import cpu
from gnnjit.lower.accumulate import accumulate
from gnnjit.lower.aggregate import aggregate
from gnnjit.lower.choose import prefer
from gnnjit.lower.partial_results import counted, empty, finish, merge

SRC, DST, EDGE, SHARED = Space.SRC, Space.DST, Space.EDGE, Space.SHARED
N = 40


def graphs():
    """Some edges twice: with a hub that takes several tasks, and with rows without edges."""
    rng = np.random.default_rng(0)
    found = []
    for edges in (20_000, 60, 0):
        src, dst = rng.integers(0, N - 5, edges), rng.integers(3, N, edges)
        dst[: edges // 2] = src[edges // 2 :] = 7
        found.append(Graph.from_edges(src, dst, num_nodes=N))
    return found


GRAPHS = graphs()


def product(a, b):
    return [a * b]


def several(a, b):
    return [a + b, a * b, jnp.maximum(a, b), a - b]


def weighted(a, b):
    """A factor that the passes take out of the sum, and a number of edges."""
    return [a * b, jnp.ones(())]


CASES = {
    "sum": (product, [("sum", DST)], (3,)),
    "max": (product, [("max", DST)], (3,)),
    "min by sources": (product, [("min", SRC)], (16,)),
    "several": (several, [("sum", DST), ("max", DST), None, ("min", DST)], (5,)),
    "over all edges": (several, [("sum", DST), ("max", SHARED), ("sum", SHARED), None], (2, 3)),
    "other code after it": (weighted, [("sum", DST), ("sum", DST)], (4,)),
    "in blocks": (product, [("max", DST)], (1024,)),
    "in blocks that overlap": (product, [("sum", DST)], (700,)),
}


def case(name, dtype=np.float32):
    body, reductions, shape = CASES[name]
    inputs = [Value(shape, np.dtype(dtype), DST), Value(shape, np.dtype(dtype), SRC)]
    kinds = tuple(None if r is None else Reduce(*r) for r in reductions)
    op = Aggregate(capture(body, inputs).program, kinds)
    rng = np.random.default_rng(1)

    def draw(shape):
        whole = np.issubdtype(dtype, np.integer)
        return rng.integers(-9, 9, shape) if whole else rng.normal(size=shape)

    rows = [[jnp.asarray(draw((N, *shape)), dtype) for _ in inputs] for _ in GRAPHS]
    return op, rows


def rows_of(op):
    return SRC if any(r is not None and r.into is SRC for r in op.reductions) else DST


def by_merging(op, rows):
    found, partial = [], empty(op, N, jnp)
    for graph, operands in zip(GRAPHS, rows, strict=True):
        outs = aggregate(graph, op.body, op.reductions, operands)
        partial = merge(op, partial, outs, graph.degree(rows_of(op)))
        found.append([x for x, r in zip(outs, op.reductions, strict=True) if r is None])
    return finish(op, partial), found


def by_accumulating(op, rows):
    kept = [k for k, r in enumerate(op.reductions) if r is not None]
    found, partial = [], None
    for graph, operands in zip(GRAPHS, rows, strict=True):
        given = dict(zip(kept, partial or (), strict=False))
        before = [given.get(k) for k in range(len(op.reductions))]
        outs = jax.jit(lambda g, xs, b: accumulate(g, op, xs, None, b))(graph, operands, before)
        degree = graph.degree(rows_of(op))
        partial = counted(op, [outs[k] for k in kept], partial, degree)
        found.append([x for x, r in zip(outs, op.reductions, strict=True) if r is None])
    return finish(op, partial), found


def _size(x):
    finite = np.abs(x[np.isfinite(x)])
    return finite.max(initial=0)


def check(name, dtype=np.float32, tolerance=1e-4):
    op, rows = case(name, dtype)
    got, want = by_accumulating(op, rows), by_merging(op, rows)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * _size(b))


@pytest.mark.parametrize("name", CASES)
def test_as_merged(name):
    check(name)


@pytest.mark.parametrize("name", ["several", "over all edges"])
@pytest.mark.parametrize("dtype", [np.int32, jnp.bfloat16])
def test_other_numbers(name, dtype):
    check(name, dtype, 0.05 if dtype is jnp.bfloat16 else 0)


@pytest.mark.parametrize("kernel", ["bucketed", "segment"])
@pytest.mark.parametrize("name", ["several", "over all edges", "min by sources"])
def test_after_other_code(name, kernel):
    with prefer(kernel):
        check(name)


@pytest.mark.skipif(not cpu.available(), reason="without kernels, partial results are merged")
@pytest.mark.parametrize("name", ["max", "several", "in blocks"])
def test_given_arrays_are_added_to_in_place(name):
    """No array of rows is held beside those that are given."""
    op, rows = case(name)
    partial = iter(empty(op, N, jnp))
    before = [None if r is None else next(partial) for r in op.reductions]

    def run(given):
        outs = accumulate(GRAPHS[0], op, rows[0], None, given)
        return [x for x, r in zip(outs, op.reductions, strict=True) if r is not None]

    needs = jax.jit(run, donate_argnums=0).lower(before).compile().memory_analysis()
    size = sum(x.nbytes for x in before if x is not None)
    assert needs.alias_size_in_bytes == size
    on_edges = sum(
        GRAPHS[0].num_edges * x.size * 4
        for x, r in zip(op.body.outputs, op.reductions, strict=True)
        if r is None
    )
    assert needs.temp_size_in_bytes < on_edges + size / 2


def test_runs_are_equal_to_the_bit():
    op, rows = case("several")
    one, two = by_accumulating(op, rows), by_accumulating(op, rows)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_array_equal(a, b)


def test_rows_that_edges_do_not_reach_keep_what_they_had():
    op, rows = case("max")
    before = jnp.full((N, 3), -7.0).at[2].set(jnp.nan)
    (found,) = jax.jit(lambda b: accumulate(GRAPHS[1], op, rows[1], None, [b]))(before)
    alone = np.asarray(GRAPHS[1].in_degree) == 0
    assert alone[2]
    np.testing.assert_array_equal(np.asarray(found)[alone], np.asarray(before)[alone])
