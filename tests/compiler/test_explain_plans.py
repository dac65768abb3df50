"""`explain` shows what the planner weighed, and times it when asked."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit.compiler import explain_plans, plan_tables
from gnnjit.compiler.explain import Explanation
from gnnjit.compiler.plan_tables import SHOWN, duration, in_words
from gnnjit.cost.current import current, forget, use
from gnnjit.cost.defaults import default_model
from gnnjit.cost.kinds import INDEX, NAMES
from gnnjit.cost.learn import learn_points
from gnnjit.cost.model import CostModel, Work
from gnnjit.cost.store import Key, load
from gnnjit.errors import CostError, LayerError, PlanError
from gnnjit.ir.space import Space
from gnnjit.passes.pipeline import Choices
from gnnjit.planner import search

from .cases import GRAPHS, features

E = GRAPHS["hub"]
G, AT = E.graph(), features(E)
X, P, DATA = AT["dst"], AT["p"], AT["data"]


def model_of(source: str = "for tests", **weights: float) -> CostModel:
    """A cost model in which all weighs 1 ns, and `kind_feature` what is given."""
    vector = np.full(len(NAMES), 1e-9)
    for name, weight in weights.items():
        kind, feature = name.split("__")
        vector[INDEX[kind, feature]] = weight
    return CostModel(vector, source)


@pytest.fixture(autouse=True)
def model():
    with use(model_of()) as used:
        yield used


@pytest.fixture
def clock(monkeypatch):
    """Times without a clock: every alternative is run once, the first takes 1 ms, and so on."""
    found = []

    def compare(runs, arrays):
        first = len(found) + 1
        found.extend(run(*arrays) for run in runs)
        return [1e-3 * n for n in range(first, len(found) + 1)]

    monkeypatch.setattr(explain_plans, "compare", compare)
    return found


@gnnjit.layer
def gcn(v, e, w):
    return gnnjit.sum(e.src) @ w


@gnnjit.layer
def edge_network(v, e, p):
    return gnnjit.sum(jnp.tanh(jnp.tanh(e.src + v) @ p["w"]))


def test_both_directions_and_the_order_of_a_matrix():
    inference, training = gcn.explain(G, X, P["w"]).plans
    assert (inference.direction, inference.wrt) == ("inference", None)
    assert (training.direction, training.wrt) == ("training", "all")
    line = gcn.__wrapped__.__code__.co_firstlineno + 2
    for plan in (inference, training):
        assert {a.words for a in plan.alternatives} == {
            (f"w f32[3, 4] (test_explain_plans.py:{line}): {order}",)
            for order in ("aggregate-first", "combine-first")
        }
        predicted = [a.predicted for a in plan.alternatives]
        assert predicted == sorted(predicted)
        assert plan.chosen is plan.alternatives[0]
        assert all(a.measured is None for a in plan.alternatives)
        assert sum(plan.by_kind.values()) == pytest.approx(plan.chosen.predicted)


def test_without_backward_there_is_one_plan():
    (plan,) = gcn.explain(G, X, P["w"], backward=False).plans
    assert plan.direction == "inference"


def test_wrt_says_which_inputs_move():
    """With the matrix first, x @ w is multiplied again only where x has a gradient."""
    everything = gcn.explain(G, X, P["w"], wrt="all").plans[1]
    params = gcn.explain(G, X, P["w"], wrt="params").plans[1]
    assert "gradients of all inputs" in everything.title
    assert "gradients of the parameters" in params.title
    assert params.chosen.predicted < everything.chosen.predicted


def test_wrt_must_be_known():
    with pytest.raises(LayerError, match='wrt is \'weights\', expected "all" or "params"'):
        gcn.explain(G, X, P["w"], wrt="weights")


def test_nothing_to_differentiate():
    layer = gnnjit.layer(lambda v, e: gnnjit.sum(e.src))
    found = layer.explain(G, jnp.arange(E.num_dst))
    assert [p.direction for p in found.plans] == ["inference"]
    assert "nothing to choose" in str(found.plans[0])


@contextlib.contextmanager
def storing():
    """Products on the edges are all that costs, and there is a budget to store them in."""
    weights = np.zeros(len(NAMES))
    weights[INDEX["traversal", "products"]] = 1e-9
    with use(CostModel(weights)), gnnjit.memory_budget("1GiB"):
        yield


def test_stored_values():
    with storing():
        inference, training = edge_network.explain(G, X, P).plans
    assert [a.words for a in inference.alternatives] == [()]
    stored = ("stores matmul with p.w: f32[edge, 4]",)
    assert {a.words for a in training.alternatives} == {(), stored}
    assert "as written" in training.table()
    assert stored[0] in training.table()


def test_scores_in_words():
    @gnnjit.layer
    def attention(v, e, w, a):
        z = (e.src @ w).reshape(2, 2)
        return gnnjit.sum(gnnjit.softmax((jnp.tanh(z) * a).sum(-1))[:, None] * z)

    (plan,) = attention.explain(G, X, P["w"], P["k"][:2, :2], backward=False).plans
    assert {w for a in plan.alternatives for w in a.words} >= {
        "scores as sums",
        "scores as products",
    }


def test_words_of_choices_that_are_seldom_made():
    choices = Choices(split=True, limit=65536, on_edges=frozenset([Space.DST, Space.SRC]))
    (plan,) = edge_network.explain(G, X, P, backward=False).plans
    assert in_words(plan.program, False, choices) == (
        "one traversal for each reduction",
        "work of sources and destinations on the edges",
        "edges in chunks of 65,536 numbers",
    )


def test_what_runs_is_marked_and_shown():
    """The steps are those of the plan for inference, the program what the planner chose."""
    slow = model_of(traversal__vectors=1.0, traversal__lines=1.0)
    fast = model_of(matmul__flops=1.0)
    texts = []
    for weights in (slow, fast):
        with use(weights):
            found = gcn.explain(G, X[:, :2], P["w"][:2])
        (plan, _) = found.plans
        texts.append(plan.chosen.words[0].split(": ")[-1])
        lines = str(plan).splitlines()
        assert lines[1].startswith("*")
        assert plan.chosen.words[0] in lines[1]
        names = [s.name for s in found.steps]
        assert ("reorder-aggregate-combine" in names) == (texts[-1] == "combine-first")
        assert found.steps[-1].after == found.program
    assert texts[0] == "aggregate-first"


def test_the_model_is_named():
    text = str(gcn.explain(G, X, P["w"]))
    assert "--- plan for inference\n" in text
    assert "--- plan for training, gradients of all inputs\n" in text
    assert "cost model: for tests" in text
    assert "the one that runs, predicted: " in text


@pytest.mark.parametrize(("others", "said"), [(8.0, True), (10.0, False)])
def test_much_new_memory_is_pointed_out(others, said):
    plan = gcn.explain(G, X, P["w"]).plans[0]
    plan = dataclasses.replace(plan, by_kind={"memory": 1.0, "traversal": others})
    line = "\nmemory: asked of the system anew in every call; see gnnjit.keep_memory()\n"
    assert (line in str(plan)) == said


def test_weights_of_zero():
    with use(CostModel(np.zeros(len(NAMES)), "zeros")):
        text = str(gcn.explain(G, X, P["w"]).plans[0])
    assert "0 us" in text


def test_html():
    plan = edge_network.explain(G, X, P).plans[1]
    assert plan._repr_html_().startswith("<b>plan for training, gradients of all inputs</b><pre>")
    page = edge_network.explain(G, X, P)._repr_html_()
    assert "<details open><summary>plan for inference</summary>" in page


def test_an_operation_without_a_figure():
    layer = gnnjit.layer(lambda v, e: gnnjit.sum(jax.lax.top_k(e.src, 1)[0]))
    (plan,) = layer.explain(G, X, backward=False).plans
    assert plan.why
    assert "nothing is predicted: the cost model has no figure for" in str(plan)
    assert plan.by_kind == {}


def test_measured(clock):
    plans = gcn.explain(G, X, P["w"], measure=True).plans
    times = [a.measured for plan in plans for a in plan.alternatives]
    assert times == pytest.approx([1e-3, 2e-3, 3e-3, 4e-3])
    table = str(plans[0])
    assert "measured" in table.splitlines()[0]
    assert "2.00 ms" in table


def test_measured_alternatives_agree(clock):
    """All compute the same values and gradients, each with its own choices. As in training, the
    gradients need the results: those of half the sum of their squares."""
    with storing():
        edge_network.explain(G, X, P, measure=True)
    first, second = clock[1], clock[2]
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    expected = jax.grad(lambda p: jnp.sum(edge_network(G, X, p) ** 2) / 2)(P)["w"]
    gradients = [x for x in jax.tree.leaves(first) if x.shape == expected.shape]
    assert any(np.allclose(g, expected, rtol=1e-5) for g in gradients)


def test_outputs_that_are_no_numbers_to_differentiate(clock):
    layer = gnnjit.layer(lambda v, e, w: (gnnjit.degree(), gnnjit.sum(e.src @ w)))
    plans = layer.explain(G, X, P["w"], measure=True).plans
    assert all(a.measured for plan in plans for a in plan.alternatives)


def test_the_same_array_twice_is_one(clock):
    """`v` and `e.src` are one array, for the plan and for what is measured."""
    layer = gnnjit.layer(lambda v, e, w: v @ w + gnnjit.sum(e.src @ w))
    layer.explain(G, X, P["w"], measure=True)
    gradients = clock[-1][2][0]
    assert len(gradients) == 2


def test_many_alternatives_are_cut(clock, monkeypatch):
    monkeypatch.setattr(plan_tables, "SHOWN", 1)
    (plan,) = gcn.explain(G, X, P["w"], measure=True, backward=False).plans
    assert [a.measured is None for a in plan.alternatives] == [False, True]
    assert "and 1 that are slower" in str(plan)
    assert SHOWN == search.EXHAUSTIVE


def test_a_function_of_several_layers_is_measured(clock):
    found = gnnjit.explain(lambda x: gcn(G, gcn(G, x, P["w"]), P["k"]), X, measure=True)
    assert isinstance(found, Explanation)
    assert len(found) == 2
    assert all(a.measured for one in found.layers for a in one.plans[0].alternatives)


def test_traced_arguments_cannot_be_measured():
    def traced(x):
        gcn.explain(G, x, P["w"], measure=True)
        return x

    with pytest.raises(LayerError, match=r"gcn: explain\(measure=True\) needs to run the"):
        jax.jit(traced)(X)


def test_a_compiled_function_cannot_be_measured():
    with pytest.raises(LayerError, match=r"not compiled by jax\.jit itself"):
        gnnjit.explain(jax.jit(lambda x: gcn(G, x, P["w"])), X, measure=True)


def test_traced_arguments_are_explained():
    found = []
    jax.jit(lambda x: (found.append(gcn.explain(G, x, P["w"])), x)[1])(X)
    assert [p.direction for p in found[0].plans] == ["inference", "training"]


def test_learning_needs_measures():
    with pytest.raises(LayerError, match="give both"):
        gcn.explain(G, X, P["w"], learn=True)


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget()
    yield lambda: load(Key.here())
    forget()


def test_what_was_measured_is_learned(stored, clock):
    before = current("cpu")
    gcn.explain(G, X, P["w"], measure=True, learn=True)
    assert stored().learner.points == 4
    gcn.explain(G, X, P["w"], measure=True, learn=True)
    assert stored().learner.points == 8
    assert current("cpu") is before, "a running program keeps its model"


def test_a_new_process_uses_what_was_learned(stored):
    work = Work.of("traversal", vectors=1e6)
    before = default_model("cpu").seconds(work)
    learn_points([(work, 2 * before)] * 50, "cpu")
    kept = stored()
    assert kept.model.seconds(work) == pytest.approx(2 * before, rel=0.05)
    assert kept.error < 0.05
    forget()
    with use(None):  # type: ignore[arg-type]
        assert current("cpu") == kept.model
        assert current("cpu").source.startswith("calibrated: ")


def test_few_points_do_not_overturn_the_shipped_weights(stored):
    shipped = default_model("cpu")
    work = Work.of("matmul", count=1, flops=1e6)
    learn_points([(work, 1e-3)], "cpu")
    others = [i for (kind, _), i in INDEX.items() if kind != "matmul"]
    np.testing.assert_allclose(stored().model.weights[others], shipped.weights[others], rtol=1e-6)


def test_nothing_to_learn(stored):
    assert learn_points([], "cpu") is None
    assert stored() is None
    with pytest.raises(CostError, match="without any work"):
        learn_points([(Work(), 1.0)], "cpu")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 us"), (1.234e-6, "1.23 us"), (0.0123, "12.3 ms"), (0.5, "500 ms"), (2, "2.00 s")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_peak_is_shown_where_it_is_known():
    (plan,) = gcn.explain(G, X, P["w"], backward=False).plans
    known = [dataclasses.replace(a, peak=2048.0) for a in plan.alternatives]
    table = dataclasses.replace(plan, alternatives=tuple(known)).table()
    assert "2.0 KiB" in table


def test_under_a_budget():
    with gnnjit.memory_budget("1GiB"):
        plan = edge_network.explain(G, X, P).plans[1]
    assert plan.chosen.peak is not None
    assert 0 < plan.chosen.peak < 1 << 30
    assert "peak" in plan.table().splitlines()[0]


def test_a_budget_that_is_too_small():
    with gnnjit.memory_budget(100), pytest.raises(PlanError, match="edge_network: no plan fits"):
        edge_network.explain(G, X, P)
