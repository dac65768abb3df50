"""Modules beside those of PyG with the same weights, where PyG is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import gnnjit
from gnnjit import nn

torch: Any = pytest.importorskip("torch", reason="torch is not installed")
pyg: Any = pytest.importorskip("torch_geometric.nn", reason="PyG is not installed")

N, F, OUT, D = 9, 4, 4, 2
RNG = np.random.default_rng(0)
SRC, DST = RNG.integers(0, 7, (2, 24))
SRC[:3], DST[:3] = SRC[3], DST[3]  # one edge four times; two vertices have none
DST[4:12] = 5  # a hub
SRC, DST = SRC[SRC != DST], DST[SRC != DST]  # PyG's ChebConv takes self loops away
X = RNG.normal(size=(N, F)).astype(np.float32)
DATA = RNG.normal(size=(len(SRC), D)).astype(np.float32)
WEIGHT = RNG.uniform(0.5, 2, len(SRC)).astype(np.float32)
RNGS = nnx.Rngs(0)


def put(parameter: Any, value: Any) -> None:
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(np.array(value)).reshape(parameter.shape))


def put_linear(theirs: Any, ours: nnx.Linear) -> None:
    put(theirs.weight, np.asarray(ours.kernel[...]).T)
    if ours.bias is not None:
        put(theirs.bias, ours.bias[...])


def random_biases(module: Any) -> Any:
    """Zero biases, which modules start from, would hide a missing one."""
    state = nnx.state(module, nnx.Param)
    draw = np.random.default_rng(1).normal
    state = jax.tree.map(lambda p: jnp.asarray(draw(size=p.shape) / 2, p.dtype), state)
    nnx.update(module, state)
    return module


def light_gcn() -> Any:
    convolution = pyg.LGConv()

    def theirs(x: Any, edges: Any, data: Any) -> Any:
        h, total = x, x / 4
        for _ in range(3):
            h = convolution(h, edges, data)
            total = total + h / 4
        return total

    return nn.LightGCN(3), theirs, WEIGHT


def appnp() -> Any:
    return nn.APPNP(4, 0.2), pyg.APPNP(4, 0.2), WEIGHT


def cheb() -> Any:
    ours = random_biases(nn.Cheb(F, OUT, terms=3, rngs=RNGS))
    theirs = pyg.ChebConv(F, OUT, 3)
    for linear, kernel in zip(theirs.lins, np.split(ours.linear.kernel[...], 3), strict=True):
        put(linear.weight, kernel.T)
    put(theirs.bias, ours.linear.bias[...])
    return ours, theirs, WEIGHT


def gine() -> Any:
    ours = random_biases(nn.GINE(F, 5, OUT, edge_features=D, train_eps=True, rngs=RNGS))
    mlp = torch.nn.Sequential(torch.nn.Linear(F, 5), torch.nn.ReLU(), torch.nn.Linear(5, OUT))
    theirs = pyg.GINEConv(mlp, train_eps=True, edge_dim=D)
    put_linear(mlp[0], ours.hidden)
    put_linear(mlp[2], ours.out)
    put_linear(theirs.lin, ours.edge)
    put(theirs.eps, ours.eps[...])
    return ours, theirs, DATA


def nn_conv() -> Any:
    ours = random_biases(nn.NNConv(F, 5, OUT, edge_features=D, aggregator="mean", rngs=RNGS))
    mlp = torch.nn.Sequential(torch.nn.Linear(D, 5), torch.nn.ReLU(), torch.nn.Linear(5, F * OUT))
    theirs = pyg.NNConv(F, OUT, mlp, aggr="mean")
    put_linear(mlp[0], ours.hidden)
    put_linear(mlp[2], ours.matrix)
    put(theirs.lin.weight, ours.own.kernel[...].T)
    put(theirs.bias, ours.own.bias[...])
    return ours, theirs, DATA


def transformer(**options: Any) -> Any:
    ours = nn.GraphTransformer(F, OUT, heads=2, edge_features=D, rngs=RNGS, **options)
    theirs = pyg.TransformerConv(F, OUT, heads=2, edge_dim=D, **options)
    random_biases(ours)
    parts = {"query": "query", "key": "key", "value": "value", "skip": "own", "edge": "edge"}
    for name, part in parts.items():
        put_linear(getattr(theirs, f"lin_{name}"), getattr(ours, part))
    if ours.gate is not None:
        put_linear(theirs.lin_beta, ours.gate)
    return ours, theirs, DATA


def pna() -> Any:
    degree = np.bincount(DST, minlength=N)
    delta = float(np.log(degree + 1).mean())
    ours = random_biases(nn.PNA(F, OUT, edge_features=D, delta=delta, rngs=RNGS))
    names = {"aggregators": list(ours.aggregators), "scalers": list(ours.scalers)}
    theirs = pyg.PNAConv(F, OUT, **names, deg=torch.from_numpy(np.bincount(degree)), edge_dim=D)
    kernel = np.array(ours.message.kernel[...])  # theirs is a product: of the edges' rows
    encoder = np.random.default_rng(2).normal(size=(D, F)).astype(np.float32)
    inner = np.linalg.lstsq(encoder, kernel[2 * F :], rcond=None)[0]
    put(theirs.edge_encoder.weight, encoder.T)
    put(theirs.edge_encoder.bias, np.zeros(F, np.float32))
    put(theirs.pre_nns[0][0].weight, np.concatenate([kernel[: 2 * F], inner]).T)
    put(theirs.pre_nns[0][0].bias, ours.message.bias[...])
    put_linear(theirs.post_nns[0][0], ours.out)
    put(theirs.lin.weight, np.eye(OUT, dtype=np.float32))
    put(theirs.lin.bias, np.zeros(OUT, np.float32))
    return ours, theirs, DATA


CASES: dict[str, Callable[[], Any]] = {
    "LGConv": light_gcn,
    "APPNP": appnp,
    "ChebConv": cheb,
    "GINEConv": gine,
    "NNConv": nn_conv,
    "TransformerConv": transformer,
    "TransformerConv, beta": lambda: transformer(beta=True, concat=False),
    "PNAConv": pna,
}


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case: str) -> None:
    ours, theirs, data = CASES[case]()
    src, dst = SRC, DST
    if case == "ChebConv":  # its degrees are those of sources: the same where edges go both ways
        src, dst, data = np.append(SRC, DST), np.append(DST, SRC), np.append(data, data)
    graph = gnnjit.Graph.from_edges(src, dst, N)

    def loss(x: Any, data: Any) -> Any:
        out = ours(graph, x, edges=data)
        return jnp.sum(jnp.sin(out)), out

    (_, got), grads = jax.value_and_grad(loss, (0, 1), has_aux=True)(X, data)
    x, edges = (torch.from_numpy(a.copy()).requires_grad_() for a in (X, data))
    want = theirs(x, torch.from_numpy(np.stack([src, dst])), edges)
    want.sin().sum().backward()
    by_data, by_edges = np.asarray(grads[1]), edges.grad.numpy()
    if case == "ChebConv":
        by_data, by_edges = (sum(np.split(rows, 2)) for rows in (by_data, by_edges))
    pairs = (got, want.detach().numpy()), (grads[0], x.grad.numpy()), (by_data, by_edges)
    for a, b in pairs:
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("scores", ["additive", "multiplicative"])
@pytest.mark.parametrize("attention", ["across", "within"])
def test_rgat(attention: Any, scores: Any) -> None:
    heads, out = 2, 3 if scores == "additive" else 1  # PyG's products are not summed
    kind = RNG.integers(0, 3, len(SRC))
    graph = gnnjit.TypedGraph.from_edges(
        {("n", str(r), "n"): (SRC[kind == r], DST[kind == r]) for r in range(3)}, {"n": N}
    )
    schema: Any = {"types": graph.types, "relations": graph.relations}
    ours = nn.RGAT(
        F, out, heads=heads, attention=attention, scores=scores, **schema, rngs=nnx.Rngs(0)
    )
    theirs = pyg.RGATConv(
        F, out, 3, heads=heads, attention_mechanism=f"{attention}-relation",
        attention_mode=f"{scores}-self-attention",
    )  # fmt: skip
    names = ["__".join(key) for key in graph.relations]
    key, query = RNG.normal(size=(2, heads * out, heads)).astype(np.float32)
    key *= np.kron(np.eye(heads, dtype=np.float32), np.ones((out, 1), np.float32))  # of each head
    for name in names:  # theirs has one pair of matrices for all relations
        ours.key[name][...] = jnp.stack(
            [key[h * out : (h + 1) * out, h : h + 1] for h in range(heads)]
        )
        ours.query[name][...] = ours.weight[name][...] @ query
    put(theirs.weight, np.stack([ours.weight[name][...] for name in names]))
    put(theirs.k, key)
    put(theirs.q, query)

    def loss(x: Any) -> Any:
        rows = ours(graph, {"n": x})["n"]
        return jnp.sum(jnp.sin(rows)), rows

    (_, got), by_x = jax.value_and_grad(loss, has_aux=True)(X)
    x = torch.from_numpy(X.copy()).requires_grad_()
    ends, kinds = torch.from_numpy(np.stack([SRC, DST])), torch.from_numpy(kind)
    want = theirs(x, ends, kinds)
    want.sin().sum().backward()
    np.testing.assert_allclose(got, want.detach().numpy(), rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(by_x, x.grad.numpy(), rtol=2e-4, atol=2e-5)
