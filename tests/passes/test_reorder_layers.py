"""Layers keep their values and gradients whatever `reorder-aggregate-combine` is told."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from reads import with_edges_as_read
from strategies import edge_lists

import gnnjit
from gnnjit.compiler.call import recorded_calls
from gnnjit.ir.interpret import Incidence, interpret
from gnnjit.ir.program import Aggregate, Program
from gnnjit.ir.verify import verify
from gnnjit.nn.commnet import CommNet
from gnnjit.nn.edge_conv import EdgeConv
from gnnjit.nn.gat import GAT
from gnnjit.nn.gated_gcn import GatedGCN
from gnnjit.nn.gatv2 import GATv2
from gnnjit.nn.gcn import GCN
from gnnjit.nn.ggnn import GGNN
from gnnjit.nn.gin import GIN
from gnnjit.nn.sage import SAGE
from gnnjit.passes import pipeline
from gnnjit.passes.drop_dead import DropDead
from gnnjit.passes.pipeline import Choices
from gnnjit.passes.reorder_aggregate_combine import Order, ReorderAggregateCombine, movable_matmuls
from gnnjit.passes.share_subexpressions import ShareSubexpressions
from gnnjit.planner import search

N, CAPACITY, F = 5, 8, 2
OTHER: dict[Order, Order] = {
    "aggregate-first": "combine-first",
    "combine-first": "aggregate-first",
}
RNG = np.random.default_rng(0)
W = jnp.asarray(RNG.normal(size=(6, F, 3)), jnp.float32)
B = jnp.ones(3)


def layer(fn: Callable[..., Any]) -> Callable[..., Any]:
    compiled = with_edges_as_read(gnnjit.layer(fn), fn)
    return lambda graph, x, d: compiled(graph, x, edges=d)


@layer
def edge_mlp(v, e):
    return gnnjit.sum(jax.nn.relu(e.src @ W[0] + v @ W[1]) @ (W[2].T @ W[3]) + B)


@layer
def message_mlp(v, e):
    return gnnjit.sum(jnp.tanh(e.src + e.dst - e.data)) @ W[0] + v @ W[0]


@layer
def shifted(v, e):
    return gnnjit.sum(e.src @ W[0] + B - v @ W[1])


@layer
def weighted_mean_with_own_term(v, e):
    weight = jax.nn.sigmoid(e.data[0])
    return (gnnjit.mean(weight * e.src) - 0.5 * v) @ W[0]


@layer
def two_in_a_row(v, e):
    return gnnjit.sum(e.src @ W[0]) @ (W[1].T @ W[2])


@layer
def two_readers(v, e):
    h = e.src @ W[0]
    return gnnjit.sum(h), gnnjit.mean(h * e.data[0]), gnnjit.max(h)


@layer
def chosen(v, e):
    return gnnjit.sum(jnp.where(e.data[1] > 0, e.src, 0)) @ W[0]


@layer
def normalised(v, e):
    out = gnnjit.sum(e.src, initial=0.0) @ W[0]
    return out / (1 + jnp.sum(out * out))


@layer
def scaled_by_its_norm(v, e):
    out = gnnjit.sum(e.src @ W[0])
    return out / (1 + jnp.sum(out * out))


@layer
def plain_attention(v, e):
    h_u, h_v = e.src @ W[0], v @ W[0]
    score = jax.nn.leaky_relu(h_u @ W[1, 0, :] + h_v @ W[2, 0, :])
    return gnnjit.sum(gnnjit.softmax(score) * h_u) + h_v


@layer
def heads_of_two_kinds(v, e):
    h = (e.src @ W[:2].reshape(F, 6)).reshape(2, 3)
    total = gnnjit.sum(e.data[:, None] * h).reshape(-1)
    return total - v[0] * (v @ W[:2].reshape(F, 6))


def of_nn(make: Callable[[nnx.Rngs], Any], **keywords: Any) -> Callable[..., Any]:
    return lambda graph, x, d: make(nnx.Rngs(0))(graph, x, **keywords)


LAYERS: dict[str, tuple[Callable[..., Any], int]] = {
    "gcn up": (of_nn(lambda r: GCN(F, 3, rngs=r)), 1),
    "gcn down": (of_nn(lambda r: GCN(F, 1, rngs=r)), 1),
    "gcn same": (of_nn(lambda r: GCN(F, F, rngs=r)), 1),
    "gcn without own term": (of_nn(lambda r: GCN(F, 3, self_loops=False, rngs=r)), 1),
    "gcn weighted": (
        of_nn(lambda r: GCN(F, 2, rngs=r), edges=jnp.arange(1.0, CAPACITY + 1)),
        1,
    ),
    "sage up": (of_nn(lambda r: SAGE(F, 3, rngs=r)), 1),
    "sage down": (of_nn(lambda r: SAGE(F, 1, rngs=r)), 1),
    "sage pool": (of_nn(lambda r: SAGE(F, 3, aggregator="pool", rngs=r)), 0),
    "gin": (of_nn(lambda r: GIN(F, 3, 2, train_eps=True, rngs=r)), 1),
    "gat 1": (of_nn(lambda r: GAT(F, 3, rngs=r)), 1),
    "gat 4": (of_nn(lambda r: GAT(F, 3, heads=4, rngs=r)), 1),
    "gat mean of heads": (of_nn(lambda r: GAT(F, 3, heads=4, concat=False, rngs=r)), 1),
    "gat no own term": (of_nn(lambda r: GAT(F, 3, heads=4, self_loops=False, rngs=r)), 1),
    "gat dropout": (
        of_nn(lambda r: GAT(F, 3, heads=2, dropout=0.5, rngs=r), key=jax.random.key(0)),
        1,
    ),
    "gatv2": (of_nn(lambda r: GATv2(F, 3, heads=2, rngs=r)), 0),
    "commnet": (of_nn(lambda r: CommNet(F, 3, rngs=r)), 1),
    "ggnn": (of_nn(lambda r: GGNN(F, rngs=r)), 2),
    "gated gcn": (of_nn(lambda r: GatedGCN(F, 3, rngs=r)), 1),
    "edge conv": (of_nn(lambda r: EdgeConv(F, 3, 3, rngs=r)), 0),
    "edge mlp": (edge_mlp, 1),
    "message mlp": (message_mlp, 1),
    "shifted": (shifted, 1),
    "weighted mean": (weighted_mean_with_own_term, 1),
    "two in a row": (two_in_a_row, 2),
    "two readers": (two_readers, 2),
    "chosen": (chosen, 1),
    "normalised": (normalised, 1),
    "scaled by its norm": (scaled_by_its_norm, 2),
    "plain attention": (plain_attention, 1),
    "heads": (heads_of_two_kinds, 1),
}


@functools.cache
def recorded(name: str, padded: bool = True) -> Program:
    """The last program of a layer, before the passes that come after this one."""
    ends = RNG.integers(0, N, (2, CAPACITY))
    graph = gnnjit.Graph.from_edges(*ends, num_nodes=N, edge_mask=np.ones(CAPACITY, bool))
    with recorded_calls() as calls:
        jax.eval_shape(
            lambda x, d: LAYERS[name][0](graph, x, d), jnp.ones((N, F)), jnp.ones((CAPACITY, F))
        )
    return pipeline.run(calls[-1].program, before_and_after(padded)[0])


def before_and_after(padded: bool) -> tuple[list[Any], list[Any]]:
    """The passes that run before this one, and after it."""
    passes = list(pipeline.layer_passes(padded))
    at = [p.name for p in passes].index("online-softmax")
    return passes[:at], [ShareSubexpressions(), DropDead(), *passes[at:]]


def reordered(program: Program) -> list[Program]:
    """The program after every combination of orders, as the pass leaves it."""
    found = movable_matmuls(program)
    flips = itertools.product([False, True], repeat=len(found))
    orders = [tuple(OTHER[s.written] if f else None for s, f in zip(found, flip, strict=True))
              for flip in flips if any(flip)]  # fmt: skip
    programs = [ReorderAggregateCombine(order)(program) for order in orders]
    for changed in programs:
        verify(changed)
        assert changed != program
    return programs


def operands(program: Program, seed: int) -> list[Any]:
    """Halves of small integers, which single precision adds and multiplies exactly."""
    rng = np.random.default_rng(seed)
    size = {"shared": (), "src": (N,), "dst": (N,), "edge": (CAPACITY,)}

    def draw(v: Any) -> Any:
        if jnp.issubdtype(v.dtype, jax.dtypes.extended):
            return jax.random.key(seed)
        return jnp.asarray(rng.integers(-2, 3, (*size[v.space.value], *v.shape)) / 2, v.dtype)

    return [draw(v) for v in program.inputs]


@functools.cache
def evaluated(name: str) -> list[Callable[..., Any]]:
    """Value and gradient of the program as written, then after each of its orders."""
    written = recorded(name)

    def compiled(program: Program) -> Callable[..., Any]:
        def loss(args: list[Any], src: Any, dst: Any, mask: Any) -> Any:
            outs = interpret(program, Incidence(src, dst, N, N, mask), args)
            return sum(jnp.sum(jnp.sin(o)) for o in outs), outs

        return jax.jit(jax.value_and_grad(loss, has_aux=True, allow_int=True))

    return [compiled(p) for p in (written, *reordered(written))]


@pytest.mark.long
@pytest.mark.parametrize("name", LAYERS)
@given(edges=edge_lists(N, CAPACITY), seed=st.integers(0, 99))
@settings(max_examples=8)
def test_every_order_has_the_same_value_and_gradient(name, edges, seed):
    src, dst = edges
    mask = jnp.arange(CAPACITY) < len(src)
    src, dst = (np.resize(np.append(x, 0), CAPACITY).astype(np.int32) for x in (src, dst))
    args = operands(recorded(name), seed)
    want, *others = (f(args, src, dst, mask) for f in evaluated(name))
    for have in others:
        for a, b in zip(jax.tree.leaves(have), jax.tree.leaves(want), strict=True):
            if jnp.issubdtype(a.dtype, jnp.floating):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_sites_are_found_and_the_passes_after_fuse_as_much_as_before(name, padded):
    program = recorded(name, padded)
    assert len(movable_matmuls(program)) == LAYERS[name][1]

    def traversals(program: Program) -> int:
        fused = pipeline.run(program, before_and_after(padded)[1])
        return sum(isinstance(e.op, Aggregate) for e in fused.equations)

    assert {traversals(p) for p in reordered(program)} <= {traversals(program)}


def products(program: Program) -> int:
    return sum(eqn.op.name == "dot_general" for eqn in program.equations)


@pytest.mark.parametrize("name", ["gcn up", "sage up", "gin", "weighted mean", "chosen"])
def test_there_and_back_has_as_many_products(name):
    program = recorded(name, padded=False)
    (there,) = reordered(program)
    (back,) = reordered(there)
    assert [s.written for s in movable_matmuls(back)] == ["aggregate-first"]
    assert products(back) == products(program)


READERS = {
    "sum first": lambda v, e, w: gnnjit.sum(e.data[0] * e.src) @ w,
    "matrix first": lambda v, e, w: gnnjit.mean(e.data[0] * (e.src @ w)),
    "on the edges": lambda v, e, w: gnnjit.sum(jnp.tanh(e.src + e.data) @ w + B),
    "edges first": lambda v, e, w: gnnjit.sum(jnp.tanh(e.src + e.data)) @ w,
    "attention": lambda v, e, w: gnnjit.sum(gnnjit.softmax(e.src @ w @ B) * (e.src @ w)),
}


# Work that the user wrote for each edge is done once per vertex, on NaN too if it is linear.
SPOILT_AS_WRITTEN = {("matrix first", False, False), *(("attention", False, f) for f in (0, 1))}
COMPILED = [c for c in itertools.product(READERS, [False, True], [False, True])
            if c not in SPOILT_AS_WRITTEN]  # fmt: skip


@pytest.mark.parametrize(("name", "padded", "flip"), COMPILED)
def test_compiled_with_nan_where_nobody_reads(name, padded, flip):
    """Behind the padding of edges and vertices, and at vertices that the edges leave out."""
    edges, ends = 5, ([0, 1, 1, 3, 0], [1, 1, 0, 2, 1])  # 2 and 4 send nothing
    graph = gnnjit.Graph.from_edges(*ends, num_src=N, num_dst=N)
    x, d = (jnp.asarray(RNG.normal(size=(n, F)), jnp.float32) for n in (N, edges))
    x = x.at[jnp.array([2, 4])].set(jnp.nan)
    if padded:
        graph = graph.pad(num_src=N + 2, num_dst=N + 1, num_edges=edges + 3)
        x, d = (jnp.pad(a, ((0, n), (0, 0)), constant_values=jnp.nan) for a, n in ((x, 2), (d, 3)))
    compiled = with_edges_as_read(gnnjit.layer(READERS[name]), READERS[name])

    def loss(x: Any, d: Any, w: Any) -> Any:
        dst = jnp.zeros((graph.num_dst, 1))
        out = compiled(graph, gnnjit.Bipartite(src=x, dst=dst), w, edges=d)
        return jnp.sum(jnp.sin(out)), out

    with recorded_calls() as calls:
        jax.eval_shape(loss, x, d, W[0])
    (site,) = movable_matmuls(pipeline.run(calls[0].program, before_and_after(padded)[0]))

    def derivatives(flip: bool, x: Any, d: Any) -> list[Any]:
        order = OTHER[site.written] if flip else site.written
        with search.force(Choices((order,))):
            (_, out), grads = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(x, d, W[0])
        return [out[:N], grads[0][:N], grads[1][:edges], grads[2]]

    want = derivatives(False, jnp.nan_to_num(x), jnp.nan_to_num(d))
    for a, b in zip(derivatives(flip, x, d), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
