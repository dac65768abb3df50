"""What the processes of `test_process_group.py` run, and one process alone: a few steps of
training, and a function that takes and gives rows of vertices and edges."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import gnnjit
from gnnjit.distributed import connection
from gnnjit.distributed.process_group import ProcessGroup, digest
from gnnjit.nn import recipes
from gnnjit.store import CollectiveStore
from gnnjit.streaming import StreamedGraph
from gnnjit.streaming.runtime.executor import Executor
from gnnjit.streaming.stream import stream

NODES, EDGES, FEATURES, CLASSES, STEPS = 90, 420, 5, 3, 3
OPTIMIZER = optax.adam(0.1, eps=1e-3)


def training(model: str, layers: int) -> tuple[Callable[..., Any], Any]:
    """A step of training that gives the predictions too, and the state that it starts from."""
    built = recipes.build(
        model, in_features=FEATURES, hidden=4, num_classes=CLASSES, layers=layers, heads=2,
        dropout=0.3, rngs=nnx.Rngs(0),
    )  # fmt: skip
    definition, params, buffers = nnx.split(built, nnx.Param, ...)

    def loss_of(params: Any, graph: Any, x: Any, y: Any, key: Any) -> Any:
        logits = nnx.merge(definition, params, buffers)(graph, x, key=key)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), logits

    def step(graph: Any, state: Any, x: Any, y: Any, key: Any) -> Any:
        params, moments = state
        both = jax.value_and_grad(loss_of, has_aux=True)
        (loss, logits), grads = both(params, graph, x, y, key)
        updates, moments = OPTIMIZER.update(grads, moments, params)
        return (optax.apply_updates(params, updates), moments), loss, logits

    return step, (params, OPTIMIZER.init(params))


def trained(graph: StreamedGraph, model: str, layers: int, **options: Any) -> list[np.ndarray]:
    """The losses, the last predictions, and the last state: to the bit the same when it is done
    again."""
    x, y = graph.array("x"), graph.array("y")
    function, start = training(model, layers)
    graph.layouts.clear()
    step = stream(function, memory_budget="1GiB", **options)

    def run() -> list[np.ndarray]:
        losses, logits, state = [], None, start
        for number in range(STEPS):
            state, loss, logits = step(graph, state, x, y, jax.random.key(number))
            losses.append(loss)
        return [np.stack(losses), np.asarray(logits), *map(np.asarray, jax.tree.leaves(state))]

    found = run()
    assert digest(*found) == digest(*run())
    assert graph.layouts[0][0] == options.get("parts", ProcessGroup.here().processes)
    return found


@gnnjit.layer
def gated(v: Any, e: Any, w: Any) -> Any:
    return gnnjit.max(jnp.tanh(e.src @ w) * jnp.sum(e.data)) + v @ w


@gnnjit.layer
def scores(v: Any, e: Any, w: Any) -> Any:
    return jnp.tanh((e.src - v) @ w) * jnp.sum(e.data)


def on_edges(graph: StreamedGraph) -> list[np.ndarray]:
    """Rows and gradients of edges and vertices; what a layer leaves on the edges is read by the
    function after it."""

    def loss(w: Any, graph: Any, x: Any, given: Any) -> Any:
        h = gated(graph, x, w, edges=given)
        return jnp.sum(h**2) / jnp.max(jnp.abs(h)), h

    def first(graph: Any, x: Any, given: Any, w: Any) -> Any:
        found = jax.value_and_grad(loss, argnums=(0, 2, 3), has_aux=True)(w, graph, x, given)
        return found, scores(graph, x, w, edges=given)

    def second(graph: Any, x: Any, made: Any, w: Any) -> Any:
        return gated(graph, x, w, edges=made).sum(axis=0), jnp.max(made, axis=0), 2 * made

    x, given = graph.array("x"), graph.edge_array("given")
    w = jnp.linspace(-1, 1, FEATURES * 4, dtype=jnp.float32).reshape(FEATURES, 4)
    options: Any = {"memory_budget": "1GiB", "parts": 3}
    found, made = stream(first, **options)(graph, x, given, w)
    after = stream(second, **options)(graph, x, made, w)
    # A block for one process, and none for the others.
    total = stream(lambda graph, x: x.sum(), memory_budget="1GiB", parts=1)
    return [
        np.asarray(x) for x in jax.tree.leaves((found, made, after, total(graph, graph.array("x"))))
    ]


def make_graph(store: Any) -> StreamedGraph:
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, NODES, (2, EDGES))
    dst[::4] = NODES // 3
    graph = StreamedGraph.from_edges(src, dst, NODES, store=store, order="rcm")
    graph.put("x", rng.normal(size=(NODES, FEATURES)).astype(np.float32))
    graph.put("y", rng.integers(0, CLASSES, NODES).astype(np.int32))
    graph.put_edges("given", rng.normal(size=(EDGES, 2)).astype(np.float32))
    return graph


CASES: dict[str, Callable[[StreamedGraph], list[np.ndarray]]] = {
    "gcn": lambda graph: trained(graph, "gcn", 2, parts=5, slices=2),
    "gat": lambda graph: trained(graph, "gat", 1),
    "edges": on_edges,
}


def main(folder: Path, cases: list[str], victim: int) -> None:
    place = connection.connect()
    with CollectiveStore.create(folder / "store") as store:
        graph = make_graph(store)
        if place.process == victim:
            _prime(STEPS)
        for name in cases:
            found = CASES[name](graph)
            store.group.same("the results", lambda found=found: digest(*found))
            if place.process == 0:
                np.savez(folder / name, *found)
        connection.barrier("written")


def _prime(count: int) -> None:
    """Die within a sweep of the call of this number."""
    whole, calls = Executor.__call__, []
    chunk = Executor._chunk

    def call(self: Executor, *args: Any) -> Any:
        calls.append(None)
        return whole(self, *args)

    def one(self: Executor, *args: Any) -> Any:
        if len(calls) == count:
            os.kill(os.getpid(), 9)
        return chunk(self, *args)

    Executor.__call__, Executor._chunk = call, one


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2].split(), int(sys.argv[3]))
