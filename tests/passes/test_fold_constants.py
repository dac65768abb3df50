"""`fold-constants` fires on identities and literals, refuses what could change a bit."""

import itertools

import jax
import numpy as np
import pytest
from jax import lax

from gnnjit.ir import build, evaluate
from gnnjit.ir.program import Literal
from gnnjit.passes.fold_constants import FoldConstants

from .golden import fires, refuses


@pytest.mark.parametrize("op", ["x * 1.0", "1.0 * x", "x / 1.0", "x - 0.0"])
def test_fires_on_identities(op):
    fires(FoldConstants(), f"""\
        layer f(x: f32[src, 2])
          a: f32[src, 2] = {op}
          b: f32[dst, 2] = sum over (u -> v) of a[u]
          return b
        """, """\
        layer f(x: f32[src, 2])
          a: f32[dst, 2] = sum over (u -> v) of x[u]
          return a
        """)  # fmt: skip


@pytest.mark.parametrize("op", ["x * o", "o * x", "x / o"])
def test_fires_on_an_array_of_ones(op):
    fires(FoldConstants(), f"""\
        layer f(x: f32[src, 2])
          o: f32[2] = broadcast_in_dim(1.0, broadcast_dimensions=(), shape=(2,))
          a: f32[src, 2] = {op}
          b: f32[dst, 2] = sum over (u -> v) of a[u]
          return b
        """, """\
        layer f(x: f32[src, 2])
          o: f32[2] = broadcast_in_dim(1.0, broadcast_dimensions=(), shape=(2,))
          a: f32[dst, 2] = sum over (u -> v) of x[u]
          return a
        """)  # fmt: skip


def test_fires_on_two_negations():
    fires(FoldConstants(), """\
        layer f(x: f32[dst, 2])
          a: f32[dst, 2] = -x
          b: f32[dst, 2] = -a
          return b
        """, """\
        layer f(x: f32[dst, 2])
          a: f32[dst, 2] = -x
          return x
        """)  # fmt: skip


def test_fires_on_literals():
    fires(FoldConstants(), """\
        layer f(x: f32[dst, 2])
          a: f32[] = 2.0 * 3.0
          b: f32[dst, 2] = x * a
          return b
        """, """\
        layer f(x: f32[dst, 2])
          a: f32[dst, 2] = x * 6.0
          return a
        """)  # fmt: skip


@pytest.mark.parametrize(
    "op", ["x + 0.0", "x - -0.0", "0.0 - x", "x * 0.0", "0.0 / x", "x - x", "1.0 / x"]
)
def test_refuses_what_could_change_a_bit(op):
    refuses(
        FoldConstants(),
        f"""\
        layer f(x: f32[dst, 2])
          a: f32[dst, 2] = {op}
          return a
        """,
    )


def test_refuses_an_identity_that_spreads_a_value():
    refuses(
        FoldConstants(),
        """\
        layer f(x: f32[dst])
          a: f32[edge] = x[v] * 1.0
          return a
        """,
    )


WHOLE = [np.bool_(True), np.int32(0), np.int32(-3), np.int32(2**24 + 1), np.uint8(200)]
DTYPES = ["bool", "int8", "int32", "uint32", "float16", "float32"]


@pytest.mark.parametrize(("number", "dtype"), list(itertools.product(WHOLE, DTYPES)))
def test_whole_numbers_become_what_jax_makes_of_them(number, dtype):
    """Also where they do not fit."""
    found = evaluate.folded(build.convert_op(dtype), [Literal(number, number.dtype)])
    wanted = np.asarray(lax.convert_element_type(jax.numpy.asarray(number), dtype))
    assert (found.dtype, found.tobytes()) == (wanted.dtype, wanted.tobytes())


def test_whole_numbers_need_no_compiler(monkeypatch):
    monkeypatch.setattr(evaluate, "bind", None)
    found = evaluate.folded(build.convert_op("float32"), [Literal(np.int32(77), np.dtype("int32"))])
    assert found == 77.0
