"""Rows of shared tables, picked by an index of the edge, in every lowering, with gradients."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit.graph.degree_buckets import build_buckets
from gnnjit.lower import cpu
from gnnjit.lower.choose import prefer

N, E, R, F = 20, 150, 5, 6
RNG = np.random.default_rng(3)
SRC, DST = RNG.integers(0, N, (2, E))
INDEX = RNG.integers(-R - 3, R + 3, E)
"""Beyond both ends of the tables, and counted from the end, too."""


def draw(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape), jnp.float32)


def graph(**options) -> gnnjit.Graph:
    return gnnjit.Graph.from_edges(SRC, DST, num_nodes=N, **options)


def at(mode):
    return lambda t, i: t.at[i].get(mode=mode)


LAYERS = {
    "a matrix": (lambda e, t: e.src @ t[e.data], (R, F, F)),
    "a matrix, the other way round": (lambda e, t: jnp.tanh(t[e.data] @ e.src), (R, 4, F)),
    "a large matrix": (lambda e, t: jnp.tile(e.src, 5) @ t[e.data], (R, 5 * F, 20)),
    "a large matrix, transposed": (lambda e, t: t[e.data] @ jnp.tile(e.src, 5), (R, 20, 5 * F)),
    "a matrix or NaN": (lambda e, t: jnp.tile(e.src, 5) @ at("fill")(t, e.data), (R, 5 * F, 20)),
    "a row": (lambda e, t: e.src * t[e.data], (R, F)),
    "a row, nearest": (lambda e, t: e.src * at("clip")(t, e.data), (R, F)),
    "a row or NaN": (lambda e, t: e.src * at("fill")(t, e.data), (R, F)),
    "a row or 7": (
        lambda e, t: e.src * t.at[e.data].get(mode="fill", fill_value=7.0), (R, F)
    ),
    "a row, promised": (lambda e, t: e.src * at("promise_in_bounds")(t, e.data), (R, F)),
    "a number": (lambda e, t: e.src * t[e.data], (R,)),
    "two indices": (lambda e, t: e.src * t[e.data, e.data % 3], (R, 3)),
    "two indices of rows": (lambda e, t: e.src * t[e.data % 4, e.data - 1], (4, R, F)),
    "two rows": (lambda e, t: e.src * t[jnp.stack([e.data, e.data + 1])].sum(0), (R, F)),
    "the same table twice": (lambda e, t: t[e.data] * e.src + t[e.data - 2], (R, F)),
    "a column": (lambda e, t: e.src * t[:, e.data], (F, R)),
    "dynamic_slice": (
        lambda e, t: e.src * jax.lax.dynamic_slice_in_dim(t, e.data, 2)[1], (R, F)
    ),
    "an index of the vertex too": (lambda e, t: e.src * t[e.data + (e.dst[0] > 0)], (R, F)),
}  # fmt: skip


def layer(name, reduce=gnnjit.sum):
    fn, shape = LAYERS[name]
    return gnnjit.layer(lambda v, e, t: reduce(fn(e, t))), draw(*shape)


def value_and_gradient(run, g, x, t, index):
    loss = lambda x, t: jnp.square(run(g, x, t, edges=index)).sum()  # noqa: E731
    return jax.value_and_grad(loss, argnums=(0, 1))(x, t)


def plain(name, x, t, index):
    """The layer with gathers and a segment sum, edge by edge."""

    class Edge:
        def __init__(self, src, dst, data):
            self.src, self.dst, self.data = src, dst, data

    fn, _ = LAYERS[name]
    messages = jax.vmap(lambda s, d, i: fn(Edge(s, d, i), t))(x[SRC], x[DST], index)
    return jax.ops.segment_sum(messages, DST, N)


def alike(got, want):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)


@pytest.mark.long
@pytest.mark.parametrize("kernel", ["cpu", "segment"])
@pytest.mark.parametrize("name", LAYERS)
def test_rows_in_each_lowering(name, kernel):
    run, t = layer(name)
    x, index = draw(N, F), jnp.asarray(INDEX)
    loss = lambda x, t: jnp.square(plain(name, x, t, index)).sum()  # noqa: E731
    want = jax.value_and_grad(loss, argnums=(0, 1))(x, t)
    with prefer(kernel):
        alike(jax.jit(lambda *a: value_and_gradient(run, graph(), *a))(x, t, index), want)


ELSEWHERE = ["a matrix", "a row or NaN", "two rows", "a number"]


@pytest.mark.parametrize("name", ["a row or 7", "two rows"])
def test_rows_in_buckets_of_degrees(name):
    def bucketed(structure):
        return dataclasses.replace(
            structure, buckets=build_buckets(np.asarray(structure.indptr), 8)
        )

    g = graph()
    both = bucketed(g.in_structure), bucketed(g.out_structure)
    g = dataclasses.replace(g, in_structure=both[0], out_structure=both[1])
    run, t = layer(name)
    x, index = draw(N, F), jnp.asarray(INDEX)
    want = value_and_gradient(run, graph(), x, t, index)
    with prefer("bucketed"):
        forward, *_ = run.explain(g, x, t, edges=index).kernels
        assert forward.kernel == "bucketed"
        alike(value_and_gradient(run, g, x, t, index), want)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_rows_in_interpreted_gpu_kernels(name):
    run, t = layer(name)
    x, index = draw(N, F), jnp.asarray(INDEX)
    want = value_and_gradient(run, graph(), x, t, index)
    with prefer("pallas"):
        alike(value_and_gradient(run, graph(), x, t, index), want)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_rows_on_shards(name):
    if len(jax.devices()) < 2:
        pytest.skip("needs 2 devices")
    run, t = layer(name)
    x, index = draw(N, F), jnp.asarray(INDEX)
    loss, (of_x, of_t) = value_and_gradient(run, graph(), x, t, index)
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:2]), ("shards",))
    sharded = gnnjit.shard(graph(), mesh)
    step = jax.jit(lambda *a: value_and_gradient(run, sharded, *a))
    got, (got_x, got_t) = step(sharded.put(x), t, sharded.put_edges(index))
    alike((got, sharded.get(got_x), got_t), (loss, of_x, of_t))


KINDS = [np.uint8, np.int8, np.int16, np.int32, np.uint16, np.uint32]
TABLES = [np.float32, np.float16, np.int8, np.uint8, np.int16, np.int32, np.uint32, np.bool_]


def picks(kind: type[np.integer]) -> jax.Array:
    """In range, counted from the end, beyond both ends, and the ends of the dtype themselves."""
    ends = np.iinfo(kind)
    drawn = np.clip(INDEX, ends.min, ends.max)
    drawn[:6] = np.clip([ends.min, ends.max, ends.max - 1, -1, 127, -128], ends.min, ends.max)
    return jnp.asarray(drawn.astype(kind))


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "kernel"), [*((kind, "cpu") for kind in KINDS), (np.int8, "segment")]
)
def test_indices_of_each_dtype_into_tables_of_each(kind, kernel):
    """Sums of rows, numbers and columns, against NumPy; out of range as plain JAX has it."""
    index, x = picks(kind), draw(N, F)
    rng = np.random.default_rng(1)
    tables = {
        t: (rng.integers(0, 9, (R, F)).astype(t), rng.integers(0, 9, (4, 300)).astype(t))
        for t in TABLES
    }
    run = gnnjit.layer(
        lambda v, e, all: [
            gnnjit.sum((row[e.data], row[:, 0][e.data], columns[:, e.data])) for row, columns in all
        ]
    )
    given = [tables[t] for t in TABLES]
    with prefer(kernel):
        got = jax.jit(lambda x, all, i: run(graph(), x, all, edges=i))(x, given, index)
    for (row, columns), found in zip(given, got, strict=True):
        row, columns = jnp.asarray(row), jnp.asarray(columns)
        picked = jax.vmap(lambda i: (row[i], row[:, 0][i], columns[:, i]))(index)  # noqa: B023
        for each, rows in zip(found, picked, strict=True):
            want = np.zeros((N, *rows.shape[1:]), np.float64)
            np.add.at(want, DST, np.asarray(rows, np.float64))
            np.testing.assert_array_equal(np.asarray(each, np.float64), want, f"{row.dtype}")


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_tables_by_indices_of_each_dtype(kind):
    index, x = picks(kind), draw(N, F)
    run, t = layer("a row")
    loss = lambda x, t: jnp.square(plain("a row", x, t, index)).sum()  # noqa: E731
    want = jax.value_and_grad(loss, argnums=(0, 1))(x, t)
    with prefer("cpu"):
        alike(jax.jit(lambda *a: value_and_gradient(run, graph(), *a))(x, t, index), want)


def test_padding_reads_and_adds_nothing():
    run, t = layer("a row")
    x, index = draw(N, F), jnp.asarray(np.abs(INDEX) % R)
    padded = graph().pad(num_nodes=N + 3, num_edges=E + 9)
    more = jnp.concatenate([x, jnp.full((3, F), jnp.nan)])
    beyond = jnp.concatenate([index, jnp.full(9, 10**6)])
    for kernel in ("cpu", "segment"):
        with prefer(kernel):
            (_, of_t) = value_and_gradient(run, graph(), x, t, index)[1]
            grads = jax.grad(
                lambda t: jnp.square(run(padded, more, t, edges=beyond)[:N]).sum()
            )(t)  # fmt: skip
        alike(grads, of_t)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_is_summed_in_float32(dtype):
    run, t = layer("a row")
    index, x = jnp.asarray(np.abs(INDEX) % R), jnp.ones((N, F), dtype)
    grads = jax.grad(lambda t: run(graph(), x, t, edges=index).sum())(t.astype(dtype))
    counts = np.bincount(np.asarray(index), minlength=R)
    np.testing.assert_array_equal(np.asarray(grads[:, 0], np.float32), counts)


def test_second_derivatives():
    run, t = layer("a large matrix")
    x, index, t = draw(N, F), jnp.asarray(INDEX), t / 20
    other = lambda t: plain("a large matrix", x, t, index)  # noqa: E731
    own = lambda t: run(graph(), x, t, edges=index)  # noqa: E731
    second = lambda f: jax.grad(  # noqa: E731
        lambda t: jnp.square(jax.grad(lambda t: (jnp.tanh(f(t)) ** 2).sum())(t)).sum()
    )(t)
    want = second(other)
    size = jnp.abs(want).max()
    alike(second(own) / size, want / size)


@pytest.mark.skipif(not cpu.available(), reason="no CPU kernels here")
def test_kernels_run_them_and_equal_runs_are_equal_bit_for_bit():
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 500, (2, 30_000))
    g = gnnjit.Graph.from_edges(src, dst, num_nodes=500)
    run, t = layer("a large matrix")
    x, index = draw(500, F), jnp.asarray(rng.integers(0, R, 30_000))
    assert {k.kernel for k in run.explain(g, x, t, edges=index).kernels} == {"cpu"}
    step = jax.jit(lambda *a: value_and_gradient(run, g, *a))
    first, second = step(x, t, index), step(x, t, index)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kernel", ["cpu", "segment"])
def test_a_table_is_not_written_for_each_edge(kernel):
    run, t = layer("a row")
    t = draw(400, F)
    x, index = draw(N, F), jnp.asarray(np.abs(INDEX))
    with prefer(kernel):
        step = jax.jit(lambda *a: value_and_gradient(run, graph(), *a))
        text = step.lower(x, t, index).as_text()
    assert f"{E}x400x{F}" not in text
