"""Each module against its formula, in value and gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gnnjit import Bipartite, Graph
from gnnjit.nn import GAT, GCN, GGNN, GIN, SAGE, CommNet, EdgeConv, GatedGCN, GATv2

from . import formulas

F_IN, F_OUT = 5, 3
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "gcn": (GCN, formulas.gcn),
    "gcn-as-is": (partial(GCN, self_loops=False), formulas.gcn),
    "sage-mean": (SAGE, formulas.sage),
    "sage-sum": (partial(SAGE, aggregator="sum"), formulas.sage),
    "sage-max": (partial(SAGE, aggregator="max"), formulas.sage),
    "sage-pool": (partial(SAGE, aggregator="pool"), formulas.sage),
    "sage-normalized": (partial(SAGE, normalize=True), formulas.sage),
    "gat": (GAT, formulas.gat),
    "gat-heads": (partial(GAT, heads=4), formulas.gat),
    "gat-mean": (partial(GAT, heads=4, concat=False), formulas.gat),
    "gat-as-is": (partial(GAT, heads=2, self_loops=False), formulas.gat),
    "gatv2": (partial(GATv2, heads=2), formulas.gatv2),
    "gatv2-mean": (partial(GATv2, heads=2, concat=False), formulas.gatv2),
    "gatv2-as-is": (partial(GATv2, self_loops=False), formulas.gatv2),
    "gatedgcn": (GatedGCN, formulas.gated_gcn),
    "commnet": (CommNet, formulas.commnet),
    "commnet-sum": (partial(CommNet, aggregator="sum"), formulas.commnet),
    "gin": (lambda i, o, rngs: GIN(i, 4, o, eps=0.5, rngs=rngs), formulas.gin),
    "gin-eps": (lambda i, o, rngs: GIN(i, 4, o, train_eps=True, rngs=rngs), formulas.gin),
    "edgeconv": (lambda i, o, rngs: EdgeConv(i, 4, o, rngs=rngs), formulas.edge_conv),
    "ggnn": (lambda i, o, rngs: GGNN(i + 1, steps=3, rngs=rngs), formulas.ggnn),
}


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def make(case: str) -> Any:
    """The module of a case with random float64 parameters, biases included."""
    module = CASES[case][0](F_IN, F_OUT, rngs=nnx.Rngs(0))
    rng = np.random.default_rng(1)
    state = nnx.state(module, nnx.Param)
    nnx.update(module, jax.tree.map(lambda a: jnp.asarray(rng.normal(size=a.shape)), state))
    return module


def features(seed: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=(formulas.NUM_NODES, F_IN)))


def close(got: Any, want: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9), got, want)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_value(case: str, seed: int) -> None:
    src, dst = formulas.random_edges(seed)
    graph, x, module = Graph.from_edges(src, dst, formulas.NUM_NODES), features(seed), make(case)
    close(module(graph, x), CASES[case][1](module, src, dst, x))


@pytest.mark.parametrize("case", CASES)
def test_gradient(case: str) -> None:
    src, dst = formulas.random_edges(2)
    graph, x, module = Graph.from_edges(src, dst, formulas.NUM_NODES), features(2), make(case)

    def loss(call: Callable[..., Any], module: Any, x: Any) -> Any:
        out = call(module, x)
        return jnp.sum(out * jnp.cos(jnp.arange(out.size).reshape(out.shape)))

    formula = CASES[case][1]
    got = nnx.grad(partial(loss, lambda m, x: m(graph, x)), argnums=(0, 1))(module, x)
    want = nnx.grad(partial(loss, lambda m, x: formula(m, src, dst, x)), argnums=(0, 1))(module, x)
    close(got, want)


@pytest.mark.parametrize("case", CASES)
def test_no_edges(case: str) -> None:
    none = np.zeros(0, int)
    graph, x, module = Graph.from_edges(none, none, formulas.NUM_NODES), features(3), make(case)
    close(module(graph, x), CASES[case][1](module, none, none, x))
    gradient = nnx.grad(lambda m: jnp.sum(m(graph, x)))(module)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("case", CASES)
def test_jit_and_padding(case: str) -> None:
    src, dst = formulas.random_edges(4)
    graph, x, module = Graph.from_edges(src, dst, formulas.NUM_NODES), features(4), make(case)
    want = module(graph, x)
    call = nnx.jit(lambda module, graph, x: module(graph, x))
    close(call(module, graph, x), want)
    padded = graph.pad(formulas.NUM_NODES + 3, graph.num_edges + 5)
    got = call(module, padded, padded.pad_nodes(np.asarray(x)))
    close(got[: formulas.NUM_NODES], want)


def test_gcn_is_kipf_and_welling_on_undirected_graphs() -> None:
    src, dst = formulas.random_edges(5, undirected=True)
    graph, x, module = Graph.from_edges(src, dst, formulas.NUM_NODES), features(5), make("gcn")
    close(module(graph, x), formulas.gcn(module, src, dst, x))
    looped = graph.with_self_loops()
    as_is = GCN(F_IN, F_OUT, self_loops=False, rngs=nnx.Rngs(0))
    nnx.update(as_is, nnx.state(module))
    close(module(graph, x), as_is(looped, x))


def test_gcn_weights_are_like_repeated_edges() -> None:
    src, dst = formulas.random_edges(6)
    times = np.random.default_rng(6).integers(1, 4, len(src))
    module, x = make("gcn"), features(6)
    weighted = Graph.from_edges(src, dst, formulas.NUM_NODES)
    repeated = Graph.from_edges(src.repeat(times), dst.repeat(times), formulas.NUM_NODES)
    got = module(weighted, x, edges=jnp.asarray(times, x.dtype))
    close(got, module(repeated, x))


def test_ggnn_edge_types() -> None:
    src, dst = formulas.random_edges(7)
    graph, x = Graph.from_edges(src, dst, formulas.NUM_NODES), features(7)
    types = np.random.default_rng(7).integers(0, 3, len(src))
    module = GGNN(6, steps=2, edge_types=3, rngs=nnx.Rngs(0))
    nnx.update(module, jax.tree.map(lambda a: a.astype(np.float64), nnx.state(module)))
    got = module(graph, x, edges=jnp.asarray(types))
    close(got, formulas.ggnn(module, src, dst, x, types))


@pytest.mark.parametrize("case", ["gcn-as-is", "sage-mean", "gat-as-is", "gin", "gatedgcn"])
def test_two_vertex_sets(case: str) -> None:
    """A bipartite graph is the graph on both sets together, read at the destinations."""
    rng = np.random.default_rng(8)
    src, dst = rng.integers(0, 5, 12), rng.integers(0, 4, 12)
    module, x = make(case), features(8)
    got = module(Graph.from_edges(src, dst, num_src=5, num_dst=4), Bipartite(x[:5], x[5:]))
    if case == "gcn-as-is":  # the sources' degree is their out-degree
        a = np.zeros((4, 5))
        np.add.at(a, (dst, src), 1)
        scale = np.sqrt(np.outer(a.sum(1), a.sum(0)))
        a = np.divide(a, scale, out=np.zeros_like(a), where=scale > 0)
        want = a @ x[:5] @ module.linear.kernel[...] + module.bias[...]
    else:
        want = module(Graph.from_edges(src, dst + 5, formulas.NUM_NODES), x)[5:]
    close(got, want)
