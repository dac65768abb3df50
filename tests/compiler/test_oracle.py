"""Compiled layers, values and gradients, against an oracle under `vmap` with `segment_sum`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit.compiler import call

from .cases import CASES, GRAPHS, Case, Edges, features, layer_of
from .plain import plain


def weights(outs: Any) -> list[Any]:
    rng = np.random.default_rng(7)
    return [jnp.asarray(rng.normal(size=o.shape), o.dtype) for o in outs]


def expected(case: Case, e: Edges, at: Any) -> list[Any]:
    """The oracle's outputs, as the layer gives them; 0 on padding edges."""
    count, real = len(e.src), jnp.asarray(e.real)
    data = jnp.where(real[:, None], at["data"], 0)
    outs = jax.tree.leaves(plain(case.fn, e, at["src"], at["dst"], data, at["p"]))

    def pick(x: Any, kind: str) -> Any:
        if kind == "e":
            return jnp.where(real.reshape((-1,) + (1,) * (x.ndim - 1)), x[:count], 0)
        return x[count:] if kind == "v" else x[0]

    return [pick(x, k) for x, k in zip(outs, case.kinds, strict=True)]


def got(layer: Any, e: Edges, graph: Any, at: Any) -> list[Any]:
    x = gnnjit.Bipartite(at["src"], at["dst"]) if e.bipartite else at["dst"]
    return jax.tree.leaves(layer(graph, x, at["p"], edges=at["data"]))


def compare(case: Case, e: Edges, seed: int = 0) -> None:
    at, layer, graph = features(e, seed), layer_of(case.fn), e.graph()
    if not e.bipartite:  # one array: the oracle's source gradient is part of the other
        at = {k: v for k, v in at.items() if k != "src"}

    def both(f: Any) -> Any:
        def loss(at: Any) -> Any:
            outs = f({"src": at["dst"], **at})
            return sum(jnp.vdot(w, o) for w, o in zip(weights(outs), outs, strict=True)), outs

        return jax.jit(jax.value_and_grad(loss, has_aux=True))(at)

    (_, want), want_grad = both(lambda at: expected(case, e, at))
    (_, have), have_grad = both(lambda at: got(layer, e, graph, at))
    for a, b in zip(have, want, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
    flat = jax.tree.leaves_with_path
    for (path, a), (_, b) in zip(flat(have_grad), flat(want_grad), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize("name", CASES)
def test_layers(name):
    compare(CASES[name], GRAPHS["hub"])


@pytest.mark.parametrize("graph", ["bipartite", "padding"])
@pytest.mark.parametrize("name", ["trees", "graph_net", "edge_mlp", "vectors"])
def test_other_vertex_sets_and_padding(name, graph):
    compare(CASES[name], GRAPHS[graph])


@pytest.mark.parametrize("name", ["gat_concat"])
@pytest.mark.parametrize("graph", [g for g in GRAPHS if g not in ("hub", "bipartite", "padding")])
def test_graphs(name, graph):
    compare(CASES[name], GRAPHS[graph])


X = jnp.arange(1.0, 19.0).reshape(6, 3)
ISOLATED = GRAPHS["isolated"]  # vertices 2, 4 and 5 have no edge in either direction


def finite(*arrays: Any) -> bool:
    return all(bool(jnp.isfinite(a).all()) for a in arrays)


def zero_at_isolated(x: Any) -> Any:
    return x.at[jnp.array([2, 4, 5])].set(0)


@pytest.mark.parametrize(
    "fn",
    [
        lambda v, e: gnnjit.sum(e.src / v),
        lambda v, e: gnnjit.sum(e.src / v / v),
        lambda v, e: gnnjit.mean(e.src / (v * e.src)),
        lambda v, e: gnnjit.sum(jnp.sqrt(e.src)),
        lambda v, e: gnnjit.sum(e.src * jnp.log(v)),
        lambda v, e: gnnjit.std(e.src),
        lambda v, e: gnnjit.logsumexp(e.src) + gnnjit.max(e.src),
    ],
    ids=["quotient", "quotients", "edge quotient", "sqrt", "log", "std", "logsumexp"],
)
def test_vertices_without_edges_are_zero_with_zero_gradients(fn):
    layer, graph, x = gnnjit.layer(fn), ISOLATED.graph(), zero_at_isolated(X)
    out, grad = layer(graph, x), jax.grad(lambda x: jnp.sum(layer(graph, x)))(x)
    assert finite(out, grad)
    assert not out[jnp.array([2, 4, 5])].any()
    assert not grad[jnp.array([2, 4, 5])].any()


def test_padding_rows_may_hold_anything():
    graph = ISOLATED.graph().pad(8, 9)
    x = jnp.concatenate([X, jnp.full((2, 3), jnp.nan)])
    layer = gnnjit.layer(lambda v, e: gnnjit.sum(gnnjit.softmax(e.src * v) * e.src))
    value, grad = jax.value_and_grad(lambda x: jnp.sum(layer(graph, x)[:6]))(x)
    want = jax.value_and_grad(lambda x: jnp.sum(layer(ISOLATED.graph(), x)))(X)
    np.testing.assert_allclose(value, want[0], rtol=1e-6)
    np.testing.assert_allclose(grad[:6], want[1], rtol=1e-5, atol=1e-6)


def test_padding_rows_do_not_reach_gradients_of_weights():
    graph = ISOLATED.graph().pad(8, 9)
    x = jnp.concatenate([X, jnp.full((2, 3), jnp.nan)])
    layer = gnnjit.layer(lambda v, e, w: gnnjit.sum(jnp.tanh(e.src @ w)))
    assert finite(jax.grad(lambda w: jnp.sum(layer(graph, x, w)[:6]))(jnp.ones((3, 2))))


@gnnjit.layer
def attention(v, e):
    return gnnjit.sum(gnnjit.softmax(e.data) * e.src), gnnjit.logsumexp(e.data)


@pytest.mark.parametrize("score", [1e4, -1e4, -np.inf])
def test_scores_of_any_size(score):
    graph = gnnjit.Graph.from_edges([0, 1, 2], [0, 0, 1], 3)
    x, scores = X[:3], jnp.array([score, score, score])

    def loss(x: Any, scores: Any) -> Any:
        out, lse = attention(graph, x, edges=scores)
        return jnp.sum(out) + (0 if np.isinf(score) else jnp.sum(lse))

    assert finite(*jax.grad(loss, (0, 1))(x, scores))
    out, lse = attention(graph, x, edges=scores)
    mean = np.where(np.isinf(score), 0, (x[0] + x[1]) / 2)
    np.testing.assert_allclose(out, [mean, x[2] * (not np.isinf(score)), np.zeros(3)])
    np.testing.assert_allclose(lse, [score + (0 if np.isinf(score) else np.log(2)), score, 0])


def test_the_gradient_of_logsumexp_where_all_scores_are_minus_infinity():
    graph = gnnjit.Graph.from_edges([0, 1], [0, 0], 2)
    layer = gnnjit.layer(lambda v, e: gnnjit.logsumexp(e.data))
    grad = jax.grad(lambda d: jnp.sum(layer(graph, X[:2], edges=d)))(jnp.full(2, -jnp.inf))
    assert finite(grad)


def test_std_of_equal_values_has_no_gradient():
    layer, x = gnnjit.layer(lambda v, e: gnnjit.std(e.src)), jnp.ones((6, 3))
    value, grad = jax.value_and_grad(lambda x: jnp.sum(layer(ISOLATED.graph(), x)))(x)
    assert float(value) == 0
    assert not grad.any()


def test_half_precision_moments_beyond_its_range():
    n = 300
    graph = gnnjit.Graph.from_edges(np.arange(n), np.zeros(n, int), n)
    layer = gnnjit.layer(lambda v, e: (gnnjit.mean(e.src), gnnjit.std(e.src), gnnjit.mean(v)))
    x = jnp.where(jnp.arange(n) % 2 == 0, 1000, 400).astype(jnp.float16)
    outs = layer(graph, x)
    assert [float(o[0]) for o in outs] == [700, 300, 1000]
    assert [o.dtype for o in outs] == [jnp.float16] * 3


def test_float64():
    with jax.enable_x64(True):
        e = GRAPHS["hub"]
        at = jax.tree.map(lambda x: x.astype(jnp.float64), features(e))
        case = CASES["gat_concat"]
        have = got(layer_of(case.fn), e, e.graph(), at)
        want = expected(case, e, at)
        assert have[0].dtype == jnp.float64
        np.testing.assert_allclose(have[0], want[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_python_numbers_keep_the_dtype(dtype, x64):
    with jax.enable_x64(x64):
        layer = gnnjit.layer(lambda v, e, scale: gnnjit.sum(e.src * scale) + gnnjit.mean(v * 0.5))
        assert layer(ISOLATED.graph(), X.astype(dtype), 2.0).dtype == dtype


def test_integers():
    layer = gnnjit.layer(
        lambda v, e: (gnnjit.sum(e.src), gnnjit.max(e.src > 1), gnnjit.mean(e.src), gnnjit.min(v))
    )
    outs = layer(ISOLATED.graph(), jnp.arange(6))
    assert [o.dtype for o in outs] == [jnp.int32, jnp.bool_, jnp.float32, jnp.int32]
    assert [o.tolist() for o in outs] == [
        [4, 0, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0], [2, 0, 0, 1, 0, 0], [0, 1, 0, 3, 0, 0]
    ]  # fmt: skip


def doubled(slope: float) -> Any:
    """The same values whatever the slope, and a gradient of its own."""
    f = jax.custom_vjp(lambda x: 2 * x)
    f.defvjp(lambda x: (2 * x, x), lambda x, ct: (slope * ct * jnp.cos(x),))
    return f


def test_custom_derivatives_that_differ_stay_apart():
    def grad(slope: float) -> Any:
        f = doubled(slope)
        layer = gnnjit.layer(lambda v, e: gnnjit.sum(f(e.src + v)))
        return jax.grad(lambda x: jnp.sum(layer(ISOLATED.graph(), x)))(X)

    np.testing.assert_allclose(grad(3.0) * 2, grad(6.0), rtol=1e-5)


@pytest.mark.parametrize("act", [
    jax.nn.silu, jax.nn.gelu, jax.nn.relu, doubled(3.0),
])  # fmt: skip
def test_a_second_call_compiles_nothing(act):
    layer, graph = gnnjit.layer(lambda v, e: gnnjit.sum(act(e.src + v))), ISOLATED.graph()
    compiled = call._run
    layer(graph, X)
    before = compiled._cache_size()
    layer(graph, X * 2)
    assert compiled._cache_size() == before
