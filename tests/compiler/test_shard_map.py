"""Layers inside `jax.shard_map` with its default checks, and under explicit axes of a mesh."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import gnnjit
from gnnjit import nn
from gnnjit.graph.degree_buckets import build_buckets
from gnnjit.lower import choose
from gnnjit.lower.xla import segment

pytestmark = pytest.mark.usefixtures("loops_stay")

RANDOM = np.random.default_rng(31)
W = jnp.asarray(RANDOM.normal(size=(3, 3)), jnp.float32)
XS = jnp.asarray(RANDOM.normal(size=(2, 7, 3)), jnp.float32)


def graph(vertices: int, edges: int) -> gnnjit.Graph:
    ends = RANDOM.integers(0, vertices, size=(2, edges))
    return gnnjit.Graph.from_edges(*ends, num_nodes=vertices)


GRAPHS = jax.tree.map(
    lambda *xs: jnp.stack(xs),
    *(graph(n, m).pad(num_nodes=7, num_edges=13) for n, m in ((5, 9), (6, 13))),
)
ONE = graph(7, 17)


def mesh(kind: AxisType = AxisType.Auto) -> Any:
    if jax.device_count() < 2:
        pytest.skip("two devices are needed")
    return jax.make_mesh((2,), ("d",), axis_types=(kind,))


@jax.custom_vjp
def cubed(x: Any, y: Any) -> Any:
    return x**3 * y


cubed.defvjp(
    lambda x, y: (cubed(x, y), (x, y)),
    lambda kept, ct: (3 * kept[0] ** 2 * kept[1] * ct, kept[0] ** 3 * ct),
)


@gnnjit.layer
def everything(v, e, w):
    """What each lowering is tried on: sums, an extreme, a softmax, values on the edges."""
    m = jax.nn.relu(e.src @ w + v)
    own = gnnjit.sum(gnnjit.softmax(jnp.sum(e.src * v)) * m)
    return {"edge": m * v, "sum": own + gnnjit.mean(e.src) + gnnjit.max(m)}


def _dropout(v: Any, e: Any, w: Any) -> Any:
    kept = gnnjit.dropout(e.src @ w, 0.3, jax.random.key(5))
    return gnnjit.sum(kept) + gnnjit.std(e.src) + gnnjit.logsumexp(e.src)


def _derivatives(v: Any, e: Any, w: Any) -> Any:
    total = gnnjit.sum(cubed(jax.nn.silu(e.src @ w), v))
    return cubed(jax.nn.relu(total) @ w, v) + jax.nn.silu(v @ w)


def _loops(v: Any, e: Any, w: Any) -> Any:
    m = gnnjit.sum(lax.fori_loop(0, 2, lambda i, c: jnp.tanh(c @ w) + i, e.src))
    m = lax.cond(v[0] > 0, lambda c: jnp.tanh(c @ w), lambda c: c, m)
    return lax.scan(lambda c, _: (jax.nn.relu(c @ w) + v, None), m, None, length=3)[0]


def _network(v: Any, e: Any, w: Any) -> Any:
    return gnnjit.sum(jax.nn.gelu(jax.nn.gelu(e.src @ w + v) @ w))


LAYERS = {f.__name__.strip("_"): f for f in (_dropout, _derivatives, _loops, _network)}


def total(tree: Any) -> Any:
    return sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(tree))


def loss_of(layer: Any) -> Any:
    return lambda g, x, w: total(layer(g, x, w))


def on_devices(f: Any) -> Any:
    """The sum of `f` over the graphs, one on each device."""

    def each(g: Any, x: Any, w: Any) -> Any:
        return lax.psum(f(jax.tree.map(lambda a: a[0], g), x[0], w), "d")

    specs = {"in_specs": (P("d"), P("d"), P()), "out_specs": P()}
    return jax.shard_map(each, mesh=mesh(), **specs)


def by_hand(f: Any) -> Any:
    def every(g: Any, x: Any, w: Any) -> Any:
        return sum(f(jax.tree.map(lambda a: a[i], g), x[i], w) for i in range(2))  # noqa: B023

    return every


def close(a: Any, b: Any) -> None:
    for have, want in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-3, atol=1e-3)


def derived(f: Any) -> Any:
    return jax.jit(jax.value_and_grad(f, (1, 2)))


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lowerings that ran."""
    kernels: list[str] = []
    run = choose.Choice.run

    def spy(choice: choose.Choice, operands: Any) -> Any:
        kernels.append(choice.kernel)
        return run(choice, operands)

    monkeypatch.setattr(choose.Choice, "run", spy)
    return kernels


@pytest.mark.parametrize(
    ("kernel", "layer"),
    [
        ("cpu", everything),
        ("segment", everything),
        ("csr", lambda v, e, w: gnnjit.mean(e.src @ w)),
        ("pallas", lambda v, e, w: gnnjit.sum(gnnjit.softmax(jnp.sum(e.src * v)) * e.src) @ w),
    ],
    ids=["cpu", "segment", "csr", "pallas"],
)
def test_one_graph_for_each_device(kernel, layer, ran, monkeypatch):
    f = loss_of(layer if layer is everything else gnnjit.layer(layer))
    want = derived(by_hand(f))(GRAPHS, XS, W)
    monkeypatch.setattr(segment, "CHUNK_SCALARS", 16)  # in steps, whose carry must vary too
    ran.clear()
    with choose.prefer(kernel):
        have = derived(on_devices(f))(GRAPHS, XS, W)
    assert kernel in ran
    close(have, want)


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    f = loss_of(gnnjit.layer(LAYERS[name]))
    close(derived(on_devices(f))(GRAPHS, XS, W), derived(by_hand(f))(GRAPHS, XS, W))


def with_buckets(g: gnnjit.Graph) -> gnnjit.Graph:
    parts = {
        name: dataclasses.replace(part, buckets=build_buckets(np.asarray(part.indptr)))
        for name in ("in_structure", "out_structure")
        for part in [getattr(g, name)]
    }
    return dataclasses.replace(g, **parts)


@pytest.mark.skipif(
    jax.__version_info__[:2] == (0, 11),
    reason="XLA of JAX 0.11.2 crashes where Shardy reads the program; 0.10.2 and 0.12.0.1 do not",
)
def test_the_same_graph_for_each_device(ran):
    layer = gnnjit.layer(lambda v, e, w: gnnjit.sum(gnnjit.softmax(jnp.tanh(e.src)) * e.src) @ w)

    def f(g: Any, x: Any, w: Any) -> Any:
        return total(jax.vmap(lambda x: layer(g, x, w))(x))

    def each(g: Any, x: Any, w: Any) -> Any:
        return lax.psum(f(g, x, w), "d")

    specs = {"in_specs": (P(), P("d"), P()), "out_specs": P()}
    want = derived(f)(ONE, XS, W)
    with choose.prefer("bucketed"):
        have = derived(jax.shard_map(each, mesh=mesh(), **specs))(with_buckets(ONE), XS, W)
    assert "bucketed" in ran
    close(have, want)


def hessian(f: Any) -> Any:
    return lambda g, x, w: jax.hessian(f, 2)(g, x, w)


def batched(f: Any) -> Any:
    return lambda g, x, w: jax.vmap(jax.grad(f, 1), (None, None, 0))(g, x, jnp.stack([w, -w]))


@pytest.mark.parametrize("derive", [hessian, batched])
def test_derived(derive):
    f = loss_of(gnnjit.layer(lambda v, e, w: jax.nn.silu(gnnjit.sum(jax.nn.silu(e.src @ w)) + v)))
    have = jax.jit(derive(on_devices(f)))(GRAPHS, XS, W)
    close(have, jax.jit(derive(by_hand(f)))(GRAPHS, XS, W))


def test_a_module_whose_parameters_are_another_on_each_device():
    definition, params = nnx.split(nn.GAT(3, 3, heads=1, rngs=nnx.Rngs(0)))

    def f(g: Any, x: Any, params: Any) -> Any:
        return total(nnx.merge(definition, params)(g, x))

    def each(g: Any, x: Any, params: Any) -> Any:
        params = lax.pcast(params, ("d",), to="varying")
        found = jax.grad(f, 2)(jax.tree.map(lambda a: a[0], g), x[0], params)
        return lax.psum(found, "d")

    specs = {"in_specs": (P("d"), P("d"), P()), "out_specs": P()}
    have = jax.jit(jax.shard_map(each, mesh=mesh(), **specs))(GRAPHS, XS, params)
    close(have, jax.jit(jax.grad(by_hand(f), 2))(GRAPHS, XS, params))


def test_what_one_mesh_traced_serves_another():
    layer = gnnjit.layer(lambda v, e, w: jax.nn.relu(gnnjit.mean(jax.nn.relu(e.src @ w))))
    f = loss_of(layer)
    derived(on_devices(f))(GRAPHS, XS, W)
    with jax.set_mesh(jax.make_mesh((2, 2), ("d", "other"), axis_types=(AxisType.Auto,) * 2)):
        each = jax.shard_map(
            lambda g, x, w: lax.psum(f(jax.tree.map(lambda a: a[0], g), x[0], w), "d"),
            in_specs=(P("d"), P("d"), P()), out_specs=P(), axis_names={"d"},
        )  # fmt: skip
        have = derived(each)(GRAPHS, XS, W)
        graphs = derived(lambda g, x, w: total(jax.vmap(layer, (0, 0, None))(g, x, w)))
        again = graphs(GRAPHS, XS, W)
    want = derived(by_hand(f))(GRAPHS, XS, W)
    close(have, want)
    close(again, want)


def batch_of_graphs(g: Any, x: Any, w: Any) -> Any:
    return total(jax.vmap(everything, (0, 0, None))(g, x, w))


def batch_of_features(g: Any, x: Any, w: Any) -> Any:
    return total(jax.vmap(lambda x: everything(g, x, w))(x))


def no_batch(g: Any, x: Any, w: Any) -> Any:
    return total(everything(g, x, w))


@pytest.mark.parametrize(
    ("f", "g", "x", "specs", "within"),
    [
        (batch_of_graphs, GRAPHS, XS, (P("d"), P("d"), P()), True),
        (batch_of_features, ONE, XS, (P(), P("d"), P()), True),
        (batch_of_features, ONE, XS, (P(), P("d"), P()), False),
        (no_batch, ONE, jnp.tile(XS[0], (1, 2)), (P(), P(None, "d"), P("d")), True),
    ],
    ids=["graphs", "features", "no set_mesh", "one call"],
)
def test_explicit_axes(f, g, x, specs, within):
    w = jnp.tile(W, (2, 2)) if x.ndim == 2 else W
    where = mesh(AxisType.Explicit)
    args = [
        jax.device_put(a, NamedSharding(where, spec))
        for a, spec in zip((g, x, w), specs, strict=True)
    ]
    with jax.set_mesh(where) if within else contextlib.nullcontext():
        value, grads = derived(f)(*args)
    close((value, grads), derived(f)(g, x, w))
    assert grads[0].sharding.is_equivalent_to(args[1].sharding, x.ndim)
