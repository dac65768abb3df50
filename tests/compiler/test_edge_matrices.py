"""Layers whose edges have matrices of their own, summed before they are multiplied, and after."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit.lower.choose import prefer
from gnnjit.passes.pipeline import Choices
from gnnjit.planner.search import force

N, EDGES, F, K, OUT, DATA = 30, 200, 16, 20, 12, 5

PLANS = {
    "its own plan": None,
    "sums first": Choices(orders=("aggregate-first",) * 4),
    "matrix first": Choices(orders=("combine-first",) * 4),
}


@gnnjit.layer
def edge_matrices(v: Any, e: Any, p: Any) -> Any:
    """With a bias, a factor of each edge, a mean, and a matrix of the vertex itself."""
    hidden = jax.nn.silu(e.data @ p["first"])
    matrix = (hidden @ p["second"] + p["bias"]).reshape(F, OUT)
    return v @ p["own"] + gnnjit.mean(jnp.cos(e.data[0]) * (e.src @ matrix))


def plain(src: Any, dst: Any, x: Any, data: Any, p: Any) -> Any:
    hidden = jax.nn.silu(data @ p["first"])
    matrix = (hidden @ p["second"] + p["bias"]).reshape(-1, F, OUT)
    message = jnp.cos(data[:, :1]) * jnp.einsum("ei,eio->eo", x[src], matrix)
    total = jax.ops.segment_sum(message, dst, len(x))
    count = jax.ops.segment_sum(jnp.ones(len(dst), x.dtype), dst, len(x))
    return x @ p["own"] + total / jnp.maximum(count, 1)[:, None]


def inputs(dtype: Any = jnp.float32, scale: float = 1.0) -> tuple[Any, ...]:
    """Half of the edges come to one vertex, and two vertices have none."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, N, EDGES), rng.integers(0, N - 2, EDGES)
    dst[: EDGES // 2] = 3
    shapes = {"first": (DATA, K), "second": (K, F * OUT), "bias": (F * OUT,), "own": (F, OUT)}
    p = {k: jnp.asarray(rng.normal(size=s) / s[0] ** 0.5, dtype) for k, s in shapes.items()}
    x = jnp.asarray(scale * rng.normal(size=(N, F)), dtype)
    return src, dst, x, jnp.asarray(rng.normal(size=(EDGES, DATA)), dtype), p


def forced(plan: str) -> contextlib.AbstractContextManager[Any]:
    choices = PLANS[plan]
    return force(choices) if choices else contextlib.nullcontext()


def close(have: Any, want: Any, tol: float) -> None:
    for a, b in zip(jax.tree.leaves(have), jax.tree.leaves(want), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        np.testing.assert_allclose(a, b, rtol=tol, atol=tol * max(1.0, np.abs(b).max()))


@pytest.mark.parametrize("lowering", ["cpu", "segment", "dense", "pallas"])
@pytest.mark.parametrize("plan", PLANS)
def test_derivatives_of_both_orders(plan: str, lowering: str) -> None:
    src, dst, x, data, p = inputs()
    graph = gnnjit.Graph.from_edges(src, dst, num_nodes=N)

    def ours(x: Any, data: Any, p: Any) -> Any:
        return edge_matrices(graph, x, p, edges=data)

    def oracle(x: Any, data: Any, p: Any) -> Any:
        return plain(src, dst, x, data, p)

    def all_of(f: Any) -> Any:
        def loss(*args: Any) -> Any:
            return jnp.sum(jnp.sin(f(*args)))

        def steepness(*args: Any) -> Any:
            slopes = jax.grad(loss, argnums=(0, 1, 2))(*args)
            return sum(jnp.sum(jnp.square(a)) for a in jax.tree.leaves(slopes)) / 100

        every = (0, 1, 2)
        return jax.jit(
            lambda *args: (
                f(*args),
                jax.grad(loss, every)(*args),
                jax.grad(steepness, every)(*args),
            )
        )

    want = all_of(oracle)(x, data, p)
    with prefer(lowering), forced(plan):
        close(all_of(ours)(x, data, p), want, 2e-4)


@pytest.mark.parametrize("lowering", ["cpu", "segment"])
@pytest.mark.parametrize("plan", PLANS)
def test_half_precision_keeps_its_range(plan: str, lowering: str) -> None:
    """Outer products of numbers and features would leave it; what the layer computes does not."""
    src, dst, x, data, p = inputs(jnp.float16, scale=1500.0)
    p["first"] = 40 * p["first"]
    p["second"] = p["second"] / 50
    p["bias"] = p["bias"] / 50
    graph = gnnjit.Graph.from_edges(src, dst, num_nodes=N)
    wide = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), (x, data, p))
    want = plain(src, dst, *wide)
    with prefer(lowering), forced(plan):
        have = jax.jit(lambda *args: edge_matrices(graph, args[0], args[2], edges=args[1]))
        close(have(x, data, p), want, 2e-2)


def test_the_plan_for_training_sums_first() -> None:
    src, dst, x, data, p = inputs()
    graph = gnnjit.Graph.from_edges(src, dst, num_nodes=N)
    report = str(gnnjit.explain(edge_matrices, graph, x, p, edges=data))
    training = report[report.index("--- plan for training") :].splitlines()
    chosen = next(line for line in training if line.startswith("*"))
    assert chosen.endswith("aggregate-first"), chosen
