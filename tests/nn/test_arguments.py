"""What modules say of arguments that they cannot be made with, and of odd features."""

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
from gnnjit.errors import LayerError

RNGS = nnx.Rngs(0)
SIZE = "expected a whole number from 1 to 2147483647: pass an int"
BETWEEN = gnnjit.Graph.from_edges([0], [0], num_src=2, num_dst=3)
GRAPH = gnnjit.Graph.from_edges([0, 1, 2], [1, 2, 2], 3)

CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "no width": (
        lambda: nn.GCN(0, 2, rngs=RNGS), f"nn.GCN: in_features is 0, {SIZE}"
    ),
    "a width of text": (
        lambda: nn.SAGE(3, "16", rngs=RNGS), f"nn.SAGE: out_features is '16', {SIZE}"  # type: ignore
    ),
    "a fraction": (
        lambda: nn.EdgeConv(3, 2.5, 2, rngs=RNGS),  # type: ignore
        f"nn.EdgeConv: hidden is 2.5, {SIZE}",
    ),
    "heads": (lambda: nn.GAT(3, 2, heads=True, rngs=RNGS), f"nn.GAT: heads is True, {SIZE}"),
    "edge features": (
        lambda: nn.GatedGCN(3, 2, edge_features=np.arange(2), rngs=RNGS),  # type: ignore
        f"nn.GatedGCN: edge_features is ndarray of shape (2,), {SIZE}",
    ),
    "steps": (
        lambda: nn.GGNN(3, steps=-1, rngs=RNGS),
        "nn.GGNN: steps is -1, expected a whole number from 0 to 2147483647: pass an int",
    ),
    "a rate": (
        lambda: nn.GATv2(3, 2, dropout=60, rngs=RNGS),
        "nn.GATv2: dropout is 60, expected a number from 0 to 1: pass the share of coefficients to "
        "drop",
    ),
    "a slope": (
        lambda: nn.GAT(3, 2, negative_slope=float("nan"), rngs=RNGS),
        "nn.GAT: negative_slope is nan, expected a finite real number: pass a float",
    ),
    "eps": (
        lambda: nn.GIN(3, 2, 2, eps=[0.1], rngs=RNGS),  # type: ignore
        "nn.GIN: eps is [0.1], expected a finite real number: pass a float",
    ),
    "a flag": (
        lambda: nn.GCN(3, 2, self_loops="no", rngs=RNGS),  # type: ignore
        "nn.GCN: self_loops is 'no', expected True or False: pass one of them",
    ),
    "a choice": (
        lambda: nn.SAGE(3, 2, aggregator="lstm", rngs=RNGS),  # type: ignore
        "nn.SAGE: aggregator is 'lstm', expected one of 'mean', 'sum', 'max', 'pool': pass one of "
        "them",
    ),
    "no features of edges": (
        lambda: nn.NNConv(3, 2, 2, edge_features=None, rngs=RNGS),  # type: ignore
        f"nn.NNConv: edge_features, which it reads, is None, {SIZE}",
    ),
    "features of edges, none": (
        lambda: nn.GINE(3, 2, 2, edge_features=0, rngs=RNGS),
        f"nn.GINE: edge_features, which it reads, is 0, {SIZE}",
    ),
    "features of graphs": (
        lambda: nn.GraphNet(3, 2, 2, global_features=0, rngs=RNGS),
        f"nn.GraphNet: global_features is 0, {SIZE}",
    ),
    "a probability": (
        lambda: nn.APPNP(10, 1.5),
        "nn.APPNP: alpha is 1.5, expected a number from 0 to 1: pass the probability of a jump "
        "back",
    ),
    "an eigenvalue": (
        lambda: nn.Cheb(3, 2, lambda_max=0.0, rngs=RNGS),
        "nn.Cheb: lambda_max is 0.0, expected a positive number: pass the largest eigenvalue of "
        "the Laplacian, or 2, its bound",
    ),
    "one aggregator": (
        lambda: nn.PNA(3, 2, aggregators="mean", rngs=RNGS),  # type: ignore
        "nn.PNA: aggregators is 'mean', expected some of 'mean', 'min', 'max', 'std', 'sum', "
        "'var': pass a list of them",
    ),
    "a scaler": (
        lambda: nn.PNA(3, 2, scalers=["identity", "linear"], rngs=RNGS),  # type: ignore
        "nn.PNA: scalers[1] is 'linear', expected one of 'identity', 'amplification', "
        "'attenuation': pass one of them",
    ),
    "delta": (
        lambda: nn.PNA(3, 2, delta=0, rngs=RNGS),
        "nn.PNA: delta is 0, expected a positive number: pass jnp.log(graph.in_degree + 1).mean() "
        "of the training graphs",
    ),
    "two vertex sets": (
        lambda: nn.APPNP(1)(BETWEEN, jnp.ones((3, 2))),
        "APPNP was given a graph between two vertex sets, expected one vertex set with x of shape "
        "[num_nodes, F]: what a step computes at the destinations is what the next one reads at "
        "the sources. Make one graph of both sets (number the destinations behind the sources, "
        "dst + num_src), stack their features, and read the destinations' rows of the result",
    ),
    "a key": (
        lambda: nn.CommNet(3, 2, rngs=jax.random.split(jax.random.key(0), 2)),  # type: ignore
        "nn.CommNet: rngs is PRNGKeyArray of shape (2,), expected an nnx.Rngs: pass nnx.Rngs(0), "
        "of any seed",
    ),
    "other streams": (
        lambda: nn.GIN(3, 2, 2, rngs=nnx.Rngs(dropout=0)),
        "nn.GIN: rngs has the streams dropout, expected one for parameters: pass nnx.Rngs(0), or "
        "name one, as in nnx.Rngs(params=0)",
    ),
    "keys as features": (
        lambda: nn.GGNN(2, rngs=RNGS)(GRAPH, jax.random.split(jax.random.key(0), (3, 2))),
        "nn.GGNN got PRNGKeyArray of key<fry>[3, 2] as features, expected an array [N, F] of real "
        "numbers: pass jnp.asarray(x)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_messages(name: str) -> None:
    call, message = CASES[name]
    with pytest.raises(LayerError) as error:
        call()
    assert str(error.value) == message


def test_numbers_of_numpy_and_jax() -> None:
    made = nn.GAT(
        np.int64(3), 2, dropout=np.float32(0.5), negative_slope=jnp.float32(0.1), concat=np.True_,
        rngs=nnx.Rngs(1),
    )  # fmt: skip
    assert made(GRAPH, jnp.ones((3, 3))).shape == (3, 2)


def test_steps_read_arrays_of_any_byte_order_and_integers() -> None:
    layer = nn.GGNN(3, rngs=nnx.Rngs(0))
    x = np.arange(9).reshape(3, 3)
    want = layer(GRAPH, jnp.asarray(x, jnp.float32))
    for kind in (">f4", "int32", "uint8"):
        np.testing.assert_array_equal(layer(GRAPH, x.astype(kind)), want)  # type: ignore
