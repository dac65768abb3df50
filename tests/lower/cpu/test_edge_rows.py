"""Values of an edge that are repeated, summed over rows, joined and cut, where edges go in tiles,
against the interpreter."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="CPU kernels are generated with llvmlite")

from gnnjit.ir.program import Reduce
from gnnjit.lower.cpu import compile, kernel

from .test_edge_products import INNER, quarters
from .test_edge_tiles import spec_of
from .test_kernel import DST, EDGE, F32, SHARED, SRC, check, graph, trace

unavailable = kernel.unavailable()
pytestmark = pytest.mark.skipif(bool(unavailable), reason="; ".join(unavailable) or "available")

TOTAL = Reduce("sum", DST)
REDUCTIONS = (TOTAL, TOTAL, Reduce("max", DST), TOTAL, None)


def tensor_product(own, other, edge, w):
    """What equivariant networks do: vectors [3, n] scaled, rotated, contracted and joined."""
    way, n = edge[:3], own.shape[1]
    weights = edge @ w
    first, second = weights[:n], weights[n : 2 * n]
    rotation = jnp.outer(way, way) + jnp.eye(3, dtype=edge.dtype)
    rotated = rotation @ other
    back = jax.lax.dot_general(own, rotation, (((0,), (0,)), ((), ()))).T
    vectors = rotated * first + way[:, None] * second[None] + back
    scalars = (own * other).sum(axis=0) + (way @ other) * first
    lengths = jnp.square(own * second).sum(axis=-1) + jnp.abs(rotated).max(axis=-1)
    joined = jnp.concatenate([scalars, second, jnp.tanh(own).min(axis=0)])
    return vectors, joined, lengths, vectors[1:], jnp.concatenate([own, rotated])[2:5]


def body_of(n, dtype=F32):
    shapes = [(DST, (3, n)), (SRC, (3, n)), (EDGE, (INNER,)), (SHARED, (INNER, 2 * n))]
    return trace(tensor_product, *[(*s, dtype) for s in shapes])


# In loops, with and without a part of a vector at the end; and partly written out.
@pytest.mark.parametrize("n", [75, *(pytest.param(k, marks=pytest.mark.long) for k in (160, 33))])
def test_tensor_products(n):
    body, case = body_of(n), graph(300, 20, 30)
    assert spec_of(body, REDUCTIONS).tiling is not None
    check(body, REDUCTIONS, case, quarters(case, body), tol=2e-3)


@pytest.mark.long
def test_double_precision():
    with jax.enable_x64(True):
        body, case = body_of(75, np.float64), graph()
        check(body, REDUCTIONS, case, quarters(case, body), tol=1e-9)


def rows_of_parts(own, other, edge, w):
    """Rows that are joined, and cut again elsewhere."""
    n = own.shape[1]
    rows = jnp.concatenate([own, other * edge[:3, None], edge[0] * own[:, :5]], axis=1)
    first, second, third = jnp.split(jnp.tanh(rows), [n // 2, n + 3], axis=1)
    weights = (edge @ w)[: n // 2]
    total = jnp.concatenate([first * weights, third], axis=1)
    return second, total, rows.sum(axis=1), rows[1:, 3 : n + 2], rows[:, 1:]


@pytest.mark.parametrize("n", [75, *(pytest.param(k, marks=pytest.mark.long) for k in (160, 34))])
def test_rows_are_joined_and_cut(n):
    shapes = [(DST, (3, n)), (SRC, (3, n)), (EDGE, (INNER,)), (SHARED, (INNER, 2 * n))]
    body, case = trace(rows_of_parts, *[(*s, F32) for s in shapes]), graph(300, 20, 30)
    reductions = (TOTAL, TOTAL, Reduce("max", DST), TOTAL, None)
    assert spec_of(body, reductions).tiling is not None
    check(body, reductions, case, quarters(case, body), tol=2e-3)


def test_values_in_loops_are_not_written_out():
    """However wide, they have a kernel."""
    spec = spec_of(body_of(8192), REDUCTIONS)
    assert spec.written_out < kernel.MAX_WORK < spec.operations
    assert not kernel.reasons(spec.body, REDUCTIONS, DST)


def reshaped(own, other, edge, w):
    """Values under several shapes, read before and after they are reshaped, and written so."""
    way, flat = (edge @ w)[:3], own.reshape(-1)
    bent = jnp.tanh(flat * other.reshape(-1))
    cube = bent.reshape(3, 1, -1)
    sums = (way @ bent.reshape(own.shape)) * cube[1, 0]
    return flat + 1, cube * way[:, None, None], sums[None], bent.sum(), own.reshape(1, 3, -1)


@pytest.mark.parametrize("n", [75, *(pytest.param(k, marks=pytest.mark.long) for k in (160, 33))])
def test_reshaped_values(n):
    shapes = [(DST, (3, n)), (SRC, (3, n)), (EDGE, (INNER,)), (SHARED, (INNER, 2 * n))]
    body, case = trace(reshaped, *[(*s, F32) for s in shapes]), graph(300, 20, 30)
    assert spec_of(body, REDUCTIONS).tiling is not None
    check(body, REDUCTIONS, case, quarters(case, body), tol=2e-3)


def repeated(own, other, edge, w):
    """Values that are repeated and reduced before, behind and between their axes."""
    weights, n = edge @ w, own.shape[1]
    between = own[:, None] * other[None]
    behind = between.max(axis=-1)[..., None] + weights[:n]
    middle = between.sum(axis=1) + behind.min(axis=1)
    return between, jnp.tanh(behind), middle, weights[n:, None, None] * between


def repeated_body(n):
    shapes = [(DST, (3, n)), (SRC, (5, n)), (EDGE, (INNER,)), (SHARED, (INNER, n + 3))]
    return trace(repeated, *[(*s, F32) for s in shapes])


REPEATED = (TOTAL, TOTAL, Reduce("max", DST), TOTAL)


@pytest.mark.parametrize("n", [75, *(pytest.param(k, marks=pytest.mark.long) for k in (160, 33))])
def test_repeated_values(n):
    body, case = repeated_body(n), graph(300, 20, 30)
    assert spec_of(body, REPEATED).tiling is not None
    check(body, REPEATED, case, quarters(case, body), tol=2e-3)


@pytest.mark.parametrize(("body", "reductions"), [(body_of, REDUCTIONS), (repeated_body, REPEATED)])
def test_code_does_not_grow_with_the_width(body, reductions):
    lines = [kernel._lines(spec_of(body(n), reductions)) for n in (256, 512)]
    assert lines[1] < 1.1 * lines[0]


def turned_again_and_again(times):
    def turned(own, edge, w):
        matrix = (edge @ w).reshape(5, 5)
        for _ in range(times):
            own = jnp.tanh(matrix @ own)
        return own

    return turned


def test_memory_is_taken_again():
    """As much for a long chain of wide values as for a short one."""
    stacks = []
    for times in (4, 12):
        shapes = [(SRC, (5, 64)), (EDGE, (INNER,)), (SHARED, (INNER, 25))]
        body = trace(turned_again_and_again(times), *[(*s, F32) for s in shapes])
        text = compile.emit(spec_of(body, (TOTAL,)))
        stacks.append(sum(int(n) for n in re.findall(r"alloca i64, i32 (\d+), align 64", text)))
    assert 0 < stacks[0] == stacks[1] < 4 * 5 * 64 * 4 // 8
    case = graph(300, 20, 30)
    check(body, (TOTAL,), case, quarters(case, body), tol=2e-3)
