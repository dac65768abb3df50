"""Networks of vertices: which are one kernel, and the same numbers and derivatives as plain JAX."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned import optimised, traced_call

import gnnjit
from gnnjit.ir.interpret import Incidence, interpret
from gnnjit.ir.program import Network, Program
from gnnjit.lower import choose, vertex_networks
from gnnjit.lower.cpu import kernel
from gnnjit.lower.vertex_networks import own_edges, with_networks
from gnnjit.passes.pipeline import default_passes

WHY_NOT = kernel.unavailable()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason="; ".join(WHY_NOT) or "kernels are there")

N, E, F = 150, 400, 24


@pytest.fixture(autouse=True)
def every_size(monkeypatch):
    """Networks of few vertices count as large."""
    monkeypatch.setattr(vertex_networks, "LEAST", 0)


def draw(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype) / 3


def graph(n: int = N, e: int = E) -> gnnjit.Graph:
    src, dst = np.random.default_rng(5).integers(0, n, (2, e))
    return gnnjit.Graph.from_edges(src, dst, num_nodes=n)


def parameters(f: int = F, seed: int = 3, dtype: Any = np.float32) -> dict[str, Any]:
    shapes = {"w1": (2 * f, f), "b": (f,), "w2": (f, f), "w3": (f, f)}
    return {k: draw(*s, seed=seed + i, dtype=dtype) for i, (k, s) in enumerate(shapes.items())}


def norm(x: Any) -> Any:
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def update(x: Any, total: Any, p: Any) -> Any:
    """Of vertices: one, or all."""
    hidden = jnp.tanh(jnp.concatenate([x, total], -1) @ p["w1"] + p["b"])
    return x + norm(hidden @ p["w2"])


def updated(v: Any, e: Any, p: Any) -> Any:
    return update(v, gnnjit.sum(e.src), p)


def networks(fn: Any, *args: Any, over: gnnjit.Graph | None = None) -> list[Program]:
    """Those of a layer."""
    over = over or graph()
    program = optimised(traced_call(fn, over, *args), default_passes())
    found = with_networks(program, over).equations
    return [e.op.body for e in found if isinstance(e.op, Network)]


def custom_calls(step: Any, *args: Any) -> int:
    return len(re.findall(r"custom_call @gnnjit_cpu", jax.jit(step).lower(*args).as_text()))


# -- which they are --------------------------------------------------------------------------------


def test_all_that_a_vertex_does_after_its_sum_is_a_network():
    (body,) = networks(updated, draw(N, 64), parameters(64))
    assert [v.space.value for v in body.inputs].count("edge") == 2  # the vertex, and the sum
    assert len(body.outputs) == 1
    names = [e.op.name for e in body.equations]
    assert names.count("dot_general") == 2
    assert names.count("kept") == 2  # for the derivative
    assert {"concatenate", "tanh", "rsqrt", "add"} < set(names)


def test_scores_of_a_few_heads_are_no_network():
    def scored(v: Any, e: Any, p: Any) -> Any:
        return jnp.tanh((v + gnnjit.sum(e.src)) @ p["w2"]) @ p["w3"][:, :heads]

    heads = 4
    assert not networks(scored, draw(N, 64), parameters(64))
    heads = 16
    assert len(networks(scored, draw(N, 64), parameters(64))) == 1


def test_the_interpreter_knows_them():
    over, x, p = graph(), draw(N, F), parameters()
    call = traced_call(updated, over, x, p)
    program = optimised(call, default_passes())
    grouped = with_networks(program, over)
    assert len(grouped.equations) < len(program.equations)
    incidence = Incidence(over.src, over.dst, N, N)
    found, wanted = (interpret(one, incidence, call.traced.operands) for one in (grouped, program))
    close(found, wanted, 1e-6)


def test_a_product_alone_is_none():
    def once(v: Any, e: Any, p: Any) -> Any:
        return jnp.tanh(v @ p["w2"] + gnnjit.sum(e.src) @ p["w3"])

    assert networks(once, draw(N, F), parameters()) == []


def test_products_with_edges_between_them_are_none():
    def apart(v: Any, e: Any, p: Any) -> Any:
        return gnnjit.max(jnp.tanh(e.src @ p["w2"]) * e.src) @ p["w3"]

    assert networks(apart, draw(N, F), parameters()) == []


def test_both_ends_have_theirs():
    def ends(v: Any, e: Any, p: Any) -> Any:
        of_source = jnp.tanh(e.src @ p["w2"]) @ p["w3"]
        return jnp.tanh(gnnjit.max(of_source * v) @ p["w2"]) @ p["w3"]

    assert len(networks(ends, draw(N, F), parameters())) == 2


def test_large_matrices_and_several_rows_are_none():
    """XLA is as quick with these, or a kernel would write out their gradients."""
    p = {"w2": draw(F, 6000), "w3": draw(6000, F), "w4": draw(F, F)}

    def wide(v: Any, e: Any, p: Any) -> Any:
        return jnp.tanh(gnnjit.sum(e.src) @ p["w2"]) @ p["w3"]

    def rows(v: Any, e: Any, p: Any) -> Any:
        return jnp.tanh(gnnjit.sum(e.src) @ p["w4"]) @ p["w4"]

    assert networks(wide, draw(N, F), p) == []
    assert networks(rows, draw(N, 3, F), p) == []
    assert len(networks(rows, draw(N, F), p)) == 1


def test_what_no_kernel_has_code_for_is_none():
    def sorts(v: Any, e: Any, p: Any) -> Any:
        return jnp.sort(jnp.tanh(gnnjit.sum(e.src) @ p["w2"])) @ p["w3"]

    assert networks(sorts, draw(N, F), parameters()) == []


def test_small_ones_and_other_lowerings_have_none(monkeypatch):
    with choose.prefer("segment"):
        assert networks(updated, draw(N, F), parameters()) == []
    monkeypatch.setattr(vertex_networks, "LEAST", 1 + N * 2 * F * F)
    assert networks(updated, draw(N, F), parameters()) == []
    monkeypatch.setattr(vertex_networks, "LEAST", N * F * F)
    assert len(networks(updated, draw(N, F), parameters())) == 1


def test_it_is_one_kernel_forward_and_one_backward():
    layer, g, x, p = gnnjit.layer(updated), graph(), draw(N, F), parameters()
    assert custom_calls(lambda x, p: layer(g, x, p), x, p) == 2

    def loss(x: Any, p: Any) -> Any:
        return jnp.square(layer(g, x, p)).sum()

    assert custom_calls(jax.grad(loss, (0, 1)), x, p) == 4


def test_explain_names_them():
    kernels = gnnjit.layer(updated).explain(graph(), draw(N, F), parameters()).kernels
    found = [k.reasons for k in kernels if k.direction == "vertices"]
    assert found[0].startswith("vertices: cpu, one row per vertex, one edge per vertex")
    assert len(found) == 3  # alone, with what is kept, and the derivative
    assert {k.direction for k in kernels} == {"forward", "backward", "vertices"}


# -- the numbers -----------------------------------------------------------------------------------


def plain(g: gnnjit.Graph, x: Any, p: Any) -> Any:
    total = jax.ops.segment_sum(x[g.src], g.dst, g.num_dst)
    return update(x, total, p)


def close(found: Any, wanted: Any, tolerance: float = 2e-5) -> None:
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert a.dtype == b.dtype
        scale = max(1.0, float(jnp.abs(b).max()))
        np.testing.assert_allclose(a, b, atol=tolerance * scale, rtol=tolerance)


@pytest.mark.parametrize("f", [1, 5, 24, 70])
def test_values_and_gradients(f):
    layer, g, x, p = gnnjit.layer(updated), graph(), draw(N, f), parameters(f)
    close(layer(g, x, p), plain(g, x, p))

    def loss(fn: Any) -> Any:
        return lambda x, p: (jnp.sin(fn(g, x, p)) * draw(N, f, seed=9)).sum()

    close(jax.grad(loss(layer), (0, 1))(x, p), jax.grad(loss(plain), (0, 1))(x, p), 2e-4)
    close(jax.jit(jax.grad(loss(layer), (0, 1)))(x, p), jax.grad(loss(plain), (0, 1))(x, p), 2e-4)


def test_second_derivatives():
    """As training on forces takes them."""
    with jax.enable_x64(True):
        layer, g = gnnjit.layer(updated), graph()
        x, p = draw(N, F, dtype=np.float64), parameters(dtype=np.float64)

        def force_loss(fn: Any) -> Any:
            def energy(x: Any, p: Any) -> Any:
                return jnp.square(fn(g, x, p)).sum()

            return lambda x, p: jnp.square(jax.grad(energy)(x, p)).sum()

        found = jax.jit(jax.grad(force_loss(layer), (0, 1)))(x, p)
        wanted = jax.jit(jax.grad(force_loss(plain), (0, 1)))(x, p)
        close(found, wanted, 1e-9)
        tangents = {k: jnp.ones_like(v) for k, v in p.items()}
        moved = jax.jvp(lambda p: layer(g, x, p), (p,), (tangents,))
        close(moved, jax.jvp(lambda p: plain(g, x, p), (p,), (tangents,)), 1e-9)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16], ids=lambda d: d.__name__)
def test_half_precision_sums_in_float32(dtype):
    layer, g = gnnjit.layer(updated), graph()
    x, p = jax.tree.map(lambda a: jnp.asarray(a, dtype), (draw(N, F), parameters()))
    wide = jax.tree.map(lambda a: a.astype(jnp.float32), (x, p))
    found = layer(g, x, p)
    assert found.dtype == dtype
    np.testing.assert_allclose(found.astype(np.float32), plain(g, *wide), atol=0.06, rtol=0.06)


def test_mapped_and_checkpointed():
    layer, g, p = gnnjit.layer(updated), graph(), parameters()
    several = draw(3, N, F)
    close(jax.vmap(lambda x: layer(g, x, p))(several), jax.vmap(lambda x: plain(g, x, p))(several))
    again = jax.checkpoint(lambda x: layer(g, x, p))
    wanted = jax.grad(lambda x: plain(g, x, p).sum())(several[0])
    close(jax.grad(lambda x: again(x).sum())(several[0]), wanted, 2e-4)


STEPS = {
    "tanh": lambda x, y: jnp.tanh(x),
    "relu": lambda x, y: jax.nn.relu(x),
    "softplus": lambda x, y: jax.nn.softplus(x),
    "norm": lambda x, y: norm(x),
    "sum": lambda x, y: x + y,
    "times": lambda x, y: x * jnp.tanh(y),
    "number": lambda x, y: x * y.sum(-1, keepdims=True),
    "stopped": lambda x, y: x + jax.lax.stop_gradient(y),
    "halves": lambda x, y: jnp.concatenate([y[..., F // 2 :], x[..., : F // 2]], -1),
}


@settings(max_examples=12, deadline=None)
@given(st.lists(st.sampled_from([*STEPS, "matmul", "matmul"]), min_size=3, max_size=9))
def test_generated_networks(steps):
    p = {f"w{k}": draw(F, F, seed=k) for k in range(len(steps))}

    def network(x: Any, total: Any, p: Any) -> Any:
        now, before = x @ p["w0"], total
        for k, step in enumerate(steps):
            made = now @ p[f"w{k}"] if step == "matmul" else STEPS[step](now, before)
            now, before = made, now
        return now, before

    @gnnjit.layer
    def layer(v: Any, e: Any, p: Any) -> Any:
        return network(v, gnnjit.mean(e.src), p)

    g, x = graph(40, 90), draw(40, F, seed=11)
    degree = jnp.maximum(jax.ops.segment_sum(jnp.ones(90), g.dst, 40), 1)[:, None]

    def wanted(x: Any, p: Any) -> Any:
        return network(x, jax.ops.segment_sum(x[g.src], g.dst, 40) / degree, p)

    def loss(fn: Any) -> Any:
        return lambda x, p: sum((jnp.sin(y) * draw(40, F, seed=4)).sum() for y in fn(x, p))

    close(layer(g, x, p), wanted(x, p), 1e-4)
    found = jax.grad(loss(lambda x, p: layer(g, x, p)), (0, 1))(x, p)
    close(found, jax.grad(loss(wanted), (0, 1))(x, p), 1e-3)


def test_the_same_bits_on_any_number_of_threads(monkeypatch):
    g, x, p = graph(3000, 6000), draw(3000, 64), parameters(64)

    def gradient(threads: int) -> Any:
        monkeypatch.setattr(kernel, "cores", lambda: threads)
        layer = gnnjit.layer(lambda v, e, p: updated(v, e, p))
        return jax.grad(lambda x, p: jnp.square(layer(g, x, p)).sum(), (0, 1))(x, p)

    first, *others = [gradient(threads) for threads in (1, 2, 3, 2)]
    for other in others:
        jax.tree.map(np.testing.assert_array_equal, first, other)


def test_own_edges():
    g = own_edges(5)
    wanted = gnnjit.Graph.from_edges(np.arange(5), np.arange(5), num_nodes=5)
    for name in ("src", "dst", "in_structure", "out_structure"):
        pairs = zip(*(jax.tree.leaves(getattr(x, name))[:3] for x in (g, wanted)), strict=True)
        for a, b in pairs:
            np.testing.assert_array_equal(a, b)
    assert (g.num_src, g.num_dst, g.num_edges) == (5, 5, 5)
