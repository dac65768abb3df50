"""The dense lowering: destinations with as many edges each, of consecutive sources."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit.cost.current import use
from gnnjit.cost.kinds import KINDS
from gnnjit.cost.model import CostModel
from gnnjit.graph.by_destination import ByDestination
from gnnjit.ir.program import Program, Reduce, Value
from gnnjit.ir.space import Space
from gnnjit.lower import choose, cpu
from gnnjit.lower.xla import dense
from lower.requests import request

FAN_IN = 3


def level(num_dst: int, fan_in: int = FAN_IN) -> gnnjit.Graph:
    offset = np.arange(num_dst + 1) * fan_in
    part = ByDestination.of(offset, None, num_src=num_dst * fan_in, fan_in=fan_in)
    return part.graph(traced=False)


def features(graph: gnnjit.Graph) -> gnnjit.Bipartite:
    rng = np.random.default_rng(0)
    rows = [rng.integers(-3, 4, (n, 4)).astype(np.float32) for n in (graph.num_src, graph.num_dst)]
    return gnnjit.Bipartite(*map(jnp.asarray, rows))


@gnnjit.layer
def attention(v: Any, e: Any, q: Any) -> Any:
    score = jnp.tanh(e.src @ q + v @ q)
    return gnnjit.sum(gnnjit.softmax(score) * e.src)


def plain_attention(src: Any, dst: Any, data: Any, q: Any) -> Any:
    weight = jax.nn.softmax(jnp.tanh(src @ q + (dst @ q)[:, None]), axis=1)
    return jnp.einsum("vp,vpf->vf", weight, src)


@gnnjit.layer
def mixed(v: Any, e: Any, q: Any) -> Any:
    return gnnjit.max(e.src) - gnnjit.min(e.src * v), gnnjit.prod(e.data), e.src * v + e.data


def plain_mixed(src: Any, dst: Any, data: Any, q: Any) -> Any:
    first = src.max(1) - (src * dst[:, None]).min(1)
    return first, data.prod(1), (src * dst[:, None] + data[..., None]).reshape(-1, 4)


@pytest.mark.parametrize(
    ("layer", "plain", "num_dst"),
    [(attention, plain_attention, 5), (mixed, plain_mixed, 5), (attention, plain_attention, 0)],
)
def test_values_and_gradients_are_those_of_a_reshape(layer: Any, plain: Any, num_dst: int) -> None:
    graph, q = level(num_dst), jnp.asarray([1.0, -1.0, 2.0, 0.5])
    x, data = features(graph), jnp.arange(graph.num_edges) % 4 - 1.0

    def run(x: Any, q: Any) -> Any:
        return layer(graph, x, q, **({"edges": data} if layer is mixed else {}))

    def by_hand(x: Any, q: Any) -> Any:
        shape = num_dst, FAN_IN
        return plain(x.src.reshape(*shape, 4), x.dst, data.reshape(shape), q)

    def found(fn: Any) -> Any:
        def loss(x: Any, q: Any) -> Any:
            out = fn(x, q)
            return sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(out)), out

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(x, q)

    with choose.prefer("dense"):
        ours = found(run)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    jax.tree.map(close, ours, found(by_hand))


def test_explain_says_that_a_level_is_dense() -> None:
    graph = level(4)
    with choose.prefer("dense"):
        kernels = attention.explain(graph, features(graph), jnp.ones(4)).kernels
    assert {k.kernel for k in kernels} == {"dense"}


@pytest.mark.skipif(not cpu.available(), reason="there are no generated kernels")
@pytest.mark.parametrize(
    ("kind", "chosen"), [("traversal", "dense"), ("reduce", "cpu")], ids=["dense", "cpu"]
)
def test_the_cost_model_chooses_and_explain_says_so(kind: str, chosen: str) -> None:
    """Weights with which one of the two takes a second for each byte or edge."""
    weights = {k: dict.fromkeys(row, 0.0) for k, row in KINDS.items()}
    weights[kind] = dict.fromkeys(weights[kind], 1.0)
    graph = level(4)
    with use(CostModel.from_json(weights)):
        total = gnnjit.layer(lambda v, e: gnnjit.sum(e.src))
        (kernel,) = total.explain(graph, features(graph), backward=False).kernels
    assert kernel.kernel == chosen
    assert re.search(r"a schema level, predicted: cpu .* ms, dense .* ms", kernel.reasons)
    slower = "not cpu: it is predicted to take" in kernel.reasons
    assert slower == (chosen == "dense")


def test_without_a_figure_nothing_is_predicted() -> None:
    graph = level(4)
    unknown = gnnjit.layer(lambda v, e: gnnjit.sum(jax.lax.top_k(e.src * v, 1)[0]))
    kernels = unknown.explain(graph, features(graph), backward=False).kernels
    assert kernels
    assert all(not k.predicted for k in kernels)


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (lambda v, e, w: gnnjit.sum((e.src * v) @ w), "a matmul on the edges"),
        (lambda v, e, w: gnnjit.sum(w[e.data] * e.src), "rows of a table are summed"),
    ],
)
def test_it_refuses_what_it_would_write_out(fn: Any, reason: str) -> None:
    graph = level(4)
    given = {"edges": jnp.zeros(12, int)} if "table" in reason else {}
    with choose.prefer("dense"):
        found = gnnjit.layer(fn).explain(graph, features(graph), jnp.ones((4, 4)), **given)
    reasons = [
        r for k in found.kernels for name, some in k.refused if name == "dense" for r in some
    ]
    assert any(reason in r for r in reasons)


def test_it_refuses_more_memory_than_is_allowed() -> None:
    x = Value((4,), np.dtype(np.float32), Space.SRC)
    body, into = Program((x,), (), (x,)), (Reduce("sum", Space.DST),)
    made = request(body, into, graph=level(5))
    assert dense.why_not(dataclasses.replace(made, limit=60)) == []
    reasons = dense.why_not(dataclasses.replace(made, limit=59))
    assert reasons == ["60 scalars on all edges are more than the 59 allowed"]


def test_other_graphs_do_not_hear_of_it() -> None:
    graph = gnnjit.Graph.from_edges([0, 1, 2], [1, 2, 0])
    with choose.prefer("segment"):
        kernels = attention.explain(graph, jnp.ones((3, 4)), jnp.ones(4)).kernels
    assert all(name != "dense" for k in kernels for name, _ in k.refused)


@pytest.mark.parametrize("change", [lambda g: g.reverse(), lambda g: g.pad(num_edges=20)])
def test_changed_graphs_are_dense_no_more(change: Any) -> None:
    assert level(4).fan_in == FAN_IN
    assert change(level(4)).fan_in is None
