"""Products with matrices that edges pick from a table, and their gradients, in kernels."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="CPU kernels are generated with llvmlite")

import gnnjit
from gnnjit.ir.program import Reduce
from gnnjit.lower.choose import prefer
from gnnjit.lower.cpu import kernel
from gnnjit.lower.cpu.edge_tiles import MOST_ROWS
from gnnjit.lower.cpu.spec import INT32, Spec

from .test_kernel import DST, EDGE, F32, GRAPHS, SHARED, SRC, check, compute, data, graph, trace

unavailable = kernel.unavailable()
pytestmark = pytest.mark.skipif(bool(unavailable), reason="; ".join(unavailable) or "available")

R, F, G, I32 = 7, 36, 75, np.dtype(np.int32)  # no whole vectors


def network(own, other, index, table, second):
    """Two products, by different indices; rows beyond the second table are NaN."""
    hidden = jnp.tanh(other @ table[index] + own)
    out = hidden @ second.at[index + 1].get(mode="fill")
    return hidden, jnp.where(jnp.isnan(out), 3, out), out[:2]


def inputs(dtype=F32):
    shapes = [(DST, (G,)), (SRC, (F,)), (EDGE, ()), (SHARED, (R, F, G)), (SHARED, (R, G, F))]
    kinds = [dtype, dtype, I32, dtype, dtype]
    return [(*s, k) for s, k in zip(shapes, kinds, strict=True)]


def small(rng, shape):
    return rng.integers(0, R, shape) if len(shape) == 1 else rng.normal(size=shape) / 4


REDUCTIONS = (Reduce("sum", DST), Reduce("max", DST), None)


SHORT = ("hub", "long")
EVERY = [n if n in SHORT else pytest.param(n, marks=pytest.mark.long) for n in GRAPHS]


@pytest.mark.parametrize("name", EVERY)
def test_each_graph(name):
    body = trace(network, *inputs())
    tiling = Spec(body, REDUCTIONS, DST, INT32, kernel.default_config()).tiling
    assert tiling is not None
    assert [g.count for g in tiling.groupings] == [R, R]
    check(body, REDUCTIONS, GRAPHS[name], data(GRAPHS[name], body, draw=small))


def test_double_precision():
    with jax.enable_x64(True):
        body = trace(network, *inputs(np.float64))
        case = graph()
        check(body, REDUCTIONS, case, data(case, body, draw=small), tol=1e-12)


def test_the_bits_do_not_depend_on_threads_or_tiles():
    body, case = trace(network, *inputs()), GRAPHS["long"]
    args = data(case, body, draw=small)
    configs = [{"threads": 1}, {"threads": 3, "tile": 16}, {"tile": 256}]
    first, *others = [compute(body, REDUCTIONS, case, args, **c) for c in configs]
    for other in others:
        jax.tree.map(np.testing.assert_array_equal, first, other)


@pytest.mark.parametrize("blocks", [None, 2])
def test_sums_of_a_large_relation_are_cut(blocks):
    """One relation has more edges than a task, one has none; some edges pick no row."""
    rng = np.random.default_rng(1)
    n, edges, width = 300, 21_000, 32
    src, dst = rng.integers(0, n, (2, edges))
    index = np.minimum(rng.integers(0, 40, edges), 3) + 2 * (rng.random(edges) < 0.1)
    x, ct = (jnp.asarray(rng.normal(size=(n, width)), jnp.float32) for _ in range(2))
    row = (width, width) if blocks is None else (blocks, width // blocks, width // blocks)
    table = jnp.asarray(rng.normal(size=(6, *row)), jnp.float32)
    g = gnnjit.Graph.from_edges(src, dst, n)

    @gnnjit.layer
    def run(v, e, w):
        matrix = w.at[e.data].get(mode="drop", fill_value=0)
        parts = e.src.reshape(-1, row[-1])
        return gnnjit.sum(jnp.einsum("bi,bij->bj", parts, matrix.reshape(-1, *row[-2:])).ravel())

    index = jnp.asarray(np.where(index == 5, 9, index))
    with prefer("cpu"):
        assert {k.kernel for k in run.explain(g, x, table, edges=index).kernels} == {"cpu"}
        step = jax.jit(jax.grad(lambda w: jnp.vdot(run(g, x, w, edges=index), ct)))
        got, again = step(table), step(table)
    np.testing.assert_array_equal(got, again)
    heads = -1, width // row[-1], row[-1]
    left, right = (np.asarray(a, np.float64).reshape(heads) for a in (x, ct))
    want = np.zeros((6, *((1,) if blocks is None else ()), *row))
    for r in range(5):
        own = np.asarray(index) == r
        want[r] = np.einsum("ebi,ebj->bij", left[src[own]], right[dst[own]])
    np.testing.assert_allclose(got, want.reshape(table.shape), rtol=1e-4, atol=2e-3)


def test_edges_are_not_sorted_by_the_rows_of_a_very_long_table():
    def body(rows):
        given = [(SRC, (16,), F32), (EDGE, (), I32), (SHARED, (rows, 16, 16), F32)]
        return trace(lambda x, i, w: x @ w[i], *given)

    specs = [Spec(body(r), (Reduce("sum", DST),), DST, INT32, kernel.default_config())
             for r in (MOST_ROWS, MOST_ROWS + 1)]  # fmt: skip
    assert [spec.tiling is None for spec in specs] == [False, True]
