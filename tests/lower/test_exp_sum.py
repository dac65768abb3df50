"""`exp_sum`: written out for lowerings that do not know it; derivatives, batches, extremes."""

from __future__ import annotations

import collections
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiler.cases import F
from hypothesis import given, settings
from reads import with_edges_as_read
from strategies import edge_lists, expressions

import gnnjit
from gnnjit.compiler.call import recorded_calls
from gnnjit.ir.interpret import Incidence, interpret
from gnnjit.ir.program import Aggregate, Program, Reduce
from gnnjit.ir.space import Space
from gnnjit.lower import cpu
from gnnjit.lower.choose import optimised
from gnnjit.lower.xla import bucketed, csr, segment
from gnnjit.passes.pipeline import Choices, default_passes, run
from gnnjit.planner.programs import optimise
from gnnjit.planner.search import force
from lower.requests import request

pytestmark = pytest.mark.usefixtures("quick_compilation")

N, E, H = 5, 9, 2
RNG = np.random.default_rng(3)
GRAPH = gnnjit.Graph.from_edges([0, 0, 1, 2, 1, 4, 4, 2, 2], [0, 0, 1, 3, 3, 3, 0, 1, 1], N)
X = jnp.asarray(RNG.normal(size=(N, H, F)), jnp.float32)
S = jnp.asarray(RNG.normal(size=(E, H)), jnp.float32)


def attention(v, e):
    """Heads, an edge value that is returned, and a sum of logarithms."""
    score = jnp.sum(jnp.tanh(e.src * 0.5 + v), axis=-1) + e.data
    weight = gnnjit.softmax(score)
    return gnnjit.sum(weight[:, None] * e.src), gnnjit.logsumexp(score), weight


def scored(v, e):
    weight = gnnjit.softmax(e.data)
    return gnnjit.sum(weight[:, None] * e.src), gnnjit.logsumexp(e.data)


def gat(v, e):
    score = jax.nn.leaky_relu(jnp.sum(e.src) + jnp.sum(v), 0.2)
    return gnnjit.sum(gnnjit.softmax(score) * e.src)


def written(fn: Any, x: Any = X, s: Any = S) -> Any:
    with recorded_calls() as calls:
        with_edges_as_read(gnnjit.layer(fn), fn)(GRAPH, x, edges=s)
    return calls[0]


def aggregates(program: Program) -> list[Aggregate]:
    return [e.op for e in program.equations if isinstance(e.op, Aggregate)]


def lowered(program: Program, *, online: bool) -> list[Aggregate]:
    """The traversals that run: those of the aggregates, each optimised once more."""
    return [
        inner
        for op in aggregates(program)
        for inner in aggregates(optimised(op.body, op.reductions, online=online))
    ]


def kinds(ops: list[Aggregate]) -> set[str]:
    return {r.kind for op in ops for r in op.reductions if r is not None}


@pytest.mark.parametrize("fn", [gat, attention], ids=lambda f: f.__name__)
def test_written_out_it_is_the_code_that_the_pass_found(fn):
    program = written(fn).program
    before = lowered(run(program, default_passes(online=False)), online=False)
    after = lowered(optimise(program, False), online=False)

    def arithmetic(ops: list[Aggregate]) -> list[Any]:
        """Broadcasts apart: two in a row have become one."""
        counts = [collections.Counter(e.op.name for e in op.body.equations) for op in ops]
        return [c for c in counts if c.pop("broadcast_in_dim", 0) >= 0]

    assert "exp_sum" not in kinds(after)
    assert arithmetic(after) == arithmetic(before)


def test_a_kernel_that_knows_it_gets_one_traversal():
    (op,) = lowered(optimise(written(gat).program, False), online=True)
    assert kinds([op]) == {"max", "exp_sum"}


def test_every_lowering_refuses_it_with_a_reason():
    (op,) = aggregates(optimise(written(gat).program, False))
    assert Reduce("exp_sum", Space.DST, 2) in op.reductions
    asked = request(op.body, op.reductions, graph=GRAPH, platform="cpu")
    first = request(op.body, op.reductions[:1], graph=GRAPH, platform="cpu")
    assert cpu.why_not(asked)
    assert csr.why_not(asked)
    assert segment.why_not(asked) == segment.why_not(first) != []
    assert segment.why_not(asked)[0] in bucketed.why_not(asked)


def loss_of(fn: Any) -> Any:
    layer = with_edges_as_read(gnnjit.layer(fn), fn)

    def loss(x: Any, s: Any) -> Any:
        return sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(layer(GRAPH, x, edges=s)))

    return loss


def by_hand(f: Any, *args: Any) -> Any:
    with gnnjit.reference():
        return f(*args)


def close(a: Any, b: Any, rtol: float = 1e-4, atol: float = 2e-5) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=atol)


ORDERS = {
    "reverse": lambda f: jax.grad(f, (0, 1)),
    "forward": lambda f: jax.jacfwd(f, (0, 1)),
    "reverse over reverse": lambda f: jax.jacrev(jax.grad(f, (0, 1)), (0, 1)),
    "forward over reverse": lambda f: jax.jacfwd(jax.grad(f, (0, 1)), (0, 1)),
}


@pytest.mark.parametrize(
    "order",
    [
        pytest.param(order, marks=[pytest.mark.long] if order.startswith("reverse over") else [])
        for order in ORDERS
    ],
)
def test_derivatives(order):
    close(ORDERS[order](loss_of(attention))(X, S), by_hand(ORDERS[order](loss_of(attention)), X, S))


def test_the_interpreter_of_the_fused_program_has_the_same_derivatives():
    call = written(attention)

    def loss(program: Program) -> Any:
        def f(operands: Any) -> Any:
            return sum(jnp.sum(jnp.sin(y)) for y in call.interpret(program, operands))

        return jax.grad(f)(list(call.traced.operands))

    close(loss(optimise(call.program, call.padded)), loss(call.program))


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)], ids=str)
def test_batching_of_scores_or_values_alone(axes):
    xs, ss = jnp.stack([X, X * 0.3, -X]), jnp.stack([S, S * 3, S - 1])
    args = tuple(b if d == 0 else a for a, b, d in zip((X, S), (xs, ss), axes, strict=True))
    for f in (loss_of(scored), jax.grad(loss_of(scored), (0, 1))):
        one = [
            f(*(a[i] if d == 0 else a for a, d in zip(args, axes, strict=True))) for i in range(3)
        ]
        close(jax.vmap(f, axes)(*args), jax.tree.map(lambda *r: jnp.stack(r), *one))


ROWS = {0: [0, 1, 6], 1: [2, 7, 8], 3: [3, 4, 5]}  # the edges of each vertex
SCORES = {
    "huge": [1e4, -1e4, 0.0],
    "negative": [-1e4, -1e4, -1e4],
    "nothing": [-np.inf, -np.inf, -np.inf],
    "some nothing": [-np.inf, 1.0, 2.0],
    "infinite": [np.inf, 0.0, 1.0],
    "not a number": [np.nan, 0.0, 1.0],
}


@pytest.mark.parametrize("name", SCORES)
def test_extreme_scores(name):
    s = S.at[jnp.array(ROWS[1])].set(jnp.asarray(SCORES[name], jnp.float32)[:, None])
    call = written(scored, s=s)
    layer = gnnjit.layer(scored)
    want = by_hand(lambda: layer(GRAPH, X, edges=s))
    close(layer(GRAPH, X, edges=s), want)
    close(call.interpret(optimise(call.program, call.padded)), jax.tree.leaves(want))
    assert np.isfinite(want[0][np.array([0, 2, 3, 4])]).all()
    assert not np.any(want[0][2]), "a vertex without edges"


def test_padding_does_not_matter():
    graph = GRAPH.pad(N, E + 4)
    s = jnp.concatenate([S, jnp.full((4, H), jnp.nan)])
    f = gnnjit.layer(scored)
    have = f(graph, X, edges=s), jax.grad(lambda x: jnp.sum(f(graph, x, edges=s)[0] ** 2))(X)
    want = f(GRAPH, X, edges=S), jax.grad(lambda x: jnp.sum(f(GRAPH, x, edges=S)[0] ** 2))(X)
    close(have, want)
    with recorded_calls() as calls:
        f(graph, X, edges=s)
    close(calls[0].interpret(optimise(calls[0].program, calls[0].padded)), want[0])


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16], ids=["bf16", "f16"])
def test_half_precision_is_summed_in_float32(dtype):
    exact, x, s = written(scored), X.astype(dtype), S.astype(dtype)
    half = written(scored, x, s)
    want = exact.interpret(exact.program, [a.astype(jnp.float32) for a in half.traced.operands])
    plain, fused = (half.interpret(p) for p in (half.program, optimise(half.program, half.padded)))
    layer = gnnjit.layer(scored)(GRAPH, x, edges=s)
    for w, p, f, y in zip(want, plain, fused, layer, strict=True):
        floor = 2 * float(jnp.finfo(dtype).eps) * float(jnp.abs(w).max())
        assert f.dtype == y.dtype == dtype
        assert jnp.abs(w - f).max() <= 2 * jnp.abs(w - p).max() + floor
        assert jnp.abs(w - y).max() <= 2 * jnp.abs(w - p).max() + floor


def traversals_run(f: Any, *args: Any) -> int:
    """The calls of the compiled program into kernels of ours, dead ones removed."""
    text = jax.jit(f).lower(*args).compile().as_text()
    assert text is not None
    return text.count("custom-call(")


def test_the_tangent_of_the_maximum_costs_nothing(monkeypatch):
    """GAT runs two traversals forward and two backward, as without the pass."""
    with force(Choices()):
        have = traversals_run(jax.value_and_grad(loss_of(gat)), X, S)
    asked = []

    def without_the_pass(program: Program, padded: bool, choices: Choices) -> Program:
        asked.append(choices)
        return run(program, default_passes(online=False))

    monkeypatch.setattr("gnnjit.planner.search.optimise", without_the_pass)
    with force(Choices(limit=1 << 30)):  # a plan of its own
        assert have == traversals_run(jax.value_and_grad(loss_of(gat)), X, S)
    assert asked


@pytest.mark.long
@given(expressions(), expressions(), edge_lists(N, E))
@settings(max_examples=6, deadline=None)
def test_generated_layers(one, two, edges):
    """The same numbers with the pass and without, on any graph."""
    p = {
        "a": jnp.linspace(-1, 1, 2 * F),
        "w": jnp.asarray(RNG.normal(size=(F, 2 * F)), jnp.float32),
    }
    x = jnp.asarray(RNG.normal(size=(N, F)), jnp.float32)

    @gnnjit.layer
    def layer(v, e, p):
        score, value = (f(gnnjit, v, e, p) + e.src * e.data * 0 for f in (one, two))
        return gnnjit.sum(gnnjit.softmax(score) * value), gnnjit.logsumexp(score)

    src, dst = edges
    graph = gnnjit.Graph.from_edges(src, dst, N)
    data = jnp.ones((len(src), F))
    with recorded_calls() as calls:
        layer(graph, x, p, edges=data)
    incidence = Incidence(graph.src, graph.dst, N, N)
    programs = [run(calls[0].program, default_passes(online=online)) for online in (False, True)]
    a, b = (interpret(q, incidence, calls[0].traced.operands) for q in programs)
    close(a, b, rtol=1e-3, atol=1e-3)
