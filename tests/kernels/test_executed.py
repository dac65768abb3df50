"""Layers on GPU kernels as emitted for CUDA, executed in NumPy (`on_cuda.py`): values and gradients
against the reference, with every access to memory checked.

`pytest tests/kernels/test_executed.py --all-cases` runs every layer on every graph at every
width in both precisions; otherwise each layer meets some of them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pallas
import pytest
from flax import nnx

import gnnjit
from gnnjit import nn

from . import on_cuda

WIDTHS = (7, 64, 1, 100, 16, 3, 128, 33, 2)
DTYPES = ("float32", "bfloat16")
Make = Callable[[int], tuple[Callable[..., Any], Any]]


def module(make: Callable[[int, nnx.Rngs], Any]) -> Make:
    """`fn(params, graph, x)` and `params`, by the width."""

    def build(width: int) -> tuple[Callable[..., Any], Any]:
        definition, params = nnx.split(make(width, nnx.Rngs(0)))
        return lambda params, graph, x: nnx.merge(definition, params)(graph, x), params

    return build


def layer(fn: Callable[..., Any]) -> Make:
    compiled = gnnjit.layer(fn)

    def build(width: int) -> tuple[Callable[..., Any], Any]:
        w = jax.random.normal(jax.random.key(0), (width, width)) / np.sqrt(width)
        return lambda w, graph, x: compiled(graph, x, w), w

    return build


def heads(width: int) -> int:
    return 4 if width % 4 == 0 else 1


def _attention(v: Any, e: Any, w: Any) -> Any:
    return gnnjit.sum(gnnjit.softmax(jnp.sum(e.src * (v @ w))) * e.src)


def _spread(v: Any, e: Any, w: Any) -> Any:
    m = jnp.tanh(e.src @ w + v)
    return gnnjit.std(m) + gnnjit.mean(m * m)


def _extremes(v: Any, e: Any, w: Any) -> Any:
    m = jnp.tanh(e.src @ w + v)
    return gnnjit.max(m) - gnnjit.min(m * v) + gnnjit.logsumexp(m)


def _on_edges(v: Any, e: Any, w: Any) -> Any:
    m = jax.nn.silu((e.dst - e.src) @ w)
    return m, v + gnnjit.sum(m)


LAYERS: dict[str, Make] = {
    "GCN": module(lambda f, r: nn.GCN(f, f, rngs=r)),
    "SAGE": module(lambda f, r: nn.SAGE(f, f, rngs=r)),
    "SAGE pool": module(lambda f, r: nn.SAGE(f, f, aggregator="pool", rngs=r)),
    "GAT": module(lambda f, r: nn.GAT(f, f // heads(f), heads=heads(f), rngs=r)),
    "GATv2": module(lambda f, r: nn.GATv2(f, f // heads(f), heads=heads(f), rngs=r)),
    "GIN": module(lambda f, r: nn.GIN(f, f, f, rngs=r)),
    "GatedGCN": module(lambda f, r: nn.GatedGCN(f, f, rngs=r)),
    "CommNet": module(lambda f, r: nn.CommNet(f, f, rngs=r)),
    "GGNN": module(lambda f, r: nn.GGNN(f, rngs=r)),
    "EdgeConv": module(lambda f, r: nn.EdgeConv(f, f, f, rngs=r)),
    "attention": layer(_attention),
    "spread": layer(_spread),
    "extremes": layer(_extremes),
    "edge outputs": layer(_on_edges),
}


# --------------------------------------------------------------------------------------- graphs


def _edges(count: int) -> tuple[np.ndarray, np.ndarray]:
    """18 of 20 vertices have neighbours, one of them a third of all edges."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 20, count), rng.integers(0, 18, count)
    dst[: count // 3], src[: count // 5] = 3, 5
    return src, dst


def _graph(count: int = 120) -> gnnjit.Graph:
    return gnnjit.Graph.from_edges(*_edges(count), num_nodes=20)


def _masked() -> gnnjit.Graph:
    src, dst = _edges(120)
    mask = np.random.default_rng(1).random(120) < 0.8
    return gnnjit.Graph.from_edges(src, dst, num_nodes=20, edge_mask=mask)


def _padded() -> gnnjit.Graph:
    src, dst = _edges(100)
    return gnnjit.Graph.from_edges(src % 17, dst % 17, num_nodes=17).pad(20, 130)


with_tasks = functools.partial(pallas.with_tasks, short=4, piece=16)
"""Long rows, short rows and pieces of hubs."""

GRAPHS: dict[str, Callable[[], gnnjit.Graph]] = {
    "hubs": lambda: with_tasks(_graph()),
    "untasked": _graph,
    "masked": lambda: with_tasks(_masked()),
    "padded": lambda: with_tasks(_padded()),
    "padded, untasked": _padded,
    "one edge": lambda: with_tasks(_graph(1)),
    "no edges": lambda: with_tasks(_graph(0)),
}


# ------------------------------------------------------------------------------------- the cases


def cases(every: bool) -> list[tuple[str, int, str, int, str]]:
    """Layer, order of the derivative, graph, width, precision."""
    if every:
        return list(itertools.product(LAYERS, (0, 1), GRAPHS, WIDTHS, DTYPES))
    graphs, found = ("hubs", "masked", "untasked", "padded"), []
    for number, name in enumerate(LAYERS):
        width = WIDTHS[number % len(WIDTHS)]
        found.append((name, 1, graphs[number % 4], width, DTYPES[number % 3 == 2]))
        if number % 5 == 0:
            width = WIDTHS[(number + 4) % len(WIDTHS)]
            found.append((name, 0, graphs[(number + 1) % 4], width, "float32"))
    return [*found, ("GAT", 1, "no edges", 4, "float32"), ("GIN", 1, "one edge", 4, "float32")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        every = cases(metafunc.config.getoption("all_cases"))
        metafunc.parametrize("case", every, ids=lambda c: "-".join(map(str, c)))


def loss(fn: Callable[..., Any]) -> Callable[..., Any]:
    def total(params: Any, graph: Any, x: Any) -> Any:
        outs = jax.tree.leaves(fn(params, graph, x))
        return sum(jnp.sum(jnp.sin(y.astype(jnp.promote_types(y, jnp.float32)))) for y in outs)

    return total


def asked(name: str, order: int, width: int) -> tuple[Callable[..., Any], Any]:
    """The layer or the gradients of a sum over it, and its parameters."""
    fn, params = LAYERS[name](width)
    return (jax.grad(loss(fn), (0, 2)) if order else fn), params


def by_reference(case: tuple[str, int, str, int, str], args: Any, dtype: str) -> list[np.ndarray]:
    name, order, _, width, _ = case
    with jax.enable_x64(dtype == "float64"), gnnjit.reference():
        fn, _ = asked(name, order, width)
        given = jax.tree.map(lambda a: a.astype(dtype), (args[0], args[2]))
        outs = jax.jit(fn)(given[0], args[1], given[1])
    return [np.asarray(x, np.float64) for x in jax.tree.leaves(outs)]


def arguments(case: tuple[str, int, str, int, str]) -> tuple[Any, ...]:
    name, order, graph, width, dtype = case
    rng = np.random.default_rng(width)
    x = jnp.asarray(rng.normal(size=(20, width)), dtype)
    params = asked(name, order, width)[1]
    return jax.tree.map(lambda a: a.astype(dtype), params), GRAPHS[graph](), x


@pytest.mark.long
def test_as_the_reference(case: tuple[str, int, str, int, str]) -> None:
    """As near to float64 as rounding allows; half precision as near as the reference in it."""
    name, order, graph, width, dtype = case
    args = arguments(case)
    done = on_cuda.run(asked(name, order, width)[0], *args)
    assert bool(done.launches) == (graph != "no edges")
    exact = by_reference(case, args, "float64")
    plain = exact if dtype == "float32" else by_reference(case, args, dtype)
    most = max(float(np.abs(e).max(initial=0)) for e in exact)
    unit = float(jnp.finfo(dtype).eps) * (5 if dtype == "float32" else 1)
    for have, want, near in zip(jax.tree.leaves(done.outputs), exact, plain, strict=True):
        scale = np.abs(want).max(initial=0)
        allowed = 3 * np.abs(near - want).max(initial=0) + unit * (20 * scale + 5 * most)
        np.testing.assert_allclose(np.asarray(have, np.float64), want, rtol=0, atol=allowed)
