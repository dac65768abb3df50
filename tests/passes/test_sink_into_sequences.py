"""`sink-into-sequences`: selections and folds compute what they read of an edge."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit.frontend.capture import capture
from gnnjit.frontend.vocabulary import layer_scope
from gnnjit.ir.interpret import Incidence, interpret
from gnnjit.ir.program import Program, Store, Value
from gnnjit.ir.show import show
from gnnjit.ir.space import Space
from gnnjit.ir.verify import verify
from gnnjit.passes.place_in_smallest_space import PlaceInSmallestSpace
from gnnjit.passes.sink_into_sequences import SinkIntoSequences

F32 = np.dtype(np.float32)
INPUTS = (Value((), F32, Space.SRC, "x"), Value((), F32, Space.DST, "y"))
GRAPH = Incidence(jnp.array([0, 0, 1, 2, 1]), jnp.array([0, 0, 1, 3, 3]), 4, 5)


def written(fn: Callable[..., Any]) -> Program:
    def flat(*xs: Any) -> list[Any]:
        with layer_scope():
            return [fn(*xs)]

    return capture(flat, INPUTS, name="f", edge_values=True).program


def folded(x: Any, y: Any) -> Any:
    return gnnjit.fold(lambda s, z: s + z * y, jnp.float32(0), x * y, order=x - y)


def ranked(x: Any, y: Any) -> Any:
    return gnnjit.argmax(x * y)


def text(program: Program) -> str:
    return show(program, locations=False)


def test_a_fold() -> None:
    assert text(SinkIntoSequences()(written(folded))) == textwrap.dedent("""\
        layer f(x: f32[src], y: f32[dst])
          a: f32[edge] = x[u] * y[v]
          b: f32[edge] = x[u] - y[v]
          c: f32[edge] = store(b)
          fold over (u -> v) in order of c, of x[u], y[v]
            f: f32[edge] = x[u] * y[v]
            g: f32[edge] = f * y[v]
            h: f32[edge] = d[v] + g
            i: f32[dst] = d from 0.0 to h
          return i""")


def test_a_selection() -> None:
    after = text(SinkIntoSequences()(written(ranked)))
    assert "select over (u -> v) of x[u], y[v], " in after
    assert ", largest first" in after


@pytest.mark.parametrize("fn", [folded, ranked])
def test_it_keeps_the_meaning(fn: Callable[..., Any]) -> None:
    before = written(fn)
    args = [jnp.arange(4.0) - 1.5, jnp.arange(5.0) - 2]
    (want,) = interpret(before, GRAPH, args)
    for step in (SinkIntoSequences(), PlaceInSmallestSpace()):
        after = step(before)
        verify(after)
        verify(SinkIntoSequences()(after))
        np.testing.assert_allclose(interpret(after, GRAPH, args)[0], want)


def test_it_refuses_where_there_are_none_and_what_is_stored() -> None:
    plain = written(lambda x, y: gnnjit.sum(x * y))
    assert SinkIntoSequences()(plain) is plain
    before = written(folded)
    after = SinkIntoSequences()(before)
    assert SinkIntoSequences()(after).is_made_of(after)
    (order,) = [e.outputs[0] for e in after.equations if isinstance(e.op, Store)]
    assert after.equations[-1].inputs[0] is order
