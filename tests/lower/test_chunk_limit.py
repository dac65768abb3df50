"""A traversal's limit bounds the chunks of its edges, in its derivatives too."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ir.layers import trace, value
from planned import planned

import gnnjit
from gnnjit._compat import subjaxprs
from gnnjit.ir.space import Space
from gnnjit.lower import choose
from gnnjit.lower.application import aggregate_p
from gnnjit.lower.xla import segment

F, H = 3, 8


def edge_mlp(v: Any, e: Any, w: Any, k: Any) -> Any:
    return gnnjit.sum(jax.nn.relu(e.src + v @ w + e.data @ w) @ k)


def case(edges: int, n: int = 40) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    graph = gnnjit.Graph.from_edges(rng.integers(0, n, edges), rng.integers(0, n, edges), n)
    shapes = (n, F), (F, F), (F, H), (edges, F)
    return graph, *(jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes)


def gradient(limit: int | None) -> Any:
    layer = planned(edge_mlp, limit=limit)

    def loss(graph: Any, x: Any, w: Any, k: Any, data: Any) -> Any:
        return jnp.sum(jnp.sin(layer(graph, x, w, k, edges=data)))

    return jax.grad(loss, (1, 2, 3, 4))


def close(have: Any, want: Any) -> None:
    for a, b in zip(jax.tree.leaves(have), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


def temporary(compiled: Any) -> int:
    return compiled.memory_analysis().temp_size_in_bytes


def test_the_gradient_in_small_chunks_is_the_same_in_less_memory():
    args = case(50_000)
    with choose.prefer("segment"):
        small = jax.jit(gradient(1 << 12)).lower(*args).compile()
        usual = jax.jit(gradient(None)).lower(*args).compile()
    close(small(*args), usual(*args))
    assert temporary(small) < temporary(usual)


def second_order(f: Any) -> Any:
    def along(graph: Any, *args: Any) -> Any:
        return jax.jvp(functools.partial(f, graph), args, args)

    return along


@pytest.mark.parametrize("how", [second_order, lambda f: jax.vmap(f, (None, 0, None, None, 0))],
                         ids=["second order", "batched"])  # fmt: skip
def test_other_rules_keep_the_limit(how):
    graph, x, w, k, data = case(200)
    args = (graph, x, w, k, data)
    if how is not second_order:
        args = (graph, jnp.stack([x, -x]), w, k, jnp.stack([data, 2 * data]))
    f = how(gradient(1 << 6))
    close(jax.jit(f)(*args), jax.jit(how(gradient(None)))(*args))
    found = limits(jax.make_jaxpr(f)(*args).jaxpr)
    assert len(found) >= 2
    assert set(found) == {1 << 6}


def limits(jaxpr: Any) -> list[Any]:
    """The limit of every aggregate, those of inner jaxprs too."""
    found = []
    for eqn in jaxpr.eqns:
        if eqn.primitive is aggregate_p:
            found.append(eqn.params["limit"])
        for sub in subjaxprs(eqn):
            found += limits(sub)
    return found


@pytest.mark.parametrize(("limit", "chunk"), [(None, 1000), (10 * H, 10), (1, 1), (10**9, 1000)])
def test_the_estimate_counts_the_values_of_a_chunk(limit, chunk):
    inputs = [value("x", Space.SRC, F), value("w", Space.SHARED, F, H)]
    body = trace(lambda x, w: jnp.tanh(x @ w), inputs, edge_values=True)
    assert segment.chunk_size(body, 1000, limit) == chunk
    expected = 4 * F * H + 4 * chunk * (F + H + H)
    assert segment.temporary_bytes(body, 1000, limit) == expected


@pytest.mark.parametrize("edges", [0, 1, 999, 1000, 1001, 1999, 2001, 123_457])
def test_steps_are_about_as_long(edges):
    x = value("x", Space.SRC, F)
    body = trace(lambda x: jnp.tanh(x), [x], edge_values=True)
    chunk = segment.chunk_size(body, edges, 1000 * F)
    assert 1 <= chunk <= 1000
    steps = -(-edges // chunk)
    assert steps == -(-edges // 1000)
    assert steps * chunk - edges <= max(1, steps)


def heads(v: Any, e: Any, w: Any) -> Any:
    each = jnp.einsum("hf,hfg->hg", e.data.reshape(2, F), w)
    return gnnjit.sum(jnp.tanh(e.src[0] * each))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("limit", [None, 1 << 6])
@pytest.mark.parametrize("fn", [edge_mlp, heads])
def test_gradients_of_shared_matrices_are_sums_over_real_edges(fn, limit, dtype):
    graph, x, w, k, data = case(200)
    shared: tuple[Any, ...] = (w, k)
    if fn is heads:
        shared, data = (jnp.stack([k, 2 * k]),), jnp.tile(data, 2)
    padded = graph.pad(num_edges=230)
    args = jax.tree.map(lambda a: a.astype(dtype), (x, *shared))

    def gradient(graph: Any, data: Any) -> Any:
        layer = planned(fn, limit=limit)

        def loss(*args: Any) -> Any:
            outs = layer(graph, *args, edges=data.astype(dtype))
            return jnp.sum(jnp.sin(outs.astype(jnp.float32)))

        return jax.jit(jax.grad(loss, tuple(range(len(args)))))(*args)

    nan = jnp.concatenate([data, jnp.full((30, data.shape[1]), jnp.nan)])
    with choose.prefer("segment"):
        have = gradient(padded, nan)
    with gnnjit.reference():
        want = gradient_of(fn, graph, data, x, shared)
    rtol = 1e-3 if dtype == jnp.float32 else 0.1
    for a, b in zip(have, want, strict=True):
        assert a.dtype == dtype
        scale = float(jnp.max(jnp.abs(b)))
        np.testing.assert_allclose(a.astype(jnp.float32), b, rtol=rtol, atol=rtol * scale)


def gradient_of(fn: Any, graph: Any, data: Any, x: Any, shared: Any) -> Any:
    layer = gnnjit.layer(fn)

    def loss(*args: Any) -> Any:
        return jnp.sum(jnp.sin(layer(graph, *args, edges=data)))

    return jax.grad(loss, tuple(range(1 + len(shared))))(x, *shared)


def test_no_product_of_an_edge_is_written():
    """The gradients of shared matrices, of [50000, 64, 64] if each edge had its own."""
    graph = case(50_000)[0]
    rng = np.random.default_rng(0)
    shapes = (40, 64), (64, 64), (64, 64), (50_000, 64)
    args = (graph, *(jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes))
    with choose.prefer("segment"):
        compiled = jax.jit(gradient(None)).lower(*args).compile()
    assert "f32[12500,64]" in compiled.as_text()
    assert "[12500,64,64]" not in compiled.as_text()
