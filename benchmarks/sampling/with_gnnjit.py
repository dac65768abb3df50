"""gnnjit's side: samplers, the loader, and SAGE on its batches."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from gnnjit import Graph
from gnnjit.nn.recipes import build
from gnnjit.sample import FrontierSampler, Loader, NeighborSampler, Workers
from sampling.graphs import Labelled


def _graph(graph: Labelled) -> Graph:
    return Graph.from_edges(graph.src, graph.dst, graph.num_nodes, sorted_by="dst")


def rate(graph: Labelled, fanouts: Sequence[int], batch: int, batches: int, workers: int) -> Any:
    """Vertices and edges a second that a loader samples, reindexes, pads and moves to the device,
    without features."""
    seeds = np.random.default_rng(0).permutation(graph.num_nodes)[: batch * batches]
    sampler = NeighborSampler(_graph(graph), fanouts)
    loader = Loader(sampler, seeds=seeds, batch_size=batch, threads=workers, prefetch=4)
    for _ in loader:
        pass
    vertices = edges = 0
    started = time.perf_counter()
    for part in loader:
        first = part.graphs[0]
        vertices += int(part.num_real[-1])
        edges += int(first.in_structure.indptr[-1])
    seconds = time.perf_counter() - started
    return {"vertices": vertices, "edges": edges, "seconds": seconds}


MOST_ENTRIES = 30
"""Of a vertex of the Dashboard, as the paper has on skewed graphs (section VI-C2)."""


def cost(graph: Labelled, frontiers: Sequence[int], repeats: int) -> Any:
    """Nanoseconds for each vertex that is sampled: least, over `repeats` samples."""
    whole = _graph(graph)
    found = {}
    for size, most in itertools.product(frontiers, (MOST_ENTRIES, None)):
        sampler = FrontierSampler(whole, frontier=size, vertices=4 * size, most_entries=most)
        found[f"frontier {size}" + (f", {most} entries" if most else "")] = _least(
            lambda i, s=sampler: s.drawn(i), lambda drawn: len(drawn), repeats
        )
    sampler = NeighborSampler(whole, (15, 10))
    rng = np.random.default_rng(0)
    batches = [rng.integers(0, graph.num_nodes, 1024) for _ in range(repeats)]
    found["neighbor"] = _least(
        lambda i: sampler.sample(batches[i], i), lambda s: len(s.vertices), repeats
    )
    return found


def _least(call: Any, size: Any, repeats: int) -> float:
    call(0)
    best = np.inf
    for i in range(repeats):
        started = time.perf_counter()
        result = call(i)
        best = min(best, (time.perf_counter() - started) / size(result))
    return 1e9 * best


def scaling(graph: Labelled, batches: int) -> Any:
    """Seconds for the same samples: by one thread; by two that take turns with batches; by two that
    share each batch."""
    from concurrent.futures import ThreadPoolExecutor

    sampler, rng = NeighborSampler(_graph(graph), (15, 10)), np.random.default_rng(0)
    seeds = [rng.integers(0, graph.num_nodes, 8192) for _ in range(batches)]

    def one(i: int) -> None:
        sampler.sample(seeds[i], i)

    def timed(work: Any) -> float:
        work()
        times = []
        for _ in range(5):
            started = time.perf_counter()
            work()
            times.append(time.perf_counter() - started)
        return min(times)

    with ThreadPoolExecutor(2) as pool, Workers(2) as workers:
        return {
            "one": timed(lambda: list(map(one, range(batches)))),
            "across": timed(lambda: list(pool.map(one, range(batches)))),
            "inside": timed(
                lambda: [sampler.sample(seeds[i], i, workers=workers) for i in range(batches)]
            ),
        }


def epoch(
    graph: Labelled, fanouts: Sequence[int], batch: int, hidden: int, workers: int, epochs: int,
    prefetch: int = 2, shapes: int = 4, waits: bool = False,
) -> Any:  # fmt: skip
    """Seconds of each epoch of training after the first, and the last loss. `waits`: for each step,
    which otherwise runs beside what comes after it."""
    sampler = NeighborSampler(_graph(graph), fanouts)
    loader = Loader(
        sampler, np.array(graph.x), np.array(graph.y), seeds=graph.train, batch_size=batch,
        threads=workers, prefetch=prefetch, shapes=shapes,
    )  # fmt: skip
    model = build(
        "sage", in_features=graph.x.shape[1], hidden=hidden, num_classes=graph.num_classes,
        layers=len(fanouts), heads=1, dropout=0.0, rngs=nnx.Rngs(0),
    )  # fmt: skip
    definition, params = nnx.split(model)
    optimizer = optax.adam(0.01)

    @jax.jit
    def step(params: Any, state: Any, part: Any) -> Any:
        def loss_of(params: Any) -> Any:
            logits = nnx.merge(definition, params)(part.graphs, part.x)[part.seeds]
            each = optax.softmax_cross_entropy_with_integer_labels(logits, part.y)
            return jnp.sum(jnp.where(part.mask, each, 0)) / jnp.sum(part.mask)

        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    state, seconds, loss = optimizer.init(params), [], 0.0
    for _ in range(epochs + 1):
        started = time.perf_counter()
        losses = []
        for part in loader:
            params, state, loss = step(params, state, part)
            losses.append(loss.block_until_ready() if waits else loss)
        loss = float(np.mean([float(each) for each in losses]))
        seconds.append(time.perf_counter() - started)
    report = loader.report()
    return {
        "seconds": seconds[1:], "loss": loss, "programs": step._cache_size(),  # type: ignore
        "padding": report.padding and report.padding.work, "per_shape": report.per_shape,
    }  # fmt: skip


def pipeline(graph: Labelled, batch: int, hidden: int, epochs: int) -> Any:
    """The same epochs with batches made between the steps, and beside them; and an epoch of batches
    without steps. JAX has one core, as a device that is not the host leaves the others alone."""
    _give_jax_one_core()
    sides = {"serial": (0, 0, True), "pipelined": (1, 3, False)}
    found = {
        name: epoch(graph, (15, 10), batch, hidden, workers, epochs, prefetch, waits=waits)
        for name, (workers, prefetch, waits) in sides.items()
    }
    sampler = NeighborSampler(_graph(graph), (15, 10))
    loader = Loader(
        sampler, np.array(graph.x), np.array(graph.y), seeds=graph.train, batch_size=batch,
        threads=0, prefetch=0,
    )  # fmt: skip
    seconds = []
    for _ in range(epochs + 1):
        started = time.perf_counter()
        for part in loader:
            jax.block_until_ready(part)
        seconds.append(time.perf_counter() - started)
    return {**found, "batches alone": {"seconds": seconds[1:]}}


def _give_jax_one_core() -> None:
    """Its threads start with the affinity of the thread that first asks for a device."""
    if hasattr(os, "sched_setaffinity"):
        usable = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(usable)})
        (jnp.ones((512, 512)) @ jnp.ones((512, 512))).block_until_ready()
        os.sched_setaffinity(0, usable)


def shapes(graph: Labelled, batches: int, count: int) -> Any:
    """So many batches of changing size: programs, padding, and how much the memory grew."""
    import resource

    sampler = NeighborSampler(_graph(graph), (10, 5))
    loader = Loader(
        sampler, np.array(graph.x), np.array(graph.y), seeds=None, batch_size=128, shapes=count,
        threads=2, prefetch=2,
    )  # fmt: skip

    @jax.jit
    def total(part: Any) -> Any:
        return jnp.sum(part.x) + jnp.sum(part.graphs[0].src)

    done, early = 0, 0
    while done < batches:
        for part in loader:
            total(part).block_until_ready()
            done += 1
            if done == batches // 10:
                early = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            if done == batches:
                break
    late = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report = loader.report()
    return {
        "batches": done, "programs": total._cache_size(),  # type: ignore[attr-defined]
        "padding": report.padding and report.padding.work, "per_shape": report.per_shape,
        "splits": report.splits, "grown_mib": (late - early) / 1024,
    }  # fmt: skip
