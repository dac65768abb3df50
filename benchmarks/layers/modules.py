"""More layers of `gnnjit.nn`, each beside itself in plain JAX, on the same parameters.

As in `with_segment`, whatever depends on one endpoint is computed once per vertex, edges are sorted
by destination and said to be, and degrees are there ahead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common.workloads import Workload
from flax import nnx

import gnnjit
import gnnjit.nn


@dataclasses.dataclass(frozen=True)
class Module:
    """make: the module of a width. plain: what it computes of `(module, graph, x, edges)`, where
    `graph` has `src`, `dst` and `degree`. on_edges: it reads features of edges, as wide."""

    make: Callable[[int], Any]
    plain: Callable[..., Any]
    on_edges: bool = False


def _total(g: Any, on_edges: jax.Array) -> jax.Array:
    return jax.ops.segment_sum(on_edges, g["dst"], len(g["degree"]), indices_are_sorted=True)


def _near(g: Any, x: jax.Array) -> jax.Array:
    return _total(g, x[g["src"]])


def _factor(g: Any, own: int) -> jax.Array:
    """`degree ** -0.5` of each vertex, 0 for none."""
    degree = g["degree"] + own
    return jnp.where(degree > 0, jax.lax.rsqrt(jnp.maximum(degree, 1)), 0)[:, None]


def _normalized(g: Any, x: jax.Array, own: int = 0) -> jax.Array:
    at = _factor(g, own)
    return at * _near(g, at * x) + own * at * at * x


def _appnp(m: Any, g: Any, x: jax.Array, edges: None) -> jax.Array:
    h = x
    for _ in range(m.steps):
        h = (1 - m.alpha) * _normalized(g, h, 1) + m.alpha * x
    return h


def _cheb(m: Any, g: Any, x: jax.Array, edges: None) -> jax.Array:
    scale = 2 / m.lambda_max
    found = [x]
    for k in range(1, m.terms):
        step = (scale - 1) * found[-1] - scale * _normalized(g, found[-1])
        found.append(step if k == 1 else 2 * step - found[-2])
    return m.linear(jnp.concatenate(found, axis=-1))


def _commnet(m: Any, g: Any, x: jax.Array, edges: None) -> jax.Array:
    return m.own(x) + m.heard(_near(g, x) / jnp.maximum(g["degree"], 1)[:, None])


def _ggnn(m: Any, g: Any, x: jax.Array, edges: None) -> jax.Array:
    h = x
    for _ in range(m.steps):
        a = _near(g, m.message(h))
        gates = jax.nn.sigmoid(m.gates_in(a) + m.gates_own(h))
        update, reset = jnp.split(gates, 2, axis=-1)
        h = (1 - update) * h + update * jnp.tanh(m.candidate_in(a) + m.candidate_own(reset * h))
    return h


def _gine(m: Any, g: Any, x: jax.Array, edges: jax.Array) -> jax.Array:
    total = _total(g, jax.nn.relu(x[g["src"]] + m.edge(edges)))
    return m.out(jax.nn.relu(m.hidden((1 + m.eps) * x + total)))


def _graphnet(m: Any, g: Any, x: jax.Array, edges: jax.Array) -> Any:
    def mlp(layers: Any, parts: list[jax.Array]) -> jax.Array:
        return layers["out"](jax.nn.relu(layers["hidden"](jnp.concatenate(parts, axis=-1))))

    edge = mlp(m.edge, [edges, x[g["src"]], x[g["dst"]]])
    node = mlp(m.node, [_total(g, edge), x])
    return node, edge, mlp(m.whole, [edge.sum(0)[None], node.sum(0)[None]])


def _lightgcn(m: Any, g: Any, x: jax.Array, edges: None) -> jax.Array:
    total, h = m.weights[0] * x, x
    for weight in m.weights[1:]:
        h = _normalized(g, h)
        total = total + weight * h
    return total


def _ngcf(m: Any, g: Any, x: jax.Array, edges: None) -> jax.Array:
    found, at = [x], _factor(g, 1)
    for first, second in zip(m.own, m.both, strict=True):
        mean = at * at * (found[-1] + _near(g, found[-1]))
        parts = first(mean), second(mean * found[-1])
        found.append(sum(jax.nn.leaky_relu(part, m.negative_slope) for part in parts))
    return jnp.concatenate(found, axis=-1)


def _rngs() -> nnx.Rngs:
    return nnx.Rngs(0)


MODULES = {
    "appnp": Module(lambda f: gnnjit.nn.APPNP(), _appnp),
    "cheb": Module(lambda f: gnnjit.nn.Cheb(f, f, rngs=_rngs()), _cheb),
    "commnet": Module(lambda f: gnnjit.nn.CommNet(f, f, rngs=_rngs()), _commnet),
    "ggnn": Module(lambda f: gnnjit.nn.GGNN(f, rngs=_rngs()), _ggnn),
    "gine": Module(lambda f: gnnjit.nn.GINE(f, f, f, edge_features=f, rngs=_rngs()), _gine, True),
    "graphnet": Module(
        lambda f: gnnjit.nn.GraphNet(f, f, f, edge_features=f, rngs=_rngs()), _graphnet, True
    ),
    "lightgcn": Module(lambda f: gnnjit.nn.LightGCN(), _lightgcn),
    "ngcf": Module(lambda f: gnnjit.nn.NGCF(f, [f, f], rngs=_rngs()), _ngcf),
}


def step(name: str, form: str, work: Workload) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A loss with its gradients by parameters and features, not compiled, and its arguments.
    form: "layer" or "plain"."""
    found = MODULES[name]
    definition, state = nnx.split(found.make(work.sizes.features))
    edges = jnp.asarray(work.on_edges(1)) if found.on_edges else None
    degree = np.bincount(work.dst, minlength=work.sizes.vertices).astype(np.float32)
    arrays = jax.device_put({"src": work.src, "dst": work.dst, "degree": degree})
    graph = gnnjit.Graph.from_edges(work.src, work.dst, num_nodes=work.sizes.vertices)

    def loss(state: Any, x: jax.Array, edges: Any, graph: Any) -> jax.Array:
        module = nnx.merge(definition, state)
        if form == "plain":
            out = found.plain(module, graph, x, edges)
        else:
            out = module(graph, x, **({} if edges is None else {"edges": edges}))
        return sum(jnp.square(part).mean() for part in jax.tree.leaves(out))

    given = state, jnp.asarray(work.x), edges, arrays if form == "plain" else graph
    argnums = (0, 1) if edges is None else (0, 1, 2)
    return jax.value_and_grad(loss, argnums=argnums), given
