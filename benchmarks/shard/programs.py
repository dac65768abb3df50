"""Layers and training steps on one device and on many, as programs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from common import workloads
from grid.training import CLASSES, model
from jax.sharding import Mesh
from layers.with_gnnjit import APPLY

import gnnjit
from gnnjit.partition.partition import Partition
from shard.partition_graphs import Network

Program = tuple[Callable[..., Any], tuple[Any, ...]]
"""What is compiled, and what it is called with."""


def devices(count: int) -> Mesh:
    return Mesh(np.asarray(jax.devices()[:count]), ("shard",))


def one_device(found: Network) -> gnnjit.Graph:
    return gnnjit.Graph.from_edges(
        found.src.astype(np.int32), found.dst.astype(np.int32), found.num_nodes
    )


def sharded(found: Network, partition: Partition, exchange: str) -> Any:
    mesh = devices(partition.num_shards)
    return gnnjit.shard(one_device(found), mesh, partition=partition, exchange=exchange)


def _put(graph: Any, x: np.ndarray) -> Any:
    return graph.put(x) if hasattr(graph, "put") else jnp.asarray(x)


def _rows(num_nodes: int, features: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((num_nodes, features), np.float32)


def layer(name: str, mode: str, graph: Any, num_nodes: int, features: int) -> Program:
    """A layer; "both": its output, and from a gradient of that those of features and parameters."""
    sizes = workloads.Sizes(num_nodes, 0, features)
    params = {k: jnp.asarray(v) for k, v in workloads.parameters(name, sizes).items()}
    apply = APPLY[name]
    x = _put(graph, _rows(num_nodes, features))
    if mode == "forward":
        return apply, (graph, x, params)

    def both(graph: Any, x: Any, params: Any, cotangent: Any) -> Any:
        out, back = jax.vjp(functools.partial(apply, graph), x, params)
        return out, *back(cotangent)

    return both, (graph, x, params, _put(graph, _rows(num_nodes, features, 1)))


def training(name: str, graph: Any, num_nodes: int, features: int) -> Program:
    """A step of Adam on two layers; the loss is the mean over the vertices, padding aside."""
    built = model(name, features)
    optimizer = optax.adam(1e-2)

    def loss(params: Any, graph: Any, x: Any, y: Any, weight: Any) -> Any:
        scores = built.predict(graph, params, x)
        each = optax.softmax_cross_entropy_with_integer_labels(scores, y)
        return (each * weight).sum() / num_nodes

    def step(graph: Any, state: Any, *arrays: Any) -> Any:
        params, moments = state
        value, grads = jax.value_and_grad(loss)(params, graph, *arrays)
        updates, moments = optimizer.update(grads, moments, params)
        return (optax.apply_updates(params, updates), moments), value

    y = np.random.default_rng(1).integers(0, CLASSES, num_nodes, np.int32)
    weight = np.ones(num_nodes, np.float32)
    arrays = (_put(graph, a) for a in (_rows(num_nodes, features), y, weight))
    return step, (graph, built.state, *arrays)


def compiled(program: Program) -> Any:
    return jax.jit(program[0]).lower(*program[1]).compile()


def local_layer(name: str, graph: Any, features: int) -> Program:
    """A layer of one shard whose sources are all there: as `layer` with "both"."""
    sizes = workloads.Sizes(graph.num_src, 0, features)
    params = {k: jnp.asarray(v) for k, v in workloads.parameters(name, sizes).items()}
    rows = (jnp.asarray(_rows(n, features)) for n in (graph.num_src, graph.num_dst))

    def both(graph: Any, x: Any, params: Any, cotangent: Any) -> Any:
        apply = functools.partial(APPLY[name], graph)
        out, back = jax.vjp(lambda x, p: apply(Wide(x.src, x.dst), p), x, params)
        return out, *back(cotangent)

    cotangent = jnp.asarray(_rows(graph.num_dst, features, 1))
    return both, (graph, gnnjit.Bipartite(*rows), params, cotangent)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["src", "dst"], meta_fields=[])
@dataclasses.dataclass(frozen=True, eq=False)
class Wide(gnnjit.Bipartite):
    """Rows of two sets of vertices, whose width can be asked for as that of an array can."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.src.shape
