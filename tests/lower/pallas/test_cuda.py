"""Layers lowered for a GPU on any machine: every traversal is a kernel, and no buffer is of edges
x features. What the kernels compute is tested elsewhere, interpreted or on a GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pallas
import pytest
from flax import nnx
from reads import with_edges_as_read

import gnnjit
from gnnjit import nn
from gnnjit.ir.large_products import is_large_product
from gnnjit.lower import choose
from gnnjit.lower.xla import staged

N, E, F = 200, 40_000, 32
RNG = np.random.default_rng(0)
SRC, DST = RNG.integers(0, N, E), RNG.integers(0, N - 2, E)  # two vertices without edges
DST[: E // 4], SRC[: E // 8] = 3, 5  # hubs
REAL = RNG.random(E) < 0.9


@dataclasses.dataclass(frozen=True)
class Case:
    """make: `fn(params, graph, x, data)` and `params`, by the dtype.

    graph: keywords for `Graph.from_edges`; data: scalars on each edge.
    """

    make: Callable[[Any], tuple[Any, Any]]
    graph: dict[str, Any] = dataclasses.field(default_factory=lambda: {"num_nodes": N})
    data: int = 0


def module(make: Callable[[nnx.Rngs], Any], data: int = 0, **call: Any) -> Case:
    def build(dtype: Any) -> tuple[Any, Any]:
        definition, params, rest = nnx.split(make(nnx.Rngs(0)), nnx.Param, ...)
        params = jax.tree.map(lambda a: a.astype(dtype), params)

        def fn(params: Any, graph: Any, x: Any, data: Any) -> Any:
            return nnx.merge(definition, params, rest)(graph, x, **call)

        return fn, params

    return Case(build, data=data)


def layer(
    fn: Callable[..., Any], graph: dict[str, Any] | None = None, data: int = 0, **shapes: Any
) -> Case:
    """`fn(v, e, p)` with params of these shapes."""
    compiled = with_edges_as_read(gnnjit.layer(fn), fn)

    def build(dtype: Any) -> tuple[Any, Any]:
        params = {name: jnp.full(shape, 0.1, dtype) for name, shape in shapes.items()}
        return lambda p, graph, x, data: compiled(graph, x, p, edges=data), params

    return Case(build, graph or {"num_nodes": N}, data)


MODULES = {
    "GCN": module(lambda r: nn.GCN(F, F, rngs=r)),
    "SAGE": module(lambda r: nn.SAGE(F, F, rngs=r)),
    "SAGE pool": module(lambda r: nn.SAGE(F, F, aggregator="pool", rngs=r)),
    "GAT": module(lambda r: nn.GAT(F, F // 4, heads=4, rngs=r)),
    "GATv2": module(lambda r: nn.GATv2(F, F // 4, heads=4, rngs=r)),
    "GIN": module(lambda r: nn.GIN(F, F, F, rngs=r)),
    "GatedGCN": module(lambda r: nn.GatedGCN(F, F, rngs=r)),
    "GGNN": module(lambda r: nn.GGNN(F, rngs=r)),
    "CommNet": module(lambda r: nn.CommNet(F, F, rngs=r)),
    "EdgeConv": module(lambda r: nn.EdgeConv(F, F, F, rngs=r)),
}


def _pna(v, e, p):
    m = e.src @ p["w"] + v
    moments = [gnnjit.mean(m), gnnjit.max(m), gnnjit.min(m), gnnjit.std(m)]
    return jnp.concatenate(moments) * jnp.log(gnnjit.degree() + 1.0).astype(v.dtype)


def _edge_mlp(v, e, p):
    """With an output on the edges, narrower than the features."""
    edge = jax.nn.silu((e.dst - e.src) @ p["w"] + e.data @ p["u"])
    return edge @ p["k"], v + gnnjit.sum(edge)


def _gelu(v, e, p):
    return gnnjit.sum(jax.nn.gelu(e.src + v, approximate=False))


def _round(v, e, p):
    return gnnjit.sum(jnp.round(e.src * v) + e.src * v)


def _gated(v, e, p):
    return gnnjit.max(jax.nn.sigmoid(e.src @ p["w"] + v) * e.data[0])


def _heads(v, e, p):
    k = jnp.einsum("hkf,f->hk", p["b"], e.src)
    weight = gnnjit.softmax(jnp.sum(jnp.einsum("hkf,f->hk", p["b"], v) * k, axis=-1))
    return gnnjit.sum(weight[:, None] * k).reshape(-1)


def _dropout(v, e, p):
    weight = gnnjit.dropout(gnnjit.softmax(jnp.sum(e.src * v)), 0.5, jax.random.key(0))
    return gnnjit.sum(weight * e.src)


PADDED = {"num_nodes": N, "edge_mask": REAL}
BIPARTITE = {"num_src": N, "num_dst": N - 1}
LAYERS = {
    "moments": layer(_pna, w=(F, F)),
    "edge outputs": layer(_edge_mlp, data=4, w=(F, F), u=(4, F), k=(F, 4)),
    "exact gelu": layer(_gelu),
    "round": layer(_round),
    "padding": layer(_gated, PADDED, data=1, w=(F, F)),
    "padding, edge outputs": layer(_edge_mlp, PADDED, data=4, w=(F, F), u=(4, F), k=(F, 4)),
    "bipartite": layer(_gated, BIPARTITE, data=1, w=(F, F)),
    "heads": layer(_heads, b=(4, 8, F)),
    "attention dropout": layer(_dropout),
    "module with dropout": module(
        lambda r: nn.GAT(F, 8, heads=4, dropout=0.5, rngs=r), key=jax.random.key(0)
    ),
}
CASES = MODULES | LAYERS


def example(case: Case, dtype: Any, tasks: bool) -> tuple[Any, tuple[Any, ...]]:
    """The function of a case, and its arguments."""
    fn, params = case.make(dtype)
    graph = gnnjit.Graph.from_edges(SRC, DST, **case.graph)
    graph = pallas.with_tasks(graph) if tasks else graph
    x = jnp.ones((N, F), dtype)
    if "num_dst" in case.graph:
        x = gnnjit.Bipartite(x, x[: N - 1])
    data = jnp.ones((E, case.data), dtype) if case.data else None
    return fn, (params, graph, x, data)


def with_index(graph: gnnjit.Graph, dtype: Any) -> gnnjit.Graph:
    """Large graphs have 64-bit indices."""
    return jax.tree.map(lambda a: a.astype(dtype) if a.dtype.kind == "i" else a, graph)


def derivative(fn: Any, order: int) -> Any:
    """`fn` itself, or the gradients of a sum over it, or those of a sum over these."""

    def loss(params: Any, x: Any, data: Any, graph: Any) -> Any:
        return sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(fn(params, graph, x, data)))

    def gradients(params: Any, graph: Any, x: Any, data: Any, loss: Any = loss) -> Any:
        at = (0, 1) if data is None else (0, 1, 2)
        return jax.grad(loss, at)(params, x, data, graph)

    def second(params: Any, x: Any, data: Any, graph: Any) -> Any:
        return sum(jnp.sum(g * g) for g in jax.tree.leaves(gradients(params, graph, x, data)))

    if order == 0:
        return fn
    return gradients if order == 1 else lambda *args: gradients(*args, loss=second)


def check(case: Case, order: int, tasks: bool, dtype: Any, index: Any = None) -> None:
    fn, args = example(case, dtype, tasks)
    if index is not None:
        args = (args[0], with_index(args[1], index), *args[2:])
    traced = pallas.trace_for_cuda(derivative(fn, order), *args)
    chosen = pallas.choices_of(traced)
    assert [dict(c.refused) for c in chosen if c.kernel not in ("staged", "pallas")] == []
    lowered = pallas.lower_for_cuda(traced)
    calls = pallas.custom_calls(lowered)
    assert set(calls) == {"__gpu$xla.gpu.triton"}
    assert len(calls) == sum(pallas.launches(c, args[1]) for c in chosen)
    sizes = pallas.array_sizes(lowered)
    assert sizes
    if not any(map(is_large_product, (e for c in chosen for e in c.request.body.equations))):
        assert {t for t, n in sizes.items() if n >= E * F} == set()


def grid() -> list[Any]:
    """Each case in each order, with and without tasks, in each precision: not all at once."""
    rows = []
    for number, name in enumerate(CASES):
        for order in (0, 1, 2):
            tasks = (number + order) % 2 == 0
            dtype = ("float32", "bfloat16", "float16")[(number // 2 + order) % 3]
            rows.append((name, order, tasks, dtype))
        if name in MODULES:
            rows.append((name, 1, not rows[-2][2], "bfloat16" if number % 2 else "float32"))
    return rows


@pytest.mark.long
@pytest.mark.parametrize(("name", "order", "tasks", "dtype"), grid())
def test_a_layer_is_kernels(name, order, tasks, dtype):
    check(CASES[name], order, tasks, jnp.dtype(dtype))


@pytest.mark.parametrize("index", ["int32", "int64"])
def test_float64(index):
    with jax.enable_x64(True):
        check(CASES["SAGE"], 1, True, jnp.dtype("float64"), jnp.dtype(index))


def test_int64_indices_of_float32():
    with jax.enable_x64(True):
        check(CASES["edge outputs"], 1, True, jnp.dtype("float32"), jnp.dtype("int64"))


REFUSED = {
    "exact gelu of float64": (
        layer(_gelu), "float64", {"erf of float64 has no GPU kernel code",
                                  "erfc of float64 has no GPU kernel code"}),
    "a sort": (
        layer(lambda v, e, p: gnnjit.sum(jnp.sort(e.src * v))), "float32",
        {"no GPU kernel code for the primitive sort"}),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_kernel_says_why(name):
    case, dtype, reasons = REFUSED[name]
    with jax.enable_x64(dtype == "float64"):
        fn, args = example(case, jnp.dtype(dtype), False)
        (choice,) = pallas.choices_of(pallas.trace_for_cuda(fn, *args))
    assert choice.kernel == "segment"
    given = dict(choice.refused)["pallas"]
    assert given
    assert set(given) <= reasons


def test_a_softmax_where_another_lowering_is_preferred():
    """It is written out, though the kernels that are passed over would take it in one traversal."""
    fn, args = example(CASES["GAT"], jnp.float32, False)
    with choose.prefer("segment"):
        chosen = pallas.choices_of(pallas.trace_for_cuda(fn, *args))
    assert {c.kernel for c in chosen} == {"segment"}
    assert len(chosen) > 1


def small(case: Case, dtype: Any) -> tuple[Any, tuple[Any, ...]]:
    """Arguments to compute with, of random numbers."""
    rng = np.random.default_rng(0)

    def draw(shape: tuple[int, ...]) -> Any:
        return jnp.asarray(rng.normal(size=shape) / 4, dtype)

    fn, params = case.make(dtype)
    graph = gnnjit.Graph.from_edges(SRC[:300] % 20, DST[:300] % 18, num_nodes=20)
    params = jax.tree.map(lambda a: draw(a.shape), params)
    data = draw((300, case.data)) if case.data else None
    return fn, (params, graph, draw((20, F)), data)


@pytest.mark.long
@pallas.numeric
@pytest.mark.parametrize(("name", "x64"), [("edge outputs", False), ("EdgeConv", True)])
def test_gradients_of_matrices_on_the_edges(name, x64):
    """Sums of outer products, of a side below 16 too, in the precision of the values."""
    with jax.enable_x64(x64):
        fn, args = small(CASES[name], jnp.float64 if x64 else jnp.float32)
        with choose.prefer("segment"):
            want = jax.jit(derivative(fn, 1))(*args)
        with pallas.on_kernels():
            have = jax.jit(derivative(fn, 1))(*args)
        tolerance = 1e-12 if x64 else 1e-4 if pallas.INTERPRET else 1e-2
        for a, b in zip(jax.tree.leaves(have), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * float(jnp.abs(b).max()))


@pytest.mark.long
@pallas.numeric
@pytest.mark.parametrize(("masked", "pieces"), [(False, 7), (True, 9), (True, 91)])
def test_gradients_of_large_matrices(masked, pieces, monkeypatch):
    """Both factors of such a gradient are arrays, which are multiplied in pieces of the edges."""
    monkeypatch.setattr(staged, "PIECES", range(pieces, 92))
    rng = np.random.default_rng(0)
    graph = gnnjit.Graph.from_edges(rng.integers(0, 12, 70), rng.integers(0, 9, 70), num_nodes=12)
    graph = graph.pad(num_nodes=16, num_edges=90) if masked else graph
    w = jnp.asarray(rng.normal(size=(2, 96, 96)) / 10, jnp.float32)
    x = jnp.asarray(rng.normal(size=(graph.num_nodes, 96)), jnp.float32)
    data = jnp.asarray(rng.normal(size=(graph.num_edges, 96)), jnp.float32)

    @gnnjit.layer
    def block(v, e, w):
        message = jnp.tanh(e.data @ w[0] + e.src) @ w[1]
        return v + gnnjit.sum(message), e.data + message

    def loss(w, x, data):
        return sum(jnp.sum(jnp.sin(y)) for y in block(graph, x, w, edges=data))

    with jax.default_matmul_precision("highest"):
        with choose.prefer("segment"):
            want = jax.jit(jax.grad(loss, (0, 1, 2)))(w, x, data)
        with pallas.on_kernels():
            made = jax.jit(jax.grad(loss, (0, 1, 2))).lower(w, x, data)
        in_pieces = f"tensor<{pieces}x{graph.num_edges // pieces}x96xf32>" in made.as_text()
        assert in_pieces == (pieces < 91)  # 90 edges do not fall into 91
        have = made.compile()(w, x, data)
    for a, b in zip(have, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * float(jnp.abs(b).max()))
