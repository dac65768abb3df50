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
from jax.experimental import sparse

from gnnjit import Bipartite, Graph
from gnnjit.errors import GraphError, LayerError
from gnnjit.nn import (
    APPNP,
    GAT,
    GCN,
    GGNN,
    GIN,
    GINE,
    NGCF,
    PNA,
    SAGE,
    Cheb,
    CommNet,
    EdgeConv,
    GatedGCN,
    GATv2,
    GraphTransformer,
    LightGCN,
    NNConv,
)

from . import formulas

F_IN, F_OUT = 5, 3


def _ngcf(in_features: int, out_features: int, **options: Any) -> NGCF:
    return NGCF(in_features, [4, out_features], **options)


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
    "pna": (PNA, formulas.pna),
    "pna-delta": (
        partial(PNA, aggregators=["sum", "var"], scalers=["attenuation"], delta=0.7), formulas.pna
    ),
    "transformer": (partial(GraphTransformer, heads=2, beta=True), formulas.transformer),
    "transformer-mean": (partial(GraphTransformer, heads=2, concat=False), formulas.transformer),
    "appnp": (lambda i, o, rngs: APPNP(3, 0.2), formulas.appnp),
    "appnp-as-is": (lambda i, o, rngs: APPNP(2, self_loops=False), formulas.appnp),
    "cheb": (partial(Cheb, terms=4, lambda_max=1.7), formulas.cheb),
    "cheb-one": (partial(Cheb, terms=1), formulas.cheb),
    "lightgcn": (lambda i, o, rngs: LightGCN(2, weights=[0.5, 2.0, -1.0]), formulas.light_gcn),
    "lightgcn-mean": (lambda i, o, rngs: LightGCN(), formulas.light_gcn),
    "ngcf": (_ngcf, formulas.ngcf),
    "ngcf-paper": (partial(_ngcf, form="paper", normalize=True), formulas.ngcf),
}  # fmt: skip


SHORT = [pytest.param(case, marks=[pytest.mark.long] if "-" in case else []) for case in CASES]
"""Each module once; its other forms are long cases."""


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def make(case: str) -> Any:
    """The module of a case with random float64 parameters, biases included."""
    return randomised(CASES[case][0](F_IN, F_OUT, rngs=nnx.Rngs(0)))


def randomised(module: Any) -> Any:
    rng = np.random.default_rng(1)
    state = nnx.state(module, nnx.Param)
    nnx.update(module, jax.tree.map(lambda a: jnp.asarray(rng.normal(size=a.shape)), state))
    return module


def features(seed: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=(formulas.NUM_NODES, F_IN)))


def close(got: Any, want: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9), got, want)


def on(formula: Callable[..., Any], src: Any, dst: Any) -> Callable[..., Any]:
    """The formula on these edges, compiled whole: one operation at a time takes far longer."""
    return nnx.jit(lambda module, x, *more: formula(module, src, dst, x, *more))


def weighted(call: Callable[..., Any]) -> Callable[..., Any]:
    """A number whose gradient reads every entry of the output."""

    def loss(*arguments: Any) -> Any:
        out = call(*arguments)
        return jnp.sum(out * jnp.cos(jnp.arange(out.size).reshape(out.shape))), out

    return loss


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_value(case: str, seed: int) -> None:
    src, dst = formulas.random_edges(seed)
    graph, x, module = Graph.from_edges(src, dst, formulas.NUM_NODES), features(seed), make(case)
    close(module(graph, x), on(CASES[case][1], src, dst)(module, x))


@pytest.mark.parametrize("case", SHORT)
def test_gradient(case: str) -> None:
    src, dst = formulas.random_edges(2)
    graph, x, module = Graph.from_edges(src, dst, formulas.NUM_NODES), features(2), make(case)

    formula = on(CASES[case][1], src, dst)
    grad = partial(nnx.grad, argnums=(0, 1), has_aux=True)
    close(
        grad(weighted(lambda m, x: m(graph, x)))(module, x),
        nnx.jit(grad(weighted(formula)))(module, x),
    )


@pytest.mark.parametrize("case", SHORT)
def test_no_edges(case: str) -> None:
    none = np.zeros(0, int)
    graph, x, module = Graph.from_edges(none, none, formulas.NUM_NODES), features(3), make(case)
    close(module(graph, x), on(CASES[case][1], none, none)(module, x))
    gradient = nnx.grad(lambda m: jnp.sum(m(graph, x)))(module)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("case", SHORT)
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
    simple = Graph.from_edges(src, dst, formulas.NUM_NODES)
    repeated = Graph.from_edges(src.repeat(times), dst.repeat(times), formulas.NUM_NODES)
    got = module(simple, x, edges=jnp.asarray(times, x.dtype))
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


def _gin(in_features: int, out_features: int, **options: Any) -> GIN:
    return GIN(in_features, 4, out_features, **options)


def _gine(in_features: int, out_features: int, **options: Any) -> GINE:
    return GINE(in_features, 4, out_features, **options)


def _nn_conv(in_features: int, out_features: int, **options: Any) -> NNConv:
    return NNConv(in_features, 4, out_features, **options)


D = 2
WITH_EDGES: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[int, ...]]] = {
    "gcn": (GCN, formulas.gcn, ()),
    "lightgcn": (lambda i, o, rngs: LightGCN(2), formulas.light_gcn, ()),
    "ngcf": (_ngcf, formulas.ngcf, ()),
    "ngcf-paper": (partial(_ngcf, form="paper"), formulas.ngcf, ()),
    "sage-mean": (SAGE, formulas.sage, ()),
    "sage-max": (partial(SAGE, aggregator="max"), formulas.sage, ()),
    "sage-pool": (partial(SAGE, aggregator="pool"), formulas.sage, ()),
    "gat": (partial(GAT, heads=2, edge_features=D), formulas.gat, (D,)),
    "gatv2": (partial(GATv2, heads=2, edge_features=D), formulas.gatv2, (D,)),
    "gin": (partial(_gin, train_eps=True, edge_features=D), formulas.gin, (D,)),
    "gatedgcn": (partial(GatedGCN, edge_features=D), formulas.gated_gcn, (D,)),
    "gine": (partial(_gine, eps=0.5, edge_features=D), formulas.gin, (D,)),
    "appnp": (lambda i, o, rngs: APPNP(3, 0.2), formulas.appnp, ()),
    "cheb": (Cheb, formulas.cheb, ()),
    "pna": (partial(PNA, edge_features=D), formulas.pna, (D,)),
    "transformer": (
        partial(GraphTransformer, heads=2, edge_features=D), formulas.transformer, (D,)
    ),
    "nnconv": (partial(_nn_conv, edge_features=D), formulas.nn_conv, (D,)),
    "nnconv-mean": (partial(_nn_conv, aggregator="mean", edge_features=D), formulas.nn_conv, (D,)),
    "nnconv-max": (partial(_nn_conv, aggregator="max", edge_features=D), formulas.nn_conv, (D,)),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("case", WITH_EDGES)
def test_edge_features(case: str) -> None:
    """Value and gradient in the parameters, the vertices' features and the edges', on a graph with
    NaN in the padding of edges."""
    module, formula, shape = WITH_EDGES[case]
    module = randomised(module(F_IN, F_OUT, rngs=nnx.Rngs(0)))
    src, dst = formulas.random_edges(9)
    x = features(9)
    data = jnp.asarray(np.random.default_rng(9).uniform(0.5, 2, (len(src), *shape)))
    graph = Graph.from_edges(src, dst, formulas.NUM_NODES)
    graph = graph.pad(formulas.NUM_NODES + 2, len(src) + 3)

    def ours(m: Any, x: Any, d: Any) -> Any:
        rest = jnp.zeros((graph.num_dst - len(x), F_IN))
        more = jnp.full((graph.num_edges - len(d), *d.shape[1:]), jnp.nan)
        out = m(graph, jnp.concatenate([x, rest]), edges=jnp.concatenate([d, more]))
        return out[: len(x)]

    grad = partial(nnx.grad, argnums=(0, 1, 2), has_aux=True)
    got = grad(weighted(ours))(module, x, data)
    want = nnx.jit(grad(weighted(on(formula, src, dst))))(module, x, data)
    close(got, want)


@pytest.mark.parametrize("case", ["gat", "gatv2", "gin", "gatedgcn"])
def test_without_edge_features_the_parameters_are_those_of_before(case: str) -> None:
    """Checkpoints fit, and a seed draws the same initial values."""
    kind = {"gat": GAT, "gatv2": GATv2, "gatedgcn": GatedGCN, "gin": _gin}[case]
    plain = nnx.to_pure_dict(nnx.state(kind(F_IN, F_OUT, rngs=nnx.Rngs(3)), nnx.Param))
    wider = kind(F_IN, F_OUT, edge_features=D, rngs=nnx.Rngs(3))
    names = {
        "gat": {"linear", "attend_src", "attend_dst", "bias"},
        "gatv2": {"src", "dst", "attention", "bias"},
        "gatedgcn": {"gate_src", "gate_dst", "linear"},
        "gin": {"hidden", "out"},
    }[case]
    assert set(plain) == names
    both = nnx.to_pure_dict(nnx.state(wider, nnx.Param))
    close({name: both[name] for name in names}, plain)


def test_a_number_for_each_edge_is_a_feature_of_one() -> None:
    src, dst = formulas.random_edges(10)
    graph, x = Graph.from_edges(src, dst, formulas.NUM_NODES), features(10)
    data = jnp.asarray(np.random.default_rng(1).normal(size=len(src)))
    module = GAT(F_IN, F_OUT, edge_features=1, rngs=nnx.Rngs(0))
    close(module(graph, x, edges=data), module(graph, x, edges=data[:, None]))


SRC, DST = formulas.random_edges(11)
SOME = Graph.from_edges(SRC, DST, formulas.NUM_NODES)


def refusal(module: Any, x: Any = None, graph: Graph = SOME, **keywords: Any) -> str:
    with pytest.raises(LayerError) as caught:
        module(graph, features(11) if x is None else x, **keywords)
    text = str(caught.value)
    assert len(text) <= 1000
    return text


UNREADING = {
    "gat": GAT,
    "gatv2": GATv2,
    "gatedgcn": GatedGCN,
    "commnet": CommNet,
    "gin": _gin,
    "edgeconv": lambda i, o, rngs: EdgeConv(i, 4, o, rngs=rngs),
    "ggnn": lambda i, o, rngs: GGNN(i, rngs=rngs),
}


@pytest.mark.parametrize("kind", UNREADING.values(), ids=UNREADING)
def test_edges_that_a_module_does_not_read_are_refused(kind: Any) -> None:
    text = refusal(kind(F_IN, F_OUT, rngs=nnx.Rngs(0)), edges=jnp.full((len(SRC), 2), jnp.nan))
    assert "was given edges=, and its results depend on none of it" in text
    assert "e.data: float64[2]" in text
    assert "edge_features=..." in text


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (GAT, "GAT"), (GATv2, "GATv2"), (GatedGCN, "GatedGCN"), (_gin, "GIN"), (PNA, "PNA"),
        (GraphTransformer, "GraphTransformer"), (_gine, "GINE"), (_nn_conv, "NNConv"),
    ],
)  # fmt: skip
def test_edge_features_of_another_width(kind: Any, name: str) -> None:
    module = kind(F_IN, F_OUT, edge_features=3, rngs=nnx.Rngs(0))
    text = refusal(module, edges=jnp.ones((len(SRC), 2)))
    assert text.endswith(
        f"{name} was given edges= of [2] per edge, expected [3], its edge_features: pass edges of "
        "shape [num_edges, edge_features]"
    )
    assert "reads e.data, but no edge features were given" in refusal(module)


@pytest.mark.parametrize("kind", [GCN, SAGE])
@pytest.mark.parametrize(
    ("edges", "shape"), [(jnp.ones((len(SRC), 1)), "[21, 1]"), ({"w": jnp.ones(len(SRC))}, "[21]")]
)
def test_weights_that_are_no_numbers(kind: Any, edges: Any, shape: str) -> None:
    module = kind(F_IN, F_OUT, rngs=nnx.Rngs(0))
    assert refusal(module, edges=edges) == (
        f"{kind.__name__} takes weights as edges=, expected one array of shape [num_edges], got "
        f"shape {shape}: of shape [num_edges, 1], pass edges[:, 0]; features of the edges are read "
        "by GAT, GATv2, GIN, GatedGCN, GraphTransformer, PNA, NNConv and GraphNet "
        "(edge_features=...)"
    )


MODULES = {**UNREADING, "gcn": GCN, "sage": SAGE}


@pytest.mark.parametrize("kind", MODULES.values(), ids=MODULES)
def test_sparse_features_are_refused_by_name(kind: Any) -> None:
    bag = sparse.BCOO.fromdense(jnp.eye(formulas.NUM_NODES, F_IN))
    with pytest.raises(GraphError, match=r"x is a sparse array \(jax's BCOO of shape \(\d+, 5\)\)"):
        kind(F_IN, F_OUT, rngs=nnx.Rngs(0))(SOME, bag)


BETWEEN = Graph.from_edges([0, 1], [0, 2], num_src=2, num_dst=3)


@pytest.mark.parametrize(
    ("x", "came"),
    [
        (Bipartite(np.ones((2, 5)), np.ones((3, 5))), "a Bipartite"),
        (np.ones((3, 5)), "a graph between two vertex sets"),
    ],
)
def test_ggnn_between_two_vertex_sets(x: Any, came: str) -> None:
    assert refusal(GGNN(6, rngs=nnx.Rngs(0)), x, BETWEEN) == (
        f"GGNN was given {came}, expected one vertex set with x of shape [num_nodes, F]: what a "
        "step computes at the destinations is what the next one reads at the sources. Make one "
        "graph of both sets (number the destinations behind the sources, dst + num_src), stack "
        "their features, and read the destinations' rows of the result"
    )


def test_ggnn_of_features_that_do_not_fit() -> None:
    assert refusal(GGNN(6, rngs=nnx.Rngs(0)), np.ones((9, 7))) == (
        "GGNN was given x of shape [9, 7], expected [num_nodes, F] with F at most 6, its "
        "features: apply a linear layer before, or make it wider"
    )


def test_ggnn_of_one_number_a_vertex() -> None:
    assert refusal(GGNN(6, rngs=nnx.Rngs(0)), np.ones(9)) == (
        "nn.GGNN got ndarray of float64[9] as features, expected an array [N, F] of real numbers: "
        "pass x[:, None], one feature"
    )
