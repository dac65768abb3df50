"""What is chosen for a call, by cost models in which little costs anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import gnnjit
from gnnjit.compiler import primitive
from gnnjit.compiler.call import recorded_calls
from gnnjit.cost.current import use
from gnnjit.cost.kinds import INDEX, NAMES
from gnnjit.cost.model import CostModel
from gnnjit.ir.space import Space
from gnnjit.nn.edge_conv import EdgeConv
from gnnjit.nn.gat import GAT
from gnnjit.nn.gated_gcn import GatedGCN
from gnnjit.nn.gcn import GCN
from gnnjit.nn.gin import GIN
from gnnjit.nn.sage import SAGE
from gnnjit.passes.pipeline import AS_WRITTEN, Choices
from gnnjit.passes.store_edge_values import storable_values
from gnnjit.planner import search
from gnnjit.planner.plan import Plan, Problem
from gnnjit.planner.programs import middle
from gnnjit.planner.search import plan, weigh

N, E = 8, 40
RNG = np.random.default_rng(0)
GRAPH = gnnjit.Graph.from_edges(*RNG.integers(0, N, (2, E)), num_nodes=N)
FEW = gnnjit.Graph.from_edges([0, 1, 1], [1, 0, 2], num_nodes=50)


def costs(**weights: float) -> CostModel:
    """Only these features cost anything; `kind__feature`."""
    vector = np.zeros(len(NAMES))
    for name, value in weights.items():
        kind, _, feature = name.partition("__")
        vector[INDEX[kind, feature]] = value
    return CostModel(vector)


MATMULS = costs(matmul__flops=1, tall__flops=1)
TRAVERSALS = costs(traversal__vectors=1e3, traversal__lines=1, traversal__edges=1)
EVEN = CostModel(np.linspace(1, 2, len(NAMES)))


def draw(*shape: int) -> jax.Array:
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


def problem(
    fn: Callable[..., Any], *args: Any, moving: Any = None, platform: str = "cpu", **keywords: Any
) -> Problem:
    """What the plan of the last layer called is made for; `moving`: "all" arrays need gradients, or
    the "parameters"."""
    with recorded_calls() as calls:
        jax.eval_shape(lambda *some: fn(*some, **keywords), *args)
    call = calls[-1]
    arrays, known = call.call()
    spaces = dict(zip(known.slots, (v.space for v in call.program.inputs), strict=True))
    moves = None
    if moving is not None:
        floats = [jnp.issubdtype(x.dtype, jnp.inexact) for x in arrays]
        moves = tuple(
            f and (moving == "all" or spaces[i] is Space.SHARED) for i, f in enumerate(floats)
        )
    return known.problem(call.graph, arrays, moves, platform)


def chosen(model: CostModel, *args: Any, **keywords: Any) -> Plan:
    with use(model):
        return plan(problem(*args, **keywords))


def orders(found: Plan) -> tuple[Any, ...]:
    return found.chosen.choices.orders


def combine(v, e, w):
    return gnnjit.sum(e.src) @ w


def convolve(f_in: int, f_out: int) -> tuple[Any, ...]:
    layer = gnnjit.layer(combine)
    return lambda x, w: layer(GRAPH, x, w), draw(N, f_in), draw(f_in, f_out)


@pytest.mark.parametrize(
    ("f_in", "f_out", "order"), [(512, 16, "combine-first"), (16, 512, "aggregate-first")]
)
@pytest.mark.parametrize("moving", [None, "all"])
def test_the_narrower_side_is_aggregated(f_in, f_out, order, moving):
    assert orders(chosen(TRAVERSALS, *convolve(f_in, f_out), moving=moving)) == (order,)


@pytest.mark.parametrize(
    ("moving", "order"), [("parameters", "aggregate-first"), ("all", "combine-first")]
)
def test_features_without_gradient_are_aggregated_first(moving, order):
    """Combined first, the backward sums over edges for the gradient of the matrix; aggregated
    first, it does so for the gradient of the features alone (GraphTensor V-A)."""
    found = chosen(TRAVERSALS, *convolve(48, 32), moving=moving)
    assert orders(found) == (order,)


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize(("f_in", "order"), [(4, "aggregate-first"), (512, "combine-first")])
def test_attention(heads, f_in, order):
    module = GAT(f_in, 128, heads=heads, rngs=nnx.Rngs(0))
    found = chosen(costs(traversal__lines=1), module, GRAPH, draw(N, f_in), moving="all")
    assert orders(found) == (order,)


@gnnjit.layer
def messages(v, e, w):
    return gnnjit.sum(jax.nn.relu(e.src @ w))


@pytest.mark.parametrize(
    ("graph", "places"), [(FEW, {Space.SRC, Space.DST}), (GRAPH, set())], ids=["few", "many"]
)
def test_work_goes_to_the_edges_if_they_are_fewer(graph, places):
    model = costs(matmul__flops=1, traversal__vectors=1e-3, elementwise__bytes=1)
    x, w = draw(graph.num_src, 16), draw(16, 16)
    found = chosen(model, lambda x, w: messages(graph, x, w), x, w)
    assert found.chosen.choices.on_edges == places


@gnnjit.layer
def edge_mlp(v, e, w):
    return gnnjit.max(jnp.tanh(jax.nn.relu(e.src + v) @ w))


@gnnjit.layer
def filtered(v, e, w):
    return gnnjit.max(jnp.tanh((e.src * v) @ w))


@gnnjit.layer
def weighed(v, e):
    return gnnjit.sum(jnp.exp(jnp.sum(jnp.tanh(v * e.src))) * e.src)


@pytest.mark.parametrize(
    ("model", "moving", "stores"),
    [
        (costs(tiles__flops=1), "all", True),
        (costs(tiles__flops=1), None, False),
        (costs(traversal__lines=1), "all", False),
    ],
    ids=["arithmetic", "inference", "memory"],
)
def test_an_edge_matmul_is_stored_if_computing_it_again_costs_more(model, moving, stores):
    args = (lambda x, w: edge_mlp(GRAPH, x, w), draw(N, 32), draw(32, 32))
    with gnnjit.memory_budget("1GiB"):
        found = chosen(model, *args, moving=moving)
    assert bool(found.chosen.choices.stored) == stores


def test_without_a_budget_only_large_matmuls_are_stored():
    """What a layer without them needs grows with the vertices alone."""
    for width in (63, 64):
        args = (lambda x, w: edge_mlp(GRAPH, x, w), draw(N, width), draw(width, width))
        stored = chosen(costs(matmul__flops=1), *args, moving="all").chosen.choices.stored
        assert bool(stored) == (width == 64)
    program = problem(lambda x: weighed(GRAPH, x), draw(N, 32), moving="all")
    assert storable_values(middle(program.program, program.padded, AS_WRITTEN))
    with use(costs(traversal__functions=1)):
        assert not any(a.choices.stored for a in plan(program).every)


@pytest.mark.parametrize("inner", [31, 32])
def test_results_of_short_sums_are_computed_again(inner):
    """It takes less time than to write and read them."""
    args = (lambda x, w: filtered(GRAPH, x, w), draw(N, inner), draw(inner, 256))
    stored = chosen(costs(matmul__flops=1), *args, moving="all").chosen.choices.stored
    assert bool(stored) == (inner == 32)


def test_equal_problems_have_one_plan():
    args = convolve(5, 3)
    one, two = problem(*args, moving="all"), problem(*args, moving="all")
    assert one == two
    with use(EVEN):
        assert plan(one) is plan(two)
        assert plan(one) is not plan(problem(*args))
    with use(MATMULS):
        assert plan(one).chosen.work == next(
            a.work for a in weigh(two) if a.choices == plan(one).chosen.choices
        )


def test_what_is_forced_wins():
    args = convolve(512, 16)
    with search.force(Choices(("aggregate-first",))):
        assert orders(chosen(TRAVERSALS, *args)) == ("aggregate-first",)
    assert orders(chosen(TRAVERSALS, *args)) == ("combine-first",)


def test_of_equals_what_the_user_wrote_wins():
    free = costs()
    assert orders(chosen(free, *convolve(512, 16), moving="all")) == ("aggregate-first",)


def test_an_operation_without_a_figure_runs_as_it_is_written():
    @gnnjit.layer
    def solve(v, e, w):
        return jnp.linalg.cholesky(gnnjit.sum(e.src) @ w * jnp.eye(3) + jnp.eye(3))[0]

    x, w = jnp.ones((N, 4)), jnp.ones((4, 1))
    found = chosen(TRAVERSALS, lambda x, w: solve(GRAPH, x, w), x, w)
    assert found.chosen.choices == AS_WRITTEN
    assert found.why.startswith("the cost model has no figure for cholesky")
    with use(TRAVERSALS):
        have = solve(GRAPH, x, w)
    with gnnjit.reference():
        np.testing.assert_allclose(have, solve(GRAPH, x, w), rtol=1e-5)


@pytest.fixture
def asked(monkeypatch):
    """The problems that are planned, nothing having been traced before."""
    jax.clear_caches()
    found: list[Problem] = []

    def seen(problem: Problem) -> Plan:
        found.append(problem)
        return plan(problem)

    monkeypatch.setattr(primitive, "plan", seen)
    return found


def loss(layer: Any) -> Callable[..., Any]:
    return lambda w, x: jnp.sum(jnp.sin(layer(GRAPH, x, w)))


@pytest.mark.parametrize(
    ("transform", "moving"),
    [
        (lambda f: jax.grad(jax.jit(f)), (True,)),
        (lambda f: jax.jit(jax.grad(f)), (True,)),
        (lambda f: jax.jit(jax.grad(f, (0, 1))), (True, True)),
        (lambda f: jax.vmap(jax.grad(f), (None, 0)), (True,)),
        (lambda f: jax.hessian(f), (True,)),
        (lambda f: jax.jit(f), None),
    ],
    ids=["grad of jit", "jit of grad", "both", "vmap of grad", "hessian", "inference"],
)
def test_a_transformation_says_what_moves(transform, moving, asked, request):
    batched = "vmap" in request.node.callspec.id
    layer = gnnjit.layer(combine)
    f = transform(loss(layer))
    w, x = draw(3, 2), draw(N, 3)
    xs = jnp.stack([x, 2 * x]) if batched else x
    have = f(w, xs)
    with gnnjit.reference():
        want = transform(loss(layer))(w, xs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), have, want)
    assert asked
    if moving is None:
        assert {p.differentiated for p in asked} == {None}
    else:
        assert {sum(p.differentiated) for p in asked if p.differentiated is not None} == {
            len(moving)
        }


LAYERS: dict[str, Callable[[nnx.Rngs], Any]] = {
    "gcn": lambda r: GCN(5, 3, rngs=r),
    "sage": lambda r: SAGE(5, 3, rngs=r),
    "sage sum": lambda r: SAGE(5, 3, aggregator="sum", rngs=r),
    "sage pool": lambda r: SAGE(5, 3, aggregator="pool", rngs=r),
    "gin": lambda r: GIN(5, 4, 3, train_eps=True, rngs=r),
    "gat 1": lambda r: GAT(5, 3, rngs=r),
    "gat 4": lambda r: GAT(5, 3, heads=4, rngs=r),
    "gated gcn": lambda r: GatedGCN(5, 3, rngs=r),
    "edge conv": lambda r: EdgeConv(5, 4, 3, rngs=r),
}


@pytest.mark.long
@pytest.mark.once
@pytest.mark.parametrize("graph", [GRAPH, FEW], ids=["many edges", "few edges"])
@pytest.mark.parametrize("name", LAYERS)
def test_every_alternative_has_the_same_value_and_gradients(name, graph):
    module = LAYERS[name](nnx.Rngs(0))
    definition, state = nnx.split(module)
    x = draw(graph.num_src, 5)

    def value(state: Any, x: Any) -> Any:
        out = nnx.merge(definition, state)(graph, x)
        return jnp.sum(jnp.sin(out)), out

    f = jax.value_and_grad(value, (0, 1), has_aux=True, allow_int=True)
    with gnnjit.reference():
        want = jax.tree.leaves(f(state, x))
    with use(EVEN):
        every = weigh(problem(module, graph, x, moving="all"))
    assert len(every) == len({a.choices for a in every})
    for alternative in every:
        with search.force(alternative.choices):
            have = jax.tree.leaves(f(state, x))
        for a, b in zip(have, want, strict=True):
            if jnp.issubdtype(a.dtype, jnp.floating):
                np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("name", "weighted"),
    [("gcn", True), *((n, False) for n in ("gcn", "sage", "sage sum", "gin", "gat 1", "gat 4"))],
)
def test_both_orders_are_tried(name, weighted):
    keywords = {"edges": jnp.ones(E)} if weighted else {}
    every = weigh(problem(LAYERS[name](nnx.Rngs(0)), GRAPH, draw(N, 5), **keywords), EVEN)
    assert {a.choices.orders for a in every} == {("aggregate-first",), ("combine-first",)}


@pytest.mark.parametrize("weighted", [False, True])
def test_the_own_term_of_a_convolution_shares_the_product(weighted):
    model = GCN(5, 3, rngs=nnx.Rngs(0))
    keywords = {"edges": jnp.ones(E)} if weighted else {}
    every = weigh(problem(model, GRAPH, draw(N, 5), **keywords), costs(matmul__count=1))
    assert {a.seconds for a in every} == {1.0}
