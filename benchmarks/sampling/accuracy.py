"""Accuracy of sampled training on PPI, over the seconds that training took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import gnnjit
from gnnjit.data import Dataset
from gnnjit.sample import FrontierSampler, Loader, NeighborSampler
from gnnjit.training.metrics import cross_entropy

FANOUTS = {1: (25,), 2: (25, 10), 3: (25, 10, 5)}
"""Of layer sampling, after GraphSAGE (section 4.4)."""


@gnnjit.layer
def mean_of_neighbors(v, e):
    return gnnjit.mean(e.src)


class Order(nnx.Module):
    """`LayerNorm(relu(x W + b))`."""

    def __init__(self, features: int, hidden: int, rngs: nnx.Rngs):
        self.linear = nnx.Linear(features, hidden, rngs=rngs)
        self.norm = nnx.LayerNorm(hidden, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.norm(jax.nn.relu(self.linear(x)))


class Net(nnx.Module):
    """GraphSAINT's network of PPI ("1-0-1-0" with two layers): each layer concatenates what a
    vertex and what its neighbours' mean give, and a dense layer follows. Rows are normalised
    last."""

    def __init__(self, features: int, hidden: int, classes: int, layers: int, rngs: nnx.Rngs):
        widths = [features] + [hidden] * (layers - 1)
        self.own = nnx.List(Order(width, hidden, rngs) for width in widths)
        self.neighbors = nnx.List(Order(width, hidden, rngs) for width in widths)
        self.dense = nnx.List(Order(2 * hidden, hidden, rngs) for _ in widths)
        self.last = nnx.Linear(hidden, classes, rngs=rngs)

    def __call__(self, graphs: Any, x: Any, key: Any = None, rate: float = 0.0) -> Any:
        graphs = graphs if len(graphs) > 1 else graphs * len(self.dense)
        places = zip(self.own, self.neighbors, self.dense, graphs, strict=True)
        for i, (own, neighbors, dense, graph) in enumerate(places):
            x = dropped(x, key, 2 * i, rate)
            mean = mean_of_neighbors(graph, x)  # of the destinations, which come first
            x = jnp.concatenate([own(x[: len(mean)]), neighbors(mean)], axis=-1)
            x = dense(dropped(x, key, 2 * i + 1, rate))
        squares = jnp.sum(x * x, axis=-1, keepdims=True)
        return self.last(x * jax.lax.rsqrt(squares + 1e-12))


def dropped(x: Any, key: Any, number: int, rate: float) -> Any:
    """Dropout, where a key is given."""
    if key is None or rate == 0:
        return x
    keep = jax.random.bernoulli(jax.random.fold_in(key, number), 1 - rate, x.shape)
    return jnp.where(keep, x / (1 - rate), 0)


def batches(data: Dataset, kind: str, layers: int, threads: int) -> Iterator[Any]:
    """(graphs, x, labels, rows, mask), without end."""
    train = np.asarray(data.train_mask)
    if kind == "full":
        whole = (data.graph,), jnp.asarray(data.x), jnp.asarray(data.y), None, jnp.asarray(train)
        while True:
            yield whole
    count = data.graph.num_nodes
    if kind == "frontier":
        sampler: Any = FrontierSampler(
            data.graph,
            frontier=min(1000, count // 8),
            vertices=min(8000, count * 3 // 5),
            roots=train,
        )
        options: dict[str, Any] = {"labelled": train, "steps": 4}
    else:
        sampler = NeighborSampler(data.graph, FANOUTS[layers])
        options = {"seeds": train, "batch_size": min(512, count // 4)}
    loader = Loader(sampler, data.x, data.y, threads=threads, shapes=2, prefetch=3, **options)
    while True:
        for part in loader:
            yield part.graphs, part.x, part.y, part.seeds, part.mask


def curve(
    data: Dataset, kind: str, layers: int, steps: int, every: int, *, hidden: int = 512,
    rate: float = 0.1, lr: float = 0.01, threads: int = 1,
) -> Iterator[dict[str, float]]:  # fmt: skip
    """Micro-F1 after every so many of `steps`, in which the learning rate falls to 0; seconds are
    those of steps and batches, without compiling and evaluating."""
    rngs = nnx.Rngs(0)
    net = Net(data.num_features, hidden, data.num_classes, layers, rngs)
    definition, params = nnx.split(net)
    optimizer = optax.adam(optax.cosine_decay_schedule(lr, steps))
    state = optimizer.init(params)

    def update(params: Any, state: Any, part: Any, key: Any) -> Any:
        graphs, x, labels, rows, mask = part

        def loss_of(params: Any) -> Any:
            logits = nnx.merge(definition, params)(graphs, x, key, rate)
            logits = logits if rows is None else logits[rows]
            return jnp.sum(jnp.where(mask, cross_entropy(logits, labels), 0)) / jnp.sum(mask)

        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    step = jax.jit(update, donate_argnums=(0, 1))
    said = jax.jit(lambda params, x: nnx.merge(definition, params)((data.graph,), x) > 0)
    x, spent = jnp.asarray(data.x), 0.0
    stream, compiled = batches(data, kind, layers, threads), {}
    number = 0
    next(stream)  # samplers are compiled
    while number < steps:
        started = time.perf_counter()
        for _ in range(every):
            part = next(stream)
            shape = tuple(leaf.shape for leaf in jax.tree.leaves(part))
            key = jax.random.key(number)
            if shape not in compiled:
                paused = time.perf_counter()
                compiled[shape] = step.lower(params, state, part, key).compile()
                started += time.perf_counter() - paused
            params, state, loss = compiled[shape](params, state, part, key)
            number += 1
        jax.block_until_ready(params)
        spent += time.perf_counter() - started
        answers = np.asarray(said(params, x))
        point = {"seconds": spent, "steps": number, "loss": float(loss)}
        for split in ("train", "val", "test"):
            mask = np.asarray(getattr(data, f"{split}_mask"))
            point[split] = f1(answers[mask], np.asarray(data.y)[mask])
        yield point


def f1(said: np.ndarray, true: np.ndarray) -> float:
    """The micro-F1 of all labels."""
    return float(2 * (said & true).sum() / (said.sum() + true.sum()))
