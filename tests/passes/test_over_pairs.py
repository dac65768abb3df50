"""What `over_pairs` shares, negates and writes twice."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from ir.layers import trace

import gnnjit
from gnnjit.ir.program import Program, Value
from gnnjit.ir.space import Space
from gnnjit.ir.verify import verify
from gnnjit.passes.over_pairs import over_pairs

F = 4


def over(fn: Any) -> Program:
    """The program of a sum of `fn(u, v, w)`, `u` and `v` the features of both ends."""
    kinds = {"u": ((F,), Space.SRC), "v": ((F,), Space.DST), "w": ((F, F), Space.SHARED)}
    inputs = [Value(s, np.dtype("float32"), space, n) for n, (s, space) in kinds.items()]
    found = over_pairs(trace(lambda *a: gnnjit.sum(fn(*a)), inputs), (0, 0, 1))
    assert found is not None
    verify(found[0])
    return found[0]


def count(program: Program, name: str) -> int:
    return sum(e.op.name == name for e in program.equations)


EVEN = {
    "a distance": lambda u, v, w: jnp.exp(jnp.sqrt(jnp.sum((u - v) ** 2))) * jnp.ones(F),
    "a sum of ends": lambda u, v, w: jnp.exp(u + v),
    "of functions of ends": lambda u, v, w: jnp.exp(jnp.sin(u) * jnp.sin(v)),
    "an even power": lambda u, v, w: jnp.exp((u - v) ** 4),
    "a product of odd ones": lambda u, v, w: jnp.exp((u - v) * jnp.tanh(u - v)),
    "a quotient": lambda u, v, w: jnp.exp((u - v) / jnp.sinh(u - v)),
    "a scalar product": lambda u, v, w: jnp.exp(jnp.dot(u - v, (u - v) @ w)) * jnp.ones(F),
    "the larger end": lambda u, v, w: jnp.exp(jnp.maximum(u, v)),
}


@pytest.mark.parametrize("name", EVEN)
def test_even_values_are_shared(name: str) -> None:
    found = over(EVEN[name])
    assert count(found, "exp") == 1
    assert count(found, "add") <= 2


ODD = {
    "a step": lambda u, v, w: (u - v) * jnp.exp(u * v),
    "its parts": lambda u, v, w: jnp.concatenate([(u - v)[::-1][:2], (v - u)[:2]]) * jnp.exp(u * v),
    "an odd power": lambda u, v, w: (u - v) ** 3 * jnp.exp(u * v),
    "an odd function": lambda u, v, w: jnp.tanh((u - v) @ w) * jnp.exp(u * v),
    "a choice": lambda u, v, w: jnp.where(u * v > 0, u - v, 2 * (u - v)) * jnp.exp(u * v),
}


@pytest.mark.parametrize("name", ODD)
def test_the_sum_of_an_odd_value_is_subtracted(name: str) -> None:
    found = over(ODD[name])
    assert count(found, "exp") == 1
    assert [e.op.name for e in found.equations[-4:]] == ["sum", "sum", "at_vertex", "sub"]
    (one, other) = (e.inputs[0] for e in found.equations[-4:-2])
    assert one is other


NEITHER = {
    "one end": lambda u, v, w: jnp.exp(u),
    "an offset": lambda u, v, w: jnp.exp(u - v + 0.5),
    "a mixed sum": lambda u, v, w: jnp.exp((u - v) + u * v),
    "a comparison": lambda u, v, w: jnp.exp(jnp.where(u > v, u * v, 0.0)),
    "a mixed choice": lambda u, v, w: jnp.exp(jnp.where(u * v > 0, u - v, u * v)),
    "a rounded step": lambda u, v, w: jnp.exp(jnp.floor(u - v)),
    "an angle": lambda u, v, w: jnp.exp(jnp.arctan2(u - v, v - u)),
    "an unsigned step": lambda u, v, w: jnp.exp(
        (u.astype(jnp.uint32) - v.astype(jnp.uint32)).astype(jnp.float32)
    ),
    "two matrices": lambda u, v, w: jnp.exp(u @ w + v @ w.T),
}


@pytest.mark.parametrize("name", NEITHER)
def test_all_else_is_computed_for_either_end(name: str) -> None:
    assert count(over(NEITHER[name]), "exp") == 2


def test_one_matrix_at_both_ends_is_even() -> None:
    assert count(over(lambda u, v, w: jnp.exp(u @ w + v @ w)), "exp") == 1


def test_inputs_that_nothing_reads_are_left_out() -> None:
    inputs = [
        Value((F,), np.dtype("float32"), space, name)
        for name, space in [("u", Space.SRC), ("v", Space.DST), ("e", Space.EDGE)]
    ]
    found = over_pairs(trace(lambda u, v, e: gnnjit.sum(u), inputs), (0, 1, 2))
    assert found is not None
    program, slots = found
    assert [(v.space, slot) for v, slot in zip(program.inputs, slots, strict=True)] == [
        (Space.SRC, 0),
        (Space.DST, 0),
    ]
