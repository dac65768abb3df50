"""Training on shards, as a user writes it: the losses, parameters and batch statistics of one
device."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from gnnjit.nn import GIN
from gnnjit.nn.recipes import build, build_graph

from .graphs import GRAPHS, assert_same

FEATURES, CLASSES, STEPS = 5, 3, 3
HUB = GRAPHS["hub"]
N = HUB.num_nodes
RNG = np.random.default_rng(1)
X = RNG.normal(size=(N, FEATURES)).astype(np.float32)
LABELS = RNG.integers(0, CLASSES, N).astype(np.int32)
SEEN = (RNG.random(N) < 0.7).astype(np.float32)


def train(model: str, layers: int, graph: Any, *rows: Any) -> Any:
    """The losses, and all variables after the last step."""
    classifier = build(
        model, in_features=FEATURES, hidden=4, num_classes=CLASSES, layers=layers, heads=2,
        dropout=0.3, rngs=nnx.Rngs(0),
    )  # fmt: skip
    # Adam divides by the size of a gradient: with its usual eps it would blow up rounding errors.
    optimizer = nnx.Optimizer(classifier, optax.adam(0.1, eps=1e-3), wrt=nnx.Param)

    @nnx.jit
    def step(classifier, optimizer, graph, x, labels, seen, key):
        def loss_of(classifier):
            logits = classifier(graph, x, key=key)
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return jnp.sum(losses * seen) / jnp.sum(seen)

        loss, gradients = nnx.value_and_grad(loss_of)(classifier)
        optimizer.update(classifier, gradients)
        return loss

    losses = [
        step(classifier, optimizer, graph, *rows, jax.random.key(number)) for number in range(STEPS)
    ]
    assert max(losses) - min(losses) > 0.01  # the parameters matter
    return jax.tree.map(np.asarray, (losses, nnx.to_pure_dict(nnx.state(classifier))))


@pytest.mark.long
@pytest.mark.parametrize(("model", "layers", "shards", "exchange"), [
    ("gcn", 3, 8, "ring"), ("gin", 2, 4, "cover"), *(
        pytest.param(*case, marks=pytest.mark.once)
        for case in [("gat", 2, 4, "halo"), ("gatedgcn", 3, 3, "all_gather")]
    ),
])  # fmt: skip
def test_training(model, layers, shards, exchange):
    rows = X, LABELS, SEEN
    sharded = HUB.shard(shards, exchange, "at random")
    got = train(model, layers, sharded, *sharded.put(rows))
    assert_same(got, train(model, layers, HUB.graph(), *rows), rtol=1e-3, atol=1e-4)


def test_batch_statistics_are_those_of_vertices():
    """Padding is not a vertex: what is computed of it does not get into the mean."""
    sharded = HUB.shard(4, "halo", "at random")
    models = [GIN(FEATURES, 4, 2, batch_norm=True, rngs=nnx.Rngs(0)) for _ in range(2)]
    for model in models:  # padding would come out as this bias
        model.hidden.bias[...] = jnp.full(4, 7.0)
    got = sharded.get(models[0](sharded, sharded.put(X), train=True))
    assert_same(got, np.asarray(models[1](HUB.graph(), X, train=True)))
    stats = [nnx.to_pure_dict(nnx.state(m, nnx.BatchStat)) for m in models]
    assert_same(*(jax.tree.map(np.asarray, s) for s in stats))


@pytest.mark.parametrize("readout", ["sum", "mean"])
def test_labels_on_graphs(readout):
    """Padding is in no graph, though its number of one is 0."""
    index = (np.arange(N) >= N // 2).astype(np.int32)

    @jax.jit
    def logits_and_gradient(graph: Any, x: Any, index: Any) -> Any:
        def loss(x: Any) -> Any:
            model = build_graph(
                "gin", in_features=FEATURES, hidden=4, num_classes=CLASSES, layers=2, heads=1,
                dropout=0.0, rngs=nnx.Rngs(0), readout=readout,
            )  # fmt: skip
            model.layers[0].hidden.bias[...] = jnp.full(4, 7.0)
            logits = model(graph, x, index, 2, key=jax.random.key(0))
            return jnp.sum(jnp.sin(logits)), logits

        return jax.value_and_grad(loss, has_aux=True)(x)

    sharded = HUB.shard(4, "halo", "at random")
    (value, logits), dx = logits_and_gradient(sharded, sharded.put(X), sharded.put(index))
    got = jax.tree.map(np.asarray, (value, logits, sharded.get(dx)))
    (value, logits), dx = logits_and_gradient(HUB.graph(), X, index)
    assert_same(got, jax.tree.map(np.asarray, (value, logits, dx)))
