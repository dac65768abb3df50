"""Close plans are timed where that is asked for, and the fastest is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiler.cases import GRAPHS, features

import gnnjit
from gnnjit import config
from gnnjit.cost.current import use
from gnnjit.cost.kinds import INDEX, NAMES
from gnnjit.cost.model import CostModel
from gnnjit.planner import search, timings
from gnnjit.planner.candidate import Candidate

E = GRAPHS["hub"]
G, AT = E.graph(), features(E)
X, W = AT["dst"], AT["p"]["w"]


@gnnjit.layer
def combine(v, e, w):
    return gnnjit.mean(e.src) @ w


@pytest.fixture(autouse=True)
def model() -> Iterator[None]:
    """A cost model to which the orders are nearly the same; traversals of few features are a
    little cheaper, so it wants the sum first (3 features, not 4)."""
    weights = np.full(len(NAMES), 1e-12)
    weights[INDEX["call", "calls"]] = 1e-3
    weights[INDEX["traversal", "vectors"]] = 1e-7
    search._plan.cache_clear()
    with use(CostModel(weights, "for tests")):
        yield
    search._plan.cache_clear()


@pytest.fixture(autouse=True)
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "gnnjit" / "plans.json"


class Clock:
    """In place of `measured`: the times that it is told, and what it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *times: float | None):
        self.times, self.asked = times, []
        monkeypatch.setattr(timings, "measured", self)

    def __call__(self, candidates: Sequence[Candidate]) -> list[float | None]:
        self.asked.append(candidates)
        return list(self.times[: len(candidates)])


def order(**keywords: Any) -> str:
    """What is chosen for inference, anew."""
    search._plan.cache_clear()
    (plan,) = combine.explain(G, X, W, backward=False, **keywords).plans
    (chosen,) = plan.chosen.choices.orders
    return chosen or "as written"


def test_the_clock_decides_once_and_for_all(monkeypatch, table):
    predicted = order()
    clock = Clock(monkeypatch, 2e-3, 1e-3)
    with gnnjit.autotuning():
        tuned = order()
        again = order()
    assert {predicted, tuned} == {"aggregate-first", "combine-first"}
    assert tuned == again == order()
    assert len(clock.asked) == 1
    (entry,) = json.loads(table.read_text())["plans"].values()
    assert sorted(entry.values()) == [[1e-3], [2e-3]]


def test_in_several_stretches_the_median_counts(monkeypatch, table):
    """In the first the machine is disturbed, and the second takes twice as long as a whole."""
    clock = Clock(monkeypatch, 1e-3, 1.1e-3)
    found = []
    for stretch, times in enumerate([(1e-3, 1.1e-3), (2.2e-3, 2e-3), (1.1e-3, 1e-3), (9.0, 1.0)]):
        clock.times = times
        with gnnjit.autotuning(stretches=3):
            found.append(order())
        assert len(clock.asked) == min(stretch + 1, 3)
    first, _, third, fourth = found
    assert first != third == fourth == order()
    (entry,) = json.loads(table.read_text())["plans"].values()
    assert list(entry.values()) == [[1e-3, 2.2e-3, 1.1e-3], [1.1e-3, 2e-3, 1e-3]]


def test_a_table_may_vanish_while_plans_are_timed_again(monkeypatch, table):
    clock = Clock(monkeypatch, 1e-3, 1.1e-3)
    with gnnjit.autotuning(stretches=2):
        order()

        def removed(candidates: Sequence[Candidate]) -> list[float | None]:
            table.unlink()
            return clock(candidates)

        monkeypatch.setattr(timings, "measured", removed)
        order()
    (entry,) = json.loads(table.read_text())["plans"].values()
    assert sorted(entry.values()) == [[1e-3], [1.1e-3]]


def test_only_near_plans_are_timed_again(monkeypatch, table):
    clock = Clock(monkeypatch, 1e-3, 1.3e-3)
    with gnnjit.autotuning(stretches=3):
        assert order() == order()
    assert len(clock.asked) == 1
    assert timings.NEAR < 1.3


def test_times_of_stretches_are_compared_within_them(table):
    """What was measured in the second, which took three times as long, and what was not."""
    timings.TIMES.store("k", {"a": (1.0, 3.0), "b": (1.1, 3.3), "c": (2.0, None)})
    assert timings.known("k") == pytest.approx({"a": 1.0, "b": 1.1, "c": 2.0})
    timings.TIMES.store("k", {"a": (1.0, 3.0, 2.0), "b": (1.5, 3.0, 2.0)})
    known = timings.known("k")
    assert known["a"] == pytest.approx(known["b"])


def test_what_explain_learns_decides_over_all_stretches(monkeypatch, table):
    clock = Clock(monkeypatch, 1e-3, 1.1e-3)
    with gnnjit.autotuning(stretches=2):
        tuned = order()
    monkeypatch.setattr("gnnjit.compiler.explain_plans.compare", lambda runs, arrays: [5e-3, 4e-3])
    order(measure=True, learn=True)
    for _ in range(2):
        with gnnjit.autotuning(stretches=3):
            assert order() != tuned
    assert len(clock.asked) == 1
    made_up, own = json.loads(table.read_text())["plans"].values()
    assert sorted(made_up.values()) == [[1e-3], [1.1e-3]]
    assert sorted(own.values()) == [[4e-3], [5e-3]]


def test_stretches_are_counted_from_one():
    with pytest.raises(ValueError, match=r"autotuning: stretches=0, expected 1 or more"):
        with gnnjit.autotuning(stretches=0):
            pass


def test_the_environment_says_how_many():
    assert [config.number(flag) for flag in ("", "0", "1", "3", "yes")] == [0, 0, 1, 3, 1]


def test_the_environment_counts_where_nothing_else_is_said(monkeypatch):
    clock = Clock(monkeypatch, 1e-3, 1.1e-3)
    monkeypatch.setattr(config, "AUTOTUNE", 2)
    for _ in range(3):
        order()
    assert len(clock.asked) == 2


def test_nothing_is_timed_unless_asked(monkeypatch, table):
    clock = Clock(monkeypatch, 2e-3, 1e-3)
    order()
    assert clock.asked == []
    assert not table.exists()


def test_of_equals_the_prediction_decides(monkeypatch):
    predicted = order()
    Clock(monkeypatch, 1e-3, 1e-3)
    with gnnjit.autotuning():
        assert order() == predicted


def test_alternatives_that_are_far_are_not_timed(monkeypatch):
    clock = Clock(monkeypatch, 2e-3, 1e-3)
    monkeypatch.setattr(timings, "CLOSE", 1.0)
    with gnnjit.autotuning():
        order()
    assert clock.asked == []


@pytest.mark.parametrize("times", [(None, 1e-3), (None, None)])
def test_what_did_not_run_is_not_chosen_over(monkeypatch, times):
    """Without a time of what is predicted, there is nothing to compare with."""
    predicted = order()
    Clock(monkeypatch, *times)
    with gnnjit.autotuning():
        assert order() == predicted


def test_other_graphs_and_directions_have_their_own(monkeypatch):
    clock = Clock(monkeypatch, 2e-3, 1e-3)
    alike, larger = (gnnjit.Graph.from_edges([0] * m, [0] * m, num_nodes=40) for m in (200, 300))
    x = jnp.ones((40, 3))
    counts = []
    with gnnjit.autotuning():
        for graph in (alike, larger):
            jax.eval_shape(jax.jit(combine), graph, x, W)  # traced only: nothing is planned
            jax.jit(combine).lower(graph, x, W)
            counts.append(len(clock.asked))
            jax.jit(jax.grad(lambda x, g=graph: combine(g, x, W).sum())).lower(x)
            counts.append(len(clock.asked))
        near = gnnjit.Graph.from_edges([0] * 201, [0] * 201, num_nodes=40)
        jax.jit(combine).lower(near, x, W)
    assert counts == [1, 2, 3, 4]
    assert len(clock.asked) == 4


def test_under_a_budget_the_prediction_decides(monkeypatch):
    clock = Clock(monkeypatch, 2e-3, 1e-3)
    predicted = order()
    with gnnjit.autotuning(), gnnjit.memory_budget("1GiB"):
        assert order() == predicted
    assert clock.asked == []


def test_all_processes_run_the_same(monkeypatch):
    predicted = order()
    clock = Clock(monkeypatch, 2e-3, 1e-3)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with gnnjit.autotuning():
        assert order() == predicted
    assert clock.asked == []


def test_explained(monkeypatch):
    Clock(monkeypatch, 2e-3, 1e-3)
    with gnnjit.autotuning():
        (plan,) = combine.explain(G, X, W, backward=False).plans
    table = str(plan).splitlines()
    assert table[0].split() == ["predicted", "measured", "choices"]
    assert table[2].startswith("*")
    assert "1.00 ms" in table[2]
    assert "chosen by stored times; see gnnjit.autotuning()" in table
    assert plan.by_clock


def test_explain_learns_from_the_users_own_arrays(monkeypatch):
    predicted = order()
    monkeypatch.setattr("gnnjit.compiler.explain_plans.compare", lambda runs, arrays: [2e-3, 1e-3])
    order(measure=True, learn=True)
    assert order() != predicted


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"format": 7, "plans": {}}',
        '{"format": 1, "plans": {"a": {"b": 1.0}}}',
        '{"format": 2, "plans": {"a": {"b": "soon"}}}',
        '{"format": 2, "plans": {"a": {"b": 1.0}}}',
        '{"format": 2, "plans": {"a": {"b": [-1.0]}}}',
        '{"format": 2, "plans": {"a": {"b": [null, 1.0]}}}',
        '{"format": 2, "plans": {"a": {"b": []}}}',
        '{"format": 2, "plans": {"a": {"b": [1.0, 1.0], "c": [1.0]}}}',
        '{"format": 2, "plans": {"a": [1.0]}}',
    ],
)
def test_a_damaged_or_foreign_file_is_ignored_and_replaced(monkeypatch, table, text):
    predicted = order()
    table.parent.mkdir(parents=True, exist_ok=True)
    table.write_text(text)
    with pytest.warns(UserWarning, match=r"plans\.json: not a table of gnnjit's plans"):
        assert order() == predicted
    Clock(monkeypatch, 2e-3, 1e-3)
    with gnnjit.autotuning():
        assert order() != predicted
    assert len(json.loads(table.read_text())["plans"]) == 1


# ------------------------------------------------------------------------ with the real clock


def tuned(fn: Any, *args: Any) -> Any:
    with gnnjit.autotuning():
        return jax.jit(fn)(*args)


def close(a: Any, b: Any) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def loss(graph: gnnjit.Graph, x: Any, w: Any) -> Any:
    return jnp.sum(combine(graph, x, w) ** 2)


def test_tuned_while_it_is_traced(table):
    """In a gradient, in a scan, under jit; the values stay."""
    both = jax.value_and_grad(loss, argnums=(1, 2))
    close(tuned(both, G, X, W), both(G, X, W))

    def steps(x):
        return jax.lax.scan(lambda x, _: (combine(G, x, W)[:, :3], None), x, length=2)[0]

    close(tuned(steps, X), steps(X))
    found = json.loads(table.read_text())["plans"].values()
    assert len(found) == 2
    assert all(len(times) == 2 for times in found)


def test_padded_bipartite_and_random(table):
    padded = gnnjit.Graph.from_edges(
        [0, 1, 2], [1, 2, 0], num_nodes=3, edge_mask=[True, True, False]
    )
    close(tuned(combine, padded, jnp.eye(3), W), combine(padded, jnp.eye(3), W))
    two = gnnjit.Graph.from_edges([0, 1, 4], [1, 2, 0], num_src=5, num_dst=3)
    x = gnnjit.Bipartite(jnp.arange(15.0).reshape(5, 3), None)
    close(tuned(combine, two, x, W), combine(two, x, W))

    @gnnjit.layer
    def dropped(v, e, p):
        return gnnjit.sum(gnnjit.dropout(e.src, 0.5, p["key"])) @ p["w"]

    p = {"key": jax.random.key(3), "w": W}
    close(tuned(dropped, G, X, p), dropped(G, X, p))
    assert len(json.loads(table.read_text())["plans"]) == 3


def test_a_plan_that_does_not_fit_has_no_time(monkeypatch):
    real, made = timings.compiled, []

    def compiled(candidate: Candidate) -> Any:
        made.append(candidate)
        if len(made) == 1:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")
        return real(candidate)

    monkeypatch.setattr(timings, "compiled", compiled)
    with gnnjit.autotuning():
        (plan,) = combine.explain(G, X, W, backward=False).plans
    assert [a.measured is None for a in plan.alternatives] == [True, False]
