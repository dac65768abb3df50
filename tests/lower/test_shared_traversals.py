"""A traversal by destination writes what sources sum, where both would multiply the edges."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from planned import planned

import gnnjit
from gnnjit._compat import subjaxprs
from gnnjit.ir.large_products import is_large_product
from gnnjit.ir.program import Aggregate, Program
from gnnjit.lower import choose
from gnnjit.lower.application import aggregate_p
from gnnjit.passes import store_shared_products

N, E, F = 20, 90, 32


def gns(v: Any, e: Any, p: Any) -> Any:
    hidden = jnp.concatenate([v["x"], e.src["x"], e.data]) @ p["in"]
    message = jax.nn.relu(hidden) @ p["out"]
    message *= jax.lax.rsqrt(jnp.square(message).mean() + 1e-3)
    return v["x"] + gnnjit.sum(message), e.data + message


def egnn(v: Any, e: Any, p: Any) -> Any:
    step = v["r"] - e.src["r"]
    pair = jnp.concatenate([v["x"], e.src["x"], jnp.sum(step * step, keepdims=True)])
    m = jax.nn.silu(jax.nn.silu(pair @ p["pair"]) @ p["mid"])
    moved = gnnjit.mean(step * (jax.nn.silu(m @ p["out"]) @ p["one"]))
    return gnnjit.sum(m), v["r"] + moved


def largest(v: Any, e: Any, p: Any) -> Any:
    return gnnjit.max(jax.nn.silu(jax.nn.silu(v["x"] + e.src["x"] @ p["mid"]) @ p["out"]))


def gat(v: Any, e: Any, p: Any) -> Any:
    h = e.src["x"] @ p["mid"]
    score = jax.nn.leaky_relu(jnp.sum(h) + jnp.sum(v["x"] @ p["mid"]), 0.2)
    return gnnjit.sum(gnnjit.softmax(score) * h)


LAYERS = {"gns": gns, "egnn": egnn, "largest": largest, "gat": gat}
SHAPES = {"in": (3 * F, F), "pair": (2 * F + 1, F), "mid": (F, F), "out": (F, F), "one": (F, 1)}


def case(dtype: Any = jnp.float32, padded: bool = False) -> tuple[Any, Any]:
    """A graph, and arguments that are differentiated."""
    rng = np.random.default_rng(0)
    ends = rng.integers(0, N, E), rng.integers(0, N, E)
    mask = np.arange(E) % 3 > 0 if padded else None
    graph = gnnjit.Graph.from_edges(*ends, N, edge_mask=mask)

    def normal(*shape: int) -> Any:
        return jnp.asarray(rng.normal(size=shape) / shape[-1] ** 0.5, dtype)

    params = {name: normal(*shape) for name, shape in SHAPES.items()}
    return graph, ({"x": normal(N, F), "r": normal(N, 3)}, params, normal(E, F))


def loss_of(name: str, limit: int | None = None) -> Any:
    layer = planned(LAYERS[name], limit=limit)

    def loss(args: Any, graph: Any) -> Any:
        x, params, edges = args
        outs = jax.tree.leaves(layer(graph, x, params, edges=edges))
        return sum(jnp.sum(jnp.sin(o.astype(jnp.float32))) for o in outs)

    return loss


@contextlib.contextmanager
def nothing_shared(monkeypatch: Any) -> Any:
    with monkeypatch.context() as m:
        m.setattr(store_shared_products, "_worth_storing", lambda program: [])
        choose.optimised.cache_clear()
        yield
    choose.optimised.cache_clear()


def close(have: Any, want: Any, tolerance: float = 1e-4) -> None:
    for a, b in zip(jax.tree.leaves(have), jax.tree.leaves(want), strict=True):
        a, b = (np.asarray(x, np.float32) for x in (a, b))
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(1, np.abs(b).max()))


def lowered(jaxpr: Any) -> list[Program]:
    """What every aggregate of a jaxpr becomes."""
    found = []
    for eqn in jaxpr.eqns:
        if eqn.primitive is aggregate_p:
            treedef, count = eqn.params["graph_def"]
            graph = jax.tree.unflatten(treedef, [v.aval for v in eqn.invars[:count]])
            p = eqn.params
            found.append(choose.traversals(p["body"], p["reductions"], graph, "cpu", p["limit"]))
        for sub in subjaxprs(eqn):
            found += lowered(sub)
    return found


def products(name: str, limit: int | None = None) -> list[int]:
    """The large products of each traversal of the last aggregate of a gradient."""
    graph, args = case()
    jaxpr = jax.make_jaxpr(jax.grad(loss_of(name, limit)))(args, graph).jaxpr
    bodies = [e.op.body for e in lowered(jaxpr)[-1].equations if isinstance(e.op, Aggregate)]
    return [sum(map(is_large_product, body.equations)) for body in bodies]


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [("gns", [4, 3], [4, 0]), ("egnn", [4, 4], [4, 0]), ("largest", [2, 2], [2, 0])],
)
def test_products_are_computed_once(name, before, after, monkeypatch):
    with nothing_shared(monkeypatch):
        assert products(name) == before
    assert products(name) == after


def test_attention_has_none(monkeypatch):
    with nothing_shared(monkeypatch):
        before = products("gat")
    assert products("gat") == before


def test_a_limit_keeps_arrays_off_the_edges():
    assert products("gns", limit=E * F) == products("gns")
    assert products("gns", limit=E * F - 1)[1] > 0


@pytest.mark.parametrize("padded", [False, True], ids=["all edges", "padded"])
@pytest.mark.parametrize("name", LAYERS)
def test_the_gradient_is_the_same(name, padded, monkeypatch):
    graph, args = case(padded=padded)
    both = jax.value_and_grad(loss_of(name))
    have = jax.jit(both)(args, graph)
    with nothing_shared(monkeypatch):
        close(have, jax.jit(lambda *a: both(*a))(args, graph))


@pytest.mark.parametrize("name", ["gns", "egnn"])
def test_against_the_reference(name):
    graph, args = case(padded=True)
    layer = gnnjit.layer(LAYERS[name])

    def loss(args: Any) -> Any:
        x, params, edges = args
        outs = layer(graph, x, params, edges=edges) if name == "gns" else layer(graph, x, params)
        return sum(jnp.sum(jnp.sin(o)) for o in jax.tree.leaves(outs))

    have = jax.jit(jax.grad(loss))(args)
    with gnnjit.reference():
        close(have, jax.jit(jax.grad(loss))(args))


def test_tiles_of_edges():
    graph, args = case(padded=True)
    gradient = jax.grad(loss_of("gns"))
    with choose.prefer("pallas"):
        have = jax.jit(gradient)(args, graph)
    close(have, jax.jit(gradient)(args, graph), 1e-3)


@pytest.mark.parametrize("exchange", ["all_gather", "ring"])
def test_on_shards(exchange):
    graph, args = case()
    layer, (x, params, edges) = gnnjit.layer(gns), args
    mesh = Mesh(np.asarray(jax.devices()[:2]), ("shards",))
    sharded = gnnjit.shard(graph, mesh, partition="vertices", exchange=exchange)

    def loss(params: Any, graph: Any, x: Any, edges: Any) -> Any:
        return sum(
            jnp.sum(jnp.sin(o)) for o in jax.tree.leaves(layer(graph, x, params, edges=edges))
        )

    placed = sharded.put(x), sharded.put_edges(edges)
    have = jax.jit(jax.grad(loss))(params, sharded, *placed)
    close(have, jax.jit(jax.grad(loss))(params, graph, x, edges))


@pytest.mark.parametrize("name", ["gns", "egnn"])
def test_half_precision(name):
    """What is stored is rounded, as plain JAX rounds it."""
    graph, args = case(jnp.bfloat16)
    have = jax.jit(jax.grad(loss_of(name)))(args, graph)
    exact = jax.tree.map(lambda a: a.astype(jnp.float32), args)
    want = jax.jit(jax.grad(loss_of(name)))(exact, graph)
    close(have, want, 3e-2)


@pytest.mark.parametrize("name", ["gns", "largest"])
def test_second_order(name, monkeypatch):
    graph, args = case()

    def norm(args: Any, graph: Any) -> Any:
        gradient = jax.grad(loss_of(name))(args, graph)
        return sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(gradient))

    have = jax.jit(jax.grad(norm))(args, graph)
    with nothing_shared(monkeypatch):
        close(have, jax.jit(jax.grad(lambda *a: norm(*a)))(args, graph), 1e-3)


def test_explain_shows_what_runs():
    graph, (x, params, edges) = case()
    kernels = gnnjit.layer(gns).explain(graph, x, params, edges=edges).kernels
    backward = [k for k in kernels if k.direction == "backward" and k.rows]
    written = [k for k in backward if k.traversal.endswith("on the edges")]
    assert {k.rows for k in written} == {"destination"}
    sources = [k.traversal for k in backward if k.rows == "source"]
    assert sources
    assert not any("@" in traversal or "dot_general" in traversal for traversal in sources)
