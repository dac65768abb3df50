"""R-GCN on graphs whose edges have relations by number, against its formula."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import gnnjit
from gnnjit.errors import LayerError
from gnnjit.nn import RGCN

N, E, R, F, G = 10, 60, 4, 16, 8
RNG = np.random.default_rng(0)
SRC, DST, RELATION = RNG.integers(0, N, E), RNG.integers(0, N - 2, E), RNG.integers(0, R - 1, E)
GRAPH = gnnjit.Graph.from_edges(SRC, DST, N, relation=RELATION, num_relations=R)
X = jnp.asarray(RNG.normal(size=(N, F)), jnp.float32)
OPTIONS: Any = {"num_relations": R, "rngs": nnx.Rngs(0)}


def matrices(m: Any) -> Any:
    """`[R, F, F']`."""
    w = m.weight[...]
    if m.basis is not None:
        return jnp.einsum("rb,bij->rij", w, m.basis[...])
    return w if w.ndim == 3 else jax.vmap(lambda b: jax.scipy.linalg.block_diag(*b))(w)


def formula(m: Any, x: Any) -> Any:
    out, w = m.own(x), matrices(m)
    for r in range(R):
        own = RELATION == r
        among = own if m.mean == "relation" else slice(None)
        count = np.maximum(np.bincount(DST[among], minlength=N), 1)[:, None]
        out += jax.ops.segment_sum((x @ w[r])[SRC[own]], jnp.asarray(DST[own]), N) / count
    return out


@pytest.mark.parametrize(
    "options", [{}, {"bases": 2}, {"bases": 3}, {"blocks": 4, "mean": "all"}], ids=str
)
def test_values_and_gradients(options: Any) -> None:
    graphdef, state = nnx.split(RGCN(F, G, **options, **OPTIONS))

    def loss(run: Any) -> Any:
        return jax.value_and_grad(lambda s, x: jnp.sum(jnp.sin(run(nnx.merge(graphdef, s), x))),
                                  (0, 1))  # fmt: skip

    got = jax.jit(loss(lambda m, x: m(GRAPH, x)))(state, X)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(loss(formula)(state, X)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


MESSAGES = {
    "both kinds": (
        lambda: RGCN(F, G, types=["a"], relations=[], **OPTIONS),
        "nn.RGCN got relations and num_relations, expected those of one kind of graph: pass types= "
        "and relations= of a typed graph, or num_relations= of a graph whose edges have relations "
        "by number",
    ),
    "no kind": (
        lambda: RGCN(F, G, rngs=nnx.Rngs(0)),
        "nn.RGCN got neither relations nor num_relations, expected those of one kind of graph: "
        "pass types= and relations= of a typed graph, or num_relations= of a graph whose edges "
        "have relations by number",
    ),
    "blocks of bases": (
        lambda: RGCN(F, G, bases=2, blocks=2, **OPTIONS),
        "nn.RGCN got both blocks and bases, expected blocks with num_relations alone: leave one of "
        "them out",
    ),
    "odd blocks": (
        lambda: RGCN(F, G, blocks=3, **OPTIONS),
        "nn.RGCN: in_features is 16 and out_features 8, expected multiples of blocks=3: pass a "
        "number of blocks that divides both",
    ),
    "mean of a typed graph": (
        lambda: RGCN(F, G, types=["a"], relations=[], mean="all", rngs=nnx.Rngs(0)),
        "nn.RGCN got mean='all' and types, expected it with num_relations alone: leave it out",
    ),
    "no number": (
        lambda: RGCN(F, G, num_relations=0, rngs=nnx.Rngs(0)),
        "nn.RGCN: num_relations is 0, expected a whole number from 1 to 2147483647: pass an int",
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_messages(name: str) -> None:
    call, message = MESSAGES[name]
    with pytest.raises(LayerError) as error:
        call()
    assert str(error.value) == message


def test_other_relations_than_the_graph_has() -> None:
    made = RGCN(F, G, num_relations=R + 1, rngs=nnx.Rngs(0))
    with pytest.raises(LayerError) as error:
        made(GRAPH, X)
    assert str(error.value).partition(": ")[2] == (
        "nn.RGCN was made for 5 relations, but the graph has 4: pass "
        "num_relations=graph.num_relations"
    )
