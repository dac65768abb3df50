"""The passes together: every program keeps its meaning after each of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from compiler.cases import CASES, F
from hypothesis import given, settings
from ir.layers import trace, value
from strategies import expressions

import gnnjit
from gnnjit.errors import VerifyError
from gnnjit.ir.program import Lax, Program
from gnnjit.ir.space import Space
from gnnjit.passes import pipeline
from gnnjit.passes.scores_as_products import ScoresAsProducts

from .golden import same

PARAMETERS = {"w": (F, 4), "u": (F, 4), "c": (3 * F, 4), "k": (4, 4), "a": (4,), "b": (2, 3, F)}
INPUTS = [value("x", Space.SRC, F), value("y", Space.DST, F), value("d", Space.EDGE, F),
          *(value(k, Space.SHARED, *s) for k, s in PARAMETERS.items())]  # fmt: skip


class Edge:
    def __init__(self, src: Any, dst: Any, data: Any):
        self.src, self.dst, self.data = src, dst, data


def written(fn: Any) -> Program:
    def f(x: Any, y: Any, d: Any, *params: Any) -> Any:
        return fn(gnnjit, y, Edge(x, y, d), dict(zip(PARAMETERS, params, strict=True)))

    return trace(f, INPUTS, edge_values=True)


def after_each(program: Program) -> list[tuple[str, Program, Program]]:
    steps: list[tuple[str, Program, Program]] = []
    pipeline.run(program, pipeline.default_passes(), [lambda s, a, b: steps.append((s.name, a, b))])
    return steps


@pytest.mark.parametrize(
    "name",
    [
        "initials",
        "moments",
        "gat_concat",
        "heads",
        "graph_net",
        "pna",
        "factors",
        "loop",
        "degrees",
    ],
)
def test_each_pass_keeps_the_meaning(name):
    program = written(CASES[name].fn)
    for _, before, after in after_each(program):
        if before != after:
            same(program, after, 1e-3, ["padding"])


@given(expressions())
@settings(max_examples=12)
def test_generated_functions_keep_their_meaning(fn):
    def layer(g: Any, v: Any, e: Any, p: Any) -> Any:
        return g.sum(jnp.tanh(fn(g, v, e, p)) * e.data)

    program = written(layer)
    same(program, after_each(program)[-1][2], 1e-3, ["padding"])


def test_attention_over_a_concatenation_has_no_matmul_of_features_on_the_edges():
    def gat(g: Any, v: Any, e: Any, p: Any) -> Any:
        score = jax.nn.leaky_relu(jnp.concatenate([e.src, e.dst]) @ p["c"][: 2 * F] @ p["a"], 0.2)
        return g.sum(g.softmax(score) * (e.src @ p["w"]))

    def edge_matmuls(program: Program) -> list[Any]:
        found = []
        for eqn in program.equations:
            for inner in getattr(getattr(eqn.op, "body", None), "equations", [eqn]):
                if isinstance(inner.op, Lax) and inner.op.name == "dot_general":
                    found += [inner] * (inner.space is Space.EDGE)
        return found

    program = written(gat)
    assert edge_matmuls(program)
    assert edge_matmuls(after_each(program)[-1][2]) == []


def test_observers_see_every_step_and_the_verifier_runs():
    program = written(CASES["gat"].fn)
    assert [s[0] for s in after_each(program)] == [p.name for p in pipeline.default_passes()]

    class Broken:
        name = "broken"

        def __call__(self, program: Program) -> Program:
            equations = program.equations[::-1]
            return Program(program.inputs, equations, program.outputs, program.name)

    with pytest.raises(VerifyError):
        pipeline.run(program, [Broken()])


ASKED = pipeline.Choices(
    orders=("aggregate-first",), products=True, stored=(0,), split=True,
    on_edges=frozenset({Space.SRC, Space.DST}),
)  # fmt: skip


def test_what_a_planner_may_ask_for_is_off():
    usual = [p.name for p in pipeline.default_passes()]
    asked = [p.name for p in pipeline.default_passes(ASKED)]
    extra = ["reorder-aggregate-combine", "sink-vertex-work", "store-edge-values"]
    assert not set(extra) & set(usual)
    assert [n for n in asked if n not in extra] == usual
    always = ["scale-outer-factors", "scores-as-products", "share-subexpressions", "drop-dead"]
    middle = [extra[0], *always, *extra[1:], "sink-into-sequences", "online-softmax"]
    at = asked.index(extra[0])
    assert asked[at : at + len(middle)] == middle


def test_scores_of_several_heads_are_products_only_when_asked():
    def heads(choices: pipeline.Choices) -> int:
        passes = pipeline.default_passes(choices)
        return next(p.most for p in passes if isinstance(p, ScoresAsProducts))

    assert heads(pipeline.AS_WRITTEN) == 1
    assert heads(ASKED) > 1


@pytest.mark.parametrize("name", ["edge_mlp", "graph_net", "gat_concat"])
def test_all_that_a_planner_may_ask_for_keeps_the_meaning(name):
    program = written(CASES[name].fn)
    passes = pipeline.default_passes(ASKED)
    same(program, pipeline.run(program, passes), 1e-3, ["graph", "padding"])
