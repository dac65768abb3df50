"""`explain` says what was done; `check` finds a wrong pass, and names it and the array."""

from __future__ import annotations

import dataclasses
import sys
from html.parser import HTMLParser
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit.errors import CheckError, LayerError
from gnnjit.ir.program import Program, Reduce, rewrite
from gnnjit.passes import pipeline
from gnnjit.planner import programs, search

from .cases import CASES, GRAPHS, features, layer_of

E = GRAPHS["hub"]
G, AT = E.graph(), features(E)
X, P, DATA = AT["dst"], AT["p"], AT["data"]
LAYER = layer_of(CASES["gat_concat"].fn)


def test_sections():
    found = LAYER.explain(G, X, P)
    titles = [title for title, _ in found.sections()]
    assert titles[0] == "as written"
    assert titles[-2:] == ["buffers", "kernels"]
    assert "after split-concat-matmul" in titles
    assert "after fuse-scatter-apply-gather" in titles
    text = str(found)
    assert text.startswith("gat_concat (cases.py:")
    assert repr(G) in text
    assert all(f"--- {title}" in text for title in titles)


def test_steps_follow_each_other():
    found = LAYER.explain(G, X, P)
    assert found.steps[-1].after == found.program
    for one, two in zip(found.steps, found.steps[1:], strict=False):
        assert one.after == two.before
    assert all(s.before != s.after for s in found.steps)


def test_no_matmul_of_features_is_left_on_the_edges():
    found = LAYER.explain(G, X, P)
    assert "f32[edge, 4] = " in found.written
    assert " @ " not in "".join(k.traversal for k in layer_of(CASES["gat"].fn)
                                .explain(G, X, P, backward=False).kernels)  # fmt: skip


def test_kernels_both_ways_with_reasons():
    kernels = LAYER.explain(G, X, P).kernels
    assert {k.direction for k in kernels} == {"forward", "backward"}
    assert all(k.kernel in ("cpu", "csr", "bucketed", "segment") for k in kernels)
    assert all(reasons for k in kernels for _, reasons in k.refused)
    only = LAYER.explain(G, X, P, backward=False).kernels
    assert {k.direction for k in only} == {"forward"}


def test_buffers_have_the_sizes_of_their_spaces():
    layer = gnnjit.layer(lambda v, e, w: gnnjit.sum(jnp.tanh(e.src @ w)))
    buffers = layer.explain(G, X, P["w"]).buffers
    assert {b.shape for b in buffers} == {(E.num_src, 4), (E.num_dst, 4)}
    assert all(b.bytes == E.num_dst * 4 * 4 for b in buffers)


def test_html_is_balanced_and_escaped():
    class Balance(HTMLParser):
        open: list[str] = []  # noqa: RUF012

        def handle_starttag(self, tag: str, attrs: Any) -> None:
            self.open = [*self.open, tag]

        def handle_endtag(self, tag: str) -> None:
            assert self.open[-1] == tag
            self.open = self.open[:-1]

    found = LAYER.explain(G, X, P)
    page, balance = found._repr_html_(), Balance()
    balance.feed(page)
    assert balance.open == []
    assert "(u -&gt; v)" in page
    assert page.count("<details") == len(found.sections())
    assert page.count("<details open") == 6  # as written, two plans, last pass, buffers, kernels


def test_a_function_of_several_layers():
    first = gnnjit.layer(lambda v, e: gnnjit.mean(e.src))
    second = gnnjit.layer(lambda v, e: gnnjit.max(e.src))
    found = gnnjit.explain(lambda x: second(G, first(G, x)), X)
    assert len(found) == 2
    assert "max over" in found[1].written
    assert found._repr_html_().count("<hr>") == 1
    assert all(r.ok for r in gnnjit.check(lambda x: second(G, first(G, x)), X))


@pytest.mark.parametrize("what", ["explain", "check"])
def test_a_call_without_layers(what):
    with pytest.raises(LayerError, match=f"{what}: the call ran no layer"):
        getattr(gnnjit, what)(jnp.sin, X)


@pytest.mark.parametrize("name", ["graph_net", "several"])
def test_check_agrees(name):
    report = layer_of(CASES[name].fn).check(G, X, P, edges=DATA)
    assert report.ok
    assert report.first_wrong_pass is None
    assert [d.what for d in report.differences if d.what.startswith("output")] == [
        f"output {i}" for i in range(len(CASES[name].kinds))
    ]
    assert any(d.what == "gradient of v" for d in report.differences)
    assert "equal" in str(report)


@dataclasses.dataclass(frozen=True)
class MaximaAreMinima:
    """A wrong pass."""

    name: str = "maxima-are-minima"

    def __call__(self, program: Program) -> Program:
        def rule(builder: Any, eqn: Any) -> bool:
            if not isinstance(eqn.op, Reduce) or eqn.op.kind != "max":
                return False
            wrong = Reduce("min", eqn.op.into)
            builder.emit(wrong, [builder[a] for a in eqn.inputs], eqn.outputs, eqn.location)
            return True

        return rewrite(program, rule)


@pytest.fixture
def wrong_pass(monkeypatch):
    def with_it(passes: Any) -> Any:
        def wrong(*args: Any) -> Any:
            right = passes(*args)
            return (*right[:3], MaximaAreMinima(), *right[3:])

        return wrong

    monkeypatch.setattr(programs, "layer_prefix", with_it(pipeline.layer_prefix))
    for name in ("check", "explain"):  # `gnnjit.check` is also a function
        module = sys.modules[f"gnnjit.compiler.{name}"]
        monkeypatch.setattr(module, "layer_passes", with_it(pipeline.layer_passes))
    forget_plans()
    yield
    forget_plans()


def forget_plans() -> None:
    cached = (programs.prefix, programs._middle, programs._optimised, programs._weighed,
              search._options, search._plan)  # fmt: skip
    for function in cached:
        function.cache_clear()
    jax.clear_caches()


@pytest.mark.usefixtures("wrong_pass")
def test_check_blames_the_wrong_pass_and_names_the_array():
    layer = gnnjit.layer(lambda v, e, w: (gnnjit.sum(e.src), gnnjit.max(e.src @ w)))
    with pytest.raises(CheckError) as caught:
        layer.check(G, X, P["w"])
    text = str(caught.value)
    assert "output 0: equal" in text
    assert "output 1: DIFFERS" in text
    assert "gradient of w: DIFFERS" in text
    assert text.endswith("first wrong after: maxima-are-minima")


@pytest.mark.usefixtures("wrong_pass")
def test_explain_shows_the_wrong_pass():
    layer = gnnjit.layer(lambda v, e: gnnjit.max(e.src))
    steps = layer.explain(G, X, backward=False).steps
    (step,) = [s for s in steps if s.name == "maxima-are-minima"]
    assert "max over" in step.before
    assert "min over" in step.after


OF_EXPLAIN = {
    "wrt": (np.ones(2), 'explain: wrt is ndarray of shape (2,), expected "all" or "params"'),
    "backward": ("no", "explain: backward is 'no', expected True or False"),
    "measure": (1, "explain: measure is 1, expected True or False"),
    "learn": (None, "explain: learn is None, expected True or False"),
}
OF_CHECK = {
    "rtol": ("small", "check: rtol is 'small', expected a number, 0 or more"),
    "seed": (-1, "check: seed is -1, expected a whole number, 0 or more"),
}


@pytest.mark.parametrize("option", [*OF_EXPLAIN, *OF_CHECK])
def test_options_that_mean_nothing(option):
    layer = gnnjit.layer(lambda v, e: gnnjit.sum(e.src))
    tool = layer.explain if option in OF_EXPLAIN else layer.check
    value, message = (OF_EXPLAIN | OF_CHECK)[option]
    graph = gnnjit.Graph.from_edges([0, 1], [1, 1])
    with pytest.raises(LayerError) as error:
        tool(graph, jnp.ones((2, 3)), **{option: value})
    assert str(error.value) == message


def test_inside_jit_there_is_nothing_to_compare_or_measure():
    layer = gnnjit.layer(lambda v, e: gnnjit.sum(e.src))
    graph, x = gnnjit.Graph.from_edges([0, 1], [1, 1]), jnp.ones((2, 3))
    with pytest.raises(LayerError, match=r"check compares numbers, and the call is only traced"):
        jax.jit(lambda: len(str(layer.check(graph, x))))()
    with pytest.raises(LayerError, match=r"needs to run the layer, and it is only traced here"):
        jax.jit(lambda: len(str(layer.explain(graph, x, measure=True))))()
