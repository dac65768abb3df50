"""Blocks of graph networks, on a batch of two graphs, against their formula and jraph's blocks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import gnnjit
from gnnjit.errors import LayerError
from gnnjit.nn import GraphNet

from . import formulas

SRC, DST = formulas.random_edges(0)  # of the first seven vertices
SECOND = (np.array([0, 1]), np.array([1, 0]))
BATCH, OWNER = gnnjit.graph.batch(
    [gnnjit.Graph.from_edges(SRC, DST, 7), gnnjit.Graph.from_edges(*SECOND, 2)]
)
RNG = np.random.default_rng(0)
X, EDGES, WHOLE = (
    jnp.asarray(RNG.normal(size=shape), jnp.float32)
    for shape in ((9, 3), (len(SRC) + 2, 2), (2, 4))
)


@pytest.mark.parametrize("full", [True, False])
def test_values_and_gradients(full: bool) -> None:
    module = GraphNet(
        3, 5, 4, edge_features=2 if full else None, global_features=4 if full else None,
        rngs=nnx.Rngs(0),
    )  # fmt: skip
    src, dst = np.append(SRC, SECOND[0] + 7), np.append(DST, SECOND[1] + 7)
    data = (EDGES, WHOLE) if full else (None, None)

    def ours(m: Any, x: Any, edges: Any, whole: Any) -> Any:
        return m(BATCH, x, edges=edges, globals=whole)

    def plain(m: Any, x: Any, edges: Any, whole: Any) -> Any:
        return formulas.graph_net(m, src, dst, x, np.asarray(OWNER), edges, whole)

    def loss(run: Any) -> Any:
        def of(*arguments: Any) -> Any:
            out = run(*arguments)
            return sum(jnp.sum(jnp.sin(y)) for y in out), out

        argnums = (0, 1, 2, 3) if full else (0, 1)
        return nnx.jit(nnx.value_and_grad(of, argnums=argnums, has_aux=True))(module, X, *data)

    got, want = loss(ours), loss(plain)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def test_padding_counts_for_nothing() -> None:
    module = GraphNet(3, 4, 2, edge_features=2, rngs=nnx.Rngs(0))
    padded = BATCH.pad(num_nodes=12, num_edges=30, num_graphs=3)
    rows = padded.pad_nodes(X) + jnp.where(jnp.arange(12) < 9, 0, 5)[:, None]
    got = module(padded, rows, edges=padded.pad_edges(EDGES))
    want = module(BATCH, X, edges=EDGES)
    for a, b, n in zip(got, want, (9, len(EDGES), 2), strict=True):
        np.testing.assert_allclose(a[:n], b, rtol=1e-5, atol=1e-6)


def test_blocks_of_jraph() -> None:
    """With the received edges alone, as in the paper: jraph gives those that are sent too."""
    jraph = pytest.importorskip("jraph", reason="jraph is not installed")
    module = GraphNet(3, 5, 4, edge_features=2, global_features=4, rngs=nnx.Rngs(1))

    def mlp(part: Any, *values: Any) -> Any:
        hidden = jax.nn.relu(part["hidden"](jnp.concatenate(values, axis=-1)))
        return part["out"](hidden)

    network = jraph.GraphNetwork(
        update_edge_fn=lambda e, sent, received, g: mlp(module.edge, e, sent, received, g),
        update_node_fn=lambda n, sent, received, g: mlp(module.node, received, n, g),
        update_global_fn=lambda n, e, g: mlp(module.whole, e, n, g),
    )
    src, dst = np.append(SRC, SECOND[0] + 7), np.append(DST, SECOND[1] + 7)
    want = network(
        jraph.GraphsTuple(
            nodes=X, edges=EDGES, globals=WHOLE, senders=src, receivers=dst,
            n_node=np.array([7, 2]), n_edge=np.array([len(SRC), 2]),
        )
    )  # fmt: skip
    got = module(BATCH, X, edges=EDGES, globals=WHOLE)
    for a, b in zip(got, (want.nodes, want.edges, want.globals), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("edges", "whole", "message"),
    [
        (
            EDGES[:, :1], WHOLE,
            "GraphNet was given edges= of [1] per edge, expected [2], its edge_features: pass "
            "edges of shape [num_edges, edge_features]",
        ),
        (
            EDGES, WHOLE[:, :3],
            "GraphNet was given globals= of [3] per graph, expected [4], its global_features: pass "
            "globals of shape [num_graphs, global_features]",
        ),
    ],
    ids=["edges", "graphs"],
)  # fmt: skip
def test_messages(edges: Any, whole: Any, message: str) -> None:
    module = GraphNet(3, 4, 2, edge_features=2, global_features=4, rngs=nnx.Rngs(0))
    with pytest.raises(LayerError) as caught:
        module(BATCH, X, edges=edges, globals=whole)
    assert str(caught.value).endswith(message)
