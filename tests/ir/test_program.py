"""Parts of programs, and what is kept with them."""

from __future__ import annotations

import numpy as np
import pytest

from gnnjit.ir.parse import parse
from gnnjit.ir.program import Aggregate, Literal, Program, Value, remembered
from gnnjit.ir.space import Space


def program() -> Program:
    x = Value((3,), np.dtype(np.float32), Space.DST)
    return Program((x,), (), (x,))


def test_what_is_remembered_belongs_to_the_very_program():
    asked: list[Program] = []

    @remembered
    def first_input(of: Program) -> Value:
        asked.append(of)
        return of.inputs[0]

    one, other = program(), program()
    assert one == other
    assert [first_input(p) for p in (one, other, one)] == [p.inputs[0] for p in (one, other, one)]
    assert list(map(id, asked)) == [id(one), id(other)]


def test_each_function_remembers_its_own():
    one = program()
    assert remembered(lambda p: len(p.inputs))(one) == 1
    assert remembered(lambda p: p.name)(one) == "layer"


def test_literals_are_told_apart_by_bits_and_dtype():
    single, double = np.dtype(np.float32), np.dtype(np.float64)
    one, zero, double_one = Literal(1.0, single), Literal(-0.0, single), Literal(1, double)
    assert len({a.key for a in (one, zero, Literal(0.0, single), double_one)}) == 4
    assert Literal(1, single).key == one.key  # the same number, however it is held


def test_a_literal_out_of_range_has_a_key():
    assert Literal(-1, np.dtype(np.uint32)).key == Literal(2**32 - 1, np.dtype(np.uint32)).key


MOMENTS = """\
layer f(x: f32[src, 2], y: f32[dst, 2], z: f32[edge, 2])
  for each edge (u -> v) of x[u], y[v], z
    a: f32[edge, 2] = exp(z)
    b: f32[edge, 2] = x[u] * y[v]
    c: f32[edge, 2] = on each edge a
    d: f32[dst, 2] = max over (u -> v) of b
    f: f32[dst, 2] = sum over (u -> v) of exp(b - max b) * z
    g: f32[dst, 2] = sum over (u -> v) of x[u]
  return c, d, f, g"""


@pytest.mark.parametrize(
    ("wanted", "outputs", "inputs", "equations"),
    [
        ([0], (0,), (2,), ["exp"]),
        ([2], (1, 2), (0, 1, 2), ["mul"]),
        ([3, 1], (1, 3), (0, 1), ["mul"]),
        ([], (), (), []),
    ],
    ids=["edges", "score", "order", "nothing"],
)
def test_a_part_of_an_aggregate(
    wanted: list[int], outputs: tuple[int, ...], inputs: tuple[int, ...], equations: list[str]
) -> None:
    (eqn,) = parse(MOMENTS).equations
    assert isinstance(eqn.op, Aggregate)
    part = eqn.op.select(wanted)
    assert (part.outputs, part.inputs) == (outputs, inputs)
    assert [e.op.name for e in part.op.body.equations] == equations
    assert part.op.body.inputs == tuple(eqn.op.body.inputs[i] for i in inputs)
    assert part.op.body.outputs == tuple(eqn.op.body.outputs[i] for i in outputs)
    scores = [(r.kind, r.score) for r in part.op.reductions if r is not None]
    assert scores == {
        (0,): [], (1, 2): [("max", None), ("exp_sum", 0)],
        (1, 3): [("max", None), ("sum", None)], (): [],
    }[outputs]  # fmt: skip
