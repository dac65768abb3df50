"""What is kept with programs."""

from __future__ import annotations

import numpy as np

from gnnjit.ir.program import Literal, Program, Value, remembered
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
