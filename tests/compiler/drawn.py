"""Small graphs with features, on which words are compared with plain JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gnnjit

F = 3


def drawn(vertices: int, edges: int, seed: int = 0) -> gnnjit.Graph:
    """With a self loop, parallel edges, a hub, and a vertex without edges."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, vertices - 1, (2, edges))
    src[: edges // 3] = 1
    src[-1], dst[-1], src[-2], dst[-2] = 0, 0, src[-3], dst[-3]
    return gnnjit.Graph.from_edges(src, dst, vertices)


GRAPHS: dict[str, Callable[[], gnnjit.Graph]] = {
    "some": lambda: drawn(7, 20),
    "padded": lambda: drawn(6, 12).pad(9, 20),
    "no edges": lambda: gnnjit.Graph.from_edges([], [], 3),
}


@functools.cache
def of(name: str) -> gnnjit.Graph:
    return GRAPHS[name]()


def features(graph: gnnjit.Graph, dtype: Any = np.float32) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(1)
    shapes = (graph.num_nodes, F), (graph.num_edges, F), (F, F)
    return tuple(rng.normal(size=s).astype(dtype) for s in shapes)  # type: ignore[return-value]


def real(graph: gnnjit.Graph) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers, sources and destinations of the edges that are no padding."""
    every = np.arange(graph.num_edges)
    kept = every if graph.mask is None else every[np.asarray(graph.mask)]
    return kept, np.asarray(graph.src)[kept], np.asarray(graph.dst)[kept]


def assert_same(
    fast: Any, slow: Any, args: Any, rtol: float = 2e-5, *, compiled: bool = True
) -> None:
    """Equal values, alone and beside derivatives, and gradients of a nonlinear function of them.
    compiled: values and gradients as a whole, since each operation alone takes as long to compile.
    """

    def loss(f: Any, args: Any) -> Any:
        outs = f(*args)
        flat = jax.tree.leaves(outs)
        weights = [np.cos(np.arange(o.size)).reshape(o.shape).astype(o.dtype) for o in flat]
        return sum(jnp.sum(jnp.sin(o) * w) for o, w in zip(flat, weights, strict=True)), outs

    close = functools.partial(np.testing.assert_allclose, rtol=rtol, atol=rtol)
    whole = jax.jit if compiled else (lambda f: f)
    got, want = (
        whole(jax.grad(functools.partial(loss, f), has_aux=True))(args) for f in (fast, slow)
    )
    jax.tree.map(close, got, want)
    jax.tree.map(close, fast(*args), want[1])
