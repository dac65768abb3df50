"""Each rule of the verifier has a program that breaks it; the message names equation and rule."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from gnnjit.errors import VerifyError
from gnnjit.ir.parse import parse
from gnnjit.ir.program import Aggregate, Equation, Lax, Program, Reduce, Value
from gnnjit.ir.space import Space
from gnnjit.ir.verify import verify

from .layers import LAYERS, trace, value


def error(program: Program) -> str:
    with pytest.raises(VerifyError) as caught:
        verify(program)
    return str(caught.value)


@pytest.mark.parametrize("name", LAYERS)
def test_good_programs_pass(name: str) -> None:
    verify(LAYERS[name]())


def test_an_equation_may_sit_above_its_operands() -> None:
    verify(parse("layer f(x: f32[src])\n  a: f32[edge] = x[u] * 2.0\n  return a"))


INPUTS = "x: f32[src, 3], y: f32[dst, 3], z: f32[graph, 3], w: f32[3], k: i32[]"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a: f32[src, 3] = x + y[v]", "can be read together in edge, but it sits in src"),
        ("a: f32[3] = x[u] + w", "can be read together in src, but it sits in shared"),
        ("a: f32[dst, 3] = x[u] + w", "can be read together in src, but it sits in dst"),
        ("a: f32[src, 2] = x + w", "output 0 is f32[src, 2], but add gives f32[src, 3]"),
        ("a: i32[src, 3] = x + w", "output 0 is i32[src, 3], but add gives f32[src, 3]"),
        ("a: f32[src, 3] = x + k", "add does not accept its operands: "),
        ("a: f32[src, 2], b: f32[dst, 1] = split(x, axis=0, sizes=(2, 1))",
         "its outputs lie in 2 spaces; all outputs of split share one"),
        ("a: f32[src, 2] = split(x, axis=0, sizes=(2, 1))", "split has 2 outputs, not 1"),
        ("a: f32[src, 3] = sum over (u -> v) of x[u]",
         "it reduces into dst, but its output lies in src"),
        ("a: f32[edge, 3] = sum over each edge of x[u]",
         "a reduction goes into src, dst or shared, not into edge"),
        ("a: f32[edge, 3] = store(x[u])",
         "store keeps values on the edges, but its operand lies in src"),
        ("a: f32[edge, 3] = store(x[u], y[v])", "store has one operand and one output"),
        ("a: f32[dst, 3] = mean over (u -> v) of x[u]",
         "unknown reduction 'mean'; known are sum, max, min, prod, exp_sum"),
        ("a: f32[dst, 2] = sum over (u -> v) of x[u]",
         "output 0 is f32[dst, 2], but sum gives f32[dst, 3]"),
        ("a: f32[dst] = sum over (u -> v) of exp(x[u] - max x[u]) * 1.0",
         "the shape of the score, f32[src, 3], is no prefix of the value's, f32[]"),
        ("a: i32[dst] = sum over (u -> v) of exp(x[u] - max x[u]) * k",
         "exp_sum takes floating-point numbers, not i32[]"),
        ("a: f32[3] = sum over all edges of exp(w - max w) * w",
         "exp_sum goes into src or dst, not into shared"),
        ("a: f32[graph, 3] = sum over (v in graph) of x",
         "a pool takes values of dst, but operand 0 lies in src"),
        ("a: f32[dst, 3] = sum over (v in graph) of y", "a pool goes into graph, not into dst"),
        ("a: f32[graph, 3] = mean over (v in graph) of y",
         "unknown reduction 'mean' into graphs; known are sum, max, min"),
        ("a: f32[graph, 2] = max over (v in graph) of y",
         "output 0 is f32[graph, 2], but pool gives f32[graph, 3]"),
        ("a: f32[graph, 3] = sum over (v in graph) of y, k, k", "a pool has one operand, or an"),
        ("a: f32[graph, 3] = max over (v in graph) of y, k, k", "its counts are i32[], i32[]"),
        ("a: f32[dst, 3] = y[graph of v]",
         "of_graph goes from graph to src or dst, not from dst to dst"),
        ("a: f32[dst, 2] = z[graph of v]",
         "output 0 is f32[dst, 2], but of_graph gives f32[dst, 3]"),
        ("a: f32[dst, 3] = y[source v]", "at_vertex goes from src to dst, not from dst to dst"),
        ("a: f32[dst, 2] = x[source v]",
         "output 0 is f32[dst, 2], but at_vertex gives f32[dst, 3]"),
        ("a: f32[dst, 3] = y + z[graph]",
         "it reads a value of graphs in dst, where of_graph should have"),
        ("a: f32[graph, 3] = y[v] + z", "can be read together in dst, but it sits in graph"),
        ("a: f32[dst] = degree of v", "output 0 is f32[dst], but degree gives i32[dst]"),
        ("a: i32[edge] = degree of e", "degree is defined in src or dst or graph, not in edge"),
        ("a: i32[dst, 2] = index of v", "output 0 is i32[dst, 2], but index gives i32[dst]"),
    ],
)  # fmt: skip
def test_rules_of_an_equation(line: str, message: str) -> None:
    found = error(parse(f"layer f({INPUTS})\n  {line}    # model.py:12\n  return a"))
    assert found.startswith("f: ")
    assert message in found
    assert found.endswith(f"\n  in: {line}    # model.py:12")


def test_used_before_it_is_defined() -> None:
    good = parse(
        "layer f(x: f32[src])\n  a: f32[src] = exp(x)\n  b: f32[src] = -a  # model.py:2\n  return b"
    )
    first, second = good.equations
    found = error(dataclasses.replace(good, equations=(second, first)))
    assert found == (
        "f: operand 0 (a: f32[src]) is used before it is defined\n"
        "  in: b: f32[src] = -a    # model.py:2"
    )


def test_defined_twice() -> None:
    good = parse("layer f(x: f32[src])\n  a: f32[src] = exp(x)\n  return a")
    found = error(dataclasses.replace(good, equations=good.equations * 2))
    assert "output 0 (a: f32[src]) is already defined\n  in: a: f32[src] = exp(x)" in found


def test_input_listed_twice() -> None:
    x = value("x", Space.SRC)
    assert error(Program((x, x), (), (x,))) == "layer: the input x: f32[src] is listed twice"


def test_output_never_defined() -> None:
    assert "output 0 (y: f32[dst]) is never defined" in error(
        Program((), (), (value("y", Space.DST),))
    )


def test_index_of_the_whole_graph() -> None:
    good = parse("layer f()\n  a: i32[dst] = index of v\n  return a")
    out = Value((), np.dtype(np.int32), Space.SHARED)
    eqn = dataclasses.replace(good.equations[0], outputs=(out,))
    assert "index is defined in src or dst or edge or graph, not in shared" in error(
        Program((), (eqn,), (out,))
    )


def test_an_equation_without_outputs() -> None:
    x = value("x", Space.SRC)
    assert "it has no outputs\n  in: exp(x)" in error(
        Program((x,), (Equation(Lax(jax.lax.exp_p, ()), (x,), ()),), ())
    )


def test_operands_of_a_reduction() -> None:
    x, y = value("x", Space.SRC), value("y", Space.DST)
    eqn = Equation(Reduce("sum", Space.DST), (x, x), (y,))
    assert "a reduction has one operand and one output" in error(Program((x,), (eqn,), (y,)))


def test_operands_of_a_degree() -> None:
    good = parse("layer f(x: i32[dst])\n  a: i32[dst] = degree of v\n  return a")
    eqn = dataclasses.replace(good.equations[0], inputs=good.inputs)
    assert "degree has no operands and one output" in error(
        dataclasses.replace(good, equations=(eqn,))
    )


def test_extended_dtypes_are_not_evaluated() -> None:
    key = jax.random.key(0)
    x = Value((), key.dtype, Space.SHARED, "key")
    verify(trace(lambda k: [jax.random.key_data(k)], [x]))


TRAVERSAL = """layer f(x: f32[src, 3], y: f32[dst, 3])
  for each edge (u -> v) of x[u], y[v]
    a: f32[edge, 3] = x[u] * y[v]
    b: f32[dst, 3] = sum over (u -> v) of a
    c: f32[edge, 3] = on each edge a
  return b, c"""


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("a: f32[edge, 3] =", "a: f32[src, 3] =",
         "its operands can be read together in edge, but it sits in src\n"
         "  in: a: f32[src, 3] = x * y[v]\n"
         "  which is the body of: for each edge (u -> v) of x[u], y[v]"),
        ("b: f32[dst, 3]", "b: f32[src, 3]",
         "output 0: it reduces into dst, but its output lies in src"),
        ("b: f32[dst, 3]", "b: f32[dst]",
         "output 0 is f32[dst], but aggregate gives f32[dst, 3]"),
        ("c: f32[edge, 3]", "c: f32[src, 3]",
         "output 1 has no reduction, so it lies in edge, not in src"),
        ("c: f32[edge, 3]", "c: f32[edge, 2]",
         "output 1 is f32[edge, 2], but aggregate gives f32[edge, 3]"),
        ("a: f32[edge, 3] = x[u] * y[v]", "a: i32[edge] = index of e",
         "its body holds index; only primitives of JAX may stand there"),
    ],
)  # fmt: skip
def test_rules_of_a_traversal(before: str, after: str, message: str) -> None:
    assert before in TRAVERSAL
    assert message in error(parse(TRAVERSAL.replace(before, after)))


def _aggregate(**changes: object) -> Program:
    good = parse(TRAVERSAL)
    eqn = good.equations[0]
    assert isinstance(eqn.op, Aggregate)
    op = dataclasses.replace(eqn.op, **{k: v for k, v in changes.items() if k != "inputs"})
    eqn = dataclasses.replace(eqn, op=op, inputs=changes.get("inputs", eqn.inputs))
    return dataclasses.replace(good, equations=(eqn,))


def test_a_traversal_has_a_reduction_for_each_output() -> None:
    assert "2 body outputs, 1 reductions and 2 outputs should be as many" in error(
        _aggregate(reductions=(None,))
    )


def test_a_traversal_has_the_operands_of_its_body() -> None:
    assert "it has 0 operands, its body 2 inputs" in error(_aggregate(inputs=()))


def test_a_traversal_reads_where_its_body_does() -> None:
    good = parse(TRAVERSAL)
    x, y = good.inputs
    eqn = dataclasses.replace(good.equations[0], inputs=(y, x))
    assert "operand 0 is f32[dst, 3], its body's input is f32[src, 3]" in error(
        dataclasses.replace(good, equations=(eqn,))
    )


SOFTMAX = """layer f(s: f32[src], x: f32[src, 3])
  for each edge (u -> v) of s[u], x[u]
    a: f32[dst] = max over (u -> v) of s[u]
    b: f32[dst, 3] = sum over (u -> v) of exp(s[u] - max s[u]) * x[u]
  return b"""


@pytest.mark.parametrize(
    ("reductions", "message"),
    [
        ([Reduce("max", Space.DST), Reduce("exp_sum", Space.DST, 2)],
         "output 1: its score should be an output with max into dst, not output 2"),
        ([Reduce("max", Space.DST), Reduce("exp_sum", Space.DST)],
         "output 1: its score should be an output with max into dst, not output None"),
        ([Reduce("min", Space.DST), Reduce("exp_sum", Space.DST, 0)],
         "output 1: its score should be an output with max into dst, not output 0"),
        ([Reduce("max", Space.DST), Reduce("sum", Space.DST, 0)], "output 1: sum has no score"),
        ([Reduce("exp_sum", Space.DST, 1), Reduce("max", Space.DST)],
         "output 0: the shape of the score, f32[src, 3], is no prefix of the value's, f32[src]"),
    ],
)  # fmt: skip
def test_the_score_of_a_traversal(reductions: list[Reduce], message: str) -> None:
    good = parse(SOFTMAX)
    eqn = good.equations[0]
    assert isinstance(eqn.op, Aggregate)
    op = dataclasses.replace(eqn.op, reductions=tuple(reductions))
    eqn = dataclasses.replace(eqn, op=op)
    assert message in error(dataclasses.replace(good, equations=(eqn,)))


def test_operands_of_an_exp_sum() -> None:
    x, y = value("x", Space.SRC), value("y", Space.DST)
    one, two = Reduce("exp_sum", Space.DST), Reduce("exp_sum", Space.DST, 0)
    for op, inputs, message in [
        (one, (x,), "exp_sum has two operands, score and value, and one output"),
        (two, (x, x), "a reduction names the number of its score only in a traversal"),
    ]:
        eqn = Equation(op, inputs, (y,))
        assert message in error(Program((x,), (eqn,), (y,)))


def test_a_stored_value_keeps_its_type() -> None:
    text = "layer f(x: f32[edge, 3])\n  a: f32[edge, 2] = store(x)\n  return a"
    assert "output 0 is f32[edge, 2], but store gives f32[edge, 3]" in error(parse(text))
    message = "store keeps values on the edges, but its output lies in dst"
    assert message in error(parse(text.replace("edge, 2", "dst, 3")))


def test_what_was_sound_is_looked_at_where_it_stands() -> None:
    """An equation that kept the rules in one program may come before its operands in another."""
    program = parse("layer f(x: f32[src])\n  a: f32[edge] = x[u] * 2.0\n  return a")
    verify(program)
    verify(program)
    without = Program((), program.equations, program.outputs)
    assert "operand 0" in error(without)
    twice = dataclasses.replace(program, equations=program.equations * 2)
    assert "already defined" in error(twice)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("fold over (u -> v) of x[u]", "  a: f32[edge] = s[v] + x[u]",
          "  b: f32[dst] = s from x to a"), "what it starts from cannot be read in dst"),
        (("fold over (u -> v) of x[u]", "  a: f32[edge] = s[v] + x[u]",
          "  b: f32[dst] = s from r to a"), "its state has another type at its start"),
        (("select over (u -> v) of x[u], n", "  b: i32[dst] = number n at rank r of x"),
         "output 0 is i32[dst], but select gives i32[dst, 2]"),
        (("select over (u -> v) of x[u], n", "  a: f32[dst] = sum over (u -> v) of x[u]",
          "  b: i32[dst, 2] = number n at rank r of x"), "its body holds sum; only primitives"),
    ],
)  # fmt: skip
def test_rules_of_selections_and_folds(lines: tuple[str, ...], message: str) -> None:
    text = "\n  ".join(lines)
    head = "layer f(x: f32[src], y: f32[dst], r: i32[dst, 2], n: i32[edge])"
    assert message in error(parse(f"{head}\n  {text}\n  return b"))
