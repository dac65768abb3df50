"""Every lowering of a traversal gives the same values and gradients, and `prefer` forces one."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiler.cases import CASES, GRAPHS, Edges, features, hub, layer_of

import gnnjit
from gnnjit.graph.degree_buckets import build_buckets
from gnnjit.lower import choose
from gnnjit.lower.xla import segment


def with_buckets(graph: gnnjit.Graph, max_width: int) -> gnnjit.Graph:
    def add(structure: Any) -> Any:
        buckets = build_buckets(np.asarray(structure.indptr), max_width)
        return dataclasses.replace(structure, buckets=buckets)

    return dataclasses.replace(
        graph,
        in_structure=add(graph.in_structure),
        out_structure=add(graph.out_structure),
    )


@contextlib.contextmanager
def forced(kernel: str, monkeypatch: Any, chunk: int | None = None) -> Any:
    """Runs on `kernel`; yields the list of lowerings that ran."""
    ran: list[str] = []
    if chunk is not None:
        monkeypatch.setattr(segment, "CHUNK_SCALARS", chunk)
    run = choose.Choice.run

    def spy(choice: choose.Choice, operands: Any) -> Any:
        ran.append(choice.kernel)
        return run(choice, operands)

    monkeypatch.setattr(choose.Choice, "run", spy)
    with choose.prefer(kernel):
        yield ran


def value_and_grad(name: str, e: Edges, graph: gnnjit.Graph) -> Any:
    """A new function each time, so that nothing compiled before is used."""
    layer, at = layer_of(CASES[name].fn), features(e)
    x = gnnjit.Bipartite(at["src"], at["dst"]) if e.bipartite else at["dst"]

    def loss(x: Any, p: Any, data: Any) -> Any:
        outs = jax.tree.leaves(layer(graph, x, p, edges=data))
        return sum(jnp.sum(jnp.sin(o)) for o in outs), outs

    f = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)
    return jax.jit(f)(x, at["p"], at["data"])


def close(have: Any, want: Any) -> None:
    for a, b in zip(jax.tree.leaves(have), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


NAMES = ["gat_concat", "graph_net", "extremes"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("graph", ["hub", "padding"])
@pytest.mark.parametrize("chunk", [20, 1 << 20], ids=["chunks", "one chunk"])
def test_segment(name, graph, chunk, monkeypatch):
    e = GRAPHS[graph]
    want = value_and_grad(name, e, e.graph())
    with forced("segment", monkeypatch, chunk) as ran:
        have = value_and_grad(name, e, e.graph())
    assert set(ran) == {"segment"}
    close(have, want)


@pytest.mark.parametrize("name", ["gat", "moments"])
@pytest.mark.parametrize("width", [3, 1024], ids=["hub in pieces", "whole rows"])
def test_bucketed(name, width, monkeypatch):
    e = hub()
    graph = with_buckets(e.graph(), width)
    want = value_and_grad(name, e, e.graph())
    with forced("bucketed", monkeypatch) as ran:
        have = value_and_grad(name, e, graph)
    assert "bucketed" in ran
    assert set(ran) <= {"bucketed", "segment"}
    close(have, want)


@pytest.mark.parametrize("graph", ["isolated", "one vertex", "bipartite"])
def test_bucketed_graphs(graph, monkeypatch):
    e = GRAPHS[graph]
    want = value_and_grad("gat", e, e.graph())
    with forced("bucketed", monkeypatch) as ran:
        have = value_and_grad("gat", e, with_buckets(e.graph(), 2))
    assert "bucketed" in ran
    close(have, want)


# Row 0 is a hub of 40 edges, rows 1 and 2 are of 3, row 3 of 1, rows 4 and 5 are empty.
ROWS = np.array([0] * 40 + [1] * 3 + [2] * 3 + [3], np.int32)


def extremes_by_hand(kind: str, src: Any, x: Any) -> Any:
    """Row by row: JAX's own maximum of an array shares the gradient among ties."""
    m = x[src] * 2
    how = {"max": jnp.max, "min": jnp.min}[kind]
    rows = [how(m[ROWS == r], axis=0) for r in range(4)]
    return jnp.stack([*rows, jnp.zeros(2), jnp.zeros(2)])


@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize("width", [2, 7, 1024])
@pytest.mark.parametrize("ties", [False, True])
def test_extremes_in_buckets(kind, width, ties, monkeypatch):
    """Nothing else may run: the edge function has no matmul, and sums follow the maximum."""
    rng = np.random.default_rng(0)
    src = rng.integers(0, 6, len(ROWS)) if ties else rng.permutation(len(ROWS)) % 60
    graph = gnnjit.Graph.from_edges(src, ROWS, num_src=60, num_dst=6)
    x = rng.integers(-2, 3, (60, 2)) if ties else rng.permutation(120).reshape(60, 2) - 60
    x, weights = jnp.asarray(x, jnp.float32), jnp.asarray(rng.normal(size=(6, 2)), jnp.float32)
    layer = gnnjit.layer(lambda v, e: getattr(gnnjit, kind)(e.src * 2))

    def both(f: Any) -> Any:
        return jax.value_and_grad(lambda x: (jnp.vdot(weights, y := f(x)), y), has_aux=True)(x)

    with forced("bucketed", monkeypatch) as ran:
        cut = with_buckets(graph, width)
        (_, have), grad = both(lambda x: layer(cut, gnnjit.Bipartite(x, weights)))
    assert set(ran) == {"bucketed"}
    (_, want), want_grad = both(lambda x: extremes_by_hand(kind, src, x))
    np.testing.assert_array_equal(have, want)
    np.testing.assert_allclose(grad, want_grad, rtol=1e-6, atol=1e-6)


def test_buckets_give_the_same_bits_every_time(monkeypatch):
    rng = np.random.default_rng(0)
    graph = gnnjit.Graph.from_edges(np.arange(len(ROWS)), ROWS, num_src=60, num_dst=6)
    x = gnnjit.Bipartite(jnp.asarray(rng.normal(size=(60, 5)), jnp.float32), jnp.ones((6, 5)))
    layer = gnnjit.layer(lambda v, e: gnnjit.sum(jnp.tanh(e.src + v)))
    with forced("bucketed", monkeypatch):
        f = jax.jit(jax.grad(lambda x, g: jnp.sum(jnp.sin(layer(g, x)))))
        first, *others = [f(x, with_buckets(graph, 2)) for _ in range(5)]
    for other in others:
        jax.tree.map(np.testing.assert_array_equal, first, other)


@pytest.mark.parametrize("kernel", ["csr", "bucketed", "segment"])
@pytest.mark.parametrize("graph", ["no edges", "one vertex, no edges"])
def test_without_edges(kernel, graph, monkeypatch):
    e = GRAPHS[graph]
    with forced(kernel, monkeypatch) as ran:
        (_, outs), grads = value_and_grad("gat", e, with_buckets(e.graph(), 2))
    assert ran
    assert all(not o.any() for o in outs)
    assert all(not np.asarray(g).any() for g in jax.tree.leaves(grads))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("graph", ["hub", "bipartite", "padding"])
def test_csr(graph, weighted, monkeypatch):
    e = GRAPHS[graph]
    at = features(e)
    x = gnnjit.Bipartite(at["src"], at["dst"]) if e.bipartite else at["dst"]

    def run() -> Any:
        layer = gnnjit.layer(lambda v, e: gnnjit.sum(e.data * e.src if weighted else e.src))

        def loss(x: Any, d: Any) -> Any:
            return jnp.sum(jnp.sin(layer(e.graph(), x, edges=d if weighted else None)))

        f = jax.value_and_grad(loss, (0, 1))
        return jax.jit(f)(x, at["data"][:, 0])

    want = run()
    with forced("csr", monkeypatch) as ran:
        have = run()
    assert "csr" in ran
    close(have, want)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("kernel", choose.KERNELS)
def test_padding_reads_nothing(kernel, bad, monkeypatch):
    """Padding edges point at vertex 0, whose features here are not finite."""
    graph = gnnjit.Graph.from_edges([1, 0, 2], [1, 0, 2], 3, edge_mask=[True, False, True])
    x = jnp.array([[bad], [1.0], [2.0]])
    with forced(kernel, monkeypatch):
        layer = gnnjit.layer(lambda v, e: gnnjit.sum(e.src))
        np.testing.assert_array_equal(layer(graph, x)[:, 0], [0, 1, 2])
        grad = jax.grad(lambda x: jnp.sum(layer(graph, x)))(x)
    np.testing.assert_array_equal(grad[:, 0], [0, 1, 1])


@pytest.mark.parametrize("kernel", ["cpu", "bucketed", "segment"])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_is_summed_in_float32(dtype, kernel, monkeypatch):
    n = 4096
    graph = with_buckets(gnnjit.Graph.from_edges(np.arange(n), np.zeros(n, int), n), 256)
    with forced(kernel, monkeypatch, 1000):
        layer = gnnjit.layer(lambda v, e: (gnnjit.sum(e.src), gnnjit.mean(e.src), gnnjit.sum(v)))
        outs = layer(graph, jnp.ones(n, dtype))
        grad = jax.grad(lambda x: jnp.sum(layer(graph, x)[0]))(jnp.ones(n, dtype))
    assert [o.dtype for o in outs] == [dtype] * 3
    assert [float(o[0]) for o in outs] == [n, 1.0, n]
    assert float(jnp.min(grad)) == float(jnp.max(grad)) == 1.0


@pytest.mark.parametrize("kernel", ["cpu", "bucketed", "segment"])
def test_ties_share_the_gradient(kernel, monkeypatch):
    graph = with_buckets(gnnjit.Graph.from_edges([0] * 7, [0, 0, 0, 1, 1, 1, 2], 4), 2)
    data = jnp.array([1.0, 1, 0, 2, 2, 2, -5])
    with forced(kernel, monkeypatch, 4):
        layer = gnnjit.layer(lambda v, e: gnnjit.max(e.data) - gnnjit.min(e.data))
        most = jax.grad(lambda d: jnp.sum(layer(graph, jnp.zeros(4), edges=d)))(data)
    np.testing.assert_allclose(most, [0.5, 0.5, -1, 0, 0, 0, 0], atol=1e-6)


def test_preferring_is_part_of_the_key_of_compiled_code(monkeypatch):
    layer, x = gnnjit.layer(lambda v, e: gnnjit.sum(jnp.tanh(e.src + v))), jnp.ones((9, 2))
    graph, f = hub().graph(), jax.jit(lambda g, x: layer(g, x))
    before = f(graph, x)
    with forced("segment", monkeypatch) as ran:
        inside = f(graph, x)
        once = len(ran)
        f(graph, x)
    assert once == len(ran) == 1
    assert f(graph, x).tolist() == before.tolist()
    assert len(ran) == 1
    np.testing.assert_allclose(inside, before, rtol=1e-6)


def test_preferring_an_unknown_lowering():
    with (
        pytest.raises(
            ValueError,
            match="the lowerings are staged, pallas, mosaic, cpu, dense, csr, bucketed, segment",
        ),
        choose.prefer("cuda"),
    ):
        pass
