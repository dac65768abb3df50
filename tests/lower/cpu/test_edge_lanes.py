"""Edges side by side in the lanes of vectors, against the interpreter, which goes edge by edge."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="CPU kernels are generated with llvmlite")

from hypothesis import given, settings
from hypothesis import strategies as st

import gnnjit
from gnnjit.ir.at_most import at_most
from gnnjit.ir.program import Reduce
from gnnjit.lower.cpu import edge_lanes, kernel
from gnnjit.lower.cpu.spec import INT32, Spec

from .test_kernel import (
    DST,
    EDGE,
    F32,
    GRAPHS,
    OVER_ALL,
    SHARED,
    SRC,
    check,
    compute,
    data,
    graph,
    trace,
)  # fmt: skip

unavailable = kernel.unavailable()
pytestmark = pytest.mark.skipif(bool(unavailable), reason="; ".join(unavailable) or "available")


def force(own, other, weight, number, scale):
    """Values of all spaces; parts of vectors; sums within an edge; masks and integers."""
    r = own - other
    square = jnp.sum(r * r) + 0.1
    power = 1 / (square * square * square)
    direction = jnp.stack([r[2], r[0], weight * scale])
    near = square < 2.5
    twice = jnp.where(near, number * 2, number % 7)
    late = jnp.concatenate([direction, jnp.exp(-power)[None]])
    return power * r, late, jnp.dot(own, direction), near, twice, square * scale, own[:2]


def inputs(dtype=F32):
    shapes = [(DST, (3,)), (SRC, (3,)), (EDGE, ()), (EDGE, (), np.dtype(np.int32)), (SHARED, ())]
    return [(*s, dtype)[:3] for s in shapes]


def reductions(rows):
    return (
        Reduce("sum", rows), Reduce("max", rows), Reduce("min", rows), None, None, OVER_ALL,
        Reduce("sum", rows),
    )  # fmt: skip


@pytest.mark.parametrize("rows", [DST, SRC])
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("piece", [50, pytest.param(8192, marks=pytest.mark.long)])
def test_on_graphs(name, rows, piece):
    body = trace(force, *inputs())
    check(body, reductions(rows), GRAPHS[name], rows=rows, piece=piece, lanes=True, tol=2e-4)


@settings(max_examples=8, deadline=None)
@given(
    edges=st.integers(0, 300),
    vertices=st.integers(4, 60),
    piece=st.sampled_from([16, 64, 4096]),
    seed=st.integers(0, 99),
)
def test_any_graph(edges, vertices, piece, seed):
    case = graph(edges, vertices, vertices + 3, hub=seed % 2 == 0, seed=seed, padding=seed % 5)
    body = trace(force, *inputs())
    args = data(case, body, seed)
    check(body, reductions(DST), case, args, piece=piece, lanes=True, tol=2e-4)


def test_double_precision_and_wide_indices():
    with jax.enable_x64(True):
        body = trace(force, *inputs(np.float64))
        check(body, reductions(DST), index=np.int64, lanes=True, tol=1e-9)


def test_nan_wins_where_an_edge_has_it():
    """And nowhere else: idle lanes take part in nothing."""
    body = trace(lambda own, other: own / other, (DST, (3,), F32), (SRC, (3,), F32))
    case = graph(200, 30, 20, hub=False)
    args = [x.at[4].set(0) for x in data(case, body)]
    check(body, (Reduce("max", DST),), case, args, lanes=True)
    check(body, (Reduce("sum", DST),), case, args, lanes=True, tol=2e-4)


def test_the_bits_do_not_depend_on_threads():
    body, case = trace(force, *inputs()), graph(5000, 200, 300)
    args = data(case, body)
    found = [
        compute(body, reductions(DST), case, args, piece=512, lanes=True, threads=threads)
        for threads in (1, 2, 3, 2)
    ]
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def pays(fn, *shapes, degree=40.0, reduce="sum"):
    body = trace(fn, *shapes)
    spec = Spec(body, (Reduce(reduce, DST),), DST, INT32, kernel.default_config())
    return edge_lanes.pays(spec, degree)


def repulsion(own, other):
    r = own - other
    return r / (jnp.sum(r * r) + 0.1)


THREE = [(DST, (3,), F32), (SRC, (3,), F32)]


def test_where_it_pays():
    assert pays(repulsion, *THREE)
    assert not pays(repulsion, *THREE, degree=0.0)
    assert not pays(repulsion, *THREE, degree=1.0)  # idle lanes
    assert not pays(lambda own, other: other, *THREE)  # nothing but memory
    assert not pays(repulsion, (DST, (64,), F32), (SRC, (64,), F32))  # full lanes as it is
    half = np.dtype(jnp.bfloat16)
    assert not pays(repulsion, (DST, (3,), half), (SRC, (3,), half))


def test_what_another_traversal_computes_too_keeps_its_bits():
    """The scores of a softmax, and their maximum."""
    top = (DST, (3,), F32)
    assert not pays(repulsion, *THREE, reduce="max")
    assert not pays(lambda a, b, t: jnp.exp(at_most(repulsion(a, b), t) - t), *THREE, top)
    assert not pays(lambda a, b, t: jnp.where(repulsion(a, b) == t, a / b, b), *THREE, top)


def test_forces_and_their_gradients_run_so():
    """A layer on particles, and what training differentiates: second order."""

    @gnnjit.layer
    def energy(v, e, p):
        r = v - e.src
        return gnnjit.sum(p / (jnp.sum(r * r) + 0.5))

    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 30, (2, 1200))
    particles = gnnjit.Graph.from_edges(src, dst, num_nodes=30)
    x, p = jnp.asarray(rng.normal(size=(30, 3)), jnp.float32), jnp.float32(2)

    def loss(p, x):
        force = jax.grad(lambda x: energy(particles, x, p).sum())(x)
        return jnp.sum(force**2)

    got = jax.jit(jax.value_and_grad(loss, (0, 1)))(p, x)
    with gnnjit.reference():
        want = jax.jit(jax.value_and_grad(loss, (0, 1)))(p, x)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-4)
