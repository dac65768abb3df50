"""Products of shared matrices with values of edges and rows: loops over the matrix in memory."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="CPU kernels are generated with llvmlite")

import gnnjit
from gnnjit.ir.program import Reduce
from gnnjit.lower.choose import prefer
from gnnjit.lower.cpu import kernel, worth
from gnnjit.lower.cpu.spec import INT32, Spec

from .test_kernel import (
    DST,
    EDGE,
    F32,
    OVER_ALL,
    SHARED,
    SRC,
    SUM,
    check,
    compute,
    data,
    graph,
    oracle,
    trace,
)  # fmt: skip

unavailable = kernel.unavailable()
pytestmark = pytest.mark.skipif(bool(unavailable), reason="; ".join(unavailable) or "available")


def spec_of(body, reductions=(SUM,), rows=DST) -> Spec:
    return Spec(body, reductions, rows, INT32, kernel.default_config())


def lines(body, reductions=(SUM,)) -> int:
    code = kernel._code(spec_of(body, reductions))
    assert isinstance(code, str)
    return code.count("\n")


PRODUCTS = {
    "x @ w": (lambda x, w: x @ w, (37,), (37, 29)),
    "w @ x": (lambda x, w: w @ x, (37,), (29, 37)),
    "one vector": (lambda x, w: x @ w, (40,), (40, 16)),
    "more columns than registers hold": (lambda x, w: w @ x, (9,), (300, 9)),
    "rows": (lambda x, w: x @ w, (3, 20), (20, 18)),
    "a matrix for each head": (lambda x, w: jnp.einsum("hk,hkd->hd", x, w), (4, 12), (4, 12, 9)),
    "heads last": (lambda x, w: jnp.einsum("hk,dkh->hd", x, w), (4, 12), (9, 12, 4)),
    "two axes": (lambda x, w: jnp.einsum("ab,bca->c", x, w), (5, 12), (12, 17, 5)),
    "two columns": (lambda x, w: jnp.einsum("a,bac->bc", x, w), (11,), (6, 11, 7)),
}


@pytest.mark.parametrize("rows", [DST, SRC])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name, rows):
    fn, of_x, of_w = PRODUCTS[name]
    product = lambda x, y, w: jax.nn.relu(fn(x * y, w))  # noqa: E731
    body = trace(product, (SRC, of_x, F32), (DST, (), F32), (SHARED, of_w, F32))
    reductions = (Reduce("sum", rows),)
    assert len(spec_of(body, reductions, rows).matvecs) == 1
    check(body, reductions, graph(edges=700, padding=9), rows=rows, tol=1e-3)


def test_products_in_double_precision():
    with jax.enable_x64(True):
        body = trace(lambda x, w: w @ x, (EDGE, (30,), np.float64), (SHARED, (33, 30), np.float64))
        assert len(spec_of(body).matvecs) == 1
        check(body, (SUM,), graph(hub=False), tol=1e-9)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16])
def test_products_of_half_precision(dtype):
    """Multiplied and summed in float32, and rounded in the end."""
    of = lambda d: trace(lambda x, w: w @ x, (EDGE, (30,), d), (SHARED, (33, 30), d))  # noqa: E731
    case = graph(hub=False)
    assert len(spec_of(of(dtype)).matvecs) == 1
    args = [jnp.round(4 * a) / 4 for a in data(case, of(dtype))]
    (got,) = compute(of(dtype), (SUM,), case, args)
    (want,) = oracle(of(F32), (SUM,), case, [a.astype(F32) for a in args])
    np.testing.assert_allclose(np.asarray(got, F32), want, rtol=2.0**-7, atol=1e-6)


def test_a_matrix_that_is_read_otherwise_too():
    """Both ways round, entry by entry, and twice; of rows and of edges."""

    def fn(x, y, w):
        both = w @ jax.nn.relu((x + y) @ w) + (y * w[3]) @ w
        return both * w[:, 1] + w.sum(), x @ w.T

    body = trace(fn, (SRC, (24,), F32), (DST, (24,), F32), (SHARED, (24, 24), F32))
    assert len(spec_of(body, (SUM, None)).matvecs) == 3  # `w.T` is no input
    check(body, (SUM, None), graph(padding=3), tol=1e-3)


def test_infinities_of_unread_entries_stay_where_they_are():
    body = trace(lambda x, w: x @ w, (EDGE, (20,), F32), (SHARED, (20, 17), F32))
    case = graph()
    x = np.zeros((len(case.src), 20), F32)
    w = np.zeros((20, 17), F32)
    w[3, 5], x[0, :] = np.inf, 1
    check(body, (SUM,), case, [jnp.asarray(x), jnp.asarray(w)])


def test_code_does_not_grow_with_what_is_contracted():
    def of(inner, flipped=False):
        shape = (64, inner) if flipped else (inner, 64)
        product = (lambda x, w: w @ x) if flipped else (lambda x, w: x @ w)
        return lines(trace(product, (EDGE, (inner,), F32), (SHARED, shape, F32)))

    assert of(96) - of(48) < 40  # loads of the edge's own vector
    assert of(96, True) - of(48, True) < 40
    assert of(256, True) < 3 * of(32)


def test_sums_of_several_outer_products_are_no_larger():
    """The gradient of a matrix that multiplies several values."""

    def fn(x, y, z):
        outer = lambda a, b: jax.lax.dot_general(a, b, (((), ()), ((), ())))  # noqa: E731
        return outer(x, y) + (outer(z, x) + outer(y, y)).T

    shapes = [(SRC, (40,), F32), (DST, (40,), F32), (EDGE, (40,), F32)]
    body = trace(fn, *shapes)
    assert list(map(len, spec_of(body, (OVER_ALL,)).outers.values())) == [3]
    assert lines(body, (OVER_ALL,)) < 3000
    check(body, (OVER_ALL,), graph(edges=900), tol=1e-3)


# -- the choice ---------------------------------------------------------------------------


def network(width: int):
    def fn(x, y, a, b):
        return jax.nn.relu(jax.nn.relu(x + y) @ a) @ b

    square = (SHARED, (width, width), F32)
    return trace(fn, (SRC, (width,), F32), (DST, (width,), F32), square, square)


def test_networks_run_in_kernels():
    for width in (16, 32, 48, 64, 256, 512):
        assert not worth.why_not(spec_of(network(width)), 50_000), width


def test_edge_by_edge_wide_ones_run_in_chunks():
    for width in (256, 512):
        alone = kernel.default_config(tile=0)
        spec = Spec(network(width), (SUM,), DST, INT32, alone)
        (reason,) = worth.why_not(spec, 50_000)
        assert f"{2 * width * width:,} multiplications" in reason
        assert "to compile for 50,000 edges, in chunks" in reason


def test_time_to_compile_counts():
    """What is written out is worth it only where it runs often enough over enough edges."""
    spec = spec_of(network(32))
    assert not worth.why_not(spec, 2_000_000, 20_000)
    assert worth.why_not(spec, 100, 20_000)


def test_what_is_written_out_counts_before_it_is_written():
    body = trace(lambda x, w: w @ x, (SRC, (90,), F32), (EDGE, (90, 90), F32))
    assert worth.written_out(spec_of(body)) > 1000
    assert worth.written_out(spec_of(network(64))) == 0


@gnnjit.layer
def of_edges(v, e):
    return gnnjit.sum(e.data @ e.src)


def test_explain_tells_the_choice():
    src, dst = np.random.default_rng(0).integers(0, 20, (2, 90))
    g = gnnjit.Graph.from_edges(src, dst, num_nodes=20)
    x, own = jnp.ones((20, 90)), jnp.ones((90, 90, 90))
    told = str(of_edges.explain(g, x, edges=own))
    assert "not cpu: a matmul on the edges, 0 multiplications for each in loops and at" in told
    with prefer("cpu"):
        assert "forward: cpu" in str(of_edges.explain(g, x, edges=own, wrt=None))
