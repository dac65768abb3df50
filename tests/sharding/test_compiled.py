"""What is in the compiled programs: what travels, what is stored, and that reruns are equal."""

from __future__ import annotations

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gnnjit.lower.sharded.aggregate import side_by_side

from .functions import arguments, gated, of_module
from .graphs import edges

N, E, F = 512, 4096, 3
SHARDS = 4
TRAFFIC = {"all_gather": "all-gather", "halo": "collective-permute", "ring": "collective-permute"}
"""Between neighbours on a circle, rows of a halo are passed on by distance."""


def circle(num_nodes: int = N, num_edges: int = E) -> Any:
    """Edges between vertices that are near each other, on a circle: few rows travel."""
    rng = np.random.default_rng(0)
    src = rng.integers(0, num_nodes, num_edges)
    return edges(src, (src + rng.integers(-9, 10, num_edges)) % num_nodes, num_nodes)


CIRCLE = circle()
X, D, P = arguments(CIRCLE)


def training_step(module: str) -> tuple[Any, Any]:
    """Parameters after a step, and gradients of features; the parameters before."""
    fn, params = of_module(module)

    def step(graph: Any, x: Any, params: Any) -> Any:
        def loss(params: Any, x: Any) -> Any:
            hidden = jax.nn.relu(fn(graph, x, None, params).vertex[:, :F])
            hidden = jnp.pad(hidden, [(0, 0), (0, F - hidden.shape[1])])
            return jnp.sum(jnp.sin(fn(graph, hidden, None, params).vertex))

        grads, dx = jax.grad(loss, (0, 1))(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), dx

    return jax.jit(step), params


def compiled_text(module: str, exchange: str) -> str:
    step, params = training_step(module)
    sharded = CIRCLE.shard(SHARDS, exchange)
    return step.lower(sharded, sharded.put(X), params).compile().as_text()


def rows(text: str) -> set[int]:
    """First axes of all arrays of features, `[rows, ...]`."""
    shapes = re.findall(r"\bf32\[([\d,]+)\]", text)
    return {int(s.split(",")[0]) for s in shapes if "," in s}


@pytest.mark.parametrize("exchange", TRAFFIC)
@pytest.mark.parametrize("module", ["gcn", "gat"])
def test_training_moves_what_the_exchange_says(module, exchange):
    text = compiled_text(module, exchange)
    assert f" {TRAFFIC[exchange]}" in text
    largest = max(rows(text))
    if exchange == "all_gather":
        assert largest >= N
    else:
        assert "all-gather" not in text
        assert largest < N


def sizes(text: str) -> list[int]:
    """Elements of all arrays of numbers with a fraction."""
    return [math.prod(map(int, s.split(","))) for s in re.findall(r"\bf32\[([\d,]+)\]", text)]


@pytest.mark.parametrize("exchange", ["halo", "ring"])
def test_no_device_has_all_rows_in_any_shape(exchange):
    text = compiled_text("gat", exchange)
    assert sizes(text)
    assert max(sizes(text)) < N * F


@pytest.mark.parametrize("exchange", TRAFFIC)
def test_reruns_are_equal_bit_for_bit(exchange):
    step, params = training_step("gat")
    sharded = CIRCLE.shard(SHARDS, exchange)
    first, *others = (jax.device_get(step(sharded, sharded.put(X), params)) for _ in range(3))
    for other in others:
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(other), strict=True):
            np.testing.assert_array_equal(a, b)


def temporaries(exchange: str, shards: int) -> int:
    """Bytes of a device that a gradient needs besides its arguments and results."""

    def loss(x: Any, graph: Any) -> Any:
        return jnp.sum(jnp.sin(gated(graph, x, None, P).vertex))

    sharded = CIRCLE.shard(shards, exchange)
    lowered = jax.jit(jax.grad(loss)).lower(sharded.put(X), sharded)
    return lowered.compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("exchange", ["halo", "ring"])
def test_memory_falls_with_the_number_of_devices(exchange):
    used = [temporaries(exchange, shards) for shards in (2, 4, 8)]
    assert used == sorted(used, reverse=True)
    assert used[-1] < 0.5 * used[0]


def test_rows_come_once_and_sums_go_back_together():
    """Attention receives features and scores for the forward pass and keeps them for the backward;
    their gradients go back as one array."""
    fn, params = of_module("gat")
    sharded = CIRCLE.shard(SHARDS, "halo")

    def loss(x: Any, graph: Any) -> Any:
        return jnp.sum(jnp.sin(fn(graph, x, None, params).vertex))

    text = jax.jit(jax.grad(loss)).lower(sharded.put(X), sharded).compile().as_text()
    moved = re.findall(r" collective-permute(?:-start)?\(", text)
    assert len(moved) == 3 * len(sharded.exchange.blocks) > 3


@pytest.mark.parametrize("rows", [0, 3])
def test_packing(rows):
    numbers = jnp.arange(rows * 6.0)
    arrays = [
        numbers.reshape(rows, 2, 3),
        jnp.arange(rows),
        numbers[:rows],
        numbers[: 2 * rows].reshape(rows, 2).astype(jnp.bfloat16),
    ]
    moves = []

    def back_to_front(x: Any) -> Any:
        moves.append(x.dtype)
        return x[::-1]

    for x, moved in zip(arrays, side_by_side(back_to_front, arrays), strict=True):
        assert moved.dtype == x.dtype
        np.testing.assert_array_equal(moved, x[::-1])
    assert moves == [jnp.float32, jnp.int32, jnp.bfloat16]
