"""Work on an endpoint is done once per vertex; where no edge reads it, it has no effect at all."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gnnjit

# Sources 2 and 5, destinations 1, 3 and 4 are in no edge.
SRC, DST = np.array([0, 1, 1, 4, 3, 3]), np.array([0, 0, 2, 2, 2, 0])
NUM_SRC, NUM_DST = 6, 5
UNREAD = {"src": [2, 5], "dst": [1, 3, 4]}
GRAPH = gnnjit.Graph.from_edges(SRC, DST, num_src=NUM_SRC, num_dst=NUM_DST)


def features(bad: float, padding: int = 0) -> dict[str, Any]:
    """Smooth values where an edge reads, `bad` where none does, NaN in padding."""
    rng = np.random.default_rng(0)
    at = {"src": rng.uniform(1.5, 2, (NUM_SRC, 2)), "dst": rng.uniform(1.5, 2, (NUM_DST, 2))}
    for side, rows in UNREAD.items():
        at[side][rows] = bad
        at[side] = np.pad(at[side], [(0, padding), (0, 0)], constant_values=np.nan)
    return {side: jnp.asarray(x, jnp.float32) for side, x in at.items()}


def on_edges(fn: Any, kind: str, at: dict[str, Any]) -> Any:
    """`kind` of `fn(source, destination)`, edge by edge."""
    m = jax.vmap(fn)(at["src"][SRC], at["dst"][DST])
    count = np.bincount(DST, minlength=NUM_DST)[:, None]
    if kind == "max":
        return jnp.where(count > 0, jax.ops.segment_max(m, DST, NUM_DST), 0)
    total = jax.ops.segment_sum(m, DST, NUM_DST)
    return total / np.maximum(count, 1) if kind == "mean" else total


def derivatives(f: Any, at: dict[str, Any]) -> Any:
    """The value, the gradient, and the gradient of the gradient's squares."""

    def loss(at: Any) -> Any:
        return jnp.sum(jnp.sin(f(at)[:NUM_DST]))

    def steepness(at: Any) -> Any:
        return sum(jnp.sum(g**2) for g in jax.tree.leaves(jax.grad(loss)(at)))

    return jax.jit(lambda at: (f(at)[:NUM_DST], jax.grad(loss)(at), jax.grad(steepness)(at)))(at)


def compare(fn: Any, kind: str, bad: float, padding: int = 0) -> None:
    layer = gnnjit.layer(lambda v, e: getattr(gnnjit, kind)(fn(e.src, v)))
    graph = GRAPH
    if padding:
        graph = GRAPH.pad(
            num_src=NUM_SRC + padding, num_dst=NUM_DST + padding, num_edges=len(SRC) + padding
        )
    have = derivatives(lambda at: layer(graph, gnnjit.Bipartite(**at)), features(bad, padding))
    want = derivatives(lambda at: on_edges(fn, kind, at), features(bad))
    np.testing.assert_allclose(have[0], want[0], rtol=1e-4, atol=1e-5)
    assert not np.asarray(have[0])[UNREAD["dst"]].any()
    for got, expected in zip(have[1:], want[1:], strict=True):
        for side, rows in UNREAD.items():
            count = len(expected[side])
            np.testing.assert_allclose(got[side][:count], expected[side], rtol=1e-3, atol=1e-4)
            assert not np.asarray(got[side])[rows].any()
            assert not np.asarray(got[side])[count:].any()


SINGULAR = {
    "log of v": lambda s, d: s * jnp.log(d),
    "log of e.src": lambda s, d: jnp.log(s) * d,
    "log first": lambda s, d: jnp.log(d) * s,
    "quotient": lambda s, d: s / d,
    "quotient of e.src": lambda s, d: jnp.sin(s * d) / s,
    "sqrt": lambda s, d: s * jnp.sqrt(d),
    "sqrt of both": lambda s, d: jnp.tanh(jnp.sqrt(s) + jnp.sqrt(d)),
    "only v": lambda s, d: jnp.log(d),
    "pole elsewhere": lambda s, d: s / (d - 1) + jnp.arccosh(s) * jnp.arcsin(d / 2),
    "norm": lambda s, d: s / jnp.linalg.norm(s) * d / jnp.linalg.norm(d),
    "in a custom derivative": lambda s, d: s * safe_log(d),
    "in a loop": lambda s, d: s * jax.lax.fori_loop(0, 200, lambda _, x: jnp.sqrt(x), d),
}


@jax.custom_jvp
def safe_log(x):
    return jnp.log(x)


safe_log.defjvp(lambda xs, ts: (safe_log(*xs), ts[0] / xs[0]))


@pytest.mark.long
@pytest.mark.parametrize("name", SINGULAR)
@pytest.mark.parametrize(("kind", "padding"), [("sum", 0), ("mean", 3), ("max", 0)])
def test_zero_with_derivatives_of_zero(name, kind, padding):
    compare(SINGULAR[name], kind, 0.0, padding)


def test_overflow():
    compare(lambda s, d: jnp.exp(s) * jnp.exp(-d) + jnp.sinh(d), "sum", 400.0)
    compare(lambda s, d: s * jnp.exp(-d) / jnp.cosh(s), "sum", -400.0)


UNARY = {
    "log": jnp.log, "sqrt": jnp.sqrt, "rsqrt": jax.lax.rsqrt, "exp": jnp.exp, "tanh": jnp.tanh,
    "inverse": lambda x: 1 / x, "square": jnp.square, "power": lambda x: x**-1.5,
    "less": lambda x: x - 0.25, "cbrt": jnp.cbrt, "softplus": jax.nn.softplus,
}  # fmt: skip
CHAINS = st.lists(st.sampled_from(sorted(UNARY)), min_size=1, max_size=3)


@given(CHAINS, CHAINS, st.sampled_from([0.0, -1.0, 0.25, 1e3]), st.booleans())
@settings(max_examples=12)
def test_chains(of_src, of_dst, bad, padded):
    def fn(s: Any, d: Any) -> Any:
        for name in of_src:
            s = UNARY[name](s)
        for name in of_dst:
            d = UNARY[name](d)
        return jnp.tanh(s) + jnp.sin(s * d)

    layer = gnnjit.layer(lambda v, e: gnnjit.sum(fn(e.src, v)))
    pad = 2 if padded else 0
    sizes = {"num_src": NUM_SRC + pad, "num_dst": NUM_DST + pad, "num_edges": len(SRC) + pad}
    graph = GRAPH.pad(**sizes) if padded else GRAPH
    grads = jax.jit(jax.grad(lambda at: jnp.sum(layer(graph, gnnjit.Bipartite(**at))[:NUM_DST])))
    want = jax.grad(lambda at: jnp.sum(on_edges(fn, "sum", at)))(features(bad))
    for side, got in grads(features(bad, pad)).items():
        count = len(want[side])
        np.testing.assert_allclose(got[:count], want[side], rtol=1e-3, atol=1e-3)  # NaN is NaN
        assert not np.asarray(got)[[*UNREAD[side], *range(count, count + pad)]].any()


def weight_gradient(fn: Any, at: dict[str, Any], graph: Any, w: Any) -> Any:
    layer = gnnjit.layer(lambda v, e, w: gnnjit.sum(fn(e.src, v, w)))
    f = jax.grad(lambda w: jnp.sum(layer(graph, gnnjit.Bipartite(**at), w)[:NUM_DST]))
    return jax.jit(f)(w)


@pytest.mark.parametrize("fn", [
    lambda s, d, w: jnp.tanh(s @ w[:2] + d @ w[2:]),
    lambda s, d, w: jnp.tanh(jnp.concatenate([s, d]) @ w),
    lambda s, d, w: s * jnp.log(jnp.square(d @ w[2:])),
])  # fmt: skip
def test_nan_in_padding_does_not_reach_weights(fn):
    sizes = {"num_src": NUM_SRC + 2, "num_dst": NUM_DST + 2, "num_edges": len(SRC) + 2}
    w = jnp.asarray(np.random.default_rng(1).normal(size=(4, 2)), jnp.float32)
    have = weight_gradient(fn, features(0.5, 2), GRAPH.pad(**sizes), w)
    want = weight_gradient(fn, features(0.5), GRAPH, w)
    np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)


def test_a_reduction_that_edges_read():
    """Over no edges it is 0, and `sqrt` of it would have an infinite slope."""
    at = features(0.5)
    have = weight_gradient(
        lambda s, d, w: s * jnp.sqrt(gnnjit.sum(s) @ jnp.abs(w[:2])), at, GRAPH, jnp.ones((4, 2))
    )
    assert bool(jnp.isfinite(have).all())
    assert float(jnp.abs(have).max()) > 0


def test_work_that_is_an_output_too_is_meant_at_every_vertex():
    """Its NaN is the user's, and so is a vertex whose own value is infinite; others are not."""

    @gnnjit.layer
    def layer(v, e):
        a = jnp.log(v)
        return gnnjit.sum(e.src * a) + a, gnnjit.sum(e.src / jnp.sqrt(v))

    def loss(at: Any) -> Any:
        both, edges = layer(GRAPH, gnnjit.Bipartite(**at))
        return jnp.sum(both) + jnp.sum(edges)

    grad = jax.grad(loss)(features(0.0))
    assert np.isinf(grad["dst"][jnp.array(UNREAD["dst"])]).all()
    assert np.isfinite(grad["dst"][jnp.array([0, 2])]).all()
    assert np.isfinite(grad["src"]).all()


@pytest.mark.parametrize("name", ["log of v", "only v", "in a loop"])
def test_check_and_reference_agree(name):
    layer = gnnjit.layer(lambda v, e: gnnjit.sum(SINGULAR[name](e.src, v)))
    x = gnnjit.Bipartite(**features(0.0))
    gnnjit.check(layer, GRAPH, x)
    with gnnjit.reference():
        grad = jax.grad(lambda x: jnp.sum(layer(GRAPH, x)))(x)
    assert all(bool(jnp.isfinite(g).all()) for g in jax.tree.leaves(grad))
