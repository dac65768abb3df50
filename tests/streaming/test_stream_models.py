"""Training a model streamed gives the losses, parameters and batch statistics of training it in
memory."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from gnnjit.lower import partial_results
from gnnjit.nn import recipes
from gnnjit.streaming.stream import stream

from .functions import Edges, PerVertex, on_graph, random_edges

FEATURES, CLASSES, STEPS = 5, 3, 4

# Adam divides by the size of a gradient: with its usual eps it would blow up the rounding errors
# that are all there is to the gradient of a bias in front of batch normalisation.
OPTIMIZER = optax.adam(0.1, eps=1e-3)


def data(edges: Edges) -> tuple[Any, ...]:
    rng = np.random.default_rng(1)
    n = edges.num_nodes
    return (
        PerVertex(rng.normal(size=(n, FEATURES)).astype(np.float32)),
        PerVertex(rng.integers(0, CLASSES, n).astype(np.int32)),
        PerVertex(rng.random(n) < 0.7),
    )


def training(model: str, layers: int) -> tuple[Any, Any]:
    """A step of training, and the state that it starts from."""
    built = recipes.build(
        model, in_features=FEATURES, hidden=4, num_classes=CLASSES, layers=layers, heads=2,
        dropout=0.3, rngs=nnx.Rngs(0),
    )  # fmt: skip
    definition, params, buffers = nnx.split(built, nnx.Param, ...)

    def loss_of(params: Any, buffers: Any, graph: Any, x: Any, y: Any, mask: Any, key: Any) -> Any:
        # Mapped, so that its variables belong to this trace and may be assigned to.
        merged = nnx.merge(definition, params, jax.tree.map(lambda leaf: leaf, buffers))
        logits = merged(graph, x, key=key)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
        loss = jnp.sum(jnp.where(mask, losses, 0)) / jnp.sum(mask)
        right = jnp.sum(mask & (jnp.argmax(logits, axis=-1) == y))
        return loss, (nnx.state(merged, nnx.Not(nnx.Param)), right)

    def step(graph: Any, state: Any, key: Any, x: Any, y: Any, mask: Any) -> Any:
        params, buffers, moments = state
        both = jax.value_and_grad(loss_of, has_aux=True)
        (loss, (buffers, right)), grads = both(params, buffers, graph, x, y, mask, key)
        updates, moments = OPTIMIZER.update(grads, moments, params)
        return (optax.apply_updates(params, updates), buffers, moments), loss, right

    return step, (params, buffers, OPTIMIZER.init(params))


def train(step: Any, state: Any, graph: Any, args: Any) -> Any:
    """The losses, numbers of right predictions, and the last state."""
    curve = []
    for number in range(STEPS):
        state, *values = step(graph, state, jax.random.key(number), *args)
        curve.append(jax.device_get(values))
    return curve, jax.device_get(state)


@functools.cache
def in_memory(model: str, layers: int, edges: Edges) -> Any:
    step, state = training(model, layers)
    args = [x.rows for x in data(edges)]
    return train(jax.jit(step), state, edges.graph(), args)


def assert_trains_alike(model: str, layers: int, parts: int, edges: Edges, **options: Any) -> None:
    want = in_memory(model, layers, edges)
    step, state = training(model, layers)
    graph = edges.streamed()
    streamed = stream(step, memory_budget="1GiB", parts=parts, **options)
    got = train(streamed, state, graph, on_graph(graph, data(edges)))
    assert jax.tree.structure(got) == jax.tree.structure(want)
    losses = [loss for loss, _ in want[0]]
    assert max(losses) - min(losses) > 0.01  # the parameters matter
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


EDGES = random_edges(13, 45)


@pytest.mark.long
@pytest.mark.parametrize(("model", "layers", "parts"), [
    ("gcn", 3, 3), ("gat", 2, 2), *(
        pytest.param(*case, marks=pytest.mark.once)
        for case in [("gcn", 2, 7), ("gatedgcn", 2, 3), ("gin", 2, 3)]
    ),
])  # fmt: skip
def test_training(model, layers, parts):
    assert_trains_alike(model, layers, parts, EDGES)


@pytest.mark.once
def test_training_keeping_nothing_on_the_device():
    assert_trains_alike("gcn", 2, 2, EDGES, cached=False, overlapped=False)


@pytest.mark.long
@pytest.mark.once
def test_a_wrong_merge_would_be_seen(monkeypatch):
    """The comparison is as sharp as it has to be: exp sums that are not rescaled fail it."""
    monkeypatch.setattr(partial_results, "rescaled", lambda total, top, new: total)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_trains_alike("gat", 2, 2, EDGES)
